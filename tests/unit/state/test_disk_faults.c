/* SPDX-License-Identifier: Apache-2.0 */
/* The store on a disk that fails: fault scenarios 15 (full), 16 (an operation fails) and 17 (the power goes).
 *   SEED=n repeats a run; CUTS=10000 and STRIDE=1 make it whole (`make test-store`). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "state/change.h"
#include "state/group.h"
#include "state/metric.h"
#include "state/replay.h"
#include "state/schema.h"
#include "state/store.h"
#include "tests/support/disk.h"
#include "tests/support/seeded.h"
#include "tests/support/sets.h"

static uint64_t number_of(const char *name, uint64_t fallback)
{
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : fallback;
}

static uint64_t rng;
static uint64_t draw(uint64_t n)
{
    rng ^= rng << 13, rng ^= rng >> 7, rng ^= rng << 17; /* xorshift64 (Marsaglia, 2003) */
    return rng % n;
}

/* --- a store, step by step ---------------------------------------------------------------------------------------- */

#define PATH "/s/titan.db"

/* What was said to be durable, and what was tried. */
struct ledger {
    struct db *db;
    uint64_t tried, acked, acked_jobs[4096];
    char recipe[2048];
};

static titan_status open_db(struct db **ret)
{
    struct titan_error err = {0};
    struct db *db = NULL;
    TRY(db_rewrite_wal(PATH, &err));
    TRY(schema_probe(&schema_store, PATH, NULL, &err));
    TRY(db_open(PATH, DB_WRITER, true, &db, &err));
    titan_status status = schema_check(db, false, &err);
    if (status == TITAN_OK)
        status = schema_migrate(&schema_store, db, &err);
    if (status == TITAN_OK)
        *ret = db;
    else
        db_close(db);
    return status;
}

struct submit {
    struct group_write write;
    struct job job;
    const char *recipe;
};

static titan_status write_submit(struct db *db, void *arg, struct titan_error *err)
{
    struct submit *s = arg;
    uint64_t existing = 0;
    return job_submit(db, &s->job, s->recipe, &existing, err);
}

static struct job plain_job(uint64_t id)
{
    struct job job = {.id = id, .name = "n", .user = "u", .submitted_at_ms = 5, .status.loss = 1};
    strcpy(job.spec.device, "cpu");
    job.spec.steps = 10;
    job.spec.min_workers = job.spec.max_workers = 1;
    world_set_add(&job.spec.worlds, 1);
    return job;
}

/* An older job goes on to some state it may go on to. */
static titan_status write_move(struct db *db, void *arg, struct titan_error *err)
{
    uint64_t id = *(uint64_t *)arg;
    struct event e = {.job_id = id, .at_ms = 7, .type = "job.state", .message = "moved", .rank = -1};
    struct job_status status = {.restarts = (uint32_t)id % 3};
    int64_t from = 0;
    TRY(db_int(db, &from, err, "SELECT state FROM jobs WHERE id = ?", "u", id));
    for (int to = 1; to < job_sm.count; to++)
        if (sm_allowed(&job_sm, (int)from, to))
            return job_move(db, &(struct job){.id = id, .state = (enum job_state)to, .status = status}, &e, err);
    return TITAN_OK;
}

/* One group of 1 to 4 submits with recipes of different lengths, and a move now and then. */
static void submit_some(struct ledger *l)
{
    struct submit s[4];
    struct group_stats stats = {0};
    uint64_t n = 1 + draw(ARRAY_SIZE(s));
    uint64_t moved = l->acked ? l->acked_jobs[draw(l->acked)] : 0;
    struct group_write move = {.fn = write_move, .arg = &moved};
    for (uint64_t i = 0; i < n; i++) {
        s[i] = (struct submit){.job = plain_job(++l->tried),
                               .recipe = l->recipe + draw(sizeof(l->recipe)),
                               .write = {.fn = write_submit, .next = i + 1 < n ? &s[i + 1].write : NULL}};
        s[i].write.arg = &s[i];
    }
    if (moved && draw(2))
        s[n - 1].write.next = &move;
    group_commit(l->db, NULL, &s[0].write, &stats);
    for (uint64_t i = 0; i < n; i++)
        if (s[i].write.err.status == TITAN_OK)
            l->acked_jobs[l->acked++] = s[i].job.id;
}

