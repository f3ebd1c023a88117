/* SPDX-License-Identifier: Apache-2.0 */
/* test_top_rounds.c - what `titanctl top` asks a server for, and what it makes of the answers: a frame, its workers'
 * ranks and states after each kind of event, the newest steps of each job, and pages. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>

#include "base/cleanup.h"
#include "tests/unit/ctl/loop_stand_in.h"
#include "tests/unit/ctl/stand_in.h"

/* What the server has. */
static struct world {
    const Titan__V1__Event *events; /* of each job */
    size_t n_events;
    Titan__V1__Job jobs[64]; /* in the order of its lists */
    size_t n_jobs, points;   /* points: of each job at most, the newest */
    uint64_t total, watched; /* watched: the job of which events were asked for */
    struct buf asked;        /* "JOB after STEP" for each stream of metrics */
    titan_status nodes;      /* the answer */
    size_t counts;           /* how often jobs were counted */
} world;

static titan_status serve(const char *method, const ProtobufCMessage *request,
                          bool (*each)(const ProtobufCMessage *message, void *data), void *data, ProtobufCMessage **ret,
                          struct titan_error *err)
{
    (void)request, (void)each, (void)data, (void)ret;
    return titan_fail(err, TITAN_EINVAL, "top has a loop, and calls %s without", method);
}

static bool in_states(const Titan__V1__ListJobsRequest *r, Titan__V1__JobState state)
{
    for (size_t i = 0; i < r->n_states; i++)
        if (r->states[i] == state)
            return true;
    return false;
}

/* A page's token is the place in jobs[] where it begins. */
static const ProtobufCMessage *list(const Titan__V1__ListJobsRequest *r)
{
    static Titan__V1__ListJobsResponse reply;
    static Titan__V1__Job *listed[ARRAY_SIZE(world.jobs)];
    static char token[24];
    titan__v1__list_jobs_response__init(&reply);
    reply.jobs = listed;
    world.counts += r->count;
    reply.total = r->count ? world.total : 0;
    for (size_t i = (size_t)atoi(r->page_token); i < world.n_jobs; i++) {
        if (!in_states(r, world.jobs[i].state))
            continue;
        if (reply.n_jobs == r->page_size) {
            (void)snprintf(token, sizeof(token), "%zu", i);
            reply.next_page_token = token;
            break;
        }
        listed[reply.n_jobs++] = &world.jobs[i];
    }
    return &reply.base;
}

static void on_call(const char *method, const ProtobufCMessage *request, const ProtobufCMessage **reply,
                    struct titan_error *err)
{
    static Titan__V1__ListNodesResponse nodes = TITAN__V1__LIST_NODES_RESPONSE__INIT;
    static Titan__V1__Node node = TITAN__V1__NODE__INIT, *all = &node;
    if (strcmp(method, "ListJobs") == 0) {
        *reply = list((const Titan__V1__ListJobsRequest *)request);
        return;
    }
    assert_string_equal(method, "ListNodes");
    if (world.nodes != TITAN_OK)
        (void)titan_fail(err, world.nodes, "not permitted");
    node.name = (char *)(uintptr_t) "n1";
    node.state = (char *)(uintptr_t) "ready";
    node.device = (char *)(uintptr_t) "cpu";
    node.slots = 8;
    node.slots_used = 3;
    nodes.nodes = &all;
    nodes.n_nodes = 1;
    *reply = &nodes.base;
}

static const Titan__V1__Job *job_of(uint64_t id)
{
    for (size_t i = 0; i < world.n_jobs; i++)
        if (world.jobs[i].id == id)
            return &world.jobs[i];
    fail_msg("there is no job %d", (int)id);
    return NULL;
}

static void on_stream(struct rpc_stream *s)
{
    if (strcmp(s->method, "Metrics") == 0) {
        const Titan__V1__MetricsRequest *r = (const Titan__V1__MetricsRequest *)s->request;
        const Titan__V1__Job *job = job_of(r->job_id);
        buf_printf(&world.asked, "%d after %d\n", (int)r->job_id, (int)r->after_step);
        for (uint64_t step = r->after_step + 1; step <= job->step + 1; step++) {
            Titan__V1__MetricPoint p = TITAN__V1__METRIC_POINT__INIT;
            Titan__V1__StepSplit split = TITAN__V1__STEP_SPLIT__INIT;
            p.step = step;
            p.epoch = step > job->step ? job->epoch - 1 : job->epoch; /* the last one was lost with its epoch */
            p.loss = step > job->step ? 1000 : 100 - (double)step;
            p.world_size = 3;
            split.compute_ms = 15;
            split.straggler_ms = 5;
            split.slowest_busy_ms = 18;
            split.slowest_rank = 1;
            p.split = &split;
            stream_send(s, &p.base);
        }
    } else {
        assert_string_equal(s->method, "WatchEvents");
        const Titan__V1__WatchEventsRequest *r = (const Titan__V1__WatchEventsRequest *)s->request;
        world.watched = r->job_id;
        assert_false(r->follow);
        for (size_t i = 0; i < world.n_events; i++) {
            Titan__V1__Event e = world.events[i];
            e.id = i + 1;
            stream_send(s, &e.base);
        }
    }
    stream_end(s, NULL);
}

