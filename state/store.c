/* SPDX-License-Identifier: Apache-2.0 */
#include "state/store.h"

#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mac.h"
#include "base/slowest.h"
#include "state/event.h"
#include "state/schema.h"

#define DELIVER_SLICE_NS 100000
#define LOCK_WAIT_MS 10000 /* how long an opening waits for another process that has the file open */
#define LOCK_LOOK_MS 100
#define SIZES_NS INT64_C(1000000000) /* interval of looks at the files' sizes */
#define TAIL_EVENTS 1000             /* number of events with a checked chain at every start */

const char *const store_files[STORE_FILES] = {"titan.db", "titan.db-wal", "metrics.db", "metrics.db-wal"};

static const struct log store_log = {.subsystem = "store"};

struct store_item {
    struct group_write write; /* must be first: lists of writes are lists of items */
    store_done done;
    int64_t queued_ns;
    bool metrics;
};

struct list {
    struct group_write *head, **tail;
};

struct store {
    uv_loop_t *loop;
    uv_async_t wake;
    pthread_t thread;
    struct db *writer, *metrics_writer; /* writer thread only, after open */
    struct db *reader, *metrics_reader; /* loop thread only */
    int64_t sized_ns;                   /* writer thread: the last look at the files' sizes */
    char dir[PATH_MAX];                 /* the store's folder */
    uint64_t term, id;
    uint8_t secret[MAC_BYTES];
    struct group_log led, *log; /* writer thread, after open; log: &led, or NULL */

    pthread_mutex_t lock; /* guards the following fields */
    pthread_cond_t more;
    struct list queued, finished;
    bool stopping;
    struct titan_error failed; /* the file is no longer trusted */
    struct store_stats stats;

    int64_t oldest_ns;    /* loop thread: queueing time of the oldest unfinished write */
    uint64_t outstanding; /* loop thread */
    struct list back;     /* loop thread: written, callbacks pending */
    void (*on_failure)(void *data, const struct titan_error *err);
    void *on_failure_data;
    void (*on_commit)(void *data);
    void *on_commit_data;
    void (*closed)(void *);
    void *closed_data;
};

static void list_init(struct list *l)
{
    l->head = NULL;
    l->tail = &l->head;
}

static void list_push(struct list *l, struct group_write *w)
{
    titan_assert(!*l->tail);
    w->next = NULL;
    *l->tail = w;
    l->tail = &w->next;
}

/* Appends all items of the list `from` to the list `to`. */
static void list_move(struct list *to, struct list *from)
{
    if (!from->head)
        return;
    *to->tail = from->head;
    to->tail = from->tail;
    titan_assert(!*to->tail);
    list_init(from);
}

/* --- the writer thread -------------------------------------------------------------------------------------------- */

/* Writes the list and returns it to the loop. */
static void write_list(struct store *s, struct db *db, struct list *todo)
{
    struct group_stats stats = {0};
    struct titan_error err = {0};
    if (!todo->head)
        return;
    const int64_t begin_ns = clock_mono_ns();
    struct group_log *log = db == s->writer ? s->log : NULL;
    group_commit(db, log, todo->head, &stats);
    const double took_s = (double)(clock_mono_ns() - begin_ns) / 1e9;
    titan_assert(stats.failures <= stats.writes && stats.commits > 0);
    bool failed = db == s->writer && db_sync_failed(db, &err) != TITAN_OK;
    if (log && log->lost.status != TITAN_OK) {
        failed = true;
        err = log->lost;
    }
    pthread_mutex_lock(&s->lock);
    list_move(&s->finished, todo);
    s->stats.commits += stats.commits;
    s->stats.failures += stats.failures;
    if (db == s->writer)
        histogram_add(&s->stats.commit_seconds, took_s);
    if (failed)
        s->failed = err;
    pthread_mutex_unlock(&s->lock);
    uv_async_send(&s->wake);
    group_checkpoint(db);
}

/* On the writer's thread, because a disk may not answer. */
static void look_at_sizes(struct store *s)
{
    uint64_t bytes[STORE_FILES] = {0};
    char path[PATH_MAX + 16];
    struct stat st;
    for (size_t i = 0; i < STORE_FILES; i++) {
        (void)snprintf(path, sizeof(path), "%s/%s", s->dir, store_files[i]);
        if (stat(path, &st) == 0)
            bytes[i] = (uint64_t)st.st_size;
    }
    pthread_mutex_lock(&s->lock);
    memcpy(s->stats.bytes, bytes, sizeof(bytes));
    pthread_mutex_unlock(&s->lock);
    s->sized_ns = clock_mono_ns();
}

