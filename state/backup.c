/* SPDX-License-Identifier: Apache-2.0 */
#include "state/backup.h"

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
#include "state/event.h"
#include "state/home.h"
#include "state/job.h"
#include "state/schema.h"
#include "state/worker.h"

#define COPY_MS 60000 /* limit for a copy between two checkpoints of the writer */
/* twice the coarsest step of time stamps in file systems for titand's state: 10 ms at 100 Hz */
#define FILE_TICK_MS 20

static void close_db(struct db **db)
{
    db_close(*db);
}
#define _cleanup_db_ _cleanup_(close_db)

static titan_status sync_file(const char *path, struct titan_error *err)
{
    char dir[PATH_MAX];
    _cleanup_fd_ int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fsync(fd) != 0)
        return titan_fail_errno(err, "'%s'", path);
    const char *slash = strrchr(path, '/');
    (void)snprintf(dir, sizeof(dir), "%.*s", slash ? (int)(slash - path) : 1, slash ? path : ".");
    return dir_sync(*dir ? dir : "/", err);
}

/* --- copy --------------------------------------------------------------------------------------------------------- */

titan_status backup_copy(const char *from, const char *to, struct titan_error *err)
{
    _cleanup_db_ struct db *db = NULL;
    if (unlink(to) != 0 && errno != ENOENT)
        return titan_fail_errno(err, "'%s'", to);
    TRY(db_open(from, DB_READER, true, &db, err));
    sqlite3 *out = NULL;
    int rc = sqlite3_open_v2(to, &out, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, NULL);
    sqlite3_backup *b = rc == SQLITE_OK ? sqlite3_backup_init(out, "main", db_handle(db), "main") : NULL;
    if (b) {
        (void)sqlite3_backup_step(b, -1); /* all at once: one view of the store, without disturbing the writer */
        rc = sqlite3_backup_finish(b);
        if (rc == SQLITE_OK) /* the copy is one file, even if another process opens it */
            rc = sqlite3_exec(out, "PRAGMA journal_mode=DELETE", NULL, NULL, NULL);
    } else if (rc == SQLITE_OK) {
        rc = sqlite3_errcode(out);
    }
    titan_status status = TITAN_OK;
    if (rc != SQLITE_OK)
        status = titan_fail(err, rc == SQLITE_FULL ? TITAN_ENOSPC : TITAN_EIO, "copying the store to '%s': %s", to,
                            sqlite3_errstr(rc));
    sqlite3_close(out);
    if (status == TITAN_OK)
        status = sync_file(to, err);
    if (status != TITAN_OK)
        (void)unlink(to);
    return status;
}

titan_status backup_head(const char *path, struct event_head *ret, struct titan_error *err)
{
    _cleanup_db_ struct db *db = NULL;
    TRY(db_open(path, DB_READER, true, &db, err));
    return event_head(db, ret, err);
}

/* --- verify ------------------------------------------------------------------------------------------------------- */

/* Fields that change when pages of the WAL move into the file, or the WAL restarts. */
struct wal_state {
    struct timespec at;
    off_t size;
    uint8_t header[32];
};

static titan_status wal_state(const char *path, const char *wal, struct wal_state *ret, struct titan_error *err)
{
    struct stat st;
    memset(ret, 0, sizeof(*ret));
    if (stat(path, &st) != 0)
        return titan_fail_errno(err, "'%s'", path);
    ret->at = st.st_mtim;
    ret->size = st.st_size;
    _cleanup_fd_ int fd = open(wal, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd >= 0 && pread(fd, ret->header, sizeof(ret->header), 0) < 0)
        return titan_fail_errno(err, "'%s'", wal);
    return TITAN_OK;
}