#define EVENT(of, by, on, text, ...)                                                                                   \
    {                                                                                                                  \
        .base = PROTOBUF_C_MESSAGE_INIT(&titan__v1__event__descriptor), .type = (char *)(uintptr_t)(of), .rank = (by), \
        .node = (char *)(uintptr_t)(on), .message = (char *)(uintptr_t)(text), .actor = (char *)(uintptr_t) "",        \
        .detail = (char *)(uintptr_t) "{" __VA_ARGS__ "}"                                                              \
    }

static void add_job(uint64_t id, Titan__V1__JobState state, uint64_t step)
{
    assert_true(world.n_jobs < ARRAY_SIZE(world.jobs));
    Titan__V1__Job *job = &world.jobs[world.n_jobs++];
    titan__v1__job__init(job);
    job->id = id;
    job->state = state;
    job->name = (char *)(uintptr_t) "a-job";
    job->epoch = 2;
    job->step = step;
    job->steps = 1000;
    job->loss = 2.5;
    job->world_size = 3;
}

static int setup(void **state)
{
    (void)state;
    memset(&world, 0, sizeof(world));
    return setenv("COLUMNS", "100", 1) || setenv("LINES", "40", 1) || setenv("LC_ALL", "C", 1);
}

static int teardown(void **state)
{
    (void)state;
    buf_free(&world.asked);
    return 0;
}

/* The frame behind its first line, which has the time. */
static const char *frame(const char *option)
{
    buf_clear(&world.asked);
    assert_int_equal(option ? RUN("top", "--once", option) : RUN("top", "--once"), TITAN_OK);
    assert_string_equal(printed.err, "");
    return strchr(printed.out, '\n') + 1;
}