static void *writer_main(void *data)
{
    struct store *s = data;
    for (;;) {
        struct list todo, metrics;
        list_init(&todo);
        list_init(&metrics);
        pthread_mutex_lock(&s->lock);
        while (!s->queued.head && !s->stopping)
            pthread_cond_wait(&s->more, &s->lock);
        bool stop = s->stopping && !s->queued.head;
        struct group_write *w = s->queued.head;
        list_init(&s->queued);
        pthread_mutex_unlock(&s->lock);
        if (stop)
            return NULL;
        for (struct group_write *next; w; w = next) {
            next = w->next;
            list_push(((struct store_item *)w)->metrics ? &metrics : &todo, w);
        }
        write_list(s, s->writer, &todo);
        write_list(s, s->metrics_writer, &metrics);
        if (clock_mono_ns() - s->sized_ns >= SIZES_NS)
            look_at_sizes(s);
    }
}

/* --- the loop thread ---------------------------------------------------------------------------------------------- */

/* Calls back finished writes, for about slice_ns. Returns true if some are left. A group can have hundreds of submits.
 * So the loop handles other calls between slices. */
static bool deliver(struct store *s, int64_t slice_ns)
{
    int64_t start_ns = clock_mono_ns();
    bool jobs = false;
    pthread_mutex_lock(&s->lock);
    list_move(&s->back, &s->finished);
    struct titan_error failed = s->failed;
    pthread_mutex_unlock(&s->lock);
    if (failed.status != TITAN_OK && s->on_failure)
        s->on_failure(s->on_failure_data, &failed);
    while (s->back.head) {
        struct store_item *item = (struct store_item *)s->back.head;
        s->back.head = item->write.next;
        if (!s->back.head)
            list_init(&s->back);
        s->oldest_ns = item->queued_ns; /* the rest was queued later */
        titan_assert(s->outstanding > 0);
        s->outstanding--;
        if (item->done)
            item->done(item->write.arg, &item->write.err);
        jobs |= !item->metrics;
        free(item);
        if (s->back.head && clock_mono_ns() - start_ns > slice_ns)
            break;
    }
    if (jobs && s->on_commit)
        s->on_commit(s->on_commit_data);
    return s->back.head != NULL;
}

static void on_wake(uv_async_t *wake)
{
    HANDLER("store");
    if (deliver(wake->data, DELIVER_SLICE_NS))
        uv_async_send(wake);
}

static void queue_write(struct store *s, bool metrics, store_fn fn, void *arg, store_done done)
{
    titan_assert(fn);
    struct store_item *item = calloc(1, sizeof(*item));
    bool none = metrics && !s->metrics_writer;
    if (!item || s->stopping || none) {
        struct titan_error err = {0};
        titan_fail(&err,
                   none   ? TITAN_EIO
                   : item ? TITAN_ECANCELLED
                          : TITAN_ENOMEM,
                   "job store: %s",
                   none   ? "metrics.db is not open"
                   : item ? "closing"
                          : "out of memory");
        free(item);
        if (done)
            done(arg, &err);
        return;
    }
    item->write.fn = fn;
    item->write.arg = arg;
    item->done = done;
    item->metrics = metrics;
    item->queued_ns = clock_mono_ns();
    if (s->outstanding++ == 0)
        s->oldest_ns = item->queued_ns;
    pthread_mutex_lock(&s->lock);
    bool idle = !s->queued.head;
    list_push(&s->queued, &item->write);
    s->stats.writes++;
    pthread_mutex_unlock(&s->lock);
    if (idle)
        pthread_cond_signal(&s->more);
}

void store_write(struct store *s, store_fn fn, void *arg, store_done done)
{
    queue_write(s, false, fn, arg, done);
}

void store_write_metrics(struct store *s, store_fn fn, void *arg, store_done done)
{
    queue_write(s, true, fn, arg, done);
}

static titan_status write_through_log(struct store *s, store_fn fn, void *arg, struct titan_error *err)
{
    struct group_write w = {.fn = fn, .arg = arg};
    struct group_stats stats = {0};
    group_commit(s->writer, s->log, &w, &stats);
    if (err)
        *err = w.err;
    return w.err.status;
}

