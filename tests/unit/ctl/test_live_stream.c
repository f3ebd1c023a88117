/* SPDX-License-Identifier: Apache-2.0 */
/* test_live_stream.c - a stream over a server that is away in between: what is asked for again, and when it ends. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>

#include "ctl/live_stream.h"
#include "tests/unit/ctl/stand_in.h"

/* What the server does with one call after the other. */
struct answer {
    const char *method;
    titan_status status;
    bool away; /* TITAN_EUNREACHABLE: there is no answer, not even that */
    int events;
    Titan__V1__JobState state; /* for GetJob */
};
static const struct answer *next;
static size_t left;
static uint64_t seen, wanted; /* events; so many are enough, 0: never */
static Titan__V1__WatchEventsRequest request;

static titan_status serve(const char *method, const ProtobufCMessage *of,
                          bool (*each)(const ProtobufCMessage *, void *), void *data, ProtobufCMessage **ret,
                          struct titan_error *err)
{
    assert_true(left > 0);
    const struct answer *a = next++;
    left--;
    assert_string_equal(method, a->method);
    for (int i = 0; i < a->events; i++) {
        Titan__V1__Event e = TITAN__V1__EVENT__INIT;
        assert_int_equal(((const Titan__V1__WatchEventsRequest *)of)->after_event_id, seen);
        e.id = seen + 1;
        if (!each(&e.base, data))
            return TITAN_OK;
    }
    if (a->status != TITAN_OK) {
        (void)titan_fail(err, a->status, "the server is not there");
        err->sys_errno = a->away ? ENOTCONN : 0;
        return a->status;
    }
    if (ret && strcmp(method, "GetJob") == 0) {
        Titan__V1__Job job = TITAN__V1__JOB__INIT;
        Titan__V1__GetJobResponse reply = TITAN__V1__GET_JOB_RESPONSE__INIT;
        job.state = a->state;
        reply.job = &job;
        *ret = copy_of(&reply.base);
    } else if (ret) {
        const Titan__V1__VersionResponse reply = TITAN__V1__VERSION_RESPONSE__INIT;
        *ret = copy_of(&reply.base);
    }
    return TITAN_OK;
}

static bool on_event(const ProtobufCMessage *message, void *data)
{
    (void)data;
    seen = request.after_event_id = ((const Titan__V1__Event *)message)->id;
    return seen != wanted;
}

/* Of job 1; what was printed on stderr is in printed.err. */
static titan_status read_on(uint64_t job_id, const struct answer *answers, size_t n, int64_t patience_ms)
{
    struct ctl ctl = {.server = "tcp:nowhere:1"};
    const struct live_stream s = {.ctl = &ctl,
                                  .call = {.method = TITAN_METHOD("WatchEvents"),
                                           .request = &request.base,
                                           .reply = &titan__v1__event__descriptor,
                                           .each = on_event},
                                  .job_id = job_id,
                                  .patience_ms = patience_ms};
    size_t len;
    titan__v1__watch_events_request__init(&request);
    next = answers;
    left = n;
    seen = 0;
    free(printed.out);
    free(printed.err);
    memset(&printed, 0, sizeof(printed));
    FILE *const err = stderr;
    stderr = open_memstream(&printed.err, &len);
    const titan_status status = live_stream_read(&s, &printed.why);
    (void)fclose(stderr);
    stderr = err;
    assert_int_equal(left, 0);
    return status;
}
#define READ(job_id, patience_ms, ...)                                                                                 \
    read_on(job_id, (const struct answer[]){__VA_ARGS__},                                                              \
            sizeof((const struct answer[]){__VA_ARGS__}) / sizeof(struct answer), patience_ms)
#define AWAY .status = TITAN_EUNREACHABLE, .away = true
#define JOB(is)                                                                                                        \
    {                                                                                                                  \
        .method = "GetJob", .state = TITAN__V1__JOB_STATE__##is                                                        \
    }