/* Which worker is which rank and what it does, after each event; the newest events stand below. */
static void test_workers(void **state)
{
    (void)state;
    static const Titan__V1__Event events[] = {
        EVENT("worker.starting", -1, "n1", "11 starts", "\"worker\":11"),
        EVENT("worker.starting", -1, "n1", "12 starts", "\"worker\":12"),
        EVENT("worker.started", -1, "n2", "13 started", "\"worker\":13"),
        EVENT("worker.ready", -1, "", "11 is ready", "\"worker\":11"),
        EVENT("worker.ready", -1, "", "13 is ready", "\"worker\":13"),
        EVENT("epoch.forming", -1, "", "", "\"workers\":[13,11,14,-1,\"x\"]"),
        EVENT("epoch.formed", -1, "", "epoch 1 runs"),
        EVENT("worker.straggler", 1, "n1", "11 is slow", "\"worker\":11,\"busy_ms\":18.4,\"median_ms\":9.6"),
        EVENT("worker.stalled", -1, "", "13 hangs", "\"worker\":13"),
        EVENT("worker.started", -1, "n3", "\033[2J15", "\"worker\":15"),
        EVENT("worker.exited", -1, "", "15 ended", "\"worker\":15"),
        EVENT("worker.started", -1, "", "of none", "\"worker\":0"),
    };
    add_job(7, TITAN__V1__JOB_STATE__RUNNING, 0);
    world.events = events;
    world.n_events = 6;
    assert_string_equal(frame(NULL), "   JOB  NAME   STATE      STEP  LOSS  CURVE  TOKENS/S  MFU %  WORKERS\n"
                                     ">    7  a-job  RUNNING  0/1000     -                -      -        3\n"
                                     "NODE  STATE  USED  SLOTS  DEVICE  REASON\n"
                                     "n1    ready     3      8  cpu     \n"
                                     "job 7  a-job\n"
                                     "RANK  WORKER  NODE  STATE     SINCE  NOTE\n"
                                     "   0      13  n2    ready     -      \n"
                                     "   1      11  n1    ready     -      \n"
                                     "   2      14        ?         -      \n"
                                     "   -      12  n1    starting  -      \n"
                                     "00:00:00Z  11 starts\n"
                                     "00:00:00Z  12 starts\n"
                                     "00:00:00Z  13 started\n"
                                     "00:00:00Z  11 is ready\n"
                                     "00:00:00Z  13 is ready\n"
                                     "00:00:00Z  epoch.forming\n");
    world.n_events = 7;
    assert_string_equal(frame(NULL), "   JOB  NAME   STATE      STEP  LOSS  CURVE  TOKENS/S  MFU %  WORKERS\n"
                                     ">    7  a-job  RUNNING  0/1000     -                -      -        3\n"
                                     "NODE  STATE  USED  SLOTS  DEVICE  REASON\n"
                                     "n1    ready     3      8  cpu     \n"
                                     "job 7  a-job\n"
                                     "RANK  WORKER  NODE  STATE     SINCE  NOTE\n"
                                     "   0      13  n2    trains    -      \n"
                                     "   1      11  n1    trains    -      \n"
                                     "   2      14        ?         -      \n"
                                     "   -      12  n1    starting  -      \n"
                                     "00:00:00Z  11 starts\n"
                                     "00:00:00Z  12 starts\n"
                                     "00:00:00Z  13 started\n"
                                     "00:00:00Z  11 is ready\n"
                                     "00:00:00Z  13 is ready\n"
                                     "00:00:00Z  epoch.forming\n"
                                     "00:00:00Z  epoch 1 runs\n");
    world.n_events = ARRAY_SIZE(events);
    assert_string_equal(frame(NULL),
                        "   JOB  NAME   STATE      STEP  LOSS  CURVE  TOKENS/S  MFU %  WORKERS\n"
                        ">    7  a-job  RUNNING  0/1000     -                -      -        3\n"
                        "NODE  STATE  USED  SLOTS  DEVICE  REASON\n"
                        "n1    ready     3      8  cpu     \n"
                        "job 7  a-job\n"
                        "RANK  WORKER  NODE  STATE     SINCE  NOTE\n"
                        "   0      13  n2    hangs     -      \n"
                        "   1      11  n1    trains    -      slow: 18 ms of its own a step, the others 10\n"
                        "   2      14        ?         -      \n"
                        "   -      12  n1    starting  -      \n"
                        "00:00:00Z  13 is ready\n"
                        "00:00:00Z  epoch.forming\n"
                        "00:00:00Z  epoch 1 runs\n"
                        "00:00:00Z  11 is slow\n"
                        "00:00:00Z  13 hangs\n"
                        "00:00:00Z  ?[2J15\n"
                        "00:00:00Z  15 ended\n"
                        "00:00:00Z  of none\n");
    assert_int_equal(world.watched, 7);
    static const Titan__V1__Event end[] = {
        EVENT("worker.started", 0, "n1", "11 started", "\"worker\":11"),
        EVENT("run.ended", -1, "", "the run ended"),
        EVENT("worker.stopping", -1, "n1", "12 stops", "\"worker\":12"),
    };
    world.events = end;
    world.n_events = 2;
    assert_string_equal(frame(NULL), "   JOB  NAME   STATE      STEP  LOSS  CURVE  TOKENS/S  MFU %  WORKERS\n"
                                     ">    7  a-job  RUNNING  0/1000     -                -      -        3\n"
                                     "NODE  STATE  USED  SLOTS  DEVICE  REASON\n"
                                     "n1    ready     3      8  cpu     \n"
                                     "job 7  a-job\n"
                                     "00:00:00Z  11 started\n"
                                     "00:00:00Z  the run ended\n");
    world.n_events = 3;
    assert_string_equal(frame(NULL), "   JOB  NAME   STATE      STEP  LOSS  CURVE  TOKENS/S  MFU %  WORKERS\n"
                                     ">    7  a-job  RUNNING  0/1000     -                -      -        3\n"
                                     "NODE  STATE  USED  SLOTS  DEVICE  REASON\n"
                                     "n1    ready     3      8  cpu     \n"
                                     "job 7  a-job\n"
                                     "RANK  WORKER  NODE  STATE     SINCE  NOTE\n"
                                     "   -      12  n1    stopping  -      \n"
                                     "00:00:00Z  11 started\n"
                                     "00:00:00Z  the run ended\n"
                                     "00:00:00Z  12 stops\n");
}

/* Those that run come first, then those that wait, then, where they are asked for, those that have ended; of those with
 * steps the newest are asked for, as many as a curve shows. */
