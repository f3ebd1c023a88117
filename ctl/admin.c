/* SPDX-License-Identifier: Apache-2.0 */
/* admin.c - titanctl admin: backs up, restores and verifies the job store; finds what nodes lack. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/lock.h"
#include "base/toml.h"
#include "base/vec.h"
#include "ctl/client.h"
#include "ctl/command.h"
#include "ctl/output.h"
#include "ctl/signed_backup.h"
#include "state/backup.h"

#define HEADS_FILE_MAX ((size_t)256 << 20)

static void print_line(const char *line, void *data)
{
    (void)data;
    (void)fprintf(stderr, "titanctl: %s\n", line);
}

/* --- backup ------------------------------------------------------------------------------------------------------- */

struct receiving {
    int fd;
    uint64_t bytes, total;
    const char *path;
    struct buf signature; /* empty = not yet received */
    struct titan_error err;
};

static bool each_chunk(const ProtobufCMessage *message, void *data)
{
    struct receiving *r = data;
    titan_assert(r->fd >= 0);
    const Titan__V1__BackupChunk *chunk = (const Titan__V1__BackupChunk *)message;
    const uint8_t *at = chunk->data.data;
    size_t left = chunk->data.len;
    r->total = chunk->total_bytes;
    if (chunk->signature[0]) {
        buf_clear(&r->signature);
        buf_puts(&r->signature, chunk->signature);
    }
    while (left > 0) {
        ssize_t n = write(r->fd, at, left);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            titan_fail_errno(&r->err, "'%s'", r->path);
            return false;
        }
        at += n;
        left -= (size_t)n;
    }
    r->bytes += chunk->data.len;
    return true;
}

/* Receives a whole backup, which has to match the server's signature. Servers of older versions send no signature. */
static titan_status receive(struct ctl *ctl, struct receiving *r, struct signature *ret, struct titan_error *err)
{
    titan_assert(r->fd >= 0 && r->bytes == 0);
    Titan__V1__BackupRequest request = TITAN__V1__BACKUP_REQUEST__INIT;
    struct signature is;
    *ret = (struct signature){.at = ""};
    titan_status status = ctl_stream(ctl,
                                     &(struct stream_call){TITAN_METHOD("Backup"), &request.base,
                                                           &titan__v1__backup_chunk__descriptor, each_chunk, r},
                                     err);
    if (r->err.status != TITAN_OK) {
        *err = r->err;
        return err->status;
    }
    TRY(status);
    if (r->bytes == 0 || r->bytes != r->total)
        return titan_fail(err, TITAN_EIO, "the server sent %llu bytes of %llu", (unsigned long long)r->bytes,
                          (unsigned long long)r->total);
    if (fsync(r->fd) != 0)
        return titan_fail_errno(err, "'%s'", r->path);
    if (r->signature.len == 0) {
        (void)fprintf(stderr, "titanctl: the server is of an older Titan, which signs no backups: restart it\n");
        return TITAN_OK;
    }
    TRY(signature_read(r->signature.data, r->signature.len, ret, err));
    if (lseek(r->fd, 0, SEEK_SET) != 0)
        return titan_fail_errno(err, "'%s'", r->path);
    TRY(signature_digest(r->fd, &is, err));
    if (is.size != ret->size || memcmp(is.digest, ret->digest, sizeof(is.digest)) != 0)
        return titan_fail(err, TITAN_EIO, "'%s' is not what the server has signed", r->path);
    return TITAN_OK;
}

