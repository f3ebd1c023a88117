/* SPDX-License-Identifier: Apache-2.0 */
/* test_follow.c - a job that is watched until it has ended: which of its events are printed, and what ends the watch.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <signal.h>
#include <stdio.h>

#include "base/cleanup.h"
#include "ctl/client.h"
#include "ctl/follow.h"
#include "tests/unit/ctl/loop_stand_in.h"

/* What the server does. */
static struct server {
    const Titan__V1__Event *events; /* by id from 1 on; a stream that does not follow ends behind `old` of them */
    size_t n_events, old;
    Titan__V1__Job job;
    size_t looks;      /* GetJob that have been answered */
    size_t final_look; /* from this one on the job has ended; 0: never */
    size_t away;       /* so many streams end as there is no answer, before the first event */
    size_t opened, cancels, points;
    uint64_t after[8]; /* of the streams of events */
    bool follows[8];
    int interrupts;      /* signals that come with the first look */
    titan_status cancel; /* the answer */
    char reason[64];     /* of the last CancelJob */
    struct rpc_stream *metrics;
} server;

static char *printed;

static void on_call(const char *method, const ProtobufCMessage *request, const ProtobufCMessage **reply,
                    struct titan_error *err)
{
    static Titan__V1__GetJobResponse job = TITAN__V1__GET_JOB_RESPONSE__INIT;
    static const Titan__V1__CancelJobResponse cancelled = TITAN__V1__CANCEL_JOB_RESPONSE__INIT;
    if (strcmp(method, "CancelJob") == 0) {
        (void)snprintf(server.reason, sizeof(server.reason), "%s",
                       ((const Titan__V1__CancelJobRequest *)request)->reason);
        server.cancels++;
        if (server.cancel != TITAN_OK)
            (void)titan_fail(err, server.cancel, "not now");
        *reply = &cancelled.base;
        return;
    }
    assert_string_equal(method, "GetJob");
    assert_int_equal(((const Titan__V1__GetJobRequest *)request)->job_id, 7);
    server.looks++;
    for (; server.interrupts > 0; server.interrupts--)
        assert_int_equal(raise(SIGINT), 0);
    if (server.final_look && server.looks >= server.final_look)
        server.job.state = TITAN__V1__JOB_STATE__COMPLETED;
    job.job = &server.job;
    *reply = &job.base;
    if (ctl_state_final(server.job.state) && server.metrics)
        stream_end(TAKE(server.metrics), NULL);
}

static void on_stream(struct rpc_stream *s)
{
    if (strcmp(s->method, "Metrics") == 0) {
        server.metrics = s;
        for (size_t i = 0; i < server.points; i++) {
            Titan__V1__MetricPoint p = TITAN__V1__METRIC_POINT__INIT;
            p.step = ((const Titan__V1__MetricsRequest *)s->request)->after_step + 1 + i;
            p.loss = 2.5;
            p.world_size = 1;
            stream_send(s, &p.base);
        }
        return;
    }
    assert_string_equal(s->method, "WatchEvents");
    const Titan__V1__WatchEventsRequest *r = (const Titan__V1__WatchEventsRequest *)s->request;
    struct titan_error gone = {0};
    assert_true(server.opened < ARRAY_SIZE(server.after));
    server.after[server.opened] = r->after_event_id;
    server.follows[server.opened++] = r->follow;
    if (server.away > 0 && server.opened > 1) {
        server.away--;
        (void)titan_fail(&gone, TITAN_EUNREACHABLE, "no answer");
        gone.sys_errno = ENOTCONN;
        stream_end(s, &gone);
        return;
    }
    const size_t until = r->follow ? server.n_events : server.old;
    for (size_t i = r->after_event_id; i < until; i++) {
        Titan__V1__Event e = server.events[i];
        e.id = i + 1;
        stream_send(s, &e.base);
    }
    if (!r->follow || server.final_look)
        stream_end(s, NULL);
}