static titan_status copy_file(const char *from, const char *to, struct titan_error *err)
{
    char chunk[65536];
    ssize_t n = 0;
    _cleanup_fd_ int in = open(from, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (in < 0)
        return errno == ENOENT ? TITAN_OK : titan_fail_errno(err, "'%s'", from);
    _cleanup_fd_ int out = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (out < 0)
        return titan_fail_errno(err, "'%s'", to);
    while ((n = read(in, chunk, sizeof(chunk))) > 0)
        TRY(file_append(out, chunk, (size_t)n, err));
    return n == 0 ? TITAN_OK : titan_fail_errno(err, "'%s'", from);
}

/* Copies file and WAL between two checkpoints, for a store that a titand has locked, or may open. Two changes within a
 * tick of the file's clock look alike. So the function waits until the last change is older than a tick. */
static titan_status copy_in_use(const char *path, const char *copy, struct titan_error *err)
{
    char wal[PATH_MAX + 8], copied[PATH_MAX + 24];
    struct wal_state before, after;
    (void)snprintf(wal, sizeof(wal), "%s-wal", path);
    (void)snprintf(copied, sizeof(copied), "%s-wal", copy);
    const int64_t end_ms = clock_mono_ms() + COPY_MS;
    do {
        struct timespec now;
        TRY(wal_state(path, wal, &before, err));
        (void)clock_gettime(CLOCK_REALTIME, &now);
        (void)unlink(copied); /* removes the copy of the previous attempt, because now there may be no WAL */
        TRY(copy_file(path, copy, err));
        TRY(copy_file(wal, copied, err));
        TRY(wal_state(path, wal, &after, err));
        const int64_t age_ms = (now.tv_sec - before.at.tv_sec) * 1000 + (now.tv_nsec - before.at.tv_nsec) / 1000000;
        if (memcmp(&before, &after, sizeof(before)) == 0 && (age_ms < 0 || age_ms > FILE_TICK_MS))
            return TITAN_OK;
        (void)nanosleep(&(struct timespec){.tv_nsec = FILE_TICK_MS * 1000000}, NULL);
    } while (clock_mono_ms() < end_ms);
    (void)titan_fail(err, TITAN_EAGAIN, "'%s' is written faster than it can be copied", path);
    titan_error_hint(err, "`titanctl admin backup` copies it through titand, and verifies the copy");
    return TITAN_EAGAIN;
}

static titan_status verify_file(const char *path, const struct backup_checks *checks, struct backup_report *ret,
                                struct titan_error *err)
{
    _cleanup_db_ struct db *db = NULL;
    TRY(schema_probe(&schema_store, path, NULL, err));
    TRY(db_open(path, DB_READER, true, &db, err));
    TRY(schema_check(db, false, err));
    TRY(schema_compare(&schema_store, db, err));
    TRY(db_int(db, &ret->schema, err, "PRAGMA user_version", ""));
    if (ret->schema == 0)
        return titan_fail(err, TITAN_ECORRUPT, "the store is empty");
    TRY(db_int(db, &ret->jobs, err, "SELECT count(*) FROM jobs", ""));
    TRY(db_int(db, &ret->last_job, err, "SELECT max(id) FROM jobs", ""));
    TRY(db_int(db, &ret->last_event, err, "SELECT seq FROM sqlite_sequence WHERE name = 'events'", ""));
    TRY(db_int(db, &ret->term, err, "SELECT value FROM meta WHERE key = 'term'", ""));
    if (ret->schema < SCHEMA_CHAINED)
        return TITAN_OK;
    TRY(event_verify(db, 0, &ret->chained, err));
    TRY(event_head(db, &ret->head, err));
    uint64_t lost = 0, before = 0;
    for (size_t i = 0; i < checks->n_heads; i++) {
        const struct event_head *h = &checks->heads[i];
        char line[160];
        if (checks->of_its_time && h->id > ret->head.id)
            continue;
        TRY(event_head_find(db, h, &lost, err));
        ret->heads += lost == 0;
        if (lost && lost != before && checks->print) {
            (void)snprintf(line, sizeof(line),
                           "events up to %llu and more were lost when a backup was put back, event %llu",
                           (unsigned long long)h->id, (unsigned long long)lost);
            checks->print(line, checks->data);
        }
        before = lost;
    }
    titan_assert(ret->heads <= checks->n_heads);
    return checks->rederive ? replay_check(db, &ret->replay, checks->print, checks->data, err) : TITAN_OK;
}

static titan_status verify_copy(const char *path, const struct backup_checks *checks, struct backup_report *ret,
                                struct titan_error *err)
{
    char folder[PATH_MAX], copy[PATH_MAX + 16];
    const char *tmp = getenv("TMPDIR");
    if (snprintf(folder, sizeof(folder), "%s/titan-verify-XXXXXX", tmp && *tmp ? tmp : "/tmp") >= (int)sizeof(folder) ||
        !mkdtemp(folder))
        return titan_fail_errno(err, "a folder for a copy of '%s'", path);
    (void)snprintf(copy, sizeof(copy), "%s/titan.db", folder);
    titan_status status = copy_in_use(path, copy, err);
    if (status == TITAN_OK)
        status = verify_file(copy, checks, ret, err);
    if (dir_remove(folder, status == TITAN_OK ? err : NULL) != TITAN_OK && status == TITAN_OK)
        status = err->status;
    return status;
}

/* A store with a WAL belongs to a titand, which cannot open the store while another process reads it. So a copy is
 * verified. */
titan_status backup_verify(const char *path, const struct backup_checks *checks, struct backup_report *ret,
                           struct titan_error *err)
{
    uint8_t head[20] = {0}; /* https://www.sqlite.org/fileformat.html: byte 18 is the write version, 2 = WAL */
    memset(ret, 0, sizeof(*ret));
    _cleanup_fd_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || pread(fd, head, sizeof(head), 0) < 0)
        return titan_fail_errno(err, "'%s'", path);
    return (head[18] == 2 ? verify_copy : verify_file)(path, checks, ret, err);
}