/* s: NULL = the file is a store, not a backup. */
static void print_report(struct ctl *ctl, const char *path, const struct backup_report *r, const struct signature *s)
{
    char head[EVENT_HEAD_TEXT];
    event_head_write(&r->head, head);
    if (!ctl->json) {
        (void)printf("%s: sound; %lld jobs, %llu events%s, term %lld, head %s", path, (long long)r->jobs,
                     (unsigned long long)r->chained, r->replay.changes ? ", every row follows from them" : "",
                     (long long)r->term, head);
        if (r->heads)
            (void)printf("; %llu heads written down before are in its log", (unsigned long long)r->heads);
        if (r->replay.unknown && r->replay.facts_from)
            (void)printf("; owners and rights of %llu rows are not known, from before event %llu",
                         (unsigned long long)r->replay.unknown, (unsigned long long)r->replay.facts_from);
        else if (r->replay.unknown)
            (void)printf("; owners and rights of %llu rows are not known, of an older Titan",
                         (unsigned long long)r->replay.unknown);
        if (s && s->at[0])
            (void)printf("; signed at %s with the key %s", s->at, s->key_id);
        (void)printf("%s\n", s && !s->at[0] ? "; not signed" : "");
        return;
    }
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    struct json_writer w = {.out = &text, .pretty = true};
    json_begin_object(&w, NULL);
    json_put_string(&w, "path", path);
    json_put_int(&w, "schema", r->schema);
    json_put_int(&w, "jobs", r->jobs);
    json_put_uint(&w, "events", r->chained);
    json_put_int(&w, "last_event", r->last_event);
    json_put_int(&w, "term", r->term);
    json_put_uint(&w, "replayed", r->replay.changes);
    json_put_uint(&w, "not_known", r->replay.unknown);
    json_put_uint(&w, "heads_found", r->heads);
    json_put_string(&w, "head", head);
    if (s)
        json_put_string(&w, "signed_at", s->at[0] ? s->at : NULL);
    if (s && s->at[0])
        json_put_string(&w, "key", s->key_id);
    json_end_object(&w);
    (void)output_line(&text);
}

/* Puts the signature in place before the backup, so that no backup lacks its signature. */
static titan_status put_in_place(struct receiving *r, int at, const char *part, const char *name,
                                 struct titan_error *err)
{
    titan_assert(r->bytes > 0 && *name);
    char beside[PATH_MAX];
    struct stat own, there;
    if (fstat(r->fd, &own) != 0 || fstatat(at, part, &there, AT_SYMLINK_NOFOLLOW) != 0 || own.st_ino != there.st_ino ||
        own.st_dev != there.st_dev)
        return titan_fail(err, TITAN_EIO, "'%s' was exchanged while it was checked", r->path);
    if (snprintf(beside, sizeof(beside), "%s" SIGNED_SUFFIX, name) >= (int)sizeof(beside))
        return titan_fail(err, TITAN_EINVAL, "'%s': path is too long", name);
    if (r->signature.len)
        TRY(file_replace_at(at, beside, r->signature.data, r->signature.len, err));
    else if (unlinkat(at, beside, 0) != 0 && errno != ENOENT)
        return titan_fail_errno(err, "'%s'", beside);
    if (renameat(at, part, at, name) != 0 || (fsync(at) != 0 && errno != EINVAL))
        return titan_fail_errno(err, "'%s'", name);
    return TITAN_OK;
}

/* Writes under another name until the file is whole, durable and verified. at: the open folder of path. Another user
 * may put links into the folder, so files are written and renamed through descriptors. */
static titan_status run_backup(struct ctl *ctl, int at, const char *path, struct titan_error *err)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    char part[PATH_MAX], part_path[PATH_MAX + PATH_MAX];
    struct backup_report report;
    struct signature s;
    struct stat there;
    if (fstatat(at, name, &there, AT_SYMLINK_NOFOLLOW) == 0)
        return titan_fail(err, TITAN_EEXIST, "'%s' is there already", path);
    _cleanup_fd_ int fd = -1;
    TRY(file_make_temporary(at, name, 0600, part, &fd, err));
    (void)snprintf(part_path, sizeof(part_path), "%.*s%s", (int)(name - path), path, part);
    struct receiving r = {.fd = fd, .path = part_path};
    titan_status status = receive(ctl, &r, &s, err);
    if (status == TITAN_OK)
        status = backup_verify(part_path, &(struct backup_checks){.print = print_line}, &report, err);
    if (status == TITAN_OK)
        status = put_in_place(&r, at, part, name, err);
    buf_free(&r.signature);
    if (status != TITAN_OK) {
        (void)unlinkat(at, part, 0);
        return status;
    }
    print_report(ctl, path, &report, &s);
    return TITAN_OK;
}

