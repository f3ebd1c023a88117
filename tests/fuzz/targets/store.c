/* SPDX-License-Identifier: Apache-2.0 */
/* A store that is damaged or was edited by hand, and the coordinator that starts on it: rows of a cluster at work, some
 * of their columns changed, some rows gone. Jobs that cannot be are passed over; with the others it goes on. */
#include "tests/fuzz/message.h"

#define assert_int_equal(a, b) fuzz_assert((uint64_t)(a) == (uint64_t)(b))
#define assert_non_null(a) fuzz_assert(a)
#define assert_null(a) fuzz_assert(!(a))
#define assert_string_equal(a, b) fuzz_assert(strcmp((a), (b)) == 0)
#define assert_false(a) fuzz_assert(!(a))
#define assert_true(a) fuzz_assert(a)
#include "tests/support/core_bench.h"

#include "daemon/coordinator/shell/store_restore.h"
#include "proto/ranges.h"
#include "state/db.h"
#include "state/replay.h"
#include "state/schema.h"

static struct db *db;

static void store(struct bench *b)
{
    struct titan_error err = {0};
    fuzz_assert(change_apply(db, b->out.changes, &err) == TITAN_OK);
    batch_free(&b->out);
    batch_init(&b->out);
}

static void submit_stored(struct bench *b, uint64_t id, uint32_t min, uint32_t max)
{
    struct titan_error err = {0};
    struct job job = job_of(id, min, max);
    uint64_t there = 0;
    job.spec.restart_window_s = id == 1 ? 3600 : 0;
    job.spec.max_node_losses = 3;
    fuzz_assert(job_submit(db, &job, "", &there, &err) == TITAN_OK);
    submit_job(b, &job);
    store(b);
}

/* Job 1 has lost a worker and trains on in its second epoch, job 2 is being formed, job 3 waits; node b is drained. */
static void work(struct bench *b)
{
    static const struct core_drain drain = {.reason = "new disk", .deadline_ms = 60000};
    struct titan_error err = {0};
    open_bench(b);
    assert_int_equal(registration(b, 1, "a", 4, NULL, 0), TITAN_OK);
    store(b);
    heartbeat(b, 1);
    store(b);
    submit_stored(b, 1, 2, 4);
#define STORED(what) what, store(b)
    for (uint64_t w = 1; w <= 4; w++)
        STORED(ready(b, .worker = w));
    STORED(progress(b, .worker = 1, .epoch = 1, .step = 7));
    STORED(checkpoint(b, .worker = 1, .epoch = 1, .step = 5));
    STORED(exited(b, .worker = 4, .code = -1));
    for (uint64_t w = 1; w <= 3; w++)
        STORED(quiesced(b, .worker = w, .epoch = 1, .step = 7));
    STORED(progress(b, .worker = 1, .epoch = 2, .step = 8));
    assert_int_equal(registration(b, 2, "b", 2, NULL, 0), TITAN_OK);
    store(b);
    heartbeat(b, 2);
    store(b);
    submit_stored(b, 2, 1, 2);
    submit_stored(b, 3, 8, 8);
    for (int i = 0; i < 20; i++)
        STORED(tick(b, 100));
    STORED((void)!core_drain(b->core, "b", &drain, at(b), &b->out, &err));
    close_bench(b);
}

static void begin(void)
{
    struct titan_error err = {0};
    struct bench b;
    if (!db) {
        fuzz_assert(db_open(":memory:", DB_WRITER, false, &db, &err) == TITAN_OK);
        fuzz_assert(schema_migrate(&schema_store, db, &err) == TITAN_OK);
        work(&b);
        fuzz_assert(replay_check(db, NULL, NULL, NULL, &err) == TITAN_OK);
        fuzz_assert(db_exec(db, "PRAGMA foreign_keys=OFF; PRAGMA ignore_check_constraints=ON", &err) == TITAN_OK);
    }
    fuzz_assert(db_exec(db, "SAVEPOINT input", &err) == TITAN_OK);
}