/* --- restore ------------------------------------------------------------------------------------------------------ */

/* Numbers that may have been issued since the backup. */
struct given {
    int64_t term, job, worker, event;
    int64_t backup_worker; /* highest in the backup */
};

static void raise_to(int64_t *n, int64_t at_least)
{
    *n = MAX(*n, at_least);
}

/* Prepares the new store under a separate name. */
static titan_status prepare(const char *path, struct given *g, int64_t now_ms, struct titan_error *err)
{
    _cleanup_db_ struct db *db = NULL;
    uint64_t worker = 0;
    TRY(db_open(path, DB_WRITER, true, &db, err));
    TRY(schema_migrate(&schema_store, db, err));
    TRY(worker_last_id(db, &worker, err));
    raise_to(&g->worker, (int64_t)worker);
    g->backup_worker = (int64_t)worker;
    g->term += BACKUP_TERM_STEP;
    g->worker += BACKUP_ID_STEP;
    g->event += BACKUP_ID_STEP;
    TRY(db_exec(db, "BEGIN IMMEDIATE", err));
    titan_assert(g->backup_worker <= g->worker);
    titan_assert(!sqlite3_get_autocommit(db_handle(db)));
    char detail[160];
    (void)snprintf(detail, sizeof(detail), "{\"term\": %lld, \"next_job\": %lld, \"next_worker\": %lld}",
                   (long long)g->term + 1, (long long)g->job + 1, (long long)g->worker + 1);
    TRY(db_run(db, err,
               "INSERT INTO meta VALUES ('term', ?1), ('last_job', ?2), ('last_worker', ?3),"
               " ('restored_term', ?1), ('backup_worker', ?4), ('settled', 0)"
               " ON CONFLICT DO UPDATE SET value = excluded.value",
               "iiii", g->term, g->job, g->worker, g->backup_worker));
    TRY(db_run(db, err, "DELETE FROM sqlite_sequence WHERE name = 'events'", ""));
    TRY(db_run(db, err, "INSERT INTO sqlite_sequence VALUES ('events', ?)", "i", g->event));
    const struct event restored = {.at_ms = now_ms,
                                   .type = EVENT_RESTORED,
                                   .message = "the store was restored from a backup",
                                   .rank = -1,
                                   .detail = detail};
    TRY(event_add(db, &restored, err));
    TRY(db_run(db, err, "UPDATE machine SET clean = 1", ""));
    TRY(home_forget(db, err));
    return db_exec(db, "COMMIT", err);
}

/* Moves the old store with its WAL, so that it opens unchanged under its new name. */
static titan_status move_aside(const char *path, int64_t now_ms, char *aside, size_t size, struct titan_error *err)
{
    titan_assert(size > 0);
    char when[32], from[PATH_MAX + 8], to[PATH_MAX + 8];
    *aside = '\0';
    if (access(path, F_OK) != 0)
        return TITAN_OK;
    if (snprintf(aside, size, "%s.before-%s", path, clock_format(now_ms, when)) >= (int)size)
        return titan_fail(err, TITAN_EINVAL, "'%s': path is too long", path);
    (void)snprintf(from, sizeof(from), "%s-wal", path);
    (void)snprintf(to, sizeof(to), "%s-wal", aside);
    if (rename(from, to) != 0 && errno != ENOENT)
        return titan_fail_errno(err, "moving '%s' aside", from);
    (void)snprintf(from, sizeof(from), "%s-shm", path);
    (void)unlink(from);
    return rename(path, aside) == 0 ? TITAN_OK : titan_fail_errno(err, "moving '%s' aside", path);
}