/* Does the entry have a backup's name, as "titan-20261123T021500Z.db"? Sorted by name, backups are sorted by time. */
static int is_backup(const struct dirent *e)
{
    size_t len = strlen(e->d_name);
    return !strncmp(e->d_name, "titan-", 6) && len > 9 && !strcmp(e->d_name + len - 3, ".db");
}

/* keep: 0 = path is the backup's file. Otherwise path is a folder that keeps so many backups. */
static titan_status run_backups(struct ctl *ctl, const char *path, int64_t keep, struct titan_error *err)
{
    char file[PATH_MAX], stamp[32], beside[NAME_MAX + sizeof(SIGNED_SUFFIX)];
    struct dirent **found = NULL;
    struct tm tm;
    if (strlen(path) >= sizeof(file))
        return titan_fail(err, TITAN_EINVAL, "'%s': path is too long", path);
    file_parent(path, file);
    _cleanup_fd_ int at = open(keep ? path : file, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (at < 0)
        return titan_fail_errno(err, "'%s'", path);
    if (!keep)
        return run_backup(ctl, at, path, err);

    /* Adds a backup to the folder, named after the time; then deletes the oldest backups until `keep` are left. */
    time_t now = (time_t)(clock_wall_ms() / 1000);
    (void)strftime(stamp, sizeof(stamp), "%Y%m%dT%H%M%SZ", gmtime_r(&now, &tm));
    if (snprintf(file, sizeof(file), "%s/titan-%s.db", path, stamp) >= (int)sizeof(file))
        return titan_fail(err, TITAN_EINVAL, "'%s': path is too long", path);
    TRY(run_backup(ctl, at, file, err));
    int n = scandirat(at, ".", &found, is_backup, alphasort);
    titan_status status = n < 0 ? titan_fail_errno(err, "'%s'", path) : TITAN_OK;
    for (int i = 0; i < n; i++) {
        const char *name = found[i]->d_name;
        (void)snprintf(beside, sizeof(beside), "%.*s" SIGNED_SUFFIX, NAME_MAX, name);
        if (i < n - keep && status == TITAN_OK &&
            (unlinkat(at, name, 0) != 0 || (unlinkat(at, beside, 0) != 0 && errno != ENOENT)))
            status = titan_fail_errno(err, "'%s'", name);
        free(found[i]);
    }
    free(found);
    return status;
}

/* --- folders ------------------------------------------------------------------------------------------------------ */

/* Creates a missing folder if its parent exists; an existing one stays as it is. The parent's owner may meanwhile put
 * another folder in the new folder's place, so only a folder just made changes its owner. */
static titan_status make_folder(const char *path, mode_t mode, struct titan_error *err)
{
    struct passwd *user = getpwnam("titan");
    char parent[PATH_MAX];
    struct stat st;
    if (stat(path, &st) == 0)
        return TITAN_OK;
    if (strlen(path) >= sizeof(parent))
        return titan_fail(err, TITAN_EINVAL, "'%s': path is too long", path);
    file_parent(path, parent);
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    _cleanup_fd_ int at = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (at < 0 || mkdirat(at, name, 0700) != 0)
        return titan_fail_errno(err, "cannot make '%s'", path);
    _cleanup_fd_ int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) != 0)
        return titan_fail_errno(err, "cannot open '%s'", path);
    if (st.st_uid != geteuid() || st.st_nlink > 2)
        return titan_fail(err, TITAN_EPERM, "'%s' was exchanged for another folder", path);
    if ((user && fchown(fd, user->pw_uid, user->pw_gid) != 0) || fchmod(fd, mode) != 0)
        return titan_fail_errno(err, "cannot give '%s' to the user titan", path);
    (void)printf("made %s\n", path);
    return TITAN_OK;
}

/* --- verify, restore ---------------------------------------------------------------------------------------------- */