#define EVENT(of, at, text, ...)                                                                                       \
    {                                                                                                                  \
        .base = PROTOBUF_C_MESSAGE_INIT(&titan__v1__event__descriptor), .type = (char *)(uintptr_t)(of),               \
        .at_ms = (at), .message = (char *)(uintptr_t)(text), .node = (char *)(uintptr_t) "",                           \
        .actor = (char *)(uintptr_t) "", .detail = (char *)(uintptr_t) "{" __VA_ARGS__ "}", .rank = -1                 \
    }

static void serve(const Titan__V1__Event *events, size_t n)
{
    server = (struct server){.events = events, .n_events = n, .final_look = 1};
    titan__v1__job__init(&server.job);
    server.job.id = 7;
    server.job.steps = 20;
    server.job.state = TITAN__V1__JOB_STATE__RUNNING;
}

/* What it prints is in printed. */
static titan_status follow(const struct follow_options *of, struct titan_error *err)
{
    struct follow_options options = *of;
    _cleanup_message_ Titan__V1__GetJobResponse *job = NULL;
    size_t len;
    options.server = "tcp:nowhere:1";
    options.job_id = 7;
    free(printed);
    printed = NULL;
    FILE *const before = stderr;
    stderr = open_memstream(&printed, &len);
    const titan_status status = follow_job(&options, &job, err);
    (void)fclose(stderr);
    stderr = before;
    assert_int_equal(job != NULL, status == TITAN_OK);
    if (job)
        assert_int_equal(job->job->id, 7);
    return status;
}

/* Checkpoints are printed every two seconds at most, whatever comes between them. */
static void test_checkpoints(void **state)
{
    (void)state;
    static const Titan__V1__Event events[] = {
        EVENT("checkpoint.committed", 10000, "first"),  EVENT("checkpoint.committed", 10001, "crowd"),
        EVENT("node.lost", 11000, "a node is lost"),    EVENT("checkpoint.committed", 11999, "crowd"),
        EVENT("checkpoint.committed", 12000, "second"), EVENT("checkpoint.committed", 13999, "crowd"),
        EVENT("checkpoint.committed", 14001, ""),       EVENT("node.lost", 14002, "another is lost"),
    };
    struct titan_error err = {0};
    serve(events, ARRAY_SIZE(events));
    assert_int_equal(follow(&(struct follow_options){.progress = true}, &err), TITAN_OK);
    assert_string_equal(printed, "00:00:10Z  first\n"
                                 "00:00:11Z  a node is lost\n"
                                 "00:00:12Z  second\n"
                                 "00:00:14Z  checkpoint.committed\n"
                                 "00:00:14Z  another is lost\n"
                                 "completed  step 0/20\n");
    serve(events, ARRAY_SIZE(events));
    assert_int_equal(follow(&(struct follow_options){.progress = false}, &err), TITAN_OK);
    assert_string_equal(printed, "");
}

/* Changes of membership, losses, and what is not as it should be; the rest is noise. */
static void test_events_of_note(void **state)
{
    (void)state;
    static const Titan__V1__Event events[] = {
        EVENT("job.state", 0, "no reason", "\"to\":\"FORMING\""),
        EVENT("job.state", 1000, "a reason", "\"to\":\"RECOVERING\",\"reason\":\"lost\""),
        EVENT("job.state", 2000, "the end is printed otherwise", "\"to\":\"FAILED\",\"reason\":\"x\""),
        EVENT("job.waiting", 3000, "waiting: for room"),
        EVENT("worker.started", 4000, "noise"),
        EVENT("worker.exited", 5000, "ended well", "\"exit_code\":0,\"signal\":0"),
        EVENT("worker.exited", 6000, "ended with 1", "\"exit_code\":1,\"signal\":0"),
        EVENT("worker.exited", 7000, "was killed", "\"exit_code\":0,\"signal\":9"),
        EVENT("worker.exited", 8000, "was asked to", "\"exit_code\":0,\"signal\":9,\"asked\":true"),
        EVENT("worker.lost", 9000, "lost"),
        EVENT("state.ready", 10000, "from memory", "\"rung\":\"memory\""),
        EVENT("state.ready", 11000, "from a checkpoint", "\"rung\":\"checkpoint\""),
        EVENT("epoch.forming", 12000, "forms"),
        EVENT("epoch.formed", 13000, "noise"),
        EVENT("epoch.failed", 14000, "\033[2Jfailed"),
        EVENT("recovery.finished", 15000, "recovered"),
        EVENT("resize.finished", 16000, "resized"),
    };
    struct titan_error err = {0};
    serve(events, ARRAY_SIZE(events));
    assert_int_equal(follow(&(struct follow_options){.progress = true}, &err), TITAN_OK);
    assert_string_equal(printed, "00:00:01Z  a reason\n"
                                 "00:00:03Z  waiting: for room\n"
                                 "00:00:06Z  ended with 1\n"
                                 "00:00:07Z  was killed\n"
                                 "00:00:09Z  lost\n"
                                 "00:00:11Z  from a checkpoint\n"
                                 "00:00:12Z  forms\n"
                                 "00:00:14Z  ?[2Jfailed\n"
                                 "00:00:15Z  recovered\n"
                                 "00:00:16Z  resized\n"
                                 "completed  step 0/20\n");
}