static int64_t query(struct db *db, const char *sql)
{
    int64_t n = -1;
    assert_int_equal(db_int(db, &n, NULL, sql, ""), TITAN_OK);
    return n;
}

/* Everything acknowledged is there, nothing is there in part. */
static void check_db(struct ledger *l, struct db *db, const char *when, uint64_t seed)
{
    for (uint64_t i = 0; i < l->acked; i++) {
        int64_t n = 0;
        assert_int_equal(db_int(db, &n, NULL, "SELECT count(*) FROM jobs WHERE id = ?", "u", l->acked_jobs[i]), 0);
        if (n != 1)
            fail_msg("%s (seed %llu): job %llu of %llu was acknowledged and is lost", when, (unsigned long long)seed,
                     (unsigned long long)l->acked_jobs[i], (unsigned long long)l->acked);
    }
    assert_true(query(db, "SELECT count(*) FROM jobs") <= (int64_t)l->tried);
    assert_int_equal(query(db, "SELECT count(*) FROM jobs LEFT JOIN recipes ON job_id = id WHERE text IS NULL"), 0);
    struct titan_error err = {0};
    if (event_verify(db, 0, NULL, &err) != TITAN_OK ||
        (seed % 4 == 0 && replay_check(db, NULL, NULL, NULL, &err) != TITAN_OK))
        fail_msg("%s (seed %llu): %s", when, (unsigned long long)seed, err.msg);
}

static void ledger_init(struct ledger *l)
{
    memset(l, 0, sizeof(*l));
    memset(l->recipe, 'x', sizeof(l->recipe) - 1);
}

/* --- 17: the power goes ------------------------------------------------------------------------------------------- */

struct cuts {
    struct ledger ledger;
    uint64_t one_in, done, seed;
};

/* Before an operation of the running history: what would a boot find now? */
static void cut_here(struct disk *d, void *data)
{
    struct cuts *c = data;
    if (draw(c->one_in) != 0)
        return;
    struct disk *after = disk_after_power_cut(d, ++c->seed);
    disk_mount(after);
    struct db *db = NULL;
    if (open_db(&db) != TITAN_OK)
        fail_msg("power cut %llu: the store does not open", (unsigned long long)c->seed);
    check_db(&c->ledger, db, "power cut", c->seed);
    db_close(db);
    disk_unmount(after);
    disk_free(after);
    disk_mount(d);
    c->done++;
}

static void test_power_cuts(void **state)
{
    (void)state;
    uint64_t wanted = number_of("CUTS", (uint64_t)sliced(60, 300));
    struct cuts c = {.one_in = 5, .seed = rng * 1000003};
    for (uint64_t history = 0; c.done < wanted; history++) {
        struct disk *d = disk_new(rng);
        ledger_init(&c.ledger);
        disk_mount(d);
        assert_int_equal(open_db(&c.ledger.db), TITAN_OK);
        disk_watch(d, DISK_CHANGES, cut_here, &c);
        for (uint64_t i = 0; i < 100 && c.done < wanted; i++) {
            submit_some(&c.ledger);
            if (draw(8) == 0)
                db_checkpoint(c.ledger.db);
            if (draw(32) == 0) { /* an orderly end and a new start */
                db_close(c.ledger.db);
                assert_int_equal(open_db(&c.ledger.db), TITAN_OK);
            }
        }
        disk_watch(d, 0, NULL, NULL);
        db_close(c.ledger.db);
        disk_unmount(d);
        disk_free(d);
    }
}