static void test_patience(void **state)
{
    (void)state;
    static struct args args;
    struct titan_error err = {0};
    int64_t ms;
    static const struct {
        const char *text;
        titan_status status;
        int64_t ms;
    } rows[] = {{NULL, TITAN_OK, PATIENT_FOR_EVER}, {"0", TITAN_OK, 0},        {"30s", TITAN_OK, 30000},
                {"5m", TITAN_OK, 300000},           {"soon", TITAN_EINVAL, 0}, {"-1s", TITAN_EINVAL, 0}};
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        char *argv[] = {(char *)(uintptr_t) "titanctl", (char *)(uintptr_t) "events",
                        (char *)(uintptr_t) "--server-gone", (char *)(uintptr_t)rows[i].text, NULL};
        assert_int_equal(args_parse(&titanctl, rows[i].text ? 4 : 2, argv, &args, &err), TITAN_OK);
        assert_int_equal(live_stream_patience(&args, &ms, &err), rows[i].status);
        if (rows[i].status == TITAN_OK)
            assert_int_equal(ms, rows[i].ms);
        else
            assert_int_equal(strncmp(err.msg, "--server-gone: ", 15), 0);
    }
}

/* It ends with its job, and not before; it goes on behind what has come. */
static void test_end(void **state)
{
    (void)state;
    assert_int_equal(READ(1, -1, JOB(RUNNING), {.method = "WatchEvents", .events = 2}, JOB(RUNNING),
                          {.method = "WatchEvents", .events = 1}, JOB(COMPLETED)),
                     TITAN_OK);
    assert_int_equal(seen, 3);
    assert_string_equal(printed.err, "");
    assert_int_equal(READ(1, -1, JOB(FAILED), {.method = "WatchEvents", .events = 2}, JOB(FAILED)), TITAN_OK);
    assert_int_equal(seen, 2);
    wanted = 2; /* of all jobs; it ends when enough has come */
    assert_int_equal(READ(0, -1, {.method = "Version"}, {.method = "WatchEvents", .events = 5}), TITAN_OK);
    assert_int_equal(seen, 2);
    wanted = 0;
    assert_int_equal(READ(0, -1, {.method = "Version"}, {.method = "WatchEvents", .status = TITAN_EPERM}), TITAN_EPERM);
}

/* Not there in the beginning: an error at once. Later: one line that it is away, another that it is back. */
static void test_away(void **state)
{
    (void)state;
    assert_int_equal(READ(1, -1, {.method = "GetJob", AWAY}), TITAN_EUNREACHABLE);
    assert_string_equal(printed.err, "");
    assert_int_equal(READ(1, -1, JOB(RUNNING), {.method = "WatchEvents", AWAY, .events = 2},
                          {.method = "Version", AWAY}, {.method = "Version"}, {.method = "WatchEvents", .events = 1},
                          JOB(CANCELLED)),
                     TITAN_OK);
    assert_int_equal(seen, 3);
    assert_string_equal(printed.err, "titanctl: waiting for the server: the server is not there\n"
                                     "titanctl: the server is back after 0 s\n");
    assert_int_equal(READ(1, 0, JOB(RUNNING), {.method = "WatchEvents", AWAY, .events = 1}), TITAN_EUNREACHABLE);
    assert_string_equal(printed.err, "titanctl: waiting for the server: the server is not there\n");
    assert_string_equal(printed.why.msg, "the server is not there");
    assert_int_equal(READ(0, -1, {.method = "Version"}, {.method = "WatchEvents", AWAY},
                          {.method = "Version", .status = TITAN_EPERM}),
                     TITAN_EPERM);
    /* It says itself that it stops; then it is away. */
    assert_int_equal(READ(1, -1, JOB(RUNNING), {.method = "WatchEvents", .status = TITAN_EUNREACHABLE},
                          {.method = "GetJob", AWAY}, {.method = "Version"}, {.method = "WatchEvents"}, JOB(COMPLETED)),
                     TITAN_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_patience), cmocka_unit_test(test_end),
                                       cmocka_unit_test(test_away)};
    return cmocka_run_group_tests_name("live stream", tests, NULL, NULL);
}