/* What is there already is passed over; the follower goes on behind it. */
static void test_from_now(void **state)
{
    (void)state;
    static const Titan__V1__Event events[] = {EVENT("node.lost", 1000, "old"), EVENT("node.lost", 2000, "old, too"),
                                              EVENT("node.lost", 3000, "new")};
    struct titan_error err = {0};
    serve(events, ARRAY_SIZE(events));
    server.old = 2;
    server.points = 2;
    server.job.step = 5;
    server.final_look = 2;
    assert_int_equal(follow(&(struct follow_options){.progress = true, .from_now = true}, &err), TITAN_OK);
    assert_string_equal(printed, "running  step 5/20  loss 0.0000\n"
                                 "00:00:03Z  new\n"
                                 "completed  step 7/20  loss 2.5000\n");
    assert_int_equal(server.opened, 2);
    assert_true(!server.follows[0] && server.after[0] == 0 && server.follows[1] && server.after[1] == 2);
}

/* The server goes away: what follows goes on behind what it has seen, or ends when its patience does. */
static void test_away(void **state)
{
    (void)state;
    static const Titan__V1__Event events[] = {EVENT("node.lost", 1000, "before"), EVENT("node.lost", 2000, "after")};
    struct titan_error err = {0};
    serve(events, ARRAY_SIZE(events));
    server.old = 1;
    server.away = 2;
    server.final_look = 3;
    assert_int_equal(follow(&(struct follow_options){.progress = true, .from_now = true, .patience_ms = -1}, &err),
                     TITAN_OK);
    assert_string_equal(printed, "running  step 0/20\n"
                                 "waiting for the server: no answer\n"
                                 "the server is back\n"
                                 "waiting for the server: no answer\n"
                                 "the server is back\n"
                                 "00:00:02Z  after\n"
                                 "completed  step 0/20\n");
    assert_int_equal(server.after[3], 1);
    assert_true(client.reconnects > 0); /* where there are several servers, to the next */
    serve(events, ARRAY_SIZE(events));
    server.away = 2;
    server.old = 1;
    assert_int_equal(follow(&(struct follow_options){.from_now = true, .patience_ms = 0}, &err), TITAN_EUNREACHABLE);
    assert_string_equal(err.msg, "no answer");
    assert_string_equal(printed, "");
}

/* A reason that no event tells is printed once, when it is there at two looks one after the other. */
static void test_reason(void **state)
{
    (void)state;
    struct titan_error err = {0};
    serve(NULL, 0);
    server.job.state = TITAN__V1__JOB_STATE__RECOVERING;
    server.job.reason = (char *)(uintptr_t) "its store \033[2Jrefuses writes";
    server.final_look = 4;
    assert_int_equal(follow(&(struct follow_options){.progress = true}, &err), TITAN_OK);
    const char *at = strstr(printed, "Z  its store ?[2Jrefuses writes\n");
    assert_true(at && !strstr(strchr(at, '\n'), "refuses writes"));
    serve(NULL, 0); /* by the next look it is over */
    server.job.reason = (char *)(uintptr_t) "for a moment";
    server.final_look = 2;
    assert_int_equal(follow(&(struct follow_options){.progress = true}, &err), TITAN_OK);
    assert_null(strstr(printed, "for a moment"));
    serve(NULL, 0);
    server.final_look = 0;
    assert_int_equal(follow(&(struct follow_options){.timeout_ms = 1}, &err), TITAN_ETIMEDOUT);
    assert_string_equal(err.msg, "job 7 has not ended within 0 s");
}

