/* admin.c - titanctl admin: the job store's backup, its return, and whether it is sound. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
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
#include "ctl/client.h"
#include "ctl/options.h"
#include "ctl/output.h"
#include "state/backup.h"

static void print_line(const char *line, void *data)
{
    (void)data;
    (void)fprintf(stderr, "titanctl: %s\n", line);
}

/* --- backup ------------------------------------------------------------------------------------------------------ */

struct receiving {
    int fd;
    uint64_t bytes, total;
    const char *path;
    struct titan_error err;
};

static bool each_chunk(const ProtobufCMessage *message, void *data)
{
    struct receiving *r = data;
    const Titan__V1__BackupChunk *chunk = (const Titan__V1__BackupChunk *)message;
    const uint8_t *at = chunk->data.data;
    size_t left = chunk->data.len;
    r->total = chunk->total_bytes;
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

static titan_status receive(struct ctl *ctl, struct receiving *r, struct titan_error *err)
{
    Titan__V1__BackupRequest request = TITAN__V1__BACKUP_REQUEST__INIT;
    titan_status status = ctl_stream(ctl, TITAN_METHOD("Backup"), &request.base, &titan__v1__backup_chunk__descriptor,
                                     each_chunk, r, err);
    if (r->err.status != TITAN_OK) {
        *err = r->err;
        return err->status;
    }
    TRY(status);
    if (r->bytes == 0 || r->bytes != r->total)
        return titan_fail(err, TITAN_EIO, "the server sent %llu bytes of %llu", (unsigned long long)r->bytes,
                          (unsigned long long)r->total);
    return fsync(r->fd) == 0 ? TITAN_OK : titan_fail_errno(err, "'%s'", r->path);
}

static void print_report(struct ctl *ctl, const char *path, const struct backup_report *r)
{
    if (!ctl->json) {
        (void)printf("%s: sound; %lld jobs, %llu events%s, term %lld\n", path, (long long)r->jobs,
                     (unsigned long long)r->chained, r->replay.changes ? ", every state follows from them" : "",
                     (long long)r->term);
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
    json_end_object(&w);
    (void)output_line(&text);
}

/* Under another name until it is whole, durable and known to be sound. */
static titan_status run_backup(struct ctl *ctl, const char *path, struct titan_error *err)
{
    char part[PATH_MAX], dir[PATH_MAX];
    struct backup_report report;
    if (access(path, F_OK) == 0)
        return titan_fail(err, TITAN_EEXIST, "'%s' is there already", path);
    if (snprintf(part, sizeof(part), "%s.part", path) >= (int)sizeof(part))
        return titan_fail(err, TITAN_EINVAL, "'%s': path is too long", path);
    _cleanup_fd_ int fd = open(part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0)
        return titan_fail_errno(err, "'%s'", part);
    struct receiving r = {.fd = fd, .path = part};
    titan_status status = receive(ctl, &r, err);
    if (status == TITAN_OK)
        status = backup_verify(part, false, &report, print_line, NULL, err);
    if (status == TITAN_OK && rename(part, path) != 0)
        status = titan_fail_errno(err, "'%s'", path);
    if (status != TITAN_OK) {
        (void)unlink(part);
        return status;
    }
    const char *slash = strrchr(path, '/');
    (void)snprintf(dir, sizeof(dir), "%.*s", slash ? (int)(slash - path) : 1, slash ? path : ".");
    TRY(dir_sync(*dir ? dir : "/", err));
    print_report(ctl, path, &report);
    return TITAN_OK;
}

/* "titan-20261123T021500Z.db": their order by name is that in time. */
static int is_backup(const struct dirent *e)
{
    size_t len = strlen(e->d_name);
    return !strncmp(e->d_name, "titan-", 6) && len > 9 && !strcmp(e->d_name + len - 3, ".db");
}

/* One more in the folder, named by the time; then the oldest beyond keep go. */
static titan_status run_backup_kept(struct ctl *ctl, const char *dir, int64_t keep, struct titan_error *err)
{
    char path[PATH_MAX], stamp[32];
    struct dirent **found = NULL;
    struct tm tm;
    time_t now = (time_t)(clock_wall_ms() / 1000);
    (void)strftime(stamp, sizeof(stamp), "%Y%m%dT%H%M%SZ", gmtime_r(&now, &tm));
    if (snprintf(path, sizeof(path), "%s/titan-%s.db", dir, stamp) >= (int)sizeof(path))
        return titan_fail(err, TITAN_EINVAL, "'%s': path is too long", dir);
    TRY(run_backup(ctl, path, err));
    int n = scandir(dir, &found, is_backup, alphasort);
    titan_status status = n < 0 ? titan_fail_errno(err, "'%s'", dir) : TITAN_OK;
    for (int i = 0; i < n; i++) {
        (void)snprintf(path, sizeof(path), "%s/%s", dir, found[i]->d_name);
        if (i < n - keep && status == TITAN_OK && unlink(path) != 0)
            status = titan_fail_errno(err, "'%s'", path);
        free(found[i]);
    }
    free(found);
    return status;
}

/* --- verify, restore --------------------------------------------------------------------------------------------- */

/* A state directory stands for the store in it. */
static titan_status run_verify(struct ctl *ctl, const char *given, bool rederive, struct titan_error *err)
{
    char path[PATH_MAX];
    struct stat st;
    struct backup_report report;
    bool dir = stat(given, &st) == 0 && S_ISDIR(st.st_mode);
    if (snprintf(path, sizeof(path), "%s%s", given, dir ? "/titan.db" : "") >= (int)sizeof(path))
        return titan_fail(err, TITAN_EINVAL, "'%s': path is too long", given);
    TRY(backup_verify(path, rederive, &report, print_line, NULL, err));
    print_report(ctl, path, &report);
    return TITAN_OK;
}

static void print_restored(struct ctl *ctl, const struct restore_report *r)
{
    if (!ctl->json) {
        (void)printf("restored: %lld jobs, term %lld, the next job is %lld%s%s\n", (long long)r->backup.jobs,
                     (long long)r->term, (long long)r->next_job, *r->aside ? "; the old store is " : "", r->aside);
        return;
    }
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    struct json_writer w = {.out = &text, .pretty = true};
    json_begin_object(&w, NULL);
    json_put_int(&w, "term", r->term);
    json_put_int(&w, "jobs", r->backup.jobs);
    json_put_int(&w, "next_job", r->next_job);
    json_put_string(&w, "aside", *r->aside ? r->aside : NULL);
    json_end_object(&w);
    (void)output_line(&text);
}

static titan_status run_restore(struct ctl *ctl, const struct args *args, const char *backup, struct titan_error *err)
{
    const char *dir = args_text(args, "state-dir", NULL);
    int64_t above = 0;
    struct restore_report r;
    _cleanup_fd_ int lock = -1;
    TRY(args_int(args, "above", 0, INT64_MAX / 2, 0, &above, err));
    if (!dir) {
        titan_fail(err, TITAN_EINVAL, "admin restore: --state-dir DIR is missing");
        titan_error_hint(err,
                         "the directory of the titand that is to run on it: /var/lib/titan-coordinator under systemd");
        return TITAN_EINVAL;
    }
    TRY(lock_dir(dir, &lock, err));
    TRY(backup_restore(backup, dir, (uint64_t)above, clock_wall_ms(), &r, err));
    print_restored(ctl, &r);
    return TITAN_OK;
}

static titan_status run(struct ctl *ctl, const struct args *args, struct titan_error *err)
{
    const char *action = args->words[0], *path = args->words[1];
    int64_t keep = 0;
    TRY(args_int(args, "keep", 1, 100000, 0, &keep, err));
    if (strcmp(action, "backup") == 0)
        return keep ? run_backup_kept(ctl, path, keep, err) : run_backup(ctl, path, err);
    if (strcmp(action, "restore") == 0)
        return run_restore(ctl, args, path, err);
    if (strcmp(action, "verify") == 0)
        return run_verify(ctl, path, args_has(args, "rederive"), err);
    return titan_fail(err, TITAN_EINVAL, "admin: there are backup, restore and verify, not '%.64s'", action);
}

const struct command command_admin = {
    .name = "admin",
    .summary = "back up the job store, put a backup back, check one",
    .arguments = "backup|restore|verify FILE",
    .text =
        "backup: a copy of the running server's store as it is at one moment, over its Unix socket; it is checked and\n"
        "durable when the command ends. A file that is there already is not overwritten (exit code 6). With --keep, "
        "FILE is a\n"
        "folder: the copy gets the time as its name, and the oldest beyond N are deleted.\n"
        "restore: offline. Checks FILE, moves the store in --state-dir aside and puts FILE in its place, with a term "
        "above\n"
        "every one it knows of, so that agents obey it and fence whoever runs on an older store. Refused while a "
        "titand holds\n"
        "the directory (exit code 6), and for a damaged FILE (exit code 1; nothing is touched).\n"
        "verify: pages, tables and the chain of the event log of FILE, a backup or a state directory, also of a "
        "running\n"
        "titand; what is damaged is named.",
    .min_args = 2,
    .max_args = 2,
    .word = WORD_FILE,
    .options =
        (const struct option_spec[]){
            {"keep", 0, "N", "backup: FILE is a folder, of which the newest N copies are kept", WORD_NONE},
            {"state-dir", 0, "DIR", "restore: directory of the titand that is to run on it", WORD_FILE},
            {"above", 0, "N", "restore: agents have seen term N; the store's is to be above it", WORD_NONE},
            {"rederive", 0, NULL, "verify: also derive every state from the event log and compare", WORD_NONE},
            {NULL}},
    .examples =
        (const struct example[]){
            {"titanctl admin backup /backup/titan-$(date +%F).db", "one copy"},
            {"titanctl admin backup --keep 14 /backup", "as titan-backup.timer does every night"},
            {"titanctl admin verify --rederive /backup/titan-2026-11-20.db", "is that backup good?"},
            {"titanctl admin restore /backup/titan-2026-11-20.db --state-dir /var/lib/titan-coordinator",
             "put it back, between systemctl stop and start titan-coordinator"},
            {NULL}},
    .run = run,
};