/* Every table that is read at the start, with what its rows are known by; columns: i numbers, t text, b bytes. */
static const struct table {
    const char *name, *key, *columns;
} tables[] = {
    {"jobs", "id",
     "i:id i:state i:steps i:min_workers i:max_workers b:worlds i:max_restarts i:backoff_ms i:backoff_max_ms"
     " i:keep_latest i:step i:world_size i:epoch i:restarts i:submitted_at_ms i:started_at_ms i:finished_at_ms"
     " t:checkpoint t:mesh i:priority i:max_node_losses i:restart_window_s i:wish_min i:wish_max i:wish_number"
     " i:preemptions i:uid i:gid i:checkpoint_failures i:evaluation_step i:evaluation_tokens t:device t:reason t:name "
     "t:user i:loss"},
    {"runs", "job_id, number", "i:job_id i:number i:state"},
    {"epochs", "job_id, number",
     "i:job_id i:number i:run i:state i:world_size i:source i:source_epoch i:resume_step t:checkpoint b:comm_id"
     " i:created_at_ms i:formed_at_ms i:leavers i:rung i:state_step t:delegate b:key"},
    {"workers", "id", "i:id i:job_id i:run t:node i:state t:address i:pid i:rank i:counted"},
    {"members", "job_id, epoch, rank", "i:job_id i:epoch i:rank i:worker_id"},
    {"checkpoints", "job_id, step", "i:job_id i:step i:epoch i:state t:path i:bytes i:world_size"},
    {"nodes", "name",
     "t:name i:state i:slots t:device t:address t:version i:memory_bytes i:incarnation"
     " i:last_seen_ms i:peer_port"},
    {"losses", "id", "i:job_id i:cause t:node i:at_ms"},
    {"node_policies", "name",
     "t:name i:draining t:reason i:deadline_ms i:window_from_ms i:window_until_ms i:window_lead_ms"
     " i:quarantined_until_ms i:quarantines t:quarantine_reason"},
    {"events", "id", "i:id i:job_id i:at_ms t:type i:epoch i:rank t:change b:chain"},
    {"meta", "key", "t:key i:value"},
};

static int64_t number(struct fuzz_input *in)
{
    static const int64_t bounds[] = {-1,   INT64_MAX,        INT64_MIN,        UINT32_MAX, INT32_MAX, INT32_MIN, 1025,
                                     1024, (int64_t)1 << 32, (int64_t)1 << 53, 100,        1000000,   1003000};
    const uint64_t how = fuzz_take(in, 1);
    if (how < 160)
        return (int64_t)(how % 16);
    return how < 240 ? bounds[how % ARRAY_SIZE(bounds)] : (int64_t)fuzz_take(in, 8);
}

static void put_value(struct fuzz_input *in, char kind, char *out, size_t size)
{
    static const char *const texts[] = {
        "", "a", "b", "c", "cpu", "cuda", "auto", "/c/5", "x\ny", "term", "job running recovering 1 1"};
    size_t n = 0;
    if (kind == 'i') {
        (void)snprintf(out, size, "%lld", (long long)number(in));
    } else if (kind == 't') {
        (void)snprintf(out, size, "'%s'", texts[fuzz_take(in, 1) % ARRAY_SIZE(texts)]);
    } else {
        const uint64_t len = fuzz_take(in, 1) % 140, byte = fuzz_take(in, 1);
        n = (size_t)snprintf(out, size, "x'");
        for (uint64_t i = 0; i < len; i++)
            n += (size_t)snprintf(out + n, size - n, "%02x", (unsigned)byte);
        (void)snprintf(out + n, size - n, "'");
    }
}