/* --- 16: the n-th operation fails --------------------------------------------------------------------------------- */

struct fault {
    uint32_t ops;
    enum disk_fault kind;
    enum disk_failed_sync sync;
    const char *what;
};

/* The process ends when it may not go on; its supervisor starts it again, twice. */
static bool reopen(struct ledger *l)
{
    db_close(l->db);
    l->db = NULL;
    for (int i = 0; i < 2 && !l->db; i++)
        (void)!open_db(&l->db);
    return l->db != NULL;
}

/* The scripted history: groups of submits, checkpoints, an orderly end in between. False: it broke off because an fsync
 * failed. */
static bool scripted_history(struct ledger *l)
{
    if (!l->db && !reopen(l))
        return false;
    for (int i = 0; i < 12; i++) {
        submit_some(l);
        if (i % 4 == 3)
            db_checkpoint(l->db);
        if (db_sync_failed(l->db, NULL) != TITAN_OK || (i == 7 && !reopen(l)))
            return false;
    }
    return true;
}

/* Another process on what this one has left, which takes more submits, and then a power cut. */
static void check_next_life(struct ledger *l, struct disk *d, const struct fault *fault, uint64_t n)
{
    struct disk *next = disk_after_kill(d, n);
    disk_mount(next);
    struct db *before = l->db;
    l->db = NULL;
    if (open_db(&l->db) != TITAN_OK)
        fail_msg("%s at %llu: the store does not open again", fault->what, (unsigned long long)n);
    check_db(l, l->db, fault->what, n);
    submit_some(l);
    assert_int_equal(db_sync_failed(l->db, NULL), TITAN_OK);
    struct disk *after = disk_after_power_cut(next, n);
    struct db *db = NULL;
    disk_mount(after);
    if (open_db(&db) != TITAN_OK)
        fail_msg("%s at %llu, then a power cut: the store does not open", fault->what, (unsigned long long)n);
    check_db(l, db, fault->what, n);
    db_close(db);
    disk_unmount(after);
    disk_free(after);
    db_close(l->db);
    disk_unmount(next);
    disk_free(next);
    disk_mount(d);
    l->db = before;
}

/* The history with its n-th operation failing; false when it has fewer. */
static bool fail_nth(const struct fault *fault, uint64_t n)
{
    static struct ledger l;
    uint64_t seed = rng;
    struct disk *d = disk_new(1);
    ledger_init(&l);
    rng = 12345; /* the same history each time */
    disk_mount(d);
    disk_on_failed_sync(d, fault->sync);
    disk_fail(d, fault->ops, NULL, n, fault->kind, false);
    bool whole = scripted_history(&l);
    bool happened = disk_faults(d) > 0;
    disk_fail(d, 0, NULL, 0, DISK_EIO, false);
    if (whole && l.acked < l.tried) /* what was refused can be asked for again */
        submit_some(&l);
    check_next_life(&l, d, fault, n);
    db_close(l.db);
    disk_unmount(d);
    disk_free(d);
    rng = seed;
    return happened;
}