/* A job that nodes are missing for is cancelled in the end. */
static void test_no_nodes(void **state)
{
    (void)state;
    struct titan_error err = {0};
    const struct follow_options options = {.progress = true, .nodes_ms = 1};
    serve(NULL, 0);
    server.final_look = 0;
    server.job.state = TITAN__V1__JOB_STATE__PENDING;
    server.job.reason = (char *)(uintptr_t) "waiting: no node has 8 slots";
    assert_int_equal(follow(&options, &err), TITAN_EUNPLACEABLE);
    assert_string_equal(err.msg, "job 7 was cancelled: in 0 s no nodes came that can hold it");
    assert_string_equal(err.hint, "waiting: no node has 8 slots");
    assert_string_equal(server.reason, "no nodes came that can hold it");
    assert_int_equal(server.cancels, 1);
    serve(NULL, 0);
    server.final_look = 0;
    server.cancel = TITAN_EPERM;
    server.job.state = TITAN__V1__JOB_STATE__PENDING;
    server.job.reason = (char *)(uintptr_t) "waiting for nodes";
    assert_int_equal(follow(&options, &err), TITAN_EPERM);
    serve(NULL, 0); /* behind others in the queue it only waits */
    server.final_look = 3;
    server.job.state = TITAN__V1__JOB_STATE__PENDING;
    server.job.reason = (char *)(uintptr_t) "waiting: job 3 comes first";
    assert_int_equal(follow(&options, &err), TITAN_OK);
    assert_int_equal(server.cancels, 0);
}

/* Ctrl-C leaves, or stops the run first. */
static void test_interrupts(void **state)
{
    (void)state;
    struct titan_error err = {0};
    serve(NULL, 0);
    server.final_look = 0;
    server.interrupts = 1;
    assert_int_equal(follow(&(struct follow_options){.progress = true}, &err), TITAN_ECANCELLED);
    assert_string_equal(err.msg, "interrupted");
    assert_string_equal(err.hint, "job 7 goes on");
    assert_int_equal(server.cancels, 0);
    serve(NULL, 0);
    server.interrupts = 1;
    server.final_look = 3;
    err = (struct titan_error){0};
    assert_int_equal(follow(&(struct follow_options){.progress = true, .cancel_on_interrupt = true}, &err), TITAN_OK);
    assert_string_equal(server.reason, "interrupted");
    assert_non_null(strstr(printed, "stopping the run; once more to leave without waiting\n"));
}

static void test_outcome(void **state)
{
    (void)state;
    static const struct {
        Titan__V1__JobState state;
        const char *reason, *text;
    } rows[] = {{TITAN__V1__JOB_STATE__COMPLETED, "", NULL},
                {TITAN__V1__JOB_STATE__FAILED, "no room", "job 7 failed: no room"},
                {TITAN__V1__JOB_STATE__CANCELLED, "", "job 7 was cancelled"}};
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        Titan__V1__Job job = TITAN__V1__JOB__INIT;
        struct titan_error err = {0};
        job.id = 7;
        job.state = rows[i].state;
        job.reason = (char *)(uintptr_t)rows[i].reason;
        assert_int_equal(follow_outcome(&job, &err), rows[i].text ? TITAN_EJOB : TITAN_OK);
        assert_string_equal(err.msg, rows[i].text ? rows[i].text : "");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_checkpoints), cmocka_unit_test(test_events_of_note), cmocka_unit_test(test_from_now),
        cmocka_unit_test(test_away),        cmocka_unit_test(test_reason),         cmocka_unit_test(test_no_nodes),
        cmocka_unit_test(test_interrupts),  cmocka_unit_test(test_outcome),
    };
    return cmocka_run_group_tests_name("follow", tests, NULL, NULL);
}