titan_status backup_restore(const char *backup, const char *state_dir, uint64_t above, int64_t now_ms,
                            struct restore_report *ret, struct titan_error *err)
{
    char path[PATH_MAX], fresh[PATH_MAX];
    memset(ret, 0, sizeof(*ret));
    if (snprintf(path, sizeof(path), "%s/titan.db", state_dir) >= (int)sizeof(path) ||
        snprintf(fresh, sizeof(fresh), "%s/titan.db.restored", state_dir) >= (int)sizeof(fresh))
        return titan_fail(err, TITAN_EINVAL, "'%s': path is too long", state_dir);
    TRY(backup_verify(backup, &(struct backup_checks){.rederive = true}, &ret->backup, err));
    struct given g = {
        .term = MAX(ret->backup.term, (int64_t)above), .job = ret->backup.last_job, .event = ret->backup.last_event};

    /* Reads the present store as far as possible, because it may be damaged. Fails while another process has the store,
     * because that process's writes would be lost. */
    titan_status status = access(path, R_OK) == 0 ? schema_probe(&schema_store, path, NULL, err) : TITAN_ENOTFOUND;
    if (status == TITAN_EAGAIN)
        return status;
    if (status == TITAN_OK) {
        _cleanup_db_ struct db *db = NULL;
        int64_t n = 0;
        const bool opens = db_open(path, DB_READER, true, &db, NULL) == TITAN_OK;
        if (opens && db_int(db, &n, NULL, "SELECT value FROM meta WHERE key = 'term'", "") == TITAN_OK)
            raise_to(&g.term, n);
        if (opens && db_int(db, &n, NULL, "SELECT max(id) FROM jobs", "") == TITAN_OK)
            raise_to(&g.job, n);
        if (opens && db_int(db, &n, NULL, "SELECT max(id) FROM workers", "") == TITAN_OK)
            raise_to(&g.worker, n);
        if (opens && db_int(db, &n, NULL, "SELECT seq FROM sqlite_sequence WHERE name = 'events'", "") == TITAN_OK)
            raise_to(&g.event, n);
    }

    /* The job numbers of the job folders, and the term that an agent over the same directory has seen. */
    char name[PATH_MAX + 16];
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    (void)snprintf(name, sizeof(name), "%s/run/term", state_dir);
    if (file_read(name, 256, &text, NULL) == TITAN_OK && text.len)
        raise_to(&g.term, strtoll(text.data, NULL, 10));
    (void)snprintf(name, sizeof(name), "%s/jobs", state_dir);
    DIR *jobs = opendir(name);
    for (const struct dirent *e; jobs && (e = readdir(jobs));)
        raise_to(&g.job, strtoll(e->d_name, NULL, 10));
    if (jobs)
        (void)closedir(jobs);

    TRY(backup_copy(backup, fresh, err));
    status = prepare(fresh, &g, now_ms, err);
    if (status == TITAN_OK)
        status = sync_file(fresh, err);
    if (status == TITAN_OK)
        status = move_aside(path, now_ms, ret->aside, sizeof(ret->aside), err);
    if (status == TITAN_OK && rename(fresh, path) != 0)
        status = titan_fail_errno(err, "'%s'", path);
    if (status != TITAN_OK) {
        (void)unlink(fresh);
        return status;
    }
    ret->term = g.term;
    ret->next_job = g.job + 1;
    return dir_sync(state_dir, err);
}

/* --- what was restored -------------------------------------------------------------------------------------------- */

static titan_status read_meta(struct db *db, const char *key, int64_t *ret, struct titan_error *err)
{
    return db_int(db, ret, err, "SELECT value FROM meta WHERE key = ?", "t", key);
}

titan_status backup_origin(struct db *db, struct backup_origin *ret, struct titan_error *err)
{
    int64_t term = 0, worker = 0, gone = 0, settled = 0;
    TRY(read_meta(db, "restored_term", &term, err));
    TRY(read_meta(db, "backup_worker", &worker, err));
    TRY(read_meta(db, "last_worker", &gone, err));
    TRY(read_meta(db, "settled", &settled, err));
    *ret = (struct backup_origin){.term = (uint64_t)term,
                                  .backup_worker = (uint64_t)worker,
                                  .gone_worker = (uint64_t)gone,
                                  .settled = settled != 0};
    return TITAN_OK;
}

titan_status backup_settle(struct db *db, const struct event *event, struct titan_error *err)
{
    titan_assert(event && event->type);
    TRY(db_run(db, err, "UPDATE meta SET value = 1 WHERE key = 'settled'", ""));
    return event_add(db, event, err);
}
