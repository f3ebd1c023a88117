/* SPDX-License-Identifier: Apache-2.0 */
/* core_store.h - the coordinator's core of core_bench.h over a store in memory, and another that starts from it. */
#ifndef TITAN_TESTS_SUPPORT_CORE_STORE_H
#define TITAN_TESTS_SUPPORT_CORE_STORE_H

#include "daemon/coordinator/shell/store_restore.h"
#include "state/schema.h"
#include "tests/support/core_bench.h"

struct core_store {
    struct bench b;
    struct db *db;
};

static inline void open_store(struct core_store *s)
{
    open_bench(&s->b);
    assert_int_equal(db_open(":memory:", DB_WRITER, false, &s->db, NULL), TITAN_OK);
    assert_int_equal(schema_migrate(&schema_store, s->db, NULL), TITAN_OK);
}

static inline void close_store(struct core_store *s)
{
    close_bench(&s->b);
    db_close(s->db);
}

/* What the last input changed goes into the store. */
static inline void commit_store(struct core_store *s)
{
    struct titan_error err = {0};
    if (change_apply(s->db, s->b.out.changes, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    batch_free(&s->b.out);
}

static inline void submit_store(struct core_store *s, const struct job *job)
{
    uint64_t existing = 0;
    assert_int_equal(job_submit(s->db, job, "recipe", &existing, NULL), TITAN_OK);
    submit_job(&s->b, job);
}

/* Another coordinator over the same store, of that term. */
static inline void restart_store(struct core_store *s, uint64_t term)
{
    struct core_options options = {.term = term,
                                   .seed = 1,
                                   .jobs_dir = "/jobs",
                                   .heartbeat_ms = 100,
                                   .node_timeout_ms = 1000,
                                   .next_worker_id = 3};
    core_free(s->b.core);
    assert_int_equal(core_new(&options, &s->b.core, NULL), TITAN_OK);
    assert_int_equal(core_restore(s->b.core, s->db, at(&s->b), NULL, NULL, NULL), TITAN_OK);
}

/* Worker id of job 1, which trains in epoch 1 and has done step 7. */
static inline void live_worker(Titan__Internal__LiveWorker *ret, uint64_t id)
{
    titan__internal__live_worker__init(ret);
    ret->job_id = 1;
    ret->worker_id = id;
    ret->epoch = 1;
    ret->step = 7;
    ret->state = TITAN__INTERNAL__WORKER_PHASE__WORKER_TRAINING;
    ret->address = (char *)"h:1";
}

/* Heartbeats of a node's session and the core's clock, for so long; commit is called after each. */
static inline void pass_time(struct core_store *s, uint64_t session, int64_t ms, void (*commit)(void))
{
    for (int64_t end = s->b.now + ms; s->b.now < end;) {
        heartbeat(&s->b, session);
        commit();
        tick(&s->b, 100);
        commit();
    }
}

#endif