static void test_every_operation_fails_once(void **state)
{
    (void)state;
    static const struct fault faults[] = {
        {DISK_WRITE | DISK_TRUNCATE | DISK_DELETE | DISK_OPEN, DISK_EIO, DISK_SYNC_FORGETS, "EIO"},
        {DISK_WRITE, DISK_SHORT, DISK_SYNC_FORGETS, "short write"},
        {DISK_READ, DISK_EIO, DISK_SYNC_FORGETS, "EIO of a read"},
        {DISK_SYNC, DISK_EIO, DISK_SYNC_FORGETS, "failed fsync, forgotten"},
        {DISK_SYNC, DISK_EIO, DISK_SYNC_DROPS, "failed fsync, dropped"},
        {DISK_SYNC, DISK_EIO, DISK_SYNC_RETRIES, "failed fsync, still dirty"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(faults); i++) {
        uint64_t stride = number_of("STRIDE", faults[i].ops == DISK_SYNC ? 1
                                              : in_fast_set()            ? 15
                                                                         : 5),
                 n = 1 + draw(stride), tried = 0;
        for (; fail_nth(&faults[i], n); n += stride)
            tried++;
        assert_true(tried > 5);
        print_message("# %s: %llu of %llu operations\n", faults[i].what, (unsigned long long)tried,
                      (unsigned long long)(n - 1));
    }
}

/* --- the whole store, with its thread ----------------------------------------------------------------------------- */

struct whole {
    uv_loop_t loop;
    struct store *store;
    struct disk *disk;
    uint64_t next;
    int done, ok, failures;
};

static void set_up(struct whole *f, uint64_t seed)
{
    memset(f, 0, sizeof(*f));
    f->disk = disk_new(seed);
    disk_mount(f->disk);
    assert_int_equal(uv_loop_init(&f->loop), 0);
}

static void open_whole(struct whole *f)
{
    struct titan_error err = {0};
    if (store_open(&f->loop, "/s", &f->store, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
}

static void close_whole(struct whole *f)
{
    store_close(f->store, NULL, NULL);
    uv_run(&f->loop, UV_RUN_DEFAULT);
    f->store = NULL;
}

static void tear_down(struct whole *f)
{
    if (f->store)
        close_whole(f);
    assert_int_equal(uv_loop_close(&f->loop), 0);
    disk_unmount(f->disk);
    disk_free(f->disk);
}

static titan_status write_job(struct db *db, void *arg, struct titan_error *err)
{
    struct whole *f = arg;
    struct job job = plain_job(++f->next);
    uint64_t existing = 0;
    return job_submit(db, &job, "text", &existing, err);
}

static titan_status write_metric(struct db *db, void *arg, struct titan_error *err)
{
    struct whole *f = arg;
    return metric_put(db, &(struct metric){.job_id = 1, .step = ++f->next}, err);
}

static void on_done(void *arg, const struct titan_error *err)
{
    struct whole *f = arg;
    f->done++;
    f->ok += err->status == TITAN_OK;
}

/* So many writes, one after the other; how many of them went in. */
static int write_some(struct whole *f, bool metrics, int n)
{
    f->done = f->ok = 0;
    while (f->done < n) {
        int before = f->done;
        if (metrics)
            store_write_metrics(f->store, write_metric, f, on_done);
        else
            store_write(f->store, write_job, f, on_done);
        while (f->done == before)
            uv_run(&f->loop, UV_RUN_ONCE);
    }
    return f->ok;
}

static void on_failure(void *data, const struct titan_error *err)
{
    struct whole *f = data;
    assert_int_equal(err->status, TITAN_EIO);
    f->failures++;
}

static void test_metrics_hurt_nobody(void **state)
{
    (void)state;
    static const uint32_t kinds[] = {DISK_ALL, DISK_WRITE, DISK_SYNC, DISK_READ};
    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
        struct whole f;
        set_up(&f, i);
        open_whole(&f);
        store_on_failure(f.store, on_failure, &f);
        assert_int_equal(write_some(&f, true, 10), 10);
        disk_fail(f.disk, kinds[i], "metrics.db", 1, DISK_EIO, true);
        (void)write_some(&f, true, 10);
        assert_int_equal(write_some(&f, false, 20), 20);
        close_whole(&f);
        open_whole(&f); /* with metrics.db failing still */
        assert_int_equal(write_some(&f, false, 20), 20);
        (void)write_some(&f, true, 1);
        close_whole(&f);
        disk_fail(f.disk, 0, NULL, 0, DISK_EIO, false);
        open_whole(&f);
        assert_int_equal(write_some(&f, true, 10), 10);
        assert_int_equal(f.failures, 0);
        assert_int_equal(query(store_reader(f.store), "SELECT count(*) FROM jobs"), 40);
        tear_down(&f);
    }
}

/* They are moved away as a file, so this one is about real files. */
static void test_damaged_metrics_are_moved_away(void **state)
{
    (void)state;
    struct whole f = {.next = 0};
    char dir[] = "/tmp/titan-store-XXXXXX", text[256];
    struct titan_error err = {0};
    assert_non_null(mkdtemp(dir));
    (void)snprintf(text, sizeof(text), "%s/metrics.db", dir);
    FILE *file = fopen(text, "we");
    assert_non_null(file);
    for (int i = 0; i < 1000; i++)
        (void)fputs("this is no database ", file);
    (void)fclose(file);
    assert_int_equal(uv_loop_init(&f.loop), 0);
    if (store_open(&f.loop, dir, &f.store, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    assert_int_equal(write_some(&f, true, 3), 3);
    close_whole(&f);
    (void)snprintf(text, sizeof(text), "test -s %s/metrics.db.damaged-*", dir);
    assert_int_equal(system(text), 0);
    assert_int_equal(uv_loop_close(&f.loop), 0);
    assert_int_equal(dir_remove(dir, NULL), TITAN_OK);
}

/* What opened the store hears of it before any result; nothing is written behind it. */
static void test_failed_fsync_ends_writing(void **state)
{
    (void)state;
    struct whole f;
    set_up(&f, 1);
    open_whole(&f);
    store_on_failure(f.store, on_failure, &f);
    assert_int_equal(write_some(&f, false, 5), 5);
    disk_fail(f.disk, DISK_SYNC, "titan.db", 1, DISK_EIO, false);
    assert_int_equal(write_some(&f, false, 1), 0);
    assert_true(f.failures > 0);
    uint64_t written = disk_count(f.disk, DISK_WRITE);
    assert_int_equal(write_some(&f, false, 3), 0);
    assert_int_equal(disk_count(f.disk, DISK_WRITE), written);
    close_whole(&f);
    open_whole(&f); /* a new process */
    assert_int_equal(write_some(&f, false, 1), 1);
    tear_down(&f);
}

/* --- 15: no space left -------------------------------------------------------------------------------------------- */

static void test_full_disk(void **state)
{
    (void)state;
    static struct ledger l;
    struct disk *d = disk_new(rng);
    ledger_init(&l);
    disk_mount(d);
    assert_int_equal(open_db(&l.db), TITAN_OK);
    for (int round = 0; round < 20; round++) {
        uint64_t acked = l.acked;
        disk_set_capacity(d, disk_used(d) + draw(40000));
        while (l.tried - l.acked < 20 * ((uint64_t)round + 1))
            submit_some(&l);
        check_db(&l, l.db, "full", 0); /* reading goes on */
        db_checkpoint(l.db);
        assert_int_equal(db_sync_failed(l.db, NULL), TITAN_OK);
        disk_set_capacity(d, 0);
        uint64_t tried = l.tried;
        acked = l.acked;
        submit_some(&l);
        assert_int_equal(l.acked - acked, l.tried - tried); /* there is space: it goes on by itself */
    }
    check_next_life(&l, d, &(struct fault){.what = "full"}, 1);
    db_close(l.db);
    disk_unmount(d);
    disk_free(d);
}

static int seed_random(void **state)
{
    (void)state;
    static uint64_t seed;
    if (!seed)
        seed = seeded_seed(0);
    rng = seed * 2 + 1;
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        quick(test_full_disk, .setup_func = seed_random),
        quick(test_metrics_hurt_nobody, .setup_func = seed_random),
        quick(test_damaged_metrics_are_moved_away, .setup_func = seed_random),
        quick(test_failed_fsync_ends_writing, .setup_func = seed_random),
        longer(test_every_operation_fails_once, .setup_func = seed_random),
        longer(test_power_cuts, .setup_func = seed_random),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