titan_status store_write_now(struct store *s, store_fn fn, void *arg, struct titan_error *err)
{
    titan_assert(s->outstanding == 0); /* the writer thread waits and does not use its connection */
    if (s->log)
        return write_through_log(s, fn, arg, err);
    TRY(db_run(s->writer, err, "BEGIN IMMEDIATE", ""));
    titan_status status = fn(s->writer, arg, err);
    if (status == TITAN_OK)
        return db_run(s->writer, err, "COMMIT", "");
    titan_assert(status != TITAN_OK);
    if (!sqlite3_get_autocommit(db_handle(s->writer)))
        (void)!db_run(s->writer, NULL, "ROLLBACK", "");
    return status;
}

void store_on_failure(struct store *s, void (*failed)(void *data, const struct titan_error *err), void *data)
{
    s->on_failure = failed;
    s->on_failure_data = data;
}

void store_on_commit(struct store *s, void (*committed)(void *data), void *data)
{
    s->on_commit = committed;
    s->on_commit_data = data;
}

struct db *store_reader(struct store *s)
{
    return s->reader;
}

struct db *store_metrics_reader(struct store *s)
{
    return s->metrics_reader;
}

int64_t store_lag_ms(const struct store *s)
{
    return s->outstanding ? (clock_mono_ns() - s->oldest_ns) / 1000000 : 0;
}

uint64_t store_term(const struct store *s)
{
    return s->term;
}

uint64_t store_id(const struct store *s)
{
    return s->id;
}

const uint8_t *store_secret(const struct store *s)
{
    return s->secret;
}

struct store_stats store_stats(const struct store *s)
{
    pthread_mutex_t *lock = (pthread_mutex_t *)&s->lock;
    pthread_mutex_lock(lock);
    struct store_stats stats = s->stats;
    pthread_mutex_unlock(lock);
    return stats;
}

/* --- open and close ----------------------------------------------------------------------------------------------- */

static titan_status open_file(const struct schema *schema, const char *path, bool check, struct db **ret,
                              struct titan_error *err)
{
    TRY(db_open(path, DB_WRITER, schema == &schema_store, ret, err));
    if (check)
        TRY(schema_check(*ret, true, err));
    return schema_migrate(schema, *ret, err);
}

/* Another process may hold a lock: an sqlite3 shell, a script, `admin verify`. It usually ends soon. */
static titan_status probe(const struct schema *schema, const char *path, bool *ret_unclean, struct titan_error *err)
{
    for (int waited_ms = 0;; waited_ms += LOCK_LOOK_MS) {
        const titan_status status = schema_probe(schema, path, ret_unclean, err);
        if (status != TITAN_EAGAIN || waited_ms >= LOCK_WAIT_MS)
            return status;
        if (waited_ms == 0)
            tlog_warn(&store_log, "another process has the file open: waiting for its end", "path=\"%s\"", path);
        (void)nanosleep(&(struct timespec){.tv_nsec = LOCK_LOOK_MS * 1000000}, NULL);
    }
}

/* Opens and checks titan.db for writing. */
static titan_status open_jobs_file(const char *path, struct db **ret, bool *ret_unclean, struct titan_error *err)
{
    int64_t from = 0;
    TRY(db_rewrite_wal(path, err));
    TRY(probe(&schema_store, path, ret_unclean, err));
    if (*ret_unclean)
        tlog_warn(&store_log, "the store was not closed; checking it", "path=\"%s\"", path);
    TRY(open_file(&schema_store, path, *ret_unclean, ret, err));

    /* Checks the newest events, where damage of the last minutes would appear. */
    TRY(db_int(*ret, &from, err, "SELECT max(0, max(id) - ?) FROM events", "i", (int64_t)TAIL_EVENTS));
    titan_status status = event_verify(*ret, (uint64_t)from, NULL, err);
    if (status == TITAN_ECORRUPT && err)
        titan_error_hint(err, "`titanctl admin verify` says more; `titanctl admin restore` puts a backup in its place");
    TRY(status);
    return db_exec(*ret, "UPDATE machine SET clean = 0", err);
}

/* Begins the store's next term, or s->term of a coordinator that leads. */
static titan_status begin_term(struct db *db, void *arg, struct titan_error *err)
{
    const struct store *s = arg;
    int64_t term = 0;
    TRY(db_int(db, &term, err, "SELECT value FROM meta WHERE key = 'term'", ""));
    if (s->log && (int64_t)s->term <= term)
        return titan_fail(err, TITAN_EBUG, "job store: term %llu is not above the store's, %lld",
                          (unsigned long long)s->term, (long long)term);
    TRY(db_run(db, err, "INSERT INTO meta VALUES ('term', ?) ON CONFLICT DO UPDATE SET value = excluded.value", "i",
               s->log ? (int64_t)s->term : term + 1));
    TRY(db_run(db, err, "INSERT INTO meta VALUES ('store_id', random()) ON CONFLICT DO NOTHING", ""));
    return db_run(db, err, "INSERT INTO secrets VALUES ('terms', ?) ON CONFLICT DO NOTHING", "b", s->secret,
                  sizeof(s->secret));
}