/* If `given` is a state directory, its store is verified. A file is a backup, whose signature is checked, too. */
static titan_status run_verify(struct ctl *ctl, const struct args *args, const char *given, struct titan_error *err)
{
    char path[PATH_MAX];
    struct stat st;
    struct backup_report report;
    struct signature s;
    _cleanup_free_ struct event_head *heads = NULL;
    _cleanup_(signed_free) struct signed_backup b = {.path = path};
    const bool dir = stat(given, &st) == 0 && S_ISDIR(st.st_mode);
    struct backup_checks checks = {.rederive = args_has(args, "rederive"), .of_its_time = !dir, .print = print_line};
    const char *head = args_text(args, "head", NULL);
    if (snprintf(path, sizeof(path), "%s%s", given, dir ? "/titan.db" : "") >= (int)sizeof(path))
        return titan_fail(err, TITAN_EINVAL, "'%s': path is too long", given);
    if (!dir) {
        _cleanup_fd_ int fd = -1;
        TRY(file_open_regular(AT_FDCWD, path, 0, &fd, err));
        TRY(signed_load(args, path, &b, err));
        TRY(signed_check(&b, fd, &s, err));
    }

    /* --head is N:HASH, or a file with such texts: at the start of a line, or after head= as in the daemon's log. */
    const char *end = NULL;
    struct event_head one;
    size_t cap = 0;
    if (head && event_head_read(head, &one, &end) && !*end) {
        VEC_MUST_PUSH(heads, checks.n_heads, cap, one);
    } else if (head) {
        _cleanup_(buf_free) struct buf text = BUF_INIT;
        TRY(file_read(head, HEADS_FILE_MAX, &text, err));
        buf_put(&text, "", 1);
        if (buf_failed(&text))
            return titan_fail(err, TITAN_ENOMEM, "out of memory");
        char *rest = NULL;
        for (char *line = strtok_r(text.data, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
            const char *named = strstr(line, "head=");
            if (event_head_read(named ? named + strlen("head=") : line, &one, NULL))
                VEC_MUST_PUSH(heads, checks.n_heads, cap, one);
        }
        if (!checks.n_heads)
            return titan_fail(err, TITAN_EINVAL, "--head: no line of '%s' has a head, N:HASH", head);
    }
    checks.heads = heads;
    TRY(backup_verify(path, &checks, &report, err));
    print_report(ctl, path, &report, dir ? NULL : &s);
    return TITAN_OK;
}

/* Copies an open file into a new file in the directory, and sets `name` to the new file's name. */
static titan_status take_in(int from, int at, char name[PATH_MAX], int *ret_fd, struct titan_error *err)
{
    titan_assert(from >= 0 && at >= 0);
    char bytes[1 << 16];
    _cleanup_fd_ int fd = -1;
    TRY(file_make_temporary(at, "restore", 0600, name, &fd, err));
    for (ssize_t n; (n = read(from, bytes, sizeof(bytes))) != 0;)
        if (n < 0 || file_write_all(fd, bytes, (size_t)n) != TITAN_OK)
            return titan_fail_errno(err, "copying the backup");
    if (lseek(fd, 0, SEEK_SET) != 0)
        return titan_fail_errno(err, "copying the backup");
    *ret_fd = TAKE_FD(fd);
    return TITAN_OK;
}

static titan_status run_restore(struct ctl *ctl, const struct args *args, const char *backup, struct titan_error *err)
{
    const char *dir = args_text(args, "state-dir", NULL);
    char wal[PATH_MAX + 8];
    struct stat st;
    struct restore_report report;
    int64_t above;
    _cleanup_fd_ int at = -1, from = -1;
    _cleanup_(signed_free) struct signed_backup b = {.path = backup};
    TRY(args_int(args, "above", (struct int_range){0, INT64_MAX / 2}, 0, &above, err));
    if (!dir) {
        titan_fail(err, TITAN_EINVAL, "admin restore: --state-dir DIR is missing");
        titan_error_hint(err,
                         "the directory of the titand that is to run on it: /var/lib/titan-coordinator under systemd");
        return TITAN_EINVAL;
    }
    TRY(file_open_regular(AT_FDCWD, backup, 0, &from, err)); /* opens the backup before the directory is created */
    (void)snprintf(wal, sizeof(wal), "%s-wal", backup);
    if (access(wal, F_OK) == 0) {
        titan_fail(err, TITAN_EINVAL, "'%s' is a store in use, not a backup: '%s' is beside it", backup, wal);
        titan_error_hint(err, "titanctl admin backup makes one");
        return TITAN_EINVAL;
    }
    TRY(signed_load(args, backup, &b, err));

    /* A missing state directory is created for the coordinator's packaged user. */
    if (stat(dir, &st) != 0 && errno == ENOENT && geteuid() == 0 && getpwnam("titan"))
        TRY(make_folder(dir, 0700, err));
    at = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (at < 0)
        return titan_fail_errno(err, "'%s'", dir);
    (void)umask(077);
    if (fstat(at, &st) != 0)
        return titan_fail_errno(err, "'%s'", dir);
    /* Drops root's rights permanently, because the directory's owner may put links into the directory at any time. */
    if (geteuid() == 0 && st.st_uid != 0 &&
        (setgroups(0, NULL) != 0 || setresgid(st.st_gid, st.st_gid, st.st_gid) != 0 ||
         setresuid(st.st_uid, st.st_uid, st.st_uid) != 0))
        return titan_fail_errno(err, "cannot become the owner of '%s'", dir);

    /* Verifies and restores a copy of the backup: the backup may be readable for root alone, and others may write to
     * its folder and exchange it meanwhile. */
    char copy[PATH_MAX] = "", path[PATH_MAX];
    struct signature s;
    _cleanup_fd_ int copied = -1, lock = -1;
    titan_status status = take_in(from, at, copy, &copied, err);
    if (status == TITAN_OK)
        status = signed_check(&b, copied, &s, err);
    if (status == TITAN_OK && snprintf(path, sizeof(path), "%s/%s", dir, copy) >= (int)sizeof(path))
        status = titan_fail(err, TITAN_EINVAL, "'%s': path is too long", dir);
    const bool locked_before = faccessat(at, "lock", F_OK, AT_SYMLINK_NOFOLLOW) == 0;
    if (status == TITAN_OK)
        status = lock_dir(dir, &lock, err);
    if (status == TITAN_OK)
        status = backup_restore(path, dir, (uint64_t)above, clock_wall_ms(), &report, err);
    if (status != TITAN_OK && lock >= 0 && !locked_before)
        (void)unlinkat(at, "lock", 0);
    if (copy[0])
        (void)unlinkat(at, copy, 0);
    TRY(status);

    const struct restore_report *done = &report;
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    struct json_writer w = {.out = &text, .pretty = true};
    if (ctl->json) {
        json_begin_object(&w, NULL);
        json_put_int(&w, "term", done->term);
        json_put_int(&w, "jobs", done->backup.jobs);
        json_put_int(&w, "next_job", done->next_job);
        json_put_string(&w, "aside", *done->aside ? done->aside : NULL);
        json_end_object(&w);
    } else {
        buf_printf(&text, "restored: %lld jobs, term %lld, the next job is %lld%s%s", (long long)done->backup.jobs,
                   (long long)done->term, (long long)done->next_job, *done->aside ? "; the old store is " : "",
                   done->aside);
    }
    (void)output_line(&text);
    return TITAN_OK;
}

/* --- check -------------------------------------------------------------------------------------------------------- */

/* A fault gives exit code 7, as for a job that finds no usable place. */
static titan_status run_check(struct ctl *ctl, const struct args *args, struct titan_error *err)
{
    Titan__V1__CheckNodesRequest request = TITAN__V1__CHECK_NODES_REQUEST__INIT;
    _cleanup_message_ Titan__V1__CheckNodesResponse *reply = NULL;
    TRY(ctl_call(ctl, TITAN_METHOD("CheckNodes"), &request.base, &titan__v1__check_nodes_response__descriptor, &reply,
                 err));
    struct table_out table;
    size_t wrong = 0, nodes = 0;
    table_begin(&table, (const char *const[]){"NODE", "WHAT", "", "FOUND~", NULL});
    for (size_t i = 0; i < reply->n_nodes; i++) {
        nodes += reply->nodes[i]->node[0] != '('; /* the coordinator's own row */
        for (size_t k = 0; k < reply->nodes[i]->n_findings; k++) {
            const Titan__V1__Finding *f = reply->nodes[i]->findings[k];
            table_cell(&table, "%s", reply->nodes[i]->node);
            table_cell(&table, "%s", f->what);
            table_cell(&table, "%s", f->wrong ? "WRONG" : "ok");
            table_cell(&table, "%s", f->text);
            wrong += f->wrong;
        }
    }
    if (ctl->json)
        (void)output_json(&reply->base, true);
    else
        table_print(&table, args, -1, false);
    buf_free(&table.cells);
    if (nodes == 0) {
        (void)titan_fail(err, TITAN_EUNPLACEABLE, "there are no nodes");
        titan_error_hint(err, "systemctl enable --now titand, on each of them");
        return TITAN_EUNPLACEABLE;
    }
    return wrong ? titan_fail(err, TITAN_EUNPLACEABLE, "%zu thing%s would not work", wrong, wrong == 1 ? "" : "s")
                 : TITAN_OK;
}

static const struct toml_value *key_of(const struct toml_value *root, const char *section, const char *key)
{
    const struct toml_value *table = toml_get(root, section);
    return table && table->type == TOML_TABLE ? toml_get(table, key) : NULL;
}

/* Gives the unit write access to the configured folders, and lets it start only after they are mounted. */
static titan_status fix_unit(const char *unit, const char *config, bool *ret_changed, struct titan_error *err)
{
    char dir[128], path[160];
    _cleanup_(buf_free) struct buf paths = BUF_INIT, text = BUF_INIT, have = BUF_INIT;
    if (access(config, F_OK) != 0)
        return TITAN_OK; /* the configuration is of another machine */

    /* Lists the folders that a configuration file lets its daemon write to, besides its state. A line has the mode of a
     * folder to create, and its path. */
    _cleanup_(buf_free) struct buf toml = BUF_INIT;
    struct toml_value *root = NULL;
    TRY(file_read(config, 256 << 10, &toml, err));
    titan_status status = toml_parse(toml.data ? toml.data : "", toml.len, config, &root, err);
    const struct toml_value *storage = status == TITAN_OK ? toml_get(root, "storage") : NULL;
    const struct toml_value *spawnd = status == TITAN_OK ? key_of(root, "agent", "spawnd") : NULL;
    const struct toml_value *as_users = status == TITAN_OK ? key_of(root, "coordinator", "jobs_as_users") : NULL;
    /* Do jobs run as their users? Then users must reach the folders of jobs and create checkpoint folders. */
    const bool users = (spawnd && spawnd->type == TOML_STRING && spawnd->string[0]) ||
                       (as_users && as_users->type == TOML_BOOL && as_users->boolean);
    const struct {
        const char *name;
        unsigned mode;
    } keys[] = {{"jobs_dir", users ? 0711 : 0750}, {"checkpoint_roots", users ? 01777 : 0750}};
    for (size_t i = 0; storage && storage->type == TOML_TABLE && i < ARRAY_SIZE(keys); i++) {
        const struct toml_value *v = toml_get(storage, keys[i].name);
        for (const struct toml_value *at = v && v->type == TOML_ARRAY ? v->first : v; at && status == TITAN_OK;
             at = v->type == TOML_ARRAY ? at->next : NULL) {
            if (at->type != TOML_STRING || at->string[0] != '/' || strpbrk(at->string, " \t\n\"\\%"))
                status = titan_fail(err, TITAN_EINVAL, "%s:%d: storage.%s: not an absolute path without blanks", config,
                                    at->line, keys[i].name);
            else
                buf_printf(&paths, "%o %s\n", keys[i].mode, at->string);
        }
    }
    toml_free(root);
    TRY(status);

    buf_printf(&text, "# Written by titanctl admin check --fix from %s.\n", config);
    char *rest = NULL;
    for (char *line = paths.data ? strtok_r(paths.data, "\n", &rest) : NULL; line; line = strtok_r(NULL, "\n", &rest)) {
        char *folder = NULL;
        const mode_t mode = (mode_t)strtoul(line, &folder, 8);
        TRY(make_folder(++folder, mode, err));
        buf_printf(&text, "[Unit]\nRequiresMountsFor=%s\n[Service]\nReadWritePaths=-%s\n", folder, folder);
    }
    (void)snprintf(dir, sizeof(dir), "/etc/systemd/system/%s.d", unit);
    (void)snprintf(path, sizeof(path), "%s/titan-paths.conf", dir);
    if (paths.len == 0) {
        *ret_changed |= unlink(path) == 0;
        return TITAN_OK;
    }
    if (file_read(path, 64 << 10, &have, NULL) == TITAN_OK && have.len == text.len &&
        !memcmp(have.data, text.data, text.len))
        return TITAN_OK;
    TRY(dir_make(dir, err));
    TRY(file_replace(path, text.data, text.len, err));
    (void)printf("wrote %s\n", path);
    *ret_changed = true;
    return TITAN_OK;
}

/* --- several coordinators ----------------------------------------------------------------------------------------- */

static titan_status run_members(struct ctl *ctl, const struct args *args, struct titan_error *err)
{
    Titan__V1__ListCoordinatorsRequest request = TITAN__V1__LIST_COORDINATORS_REQUEST__INIT;
    _cleanup_message_ Titan__V1__ListCoordinatorsResponse *reply = NULL;
    TRY(ctl_call(ctl, TITAN_METHOD("ListCoordinators"), &request.base,
                 &titan__v1__list_coordinators_response__descriptor, &reply, err));
    if (ctl->json) {
        (void)output_json(&reply->base, true);
        return TITAN_OK;
    }
    struct table_out table;
    table_begin(&table, (const char *const[]){"NAME", "STATE", "LAG>", NULL});
    for (size_t i = 0; i < reply->n_coordinators; i++) {
        const Titan__V1__Coordinator *c = reply->coordinators[i];
        table_cell(&table, "%s", c->name);
        table_cell(&table, "%s", c->leads ? "leads" : !c->reached ? "not reached" : c->votes ? "follows" : "joining");
        table_cell(&table, "%llu", (unsigned long long)c->lag);
    }
    table_print(&table, args, -1, false);
    return TITAN_OK;
}

static titan_status run_hand_over(struct ctl *ctl, const char *to, struct titan_error *err)
{
    Titan__V1__HandOverRequest request = TITAN__V1__HAND_OVER_REQUEST__INIT;
    _cleanup_message_ Titan__V1__HandOverResponse *reply = NULL;
    request.to = (char *)(uintptr_t)(to ? to : "");
    return ctl_call(ctl, TITAN_METHOD("HandOver"), &request.base, &titan__v1__hand_over_response__descriptor, &reply,
                    err);
}

static titan_status run(void *with, const struct args *args, struct titan_error *err)
{
    struct ctl *ctl = with;
    const char *action = args->words[0], *path = args->n > 1 ? args->words[1] : NULL;
    int64_t keep = 0;
    if (strcmp(action, "check") == 0 && !path && args_has(args, "fix")) {
        bool changed = false;
        if (geteuid() != 0)
            return titan_fail(err, TITAN_EPERM, "admin check --fix writes below /etc/systemd: as root only");
        TRY(fix_unit("titan-coordinator.service", "/etc/titan/coordinator.toml", &changed, err));
        TRY(fix_unit("titand.service", "/etc/titan/titand.toml", &changed, err));
        if (!changed)
            (void)printf("nothing to do: the units may write where the configuration says\n");
        else if (access("/run/systemd/system", F_OK) == 0 && system("systemctl daemon-reload") != 0)
            return titan_fail(err, TITAN_EIO, "systemctl daemon-reload failed");
        else
            (void)printf("units that run already take it up when they are restarted\n");
        return TITAN_OK;
    }
    if (strcmp(action, "check") == 0 && !path)
        return run_check(ctl, args, err);
    if (strcmp(action, "members") == 0 && !path)
        return run_members(ctl, args, err);
    if (strcmp(action, "hand-over") == 0)
        return run_hand_over(ctl, path, err);
    if (!path || strcmp(action, "check") == 0 || strcmp(action, "members") == 0)
        return titan_fail(err, TITAN_EINVAL,
                          "admin: backup, restore and verify take a FILE, check and members take none");
    TRY(args_int(args, "keep", (struct int_range){1, 100000}, 0, &keep, err));
    if (strcmp(action, "backup") == 0)
        return run_backups(ctl, path, keep, err);
    if (strcmp(action, "restore") == 0)
        return run_restore(ctl, args, path, err);
    if (strcmp(action, "verify") == 0)
        return run_verify(ctl, args, path, err);
    return titan_fail(err, TITAN_EINVAL,
                      "admin: there are backup, restore, verify, check, members and hand-over, not '%.64s'", action);
}

const struct command command_admin = {
    .name = "admin",
    .summary = "back up the job store, put a backup back, check one",
    .arguments = "backup|restore|verify FILE | check | members | hand-over [NAME]",
    .text =
        "backup: a copy of the running server's store as it is at one moment; it is checked and\n"
        "durable when the command ends. A file that is there already is not overwritten (exit code 6). The server "
        "signs "
        "it, with\n"
        "a key that is not in it (STATE/pki/backup.key): FILE.sig. With --keep, FILE is a folder: the copy gets the "
        "time "
        "as its\n"
        "name, and the oldest beyond N are deleted.\n"
        "restore: offline. Checks FILE, moves the store in --state-dir aside and puts FILE in its place, with a term "
        "above\n"
        "every one it knows of, so that agents obey it and fence what runs on an older store. Refused while a "
        "titand holds\n"
        "the directory (exit code 6), for a FILE that is damaged or was changed (exit code 1), and where its signature "
        "or the\n"
        "key is missing (exit code 5; --unsigned goes on without). Nothing is touched then.\n"
        "verify: signature, pages, tables and the chain of the event log of FILE, a backup; or those of a state "
        "directory, also\n"
        "of a running titand, but for the signature. What is damaged is named.\n"
        "check: what would not work, node by node: folders of jobs, storage.data_roots and checkpoint_roots, clock,\n"
        "version, users or cgroups, limits, certificates, and which other nodes it does not reach (each tries the "
        "eight\n"
        "that follow it in the list). At most 10 s; exit code 7 when there is something. With --fix, on each machine "
        "as\n"
        "root: lets its units write where /etc/titan says.\n"
        "members: of several coordinators, which one leads, and how far the others are.\n"
        "hand-over: the coordinator that leads closes in order, and NAME, or any other, leads then.",
    .min_args = 1,
    .max_args = 2,
    .word = WORD_FILE,
    .options =
        (const struct option_spec[]){
            {"keep", 0, "N", "backup: FILE is a folder, of which the newest N copies are kept", WORD_NONE},
            {"state-dir", 0, "DIR", "restore: directory of the titand that is to run on it; verify: that has the key",
             WORD_FILE},
            {"key", 0, "FILE", "restore, verify: key of the backup's signature (default: STATE/pki/backup.key)",
             WORD_FILE},
            {"unsigned", 0, NULL, "restore, verify: go on without signature or key, and say what is not known",
             WORD_NONE},
            {"above", 0, "N", "restore: agents have seen term N; the store's is to be above it", WORD_NONE},
            {"fix", 0, NULL, "check: write the units' drop-ins for storage.jobs_dir and the like", WORD_NONE},
            {"head", 0, "FILE|N:HASH",
             "verify: heads of the event log that were written down, as audit.head_file has them, are in it",
             WORD_FILE},
            {"rederive", 0, NULL, "verify: also derive states, owners, recipes and rights from the event log",
             WORD_NONE},
            TABLE_WIDE("check: "),
            {NULL}},
    .examples =
        (const struct example[]){
            {"titanctl admin backup /backup/titan-$(date +%F).db", "one copy"},
            {"titanctl admin backup --keep 14 /backup", "as titan-backup.timer does every night"},
            {"titanctl admin verify --rederive /backup/titan-2026-11-20.db", "is that backup good?"},
            {"titanctl admin restore /backup/titan-2026-11-20.db --state-dir /var/lib/titan-coordinator",
             "put it back, between systemctl stop and start titan-coordinator"},
            {"titanctl admin restore /backup/titan-2026-11-20.db --key /media/usb/backup.key --state-dir DIR",
             "the same on another machine"},
            {"titanctl admin verify --head /mnt/other/titan.head /var/lib/titan-coordinator",
             "was the event log cut at its end?"},
            {"titanctl admin check", "would a job run on every node?"},
            {"titanctl admin hand-over", "before the machine of the coordinator that leads is restarted"},
            {NULL}},
    .run = run,
};