static void test_jobs(void **state)
{
    (void)state;
    add_job(9, TITAN__V1__JOB_STATE__PENDING, 0);
    add_job(8, TITAN__V1__JOB_STATE__COMPLETED, 1000);
    add_job(7, TITAN__V1__JOB_STATE__RUNNING, 3);
    add_job(6, TITAN__V1__JOB_STATE__RECOVERING, 65);
    world.jobs[1].reason = (char *)(uintptr_t) "why";
    assert_string_equal(
        frame(NULL), "   JOB  NAME   STATE          STEP    LOSS  CURVE             TOKENS/S  MFU %  WORKERS\n"
                     ">    7  a-job  RUNNING      3/1000  2.5000  ^-_                      -      -        3\n"
                     "     6  a-job  RECOVERING  65/1000  2.5000  ^^====----....__         -      -        3\n"
                     "     9  a-job  PENDING      0/1000       -                           -      -        3\n"
                     "NODE  STATE  USED  SLOTS  DEVICE  REASON\n"
                     "n1    ready     3      8  cpu     \n"
                     "JOB  STEP MS  DATA  COMPUTE  COMM.  CHECKP.  STRAGGL.  SLOWEST             BUSY MS  OTHERS WAIT\n"
                     "  7     20.0    0%      75%     0%       0%       25%  rank 1 in 3 of 3       18.0          5.0\n"
                     "  6     20.0    0%      75%     0%       0%       25%  rank 1 in 64 of 64     18.0          5.0\n"
                     "job 7  a-job\n");
    assert_string_equal(world.asked.data, "7 after 0\n6 after 1\n");
    assert_string_equal(
        frame("--all"),
        "   JOB  NAME   STATE            STEP    LOSS  CURVE             TOKENS/S  MFU %  WORKERS\n"
        ">    7  a-job  RUNNING        3/1000  2.5000  ^-_                      -      -        3\n"
        "     6  a-job  RECOVERING    65/1000  2.5000  ^^====----....__         -      -        3\n"
        "     9  a-job  PENDING        0/1000       -                           -      -        3\n"
        "     8  a-job  COMPLETED   1000/1000  2.5000  ^^====----....__         -      -        3\n"
        "NODE  STATE  USED  SLOTS  DEVICE  REASON\n"
        "n1    ready     3      8  cpu     \n"
        "JOB  STEP MS  DATA  COMPUTE  COMM.  CHECKP.  STRAGGL.  SLOWEST             BUSY MS  OTHERS WAIT\n"
        "  7     20.0    0%      75%     0%       0%       25%  rank 1 in 3 of 3       18.0          5.0\n"
        "  6     20.0    0%      75%     0%       0%       25%  rank 1 in 64 of 64     18.0          5.0\n"
        "job 7  a-job\n");
    assert_string_equal(world.asked.data, "7 after 0\n6 after 1\n8 after 936\n");
    world.nodes = TITAN_EPERM; /* of a user that may not see them */
    world.n_jobs = 1;
    assert_string_equal(frame(NULL), "   JOB  NAME   STATE      STEP  LOSS  CURVE  TOKENS/S  MFU %  WORKERS\n"
                                     ">    9  a-job  PENDING  0/1000     -                -      -        3\n"
                                     "NODE  STATE  USED  SLOTS  DEVICE  REASON\n"
                                     "job 9  a-job\n");
    world.n_jobs = 0;
    assert_string_equal(frame(NULL), "no jobs\n"
                                     "NODE  STATE  USED  SLOTS  DEVICE  REASON\n");
    world.nodes = TITAN_EIO;
    assert_int_equal(RUN("top", "--once"), TITAN_EIO);
    assert_string_equal(printed.out, "");
    assert_int_equal(RUN("json", "top"), TITAN_EINVAL);
}

/* As many jobs as the screen has room for; how many more there are is asked for where there are more. */
static void test_page(void **state)
{
    (void)state;
    assert_int_equal(setenv("LINES", "16", 1), 0);
    for (uint64_t id = 30; id > 25; id--)
        add_job(id, id > 27 ? TITAN__V1__JOB_STATE__FORMING : TITAN__V1__JOB_STATE__PENDING, 0);
    (void)frame(NULL);
    assert_null(strstr(printed.out, "more jobs"));
    assert_non_null(strstr(printed.out, " 26  a-job"));
    assert_int_equal(world.counts, 0);
    add_job(25, TITAN__V1__JOB_STATE__PENDING, 0);
    world.total = 6;
    (void)frame(NULL);
    assert_non_null(strstr(printed.out, "  page 1, 1 more jobs  unix:/nowhere\n"));
    assert_null(strstr(printed.out, " 25  a-job"));
    assert_int_equal(world.counts, 1);
    world.total = 4; /* some ended in between */
    (void)frame(NULL);
    assert_non_null(strstr(printed.out, "  page 1, there are more  unix:/nowhere\n"));
    world.total = 20000;
    (void)frame(NULL);
    assert_non_null(strstr(printed.out, "  page 1, 19995 more jobs  unix:/nowhere\n"));
    world.total = 20001;
    (void)frame(NULL);
    assert_non_null(strstr(printed.out, "  page 1, over 19996 more jobs  unix:/nowhere\n"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_workers, setup, teardown),
        cmocka_unit_test_setup_teardown(test_jobs, setup, teardown),
        cmocka_unit_test_setup_teardown(test_page, setup, teardown),
    };
    return cmocka_run_group_tests_name("rounds of top", tests, NULL, NULL);
}