static titan_status open_jobs(struct store *s, const char *path, bool *ret_unclean, struct titan_error *err)
{
    int64_t term = 0, id = 0;
    TRY(open_jobs_file(path, &s->writer, ret_unclean, err));
    TRY(db_open(path, DB_READER, true, &s->reader, err));
    if (getrandom(s->secret, sizeof(s->secret), 0) != (ssize_t)sizeof(s->secret))
        return titan_fail_errno(err, "no random numbers");
    TRY(store_write_now(s, begin_term, s, err));
    TRY(db_int(s->writer, &term, err, "SELECT value FROM meta WHERE key = 'term'", ""));
    s->term = (uint64_t)term;
    TRY(db_int(s->writer, &id, err, "SELECT value FROM meta WHERE key = 'store_id'", ""));
    s->id = (uint64_t)id;

    sqlite3_stmt *stmt = NULL;
    bool row = false;
    TRY(db_query(s->writer, &stmt, err, "SELECT value FROM secrets WHERE name = 'terms'", ""));
    titan_status status = db_step(s->writer, stmt, &row, err);
    const size_t len = row ? (size_t)sqlite3_column_bytes(stmt, 0) : 0;
    if (status == TITAN_OK && len != sizeof(s->secret))
        status = titan_fail(err, TITAN_ECORRUPT, "job store: the secret of its terms has %zu bytes, not %zu", len,
                            sizeof(s->secret));
    if (status == TITAN_OK)
        memcpy(s->secret, sqlite3_column_blob(stmt, 0), sizeof(s->secret));
    db_done(stmt);
    TRY(status);
    tlog_info(&store_log, "open", "path=\"%s\" term=%lld sqlite=%s", path, (long long)term, sqlite3_libversion());
    return TITAN_OK;
}

static titan_status open_metrics(struct store *s, const char *path, bool unclean, struct titan_error *err)
{
    TRY(db_rewrite_wal(path, err));
    TRY(probe(&schema_metrics, path, NULL, err));
    titan_status status = open_file(&schema_metrics, path, unclean, &s->metrics_writer, err);
    if (status == TITAN_OK)
        status = db_open(path, DB_READER, false, &s->metrics_reader, err);
    if (status == TITAN_OK)
        return TITAN_OK;
    db_close(TAKE(s->metrics_reader));
    db_close(TAKE(s->metrics_writer));
    return status;
}

/* Restricts the file's mode, because older versions gave others access. SQLite's additional files inherit the mode. */
static void keep_from_others(const char *path)
{
    static const char *const parts[] = {"", "-wal", "-shm"};
    char part[PATH_MAX + 8];
    for (size_t i = 0; i < ARRAY_SIZE(parts); i++) {
        (void)snprintf(part, sizeof(part), "%s%s", path, parts[i]);
        (void)chmod(part, 0600);
    }
}

static titan_status open_files(struct store *s, const char *dir, struct titan_error *err)
{
    char path[PATH_MAX], metrics[PATH_MAX];
    bool unclean = false;
    if (snprintf(path, sizeof(path), "%s/titan.db", dir) >= (int)sizeof(path) ||
        snprintf(metrics, sizeof(metrics), "%s/metrics.db", dir) >= (int)sizeof(metrics))
        return titan_fail(err, TITAN_EINVAL, "state directory name is too long");
    struct titan_error why = {0};
    if (schema_probe(&schema_metrics, metrics, NULL, &why) ==
        TITAN_EVERSION) { /* the file is a newer Titan's, so nothing is changed */
        if (err)
            *err = why;
        return TITAN_EVERSION;
    }
    TRY(open_jobs(s, path, &unclean, err));

    /* No run and no job depends on metrics, so a start continues without them. */
    why = (struct titan_error){0};
    titan_status status = open_metrics(s, metrics, unclean, &why);
    if (status == TITAN_ECORRUPT) {
        char aside[PATH_MAX + 32], wal[PATH_MAX + 8], when[32]; /* kept for later inspection */
        (void)snprintf(aside, sizeof(aside), "%s.damaged-%s", metrics, clock_format(clock_wall_ms(), when));
        (void)snprintf(wal, sizeof(wal), "%s-wal", metrics);
        if (rename(metrics, aside) == 0)
            tlog_warn(&store_log, "the metrics are damaged: moved away, new ones begin", "path=\"%s\"", aside);
        (void)unlink(wal);
        status = open_metrics(s, metrics, unclean, &why);
    }
    if (status != TITAN_OK)
        tlog_error(&store_log, "there are no metrics until the next start", "reason=\"%s\"", why.msg);
    keep_from_others(path);
    keep_from_others(metrics);
    return TITAN_OK;
}

