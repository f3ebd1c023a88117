/* SPDX-License-Identifier: Apache-2.0 */
/* The coordinator's core: a job that trains on two nodes, then whatever agents can say, heartbeats, requests and time.
 * What it wants stored goes into a real store: a row that contradicts those before it is a finding. */
#include "tests/fuzz/message.h"

#define assert_int_equal(a, b) fuzz_assert((uint64_t)(a) == (uint64_t)(b))
#define assert_non_null(a) fuzz_assert(a)
#define assert_null(a) fuzz_assert(!(a))
#define assert_string_equal(a, b) fuzz_assert(strcmp((a), (b)) == 0)
#define assert_false(a) fuzz_assert(!(a))
#define assert_true(a) fuzz_assert(a)
#include "tests/support/core_bench.h"

#include "daemon/common/proof.h"
#include "state/db.h"
#include "state/schema.h"

static const char *const texts[] = {
    "a", "evil", "b", "", "h:1", "127.0.0.1:7", "cpu", "/jobs/1/checkpoint/step-00000005", "/c/5", NULL};
static struct db *db;

/* Once: the batch is empty afterwards. */
static void store(struct bench *b)
{
    struct titan_error err = {0};
    if (change_apply(db, b->out.changes, &err) != TITAN_OK) {
        fprintf(stderr, "the store: %s\n", err.msg);
        fuzz_assert(!"the store contradicts the core");
    }
    batch_free(&b->out);
    batch_init(&b->out);
}

static void begin(void)
{
    struct titan_error err = {0};
    if (!db) {
        fuzz_assert(db_open(":memory:", DB_WRITER, false, &db, &err) == TITAN_OK);
        fuzz_assert(schema_migrate(&schema_store, db, &err) == TITAN_OK);
    }
    fuzz_assert(db_exec(db, "SAVEPOINT input", &err) == TITAN_OK);
}

static void received(struct bench *b, uint64_t session, const Titan__Internal__AgentMessage *m)
{
    struct titan_error err = {0};
    batch_free(&b->out);
    titan_status status = core_agent(b->core, session, m, at(b), &b->out, &err);
    store(b);
    if (status != TITAN_OK) { /* as the shell does */
        fuzz_error(status, &err);
        batch_free(&b->out);
        core_session_closed(b->core, session, at(b), &b->out);
        store(b);
    }
}

/* Job 1 trains on a and b, two workers each; job 2 waits. Sessions 1 and 2. */
static void job_runs(struct bench *b)
{
    open_bench(b);
    assert_int_equal(registration(b, 1, "a", 2, NULL, 0), TITAN_OK);
    store(b);
    assert_int_equal(registration(b, 2, "b", 2, NULL, 0), TITAN_OK);
    store(b);
    for (uint64_t id = 1; id <= 2; id++) {
        struct titan_error err = {0};
        struct job job = job_of(id, 2, 4);
        uint64_t there = 0;
        fuzz_assert(job_submit(db, &job, "", &there, &err) == TITAN_OK);
        submit_job(b, &job);
        store(b);
        core_set_folder(b->core, id, "/jobs/1/checkpoint");
    }
    for (uint64_t w = 1; w <= 4; w++) {
        Titan__Internal__WorkerReady body = TITAN__INTERNAL__WORKER_READY__INIT;
        body.job_id = 1;
        body.worker_id = w;
        body.address = (char *)"h:1";
        MESSAGE(m, WORKER_READY, worker_ready, body);
        received(b, w <= 2 ? 1 : 2, &m);
        received(b, w <= 2 ? 2 : 1, &m); /* which of the two has it is not said here */
    }
    Titan__Internal__WorkerProgress p = TITAN__INTERNAL__WORKER_PROGRESS__INIT;
    p.job_id = p.worker_id = p.epoch = 1;
    p.step = 7;
    MESSAGE(m, PROGRESS, progress, p);
    received(b, 1, &m);
}

static void request(struct bench *b, struct fuzz_input *in)
{
    struct titan_error err = {0};
    struct core_cancel cancel = {.reason = "", .grace_ms = 1000};
    uint64_t job = fuzz_take(in, 1) % 4, step;
    struct core_resize r = {.workers = (uint32_t)fuzz_take(in, 1) % 6};
    struct core_drain d = {.reason = "", .deadline_ms = (int64_t)fuzz_take(in, 2)};
    const char *node = texts[fuzz_take(in, 1) % 3];
    switch (fuzz_take(in, 1) % 7) {
    case 0:
        (void)!core_cancel(b->core, job, &cancel, at(b), &b->out, &err);
        break;
    case 1:
        (void)!core_resize(b->core, job, &r, at(b), &b->out, &err);
        break;
    case 2:
        (void)!core_checkpoint(b->core, job, at(b), &b->out, &step, &err);
        break;
    case 3:
        (void)!core_drain(b->core, node, &d, at(b), &b->out, &err);
        break;
    case 4:
        (void)!core_undrain(b->core, node, at(b), &b->out, &err);
        break;
    case 5:
        (void)!core_node_remove(b->core, node, at(b), &b->out, &err);
        break;
    default:
        (void)!core_node_forget(b->core, node, at(b), &b->out, &err);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = {data, size};
    struct titan_error err = {0};
    struct bench b;
    begin();
    job_runs(&b);
    for (int i = 0; in.len > 0 && i < 64; i++) {
        uint8_t what = (uint8_t)fuzz_take(&in, 1);
        uint64_t session = 1 + what % 4;
        batch_free(&b.out);
        if (what < 200) {
            ProtobufCMessage *m = fuzz_message(&in, &titan__internal__agent_message__descriptor, texts, what / 4);
            ((Titan__Internal__AgentMessage *)m)->term %= 3;
            received(&b, session, (Titan__Internal__AgentMessage *)m);
            protobuf_c_message_free_unpacked(m, NULL);
        } else if (what < 210) {
            ProtobufCMessage *m = fuzz_message(&in, &titan__internal__peer_message__descriptor, texts, -1);
            struct proof_keys keys = {0};
            (void)core_heartbeat(b.core, (Titan__Internal__PeerMessage *)m, at(&b), &keys);
            protobuf_c_message_free_unpacked(m, NULL);
        } else if (what < 220) {
            core_session_closed(b.core, session, at(&b), &b.out);
        } else if (what < 235) {
            request(&b, &in);
        } else {
            b.now += (int64_t)fuzz_take(&in, 2);
            core_tick(b.core, at(&b), &b.out);
        }
        store(&b);
        (void)core_deadline(b.core);
    }
    close_bench(&b);
    fuzz_assert(db_exec(db, "ROLLBACK TO input; RELEASE input", &err) == TITAN_OK);
    return 0;
}