/* One column of one row, or the row itself. */
static void edit(struct fuzz_input *in)
{
    const struct table *t = &tables[fuzz_take(in, 1) % ARRAY_SIZE(tables)];
    char sql[1024], value[400], column[40] = "";
    struct titan_error err = {0};
    const uint64_t row = fuzz_take(in, 1) % 16, which = fuzz_take(in, 1);
    char kind = 0;
    int n = 0;
    for (const char *at = t->columns; *at; at += strcspn(at, " "), at += *at == ' ')
        n++;
    const char *at = t->columns;
    for (int i = 0; i < (int)(which % (uint64_t)n); i++)
        at = strchr(at, ' ') + 1;
    kind = at[0];
    (void)snprintf(column, sizeof(column), "%.*s", (int)strcspn(at + 2, " "), at + 2);
    put_value(in, kind, value, sizeof(value));
    if (which >= 240)
        (void)snprintf(sql, sizeof(sql),
                       "DELETE FROM %s WHERE (%s) = (SELECT %s FROM %s ORDER BY %s LIMIT 1 OFFSET %d)", t->name, t->key,
                       t->key, t->name, t->key, (int)row);
    else
        (void)snprintf(sql, sizeof(sql),
                       "UPDATE OR IGNORE %s SET %s = %s WHERE (%s) = (SELECT %s FROM %s ORDER BY %s LIMIT 1 OFFSET %d)",
                       t->name, column, value, t->key, t->key, t->name, t->key, (int)row);
    fuzz_assert(db_exec(db, sql, &err) == TITAN_OK);
}

static void bad(uint64_t job_id, const char *why, void *data)
{
    (void)job_id;
    fuzz_assert(*why && !strchr(why, '\n'));
    ++*(int *)data;
}

/* What the agents say then. */
static void go_on(struct bench *b, struct fuzz_input *in)
{
    Titan__Internal__LiveWorker live[3], *list[3];
    uint64_t n = fuzz_take(in, 1) % 4;
    core_check(b->core);
    for (uint64_t i = 0; i < n; i++) {
        live[i] = (Titan__Internal__LiveWorker)TITAN__INTERNAL__LIVE_WORKER__INIT;
        live[i].job_id = 1;
        live[i].worker_id = i + 1;
        live[i].epoch = 2;
        live[i].step = 8;
        list[i] = &live[i];
    }
    (void)!registration(b, 11, "a", 4, list, n);
    for (int i = 0; i < 24; i++) {
        batch_free(&b->out);
        b->now += i < 12 ? 100 : 1000 + (int64_t)fuzz_take(in, 1) * 100;
        core_tick(b->core, at(b), &b->out);
        core_check(b->core);
        (void)core_deadline(b->core);
        if (i == 5)
            (void)!registration(b, 12, "b", 2, NULL, 0);
    }
}

/* As the coordinator does on a store that it finds; false: on this one it does not. */
static bool start(struct bench *b)
{
    struct core_options options = {
        .term = 2, .seed = 1, .jobs_dir = "/jobs", .heartbeat_ms = 100, .node_timeout_ms = 1000};
    uint64_t last = 0;
    struct titan_error err = {0};
    fuzz_assert(worker_last_id(db, &last, &err) == TITAN_OK);
    options.next_worker_id = last + 1;
    if (last >= RANGE_ID_MAX)
        return false;
    *b = (struct bench){.now = 4000};
    batch_init(&b->out);
    fuzz_assert(core_new(&options, &b->core, &err) == TITAN_OK);
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = {data, size};
    struct titan_error err = {0};
    struct bench b;
    int bads = 0;
    begin();
    const uint64_t edits = fuzz_take(&in, 1) % 6;
    for (uint64_t i = 0; i < edits && in.len > 0; i++)
        edit(&in);
    if (!start(&b)) {
        fuzz_assert(edits && db_exec(db, "ROLLBACK TO input; RELEASE input", &err) == TITAN_OK);
        return 0;
    }
    const titan_status status = core_restore(b.core, db, at(&b), bad, &bads, &err);
    if (status != TITAN_OK)
        fuzz_error(status, &err);
    else
        go_on(&b, &in);
    fuzz_assert(edits || (status == TITAN_OK && bads == 0));
    close_bench(&b);
    fuzz_assert(db_exec(db, "ROLLBACK TO input; RELEASE input", &err) == TITAN_OK);
    return 0;
}