titan_status store_open_follower(const char *dir, struct db **ret, struct titan_error *err)
{
    char path[PATH_MAX];
    struct db *db = NULL;
    bool unclean = false;
    if (snprintf(path, sizeof(path), "%s/titan.db", dir) >= (int)sizeof(path))
        return titan_fail(err, TITAN_EINVAL, "state directory name is too long");
    const titan_status status = open_jobs_file(path, &db, &unclean, err);
    if (status != TITAN_OK) {
        db_close(db);
        return status;
    }
    keep_from_others(path);
    *ret = db;
    return TITAN_OK;
}

void store_close_follower(struct db *db)
{
    if (db && db_sync_failed(db, NULL) == TITAN_OK)
        (void)!db_run(db, NULL, "UPDATE machine SET clean = 1", "");
    db_close(db);
}

static void close_files(struct store *s)
{
    db_close(s->reader);
    db_close(s->metrics_reader);
    db_close(s->writer);
    db_close(s->metrics_writer);
}

static void on_wake_closed(uv_handle_t *handle)
{
    struct store *s = handle->data;
    titan_assert(!s->back.head && !s->finished.head);
    void (*closed)(void *) = s->closed;
    void *data = s->closed_data;
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->more);
    free(s);
    if (closed)
        closed(data);
}

titan_status store_open(uv_loop_t *loop, const char *dir, struct store **ret, struct titan_error *err)
{
    return store_open_led(loop, dir, NULL, 0, ret, err);
}

titan_status store_open_led(uv_loop_t *loop, const char *dir, const struct group_log *log, uint64_t term,
                            struct store **ret, struct titan_error *err)
{
    struct store *s = calloc(1, sizeof(*s));
    if (!s)
        return titan_fail(err, TITAN_ENOMEM, "job store: out of memory");
    if (log) {
        s->led = *log;
        s->log = &s->led;
        s->term = term;
    }
    s->loop = loop;
    list_init(&s->queued);
    list_init(&s->finished);
    list_init(&s->back);
    titan_status status = open_files(s, dir, err);
    if (status != TITAN_OK)
        goto fail;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->more, NULL);
    int rc = uv_async_init(loop, &s->wake, on_wake);
    if (rc != 0) {
        status = titan_fail(err, TITAN_EIO, "job store: cannot watch the writer: %s", uv_strerror(rc));
        goto fail;
    }
    titan_assert(s->writer && s->reader && s->outstanding == 0);
    s->wake.data = s;
    (void)snprintf(s->dir, sizeof(s->dir), "%s", dir);
    look_at_sizes(s);
    if (pthread_create(&s->thread, NULL, writer_main, s) != 0) {
        status = titan_fail(err, TITAN_ELIMIT, "job store: cannot start the writer thread");
        close_files(s);
        uv_close((uv_handle_t *)&s->wake, on_wake_closed);
        return status;
    }
    *ret = s;
    return TITAN_OK;
fail:
    close_files(s);
    free(s);
    return status;
}

void store_close(struct store *s, void (*done)(void *), void *data)
{
    titan_assert(!s->stopping);
    s->closed = done;
    s->closed_data = data;
    pthread_mutex_lock(&s->lock);
    s->stopping = true;
    pthread_mutex_unlock(&s->lock);
    pthread_cond_signal(&s->more);
    pthread_join(s->thread, NULL);
    (void)deliver(s, INT64_MAX);
    titan_assert(s->outstanding == 0 && !s->queued.head);
    if (db_sync_failed(s->writer, NULL) == TITAN_OK)
        (void)!db_run(s->writer, NULL, "UPDATE machine SET clean = 1", "");
    close_files(s);
    uv_close((uv_handle_t *)&s->wake, on_wake_closed);
}
