/* SPDX-License-Identifier: Apache-2.0 */
/* test_rpc.c - server and clients against each other on one loop: every kind of call, and every way it can go wrong.
 * The service is made of titan.v1 messages; the text in a request says what the handler shall do. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "proto/rpc/client.h"
#include "proto/rpc/common.h"
#include "proto/rpc/server.h"
#include "proto/rpc/services.h"
#include "tests/support/child.h"
#include "tests/support/patience.h"
#include "tests/unit/proto/raw_http2.h"
#include "titan/internal/agent.pb-c.h"
#include "titan/v1/titan.pb-c.h"
#include "titan/wire/health.pb-c.h"
#include "titan/wire/reflection.pb-c.h"

#define UNARY "/titan.v1.Titan/Submit"
#define STREAM "/titan.v1.Titan/WatchEvents"
#define COSTLY "/titan.v1.Titan/GetJob"
#define BIDI "/titan.internal.Coordinator/Session"

struct fixture {
    uv_loop_t loop;
    uv_timer_t watchdog;
    struct rpc_server *server;
    struct rpc_client *client;
    char dir[32], socket[64], target[80];
    int port;
    /* handler side */
    int opened, closed, closed_cancelled, half_closed, drained;
    uint64_t stream_sent;
    struct rpc_call *hung;
    int asked; /* which call */
    struct rpc_identity identity;
    char header[64], peer[64];
    const char *token; /* that calls have to come with */
    bool server_down, client_down;
    int submits;
    /* client side */
    int replies, messages;
    uint64_t last_id;
    bool in_order;
    struct titan_error error;
    char text[256];
    uint64_t number;
    int ends;
    struct rpc_stream *stream;
    bool hold; /* do not read the loop's answers on */
};

static struct fixture *fix(void *data)
{
    return data;
}

/* --- service ------------------------------------------------------------------------------------------------------ */

static void on_submit(struct rpc_call *call, const ProtobufCMessage *message, void *data)
{
    struct fixture *f = fix(data);
    const Titan__V1__SubmitRequest *request = (const Titan__V1__SubmitRequest *)message;
    f->opened++;
    f->submits++;
    if (strcmp(request->name, "hang") == 0) {
        f->hung = call;
    } else if (strcmp(request->name, "fail") == 0) {
        struct titan_error err;
        (void)titan_fail(&err, TITAN_EUNPLACEABLE, "8 workers do not fit 4 slots");
        titan_error_hint(&err, "lower elastic.max_workers");
        rpc_call_fail(call, &err);
    } else {
        Titan__V1__SubmitResponse reply = TITAN__V1__SUBMIT_RESPONSE__INIT;
        reply.job_id = strlen(request->recipe);
        reply.existed = rpc_call_peer(call)[0] == 'u';
        rpc_call_reply(call, &reply.base);
    }
}

static void on_closed(struct rpc_call *call, bool cancelled, void *data)
{
    struct fixture *f = fix(data);
    f->closed++;
    f->closed_cancelled += cancelled;
    if (f->hung == call)
        f->hung = NULL;
}

/* after_event_id says how many events to send, with a message of job_id bytes each. */
struct feed {
    uint64_t next, count, bytes;
    char *text;
};

static void feed_on(struct rpc_call *call, struct fixture *f)
{
    struct feed *feed = rpc_call_data(call);
    while (feed->next < feed->count) {
        Titan__V1__Event event = TITAN__V1__EVENT__INIT;
        event.id = feed->next + 1;
        event.message = feed->text;
        /* Every other one as if it went to many: they are as good as the rest, also when they wait in the queue. */
        struct rpc_packed *packed = rpc_packed_new(&event.base);
        titan_status status = feed->next % 2 ? rpc_call_send_packed(call, packed) : rpc_call_send(call, &event.base);
        rpc_packed_free(packed);
        if (status == TITAN_EAGAIN)
            return;
        assert_int_equal(status, TITAN_OK);
        feed->next++;
        f->stream_sent = feed->next;
    }
    rpc_call_finish(call, TITAN_OK, NULL);
}

static void on_watch(struct rpc_call *call, const ProtobufCMessage *message, void *data)
{
    const Titan__V1__WatchEventsRequest *request = (const Titan__V1__WatchEventsRequest *)message;
    struct feed *feed = calloc(1, sizeof(*feed));
    feed->count = request->after_event_id;
    feed->bytes = request->job_id;
    feed->text = calloc(1, feed->bytes + 1);
    memset(feed->text, 'x', feed->bytes);
    rpc_call_set_data(call, feed);
    fix(data)->opened++;
    feed_on(call, fix(data));
}

static void on_watch_closed(struct rpc_call *call, bool cancelled, void *data)
{
    struct feed *feed = rpc_call_data(call);
    free(feed->text);
    free(feed);
    on_closed(call, cancelled, data);
}

static void on_watch_drain(struct rpc_call *call, void *data)
{
    fix(data)->drained++;
    feed_on(call, fix(data));
}

/* Work on the loop's thread, as parsing a large request is. */
static void on_costly(struct rpc_call *call, const ProtobufCMessage *message, void *data)
{
    (void)message;
    patience_pause_ms(2, "a request costs this much");
    fix(data)->opened++;
    Titan__V1__GetJobResponse reply = TITAN__V1__GET_JOB_RESPONSE__INIT;
    rpc_call_reply(call, &reply.base);
}

/* Answers a heartbeat with an acknowledgement of the same number; ends when the client has closed its side. */
static void on_session(struct rpc_call *call, const ProtobufCMessage *message, void *data)
{
    struct fixture *f = fix(data);
    if (!message) {
        f->half_closed++;
        rpc_call_finish(call, TITAN_OK, NULL);
        return;
    }
    const Titan__Internal__AgentMessage *reported = (const Titan__Internal__AgentMessage *)message;
    Titan__Internal__CoordinatorMessage answer = TITAN__INTERNAL__COORDINATOR_MESSAGE__INIT;
    Titan__Internal__RegistrationAck ack = TITAN__INTERNAL__REGISTRATION_ACK__INIT;
    ack.term = reported->heartbeat ? reported->heartbeat->slots_used : 0;
    answer.kind_case = TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_ACK;
    answer.ack = &ack;
    assert_int_equal(rpc_call_send(call, &answer.base), TITAN_OK);
}

enum { NEEDS_UID = 1 };

static titan_status on_authorize(struct rpc_call *call, const struct rpc_method *method, void *data,
                                 struct titan_error *err)
{
    struct fixture *f = fix(data);
    f->asked++;
    f->identity = *rpc_call_identity(call);
    const char *header = rpc_call_metadata(call, "user-agent");
    (void)snprintf(f->header, sizeof(f->header), "%s", header ? header : "");
    const char *token = rpc_call_metadata(call, "authorization");
    assert_string_equal(token ? token : "", f->token ? f->token : "");
    (void)snprintf(f->peer, sizeof(f->peer), "%s", rpc_call_peer(call));
    if (method->needs == NEEDS_UID && f->identity.kind != RPC_ID_UID)
        return titan_fail(err, TITAN_EPERM, "not for %s", f->identity.name);
    return TITAN_OK;
}

static titan_status on_review(struct rpc_call *call, const struct rpc_method *method, void *data,
                              struct titan_error *err)
{
    (void)call;
    (void)method;
    (void)data;
    return titan_fail(err, TITAN_EPERM, "no more");
}

static const struct rpc_method methods[] = {
    {.path = UNARY, .request = &titan__v1__submit_request__descriptor, .on_request = on_submit, .on_close = on_closed},
    {.path = STREAM,
     .request = &titan__v1__watch_events_request__descriptor,
     .on_request = on_watch,
     .on_close = on_watch_closed,
     .on_drain = on_watch_drain},
    {.path = COSTLY,
     .request = &titan__v1__get_job_request__descriptor,
     .on_request = on_costly,
     .on_close = on_closed,
     .costly = true},
    {.path = BIDI,
     .request = &titan__internal__agent_message__descriptor,
     .on_message = on_session,
     .on_close = on_closed,
     .needs = NEEDS_UID},
};

/* --- fixture ------------------------------------------------------------------------------------------------------ */

static void watchdog_bite(uv_timer_t *timer)
{
    (void)timer;
    fprintf(stderr, "# a test waited for something that did not come\n");
    abort();
}

static void set_true(void *data)
{
    *(bool *)data = true;
}

static void run_until(struct fixture *f, const bool *flag)
{
    while (!*flag)
        (void)uv_run(&f->loop, UV_RUN_ONCE);
}

static void run_until_count(struct fixture *f, const int *count, int wanted)
{
    while (*count < wanted)
        (void)uv_run(&f->loop, UV_RUN_ONCE);
}

static bool rests;          /* the next server */
static uint32_t request_ms; /* how long it waits for a whole request */

static struct rpc_server *server_new(struct fixture *f)
{
    const struct rpc_server_options options = {.methods = methods,
                                               .n_methods = ARRAY_SIZE(methods),
                                               .data = f,
                                               .max_message_bytes = 64 * 1024,
                                               .max_queue = 16,
                                               .request_ms = request_ms,
                                               .authorize = on_authorize,
                                               .review = on_review,
                                               .rests = rests};
    struct rpc_server *server = NULL;
    assert_int_equal(rpc_server_open(&f->loop, &options, &server, NULL), TITAN_OK);
    return server;
}

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    request_ms = request_ms ? request_ms : (uint32_t)patience_ms(60);
    assert_int_equal(uv_loop_init(&f->loop), 0);
    (void)uv_timer_init(&f->loop, &f->watchdog);
    (void)uv_timer_start(&f->watchdog, watchdog_bite, (uint64_t)patience_ms(60), 0);
    uv_unref((uv_handle_t *)&f->watchdog);
    (void)snprintf(f->dir, sizeof(f->dir), "/tmp/titan-rpc-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    (void)snprintf(f->socket, sizeof(f->socket), "%s/s.sock", f->dir);
    (void)snprintf(f->target, sizeof(f->target), "unix:%s", f->socket);
    f->server = server_new(f);
    struct titan_error err;
    assert_int_equal(rpc_server_listen(f->server, f->target, NULL, NULL, &err), TITAN_OK);
    assert_int_equal(rpc_server_listen(f->server, "127.0.0.1:0", NULL, &f->port, &err), TITAN_OK);
    assert_true(f->port > 0);
    assert_int_equal(rpc_server_start(f->server, &err), TITAN_OK);
    assert_int_equal(rpc_client_open(&f->loop, f->target, NULL, &f->client, &err), TITAN_OK);
    *state = f;
    return 0;
}

static int setup_resting(void **state)
{
    rests = true;
    int rc = setup(state);
    rests = false;
    return rc;
}

static int setup_impatient(void **state)
{
    request_ms = patience_stretched(1000);
    int rc = setup(state);
    request_ms = 0;
    return rc;
}

static void server_stop(struct fixture *f)
{
    if (!f->server)
        return;
    rpc_server_shutdown(f->server, 1000, set_true, &f->server_down);
    run_until(f, &f->server_down);
    rpc_server_free(f->server);
    f->server = NULL;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    if (f->client) {
        rpc_client_close(f->client, set_true, &f->client_down);
        run_until(f, &f->client_down);
    }
    server_stop(f);
    assert_int_equal(f->opened, f->closed);
    struct stat st;
    assert_int_equal(stat(f->socket, &st), -1); /* the socket file is gone with the server */
    (void)rmdir(f->dir);
    uv_close((uv_handle_t *)&f->watchdog, NULL);
    (void)uv_run(&f->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&f->loop), 0);
    free(f);
    return 0;
}

static void on_reply(const ProtobufCMessage *reply, const struct titan_error *err, void *data)
{
    struct fixture *f = fix(data);
    f->replies++;
    f->error = *err;
    assert_true((reply != NULL) == (err->status == TITAN_OK));
    if (reply && reply->descriptor == &titan__v1__submit_response__descriptor) {
        f->number = ((const Titan__V1__SubmitResponse *)reply)->job_id;
        (void)snprintf(f->text, sizeof(f->text), "%d", ((const Titan__V1__SubmitResponse *)reply)->existed);
    }
}

static void submit(struct fixture *f, const char *name, const char *recipe, uint32_t deadline_ms)
{
    Titan__V1__SubmitRequest request = TITAN__V1__SUBMIT_REQUEST__INIT;
    request.name = (char *)(uintptr_t)name;
    request.recipe = (char *)(uintptr_t)recipe;
    rpc_client_call(f->client,
                    &(struct rpc_request){UNARY, &request.base, &titan__v1__submit_response__descriptor, deadline_ms},
                    on_reply, f);
}

static void on_event(struct rpc_stream *stream, const ProtobufCMessage *message, void *data)
{
    (void)stream;
    struct fixture *f = fix(data);
    const Titan__V1__Event *event = (const Titan__V1__Event *)message;
    f->messages++;
    f->in_order = f->in_order && event->id == f->last_id + 1;
    f->last_id = event->id;
}

static void on_end(struct rpc_stream *stream, const struct titan_error *err, void *data)
{
    (void)stream;
    struct fixture *f = fix(data);
    f->error = *err;
    f->ends++;
    f->stream = NULL;
}

static void watch(struct fixture *f, uint64_t count, uint64_t bytes)
{
    const struct rpc_stream_events events = {on_event, on_end};
    Titan__V1__WatchEventsRequest request = TITAN__V1__WATCH_EVENTS_REQUEST__INIT;
    request.after_event_id = count;
    request.job_id = bytes;
    f->in_order = true;
    assert_int_equal(rpc_client_stream(f->client,
                                       &(struct rpc_request){STREAM, &request.base, &titan__v1__event__descriptor, 0},
                                       &events, f, &f->stream, NULL),
                     TITAN_OK);
}

/* --- tests -------------------------------------------------------------------------------------------------------- */

static void test_unary(void **state)
{
    struct fixture *f = *state;
    submit(f, "", "12345", 0);
    run_until_count(f, &f->replies, 1);
    assert_int_equal(f->error.status, TITAN_OK);
    assert_int_equal(f->number, 5);
    assert_string_equal(f->text, "1"); /* the peer is a Unix socket */
}

/* One of several statuses that share a gRPC code arrives as itself, with the hint. */
static void test_error(void **state)
{
    struct fixture *f = *state;
    submit(f, "fail", "", 0);
    run_until_count(f, &f->replies, 1);
    assert_int_equal(f->error.status, TITAN_EUNPLACEABLE);
    assert_string_equal(f->error.msg, "8 workers do not fit 4 slots (lower elastic.max_workers)");
}

static void test_concurrent(void **state)
{
    struct fixture *f = *state;
    for (int i = 0; i < 1000; i++)
        submit(f, "", "x", 0);
    run_until_count(f, &f->replies, 1000);
    assert_int_equal(f->error.status, TITAN_OK);
    assert_int_equal(f->opened, 1000);
}

static void on_costly_reply(const ProtobufCMessage *reply, const struct titan_error *err, void *data)
{
    (void)reply;
    assert_int_equal(err->status, TITAN_OK);
    fix(data)->messages++;
}

static bool comes_to_rest(uv_loop_t *loop)
{
    struct pollfd events = {.fd = uv_backend_fd(loop), .events = POLLIN};
    (void)uv_run(loop, UV_RUN_NOWAIT);
    return poll(&events, 1, 0) == 0;
}

/* A call of another method overtakes a queue of costly ones, and none of those is lost. Behind them the loop rests. */
static void test_costly(void **state)
{
    struct fixture *f = *state;
    enum { COSTLY_CALLS = 200 };
    Titan__V1__GetJobRequest request = TITAN__V1__GET_JOB_REQUEST__INIT;
    for (int i = 0; i < COSTLY_CALLS; i++)
        rpc_client_call(f->client,
                        &(struct rpc_request){COSTLY, &request.base, &titan__v1__get_job_response__descriptor, 0},
                        on_costly_reply, f);
    run_until_count(f, &f->messages, 1);
    submit(f, "", "x", 0);
    run_until_count(f, &f->replies, 1);
    assert_true(f->messages < COSTLY_CALLS / 2);
    run_until_count(f, &f->messages, COSTLY_CALLS);
    AWAIT(comes_to_rest(&f->loop));
}

static void test_stream(void **state)
{
    struct fixture *f = *state;
    watch(f, 100, 10);
    run_until_count(f, &f->ends, 1);
    assert_int_equal(f->error.status, TITAN_OK);
    assert_int_equal(f->messages, 100);
    assert_true(f->in_order);
}

/* A reader that does not read stops the writer after its queue and the transport's window, and nothing is lost. */
static void test_back_pressure(void **state)
{
    struct fixture *f = *state;
    enum { COUNT = 2000, BYTES = 20000 };
    watch(f, COUNT, BYTES);
    run_until_count(f, &f->messages, 1);
    assert_true(f->stream_sent < COUNT); /* it could not put all of it in at once */
    run_until_count(f, &f->ends, 1);
    assert_int_equal(f->error.status, TITAN_OK);
    assert_int_equal(f->messages, COUNT);
    assert_true(f->in_order);
    assert_true(f->drained > 0);
}

static void on_registration_ack(struct rpc_stream *stream, const ProtobufCMessage *message, void *data)
{
    struct fixture *f = fix(data);
    const Titan__Internal__CoordinatorMessage *reported = (const Titan__Internal__CoordinatorMessage *)message;
    f->messages++;
    f->in_order = f->in_order && reported->ack && reported->ack->term == f->last_id + 1;
    f->last_id++;
    if (f->messages == 500)
        rpc_stream_close_send(stream);
}

static titan_status heartbeat(struct rpc_stream *stream, uint32_t number)
{
    Titan__Internal__AgentMessage message = TITAN__INTERNAL__AGENT_MESSAGE__INIT;
    Titan__Internal__AgentHeartbeat body = TITAN__INTERNAL__AGENT_HEARTBEAT__INIT;
    body.slots_used = number;
    message.kind_case = TITAN__INTERNAL__AGENT_MESSAGE__KIND_HEARTBEAT;
    message.heartbeat = &body;
    return rpc_stream_send(stream, &message.base);
}

static void session(struct fixture *f, struct rpc_client *client)
{
    const struct rpc_stream_events events = {on_registration_ack, on_end};
    f->in_order = true;
    assert_int_equal(
        rpc_client_stream(client,
                          &(struct rpc_request){BIDI, NULL, &titan__internal__coordinator_message__descriptor, 0},
                          &events, f, &f->stream, NULL),
        TITAN_OK);
}

static void test_bidi(void **state)
{
    struct fixture *f = *state;
    session(f, f->client);
    struct rpc_stream *stream = f->stream;
    for (uint32_t i = 1; i <= 500; i++)
        assert_int_equal(heartbeat(stream, i), TITAN_OK);
    f->opened++; /* on_session has no opening of its own */
    run_until_count(f, &f->ends, 1);
    assert_int_equal(f->error.status, TITAN_OK);
    assert_int_equal(f->messages, 500);
    assert_true(f->in_order);
    assert_int_equal(f->half_closed, 1);
}

static void test_send_limit(void **state)
{
    struct fixture *f = *state;
    session(f, f->client);
    f->opened++;
    titan_status status = TITAN_OK;
    int n = 0;
    for (; n < 20000 && status == TITAN_OK; n++)
        status = heartbeat(f->stream, 1);
    assert_int_equal(status, TITAN_EAGAIN); /* the loop has not run: all of it is queued */
    assert_in_range(n, 8192, 8198);
    run_until_count(f, &f->messages, 1);
    rpc_stream_cancel(f->stream);
    assert_int_equal(heartbeat(f->stream, 1), TITAN_ECANCELLED);
    run_until_count(f, &f->ends, 1);
    assert_int_equal(f->error.status, TITAN_ECANCELLED);
    run_until_count(f, &f->closed, f->opened);
}

static void test_authorize(void **state)
{
    struct fixture *f = *state;
    char target[64];
    (void)snprintf(target, sizeof(target), "127.0.0.1:%d", f->port);
    struct rpc_client *tcp = NULL;
    assert_int_equal(rpc_client_open(&f->loop, target, NULL, &tcp, NULL), TITAN_OK);
    session(f, tcp);
    run_until_count(f, &f->ends, 1);
    assert_int_equal(f->error.status, TITAN_EPERM);
    assert_string_equal(f->error.msg, "not for anonymous");
    assert_int_equal(f->identity.uid, (uid_t)-1);
    assert_int_equal(f->asked, 1);
    bool down = false;
    rpc_client_close(tcp, set_true, &down);
    run_until(f, &down);
    submit(f, "", "1", 0);
    run_until_count(f, &f->replies, 1);
    assert_int_equal(f->asked, 2);
    assert_int_equal(f->identity.kind, RPC_ID_UID);
    assert_int_equal(f->identity.uid, getuid());
    assert_non_null(strstr(f->header, "grpc"));
}

static void test_deadline(void **state)
{
    struct fixture *f = *state;
    int64_t start_ns = clock_mono_ns();
    for (uint32_t ms = 100; f->opened == 0; ms *= 2) { /* so long that the server hears of it */
        submit(f, "hang", "", ms);
        run_until_count(f, &f->replies, f->replies + 1);
        assert_int_equal(f->error.status, TITAN_ETIMEDOUT);
    }
    assert_true(clock_mono_ns() - start_ns >= INT64_C(99000000));
    run_until_count(f, &f->closed, f->opened);
    assert_int_equal(f->closed_cancelled, f->opened);
}

static void test_cancel(void **state)
{
    struct fixture *f = *state;
    watch(f, UINT64_MAX, 1000);
    run_until_count(f, &f->messages, 10);
    rpc_stream_cancel(f->stream);
    run_until_count(f, &f->ends, 1);
    assert_int_equal(f->error.status, TITAN_ECANCELLED);
    run_until_count(f, &f->closed, 1);
    assert_int_equal(f->closed_cancelled, 1);
}

/* The client goes away with calls open: each of them hears of it once, and so does the server. */
static void test_client_close(void **state)
{
    struct fixture *f = *state;
    submit(f, "hang", "", 0);
    watch(f, UINT64_MAX, 1000);
    run_until_count(f, &f->messages, 1);
    run_until_count(f, &f->opened, 2);
    rpc_client_close(f->client, set_true, &f->client_down);
    run_until(f, &f->client_down);
    f->client = NULL;
    assert_int_equal(f->replies, 1);
    assert_int_equal(f->ends, 1);
    assert_int_equal(f->error.status, TITAN_ECANCELLED);
    run_until_count(f, &f->closed, 2);
}

static void test_shutdown_hung(void **state)
{
    struct fixture *f = *state;
    submit(f, "hang", "", 0);
    run_until_count(f, &f->opened, 1);
    int64_t start_ns = clock_mono_ns();
    rpc_server_shutdown(f->server, patience_stretched(500), set_true, &f->server_down);
    submit(f, "", "", 0); /* too late */
    run_until_count(f, &f->replies, 1);
    assert_int_equal(f->error.status, TITAN_EUNREACHABLE);
    run_until(f, &f->server_down);
    assert_true(clock_mono_ns() - start_ns >= INT64_C(499000000));
    run_until_count(f, &f->replies, 2);
    assert_int_equal(f->closed_cancelled, 1);
    rpc_server_free(f->server);
    f->server = NULL;
}

/* What runs when the server is told to stop may end well. */
static void test_shutdown_drains(void **state)
{
    struct fixture *f = *state;
    submit(f, "hang", "", 0);
    run_until_count(f, &f->opened, 1);
    rpc_server_shutdown(f->server, (uint32_t)patience_ms(60), set_true, &f->server_down);
    Titan__V1__SubmitResponse reply = TITAN__V1__SUBMIT_RESPONSE__INIT;
    reply.job_id = 77;
    rpc_call_reply(f->hung, &reply.base);
    run_until_count(f, &f->replies, 1);
    assert_int_equal(f->error.status, TITAN_OK);
    assert_int_equal(f->number, 77);
    run_until(f, &f->server_down);
    rpc_server_free(f->server);
    f->server = NULL;
}

static void test_oversize(void **state)
{
    struct fixture *f = *state;
    _cleanup_free_ char *big = calloc(1, 100001);
    memset(big, 'x', 100000);
    submit(f, "", big, 0);
    run_until_count(f, &f->replies, 1);
    assert_int_equal(titan_status_grpc(f->error.status), 8);
    assert_int_equal(f->opened, 0);
    submit(f, "", "ok", 0); /* the connection is still good */
    run_until_count(f, &f->replies, 2);
    assert_int_equal(f->error.status, TITAN_OK);
}

/* A client that sends more than sockets and the proxy hold, and then waits: all of it is read, the call at its end,
 * too.
 */
static void test_burst(void **state)
{
    struct fixture *f = *state;
    for (int round = 0; round < 20; round++) {
        _cleanup_fd_ int fd = raw_connect(f->socket);
        struct raw raw = {.len = 0}, priorities = {.len = 0}, call = {.len = 0};
        raw_preface(&raw);
        assert_true(fd >= 0 && raw_send(fd, &raw));
        char in[64];
        while (recv(fd, in, sizeof(in), MSG_DONTWAIT) < 0) /* until it is taken */
            (void)uv_run(&f->loop, UV_RUN_NOWAIT);
        for (int i = 0; i < 200; i++) {
            raw_frame(&priorities, 5, 2 /* PRIORITY */, 0, 1);
            raw_put(&priorities, "\0\0\0\0\0", 5);
        }
        for (int i = 0; i < 200 + 10 * round; i++)
            assert_true(raw_send(fd, &priorities));
        raw_call(&call, 1, UNARY, "", 0);
        assert_true(raw_send(fd, &call));
        run_until_count(f, &f->opened, round + 1);
    }
}

static void call_with(struct fixture *f, const char *path, const ProtobufCMessage *request)
{
    rpc_client_call(f->client, &(struct rpc_request){path, request, &titan__v1__submit_response__descriptor, 0},
                    on_reply, f);
    run_until_count(f, &f->replies, 1);
}

static void test_garbage_message(void **state)
{
    struct fixture *f = *state;
    /* A LogChunk, with bytes that are no SubmitRequest: field 1 is a varint there, a string here. */
    Titan__V1__LogChunk chunk = TITAN__V1__LOG_CHUNK__INIT;
    chunk.rank = 5;
    call_with(f, UNARY, &chunk.base);
    assert_int_equal(f->error.status, TITAN_EINVAL);
    assert_int_equal(f->opened, 0);
}

static void test_not_utf8(void **state)
{
    struct fixture *f = *state;
    submit(f, "\xff\xfe", "", 0);
    run_until_count(f, &f->replies, 1);
    assert_int_equal(f->error.status, TITAN_EINVAL);
    assert_non_null(strstr(f->error.msg, "name"));
    assert_int_equal(f->opened, 0);
}

/* protobuf-c ends a string at a NUL and drops the rest: it is refused, in a nested message too. */
static void test_nul(void **state)
{
    (void)state;
    static const struct {
        const ProtobufCMessageDescriptor *type;
        const char *bytes;
        size_t n;
        titan_status status;
    } cases[] = {
        {&titan__v1__submit_request__descriptor, "\x12\x02na", 4, TITAN_OK},
        {&titan__v1__submit_request__descriptor, "\x12\x05na\0me", 7, TITAN_EINVAL},
        {&titan__v1__submit_request__descriptor, "\x12\x03na\0", 5, TITAN_EINVAL},
        {&titan__v1__submit_request__descriptor, "\x12\x02\xc0\x80", 4, TITAN_EINVAL},
        {&titan__v1__list_jobs_response__descriptor, "\x0a\x04\x12\x02na", 6, TITAN_OK},
        {&titan__v1__list_jobs_response__descriptor, "\x0a\x04\x12\x02\0a", 6, TITAN_EINVAL},
        /* A field that is not ours may have any bytes. */
        {&titan__v1__submit_request__descriptor, "\xfa\x7f\x02\0\0", 5, TITAN_OK},
    };
    grpc_init();
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        grpc_slice slice = grpc_slice_from_static_buffer(cases[i].bytes, cases[i].n);
        grpc_byte_buffer *buffer = grpc_raw_byte_buffer_create(&slice, 1);
        ProtobufCMessage *message = NULL;
        struct titan_error err;
        titan_status status = rpc_unpack(buffer, cases[i].type, SIZE_MAX, &message, &err);
        if (status != cases[i].status)
            fail_msg("case %zu: %s", i, status == TITAN_OK ? "taken" : err.msg);
        if (message)
            protobuf_c_message_free_unpacked(message, NULL);
        grpc_byte_buffer_destroy(buffer);
    }
    grpc_shutdown_blocking();
}

static void test_unknown_method(void **state)
{
    struct fixture *f = *state;
    Titan__V1__SubmitRequest request = TITAN__V1__SUBMIT_REQUEST__INIT;
    call_with(f, "/titan.v1.Titan/Nothing", &request.base);
    assert_int_equal(f->error.status, TITAN_EUNSUPPORTED);
}

/* Bytes that are not HTTP/2 end that connection and nothing else. */
static void test_garbage_bytes(void **state)
{
    struct fixture *f = *state;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    (void)snprintf(address.sun_path, sizeof(address.sun_path), "%s", f->socket);
    for (int i = 0; i < 8; i++) {
        _cleanup_fd_ int fd = socket(AF_UNIX, SOCK_STREAM, 0);
        assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
        char junk[4096];
        for (size_t k = 0; k < sizeof(junk); k++)
            junk[k] = (char)(k * 31 + (size_t)i * 7);
        (void)!write(fd, junk, sizeof(junk));
    }
    submit(f, "", "still there", 0);
    run_until_count(f, &f->replies, 1);
    assert_int_equal(f->error.status, TITAN_OK);
}

#define DESCRIPTORS 1024

static int open_descriptors(void)
{
    int n = 0;
    for (int fd = 0; fd < DESCRIPTORS; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

/* What this process's epolls watch under the number of a descriptor that is closed, or is another one by now. */
static int watched_in_vain(void)
{
    int n = 0;
    for (int fd = 0; fd < DESCRIPTORS; fd++) {
        char path[64], line[256];
        (void)snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", fd);
        _cleanup_file_ FILE *f = fopen(path, "re");
        while (f && fgets(line, sizeof(line), f)) {
            const char *ino = strstr(line, "ino:");
            struct stat now;
            int watched;
            if (sscanf(line, "tfd: %d", &watched) == 1 && ino)
                n += fstat(watched, &now) != 0 || now.st_ino != strtoull(ino + 4, NULL, 16);
        }
    }
    return n;
}

/* A process that has been forked and has not come to its exec holds copies of all descriptors. */
static void test_connection_copied_by_a_fork(void **state)
{
    struct fixture *f = *state;
    const int before = open_descriptors();
    int pipe_fds[2];
    char byte;
    assert_int_equal(pipe(pipe_fds), 0);
    const int fd = raw_connect(f->socket);
    struct raw junk = {.len = 1000};
    assert_true(fd >= 0);
    while (open_descriptors() <
           before + 5) /* the pipe, this end, and the server's: to the client, to gRPC and gRPC's */
        (void)uv_run(&f->loop, UV_RUN_NOWAIT);
    const pid_t child = child_fork();
    assert_true(child >= 0);
    if (child == 0) {
        (void)close(pipe_fds[1]);
        (void)close(fd);
        (void)!read(pipe_fds[0], &byte, 1);
        _exit(0);
    }
    (void)close(pipe_fds[0]);
    assert_true(raw_send(fd, &junk));
    (void)close(fd);
    while (open_descriptors() > before + 2) /* the pipe, and gRPC's: the other end is open in the child */
        (void)uv_run(&f->loop, UV_RUN_NOWAIT);
    assert_int_equal(watched_in_vain(), 0);
    (void)close(pipe_fds[1]);
    assert_int_equal(waitpid(child, NULL, 0), child);
}

/* One header of an HTTP/2 block: a literal that is not indexed, names and values below 127 bytes. */
static size_t put_header(uint8_t *at, const char *name, const char *value)
{
    return (size_t)sprintf((char *)at, "%c%c%s%c%s", 0, (char)strlen(name), name, (char)strlen(value), value);
}

static size_t put_frame(uint8_t *at, uint8_t kind, uint8_t flags, uint8_t stream, size_t len)
{
    const uint8_t head[9] = {0, (uint8_t)(len >> 8), (uint8_t)len, kind, flags, 0, 0, 0, stream};
    memcpy(at, head, sizeof(head));
    return sizeof(head) + len;
}

/* A call over TCP is known by its own connection, of several that are open. */
static void test_calls_of_connections(void **state)
{
    struct fixture *f = *state;
    const struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)f->port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_in own = {0};
    socklen_t len = sizeof(own);
    char wanted[64];
    int fds[4];
    struct raw raw = {.len = 0}, block = {.len = 0};
    raw_preface(&raw);
    raw_headers(&block, UNARY);
    raw_frame(&raw, (uint32_t)block.len, RAW_HEADERS, RAW_END_HEADERS, 1);
    raw_put(&raw, block.bytes, block.len);
    for (size_t i = 0; i < ARRAY_SIZE(fds); i++) {
        fds[i] = socket(AF_INET, SOCK_STREAM, 0);
        assert_int_equal(connect(fds[i], (const struct sockaddr *)&address, sizeof(address)), 0);
    }
    for (size_t i = 0; i < ARRAY_SIZE(fds); i++) {
        assert_int_equal(getsockname(fds[i], (struct sockaddr *)&own, &len), 0);
        (void)snprintf(wanted, sizeof(wanted), "ipv4:127.0.0.1:%d", ntohs(own.sin_port));
        assert_true(raw_send(fds[i], &raw));
        run_until_count(f, &f->asked, (int)i + 1);
        assert_string_equal(f->peer, wanted);
        assert_int_equal(f->identity.kind, RPC_ID_NONE);
    }
    for (size_t i = 0; i < ARRAY_SIZE(fds); i++)
        (void)close(fds[i]);
}

/* A call of which five bytes come: that a message of 1,000 follows. */
static void test_late_request(void **state)
{
    struct fixture *f = *state;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    (void)snprintf(address.sun_path, sizeof(address.sun_path), "%s", f->socket);
    _cleanup_fd_ int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    uint8_t out[1024] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    size_t n = 24, block = 0;
    n += put_frame(out + n, 4, 0, 0, 0);
    uint8_t *headers = out + n + 9;
    block += put_header(headers + block, ":method", "POST");
    block += put_header(headers + block, ":scheme", "http");
    block += put_header(headers + block, ":path", UNARY);
    block += put_header(headers + block, ":authority", "x");
    block += put_header(headers + block, "te", "trailers");
    block += put_header(headers + block, "content-type", "application/grpc");
    n += put_frame(out + n, 1, 4, 1, block);
    memcpy(out + n + 9, "\0\0\0\3\350", 5);
    n += put_frame(out + n, 0, 0, 1, 5);
    assert_int_equal(write(fd, out, n), (ssize_t)n);
    char in[4096] = "";
    for (size_t got = 0; !memmem(in, got, "not come whole", 14);) {
        const ssize_t more = recv(fd, in + got, sizeof(in) - got, MSG_DONTWAIT);
        assert_true(more > 0 || (more < 0 && errno == EAGAIN));
        got += more > 0 ? (size_t)more : 0;
        (void)uv_run(&f->loop, UV_RUN_NOWAIT);
        (void)poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, 10); /* what comes is not told on the loop */
    }
    assert_int_equal(f->opened, 0);
    submit(f, "", "in time", 0);
    run_until_count(f, &f->replies, 1);
    assert_int_equal(f->error.status, TITAN_OK);
    /* A stream without a first message; the handler, which has had none, is told of its end. */
    session(f, f->client);
    f->opened++;
    run_until_count(f, &f->ends, 1);
    assert_int_equal(f->error.status, TITAN_ETIMEDOUT);
    assert_int_equal(f->messages, 0);
}

static void test_taken(void **state)
{
    struct fixture *f = *state;
    struct titan_error err;
    struct rpc_server *other = server_new(f);
    assert_int_equal(rpc_server_listen(other, f->target, NULL, NULL, &err), TITAN_EEXIST);
    char target[64];
    (void)snprintf(target, sizeof(target), "127.0.0.1:%d", f->port);
    assert_int_equal(rpc_server_listen(other, target, NULL, NULL, &err), TITAN_EEXIST);
    assert_int_equal(rpc_server_listen(other, "nonsense", NULL, NULL, &err), TITAN_EINVAL);
    assert_int_equal(rpc_server_listen(other, "192.0.2.1:0", NULL, NULL, &err), TITAN_EINVAL); /* not ours */
    assert_int_equal(rpc_server_listen(other, "unix:/nonexistent/dir/s", NULL, NULL, &err), TITAN_ENOTFOUND);
    rpc_server_free(other);
    submit(f, "", "", 0); /* the first one was not disturbed */
    run_until_count(f, &f->replies, 1);
    assert_int_equal(f->error.status, TITAN_OK);
}

static void test_stale_socket(void **state)
{
    struct fixture *f = *state;
    char path[64], target[80];
    (void)snprintf(path, sizeof(path), "%s/stale.sock", f->dir);
    (void)snprintf(target, sizeof(target), "unix:%s", path);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    (void)snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    (void)close(fd); /* leaves the file */
    struct rpc_server *other = server_new(f);
    assert_int_equal(rpc_server_listen(other, target, NULL, NULL, NULL), TITAN_OK);
    rpc_server_free(other); /* never started */
    (void)unlink(path);

    FILE *file = fopen(path, "w"); /* not a socket: not ours to replace */
    (void)fclose(file);
    other = server_new(f);
    assert_int_equal(rpc_server_listen(other, target, NULL, NULL, NULL), TITAN_EEXIST);
    rpc_server_free(other);
    assert_int_equal(unlink(path), 0);
}

/* After `replies` answers. */
static void unreachable(struct fixture *f, int replies)
{
    server_stop(f);
    submit(f, "", "", 0);
    run_until_count(f, &f->replies, replies + 1);
    assert_int_equal(f->error.status, TITAN_EUNREACHABLE);
    assert_non_null(strstr(f->error.msg, f->socket));
    assert_int_equal(f->error.sys_errno, ENOTCONN);
    /* and there again: the same client connects by itself */
    f->server = server_new(f);
    assert_int_equal(rpc_server_listen(f->server, f->target, NULL, NULL, NULL), TITAN_OK);
    assert_int_equal(rpc_server_start(f->server, NULL), TITAN_OK);
    f->server_down = false;
    do {
        submit(f, "", "", 0);
        run_until_count(f, &f->replies, f->replies + 1);
    } while (f->error.status == TITAN_EUNREACHABLE);
    assert_int_equal(f->error.status, TITAN_OK);
}

static void test_unreachable(void **state)
{
    unreachable(*state, 0);
}

/* Calls share a connection to a server that was looked at; one that is over is followed by another. */
static void test_token_over_socket(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(rpc_client_token(f->client, "titan_1_secret", NULL), TITAN_OK);
    f->token = "Bearer titan_1_secret";
    for (int i = 0; i < 8; i++)
        submit(f, "", "", 0);
    run_until_count(f, &f->replies, 8);
    assert_int_equal(f->error.status, TITAN_OK);
    assert_int_equal(f->asked, 8);
    unreachable(f, 8);
}

/* --- health and reflection ---------------------------------------------------------------------------------------- */

static void on_health(struct rpc_stream *stream, const ProtobufCMessage *message, void *data)
{
    (void)stream;
    struct fixture *f = fix(data);
    f->messages++;
    f->number = ((const Grpc__Health__V1__HealthCheckResponse *)message)->status;
}

static void on_check(const ProtobufCMessage *reply, const struct titan_error *err, void *data)
{
    struct fixture *f = fix(data);
    f->replies++;
    f->error = *err;
    if (reply)
        f->number = ((const Grpc__Health__V1__HealthCheckResponse *)reply)->status;
}

static void health_check(struct fixture *f, const char *service)
{
    Grpc__Health__V1__HealthCheckRequest request = GRPC__HEALTH__V1__HEALTH_CHECK_REQUEST__INIT;
    request.service = (char *)(uintptr_t)service;
    int before = f->replies;
    rpc_client_call(f->client,
                    &(struct rpc_request){"/grpc.health.v1.Health/Check", &request.base,
                                          &grpc__health__v1__health_check_response__descriptor, 0},
                    on_check, f);
    run_until_count(f, &f->replies, before + 1);
}

static void test_health(void **state)
{
    struct fixture *f = *state;
    health_check(f, "");
    assert_int_equal(f->number, 2); /* NOT_SERVING until told otherwise */
    rpc_server_set_serving(f->server, true);
    health_check(f, "titan.v1.Titan");
    assert_int_equal(f->number, 1);
    health_check(f, "titan.v1.Tit");
    assert_int_equal(f->error.status, TITAN_ENOTFOUND);

    const struct rpc_stream_events events = {on_health, on_end};
    Grpc__Health__V1__HealthCheckRequest request = GRPC__HEALTH__V1__HEALTH_CHECK_REQUEST__INIT;
    assert_int_equal(rpc_client_stream(f->client,
                                       &(struct rpc_request){"/grpc.health.v1.Health/Watch", &request.base,
                                                             &grpc__health__v1__health_check_response__descriptor, 0},
                                       &events, f, &f->stream, NULL),
                     TITAN_OK);
    run_until_count(f, &f->messages, 1);
    assert_int_equal(f->number, 1);
    /* The watch hears of the shutdown and does not hold it up. */
    rpc_server_shutdown(f->server, (uint32_t)patience_ms(600), set_true, &f->server_down);
    run_until_count(f, &f->ends, 1);
    assert_int_equal(f->number, 2);
    assert_int_equal(f->error.status, TITAN_EUNREACHABLE);
    assert_int_equal(f->error.sys_errno, 0); /* said by the server */
    run_until(f, &f->server_down);
    rpc_server_free(f->server);
    f->server = NULL;
}

static void on_reflected(struct rpc_stream *stream, const ProtobufCMessage *message, void *data)
{
    struct fixture *f = fix(data);
    const Grpc__Reflection__V1alpha__ServerReflectionResponse *reported =
        (const Grpc__Reflection__V1alpha__ServerReflectionResponse *)message;
    f->messages++;
    if (reported->list_services_response &&
        reported->message_response_case ==
            GRPC__REFLECTION__V1ALPHA__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_LIST_SERVICES_RESPONSE) {
        for (size_t i = 0; i < reported->list_services_response->n_service; i++) {
            size_t len = strlen(f->text);
            (void)snprintf(f->text + len, sizeof(f->text) - len, "%s ",
                           reported->list_services_response->service[i]->name);
        }
    }
    rpc_stream_close_send(stream);
}

static void ask_reflection(struct fixture *f, const char *method)
{
    const struct rpc_stream_events events = {on_reflected, on_end};
    Grpc__Reflection__V1alpha__ServerReflectionRequest request =
        GRPC__REFLECTION__V1ALPHA__SERVER_REFLECTION_REQUEST__INIT;
    request.message_request_case = GRPC__REFLECTION__V1ALPHA__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_LIST_SERVICES;
    request.list_services = (char *)(uintptr_t) "";
    assert_int_equal(
        rpc_client_stream(f->client,
                          &(struct rpc_request){method, &request.base,
                                                &grpc__reflection__v1alpha__server_reflection_response__descriptor, 0},
                          &events, f, &f->stream, NULL),
        TITAN_OK);
    run_until_count(f, &f->ends, 1);
    assert_int_equal(f->error.status, TITAN_OK);
    assert_string_equal(f->text, "titan.v1.Titan titan.internal.Coordinator grpc.health.v1.Health "
                                 "grpc.reflection.v1alpha.ServerReflection grpc.reflection.v1.ServerReflection ");
}

static void test_reflection(void **state)
{
    ask_reflection(*state, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo");
}

static void test_reflection_v1(void **state)
{
    ask_reflection(*state, "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo");
}

static void test_reflection_lookup(void **state)
{
    (void)state;
    const struct rpc_wire set = {titan_descriptors, titan_descriptors + titan_descriptors_bytes};
    const struct rpc_wire titan = rpc_services_file(set, "titan/v1/titan.proto");
    assert_true(titan.at && titan.end - titan.at > 1000);
    static const char *const inside[] = {"titan.v1.Titan",          "titan.v1.Titan.Submit", "titan.v1.Job",
                                         "titan.v1.Job.world_size", "titan.v1.JobState",     ".titan.v1.Event"};
    for (size_t i = 0; i < ARRAY_SIZE(inside); i++)
        assert_ptr_equal(rpc_services_symbol(set, inside[i]).at, titan.at);
    static const char *const outside[] = {"titan.v1", "titan.v1.Jo",  "titan.v1.Job.none", "titan.v1.Titan.Submit.x",
                                          "",         "Job",          "titan.v2.Job",      "titan.v1.",
                                          ".",        "titan.v1.Job."};
    for (size_t i = 0; i < ARRAY_SIZE(outside); i++)
        assert_null(rpc_services_symbol(set, outside[i]).at);
    assert_null(rpc_services_file(set, "titan/v1/titan").at);
    assert_ptr_equal(rpc_services_symbol(set, "grpc.health.v1.HealthCheckResponse.ServingStatus").at,
                     rpc_services_file(set, "titan/wire/health.proto").at);
    assert_ptr_equal(rpc_services_symbol(set, "grpc.reflection.v1.ServerReflection.ServerReflectionInfo").at,
                     rpc_services_file(set, "titan/wire/reflection_v1.proto").at);
    /* In a damaged set there is nothing, or what is whole. */
    for (size_t n = 0; n < 200; n++)
        (void)rpc_services_symbol((struct rpc_wire){set.at, set.at + n}, "titan.v1.Titan");
}

/* --- the blocking channel ----------------------------------------------------------------------------------------- */

struct blocking {
    const char *target;
    titan_status unary, stream, stopped, interrupted, missing;
    uint64_t number;
    int messages;
    char passed[512];
    struct titan_error error;
};

static bool count_each(const ProtobufCMessage *message, void *data)
{
    (void)message;
    ((struct blocking *)data)->messages++;
    return true;
}

static bool stop_each(const ProtobufCMessage *message, void *data)
{
    (void)message;
    (void)data;
    return false;
}

static volatile int interrupted;

static bool interrupt_each(const ProtobufCMessage *message, void *data)
{
    (void)message;
    (void)data;
    interrupted = 1;
    return true;
}

static void *blocking_thread(void *arg)
{
    struct blocking *b = arg;
    struct rpc_channel *channel = NULL;
    b->unary = rpc_channel_open(b->target, NULL, &channel, &b->error);
    if (b->unary != TITAN_OK)
        return NULL;
    Titan__V1__SubmitRequest request = TITAN__V1__SUBMIT_REQUEST__INIT;
    request.recipe = (char *)(uintptr_t) "1234567";
    ProtobufCMessage *reply = NULL;
    b->unary = rpc_channel_call(
        channel,
        &(struct rpc_request){UNARY, &request.base, &titan__v1__submit_response__descriptor, (uint32_t)patience_ms(60)},
        &reply, &b->error);
    if (reply) {
        b->number = ((Titan__V1__SubmitResponse *)reply)->job_id;
        protobuf_c_message_free_unpacked(reply, NULL);
    }
    (void)snprintf(b->passed, sizeof(b->passed), "%s", rpc_channel_passed(channel));
    reply = NULL;
    b->missing =
        rpc_channel_call(channel,
                         &(struct rpc_request){"/titan.v1.Titan/None", &request.base,
                                               &titan__v1__submit_response__descriptor, (uint32_t)patience_ms(60)},
                         &reply, &b->error);
    Titan__V1__WatchEventsRequest watch_request = TITAN__V1__WATCH_EVENTS_REQUEST__INIT;
    watch_request.after_event_id = 50;
    watch_request.job_id = 10;
    b->stream = rpc_channel_stream(channel,
                                   &(struct rpc_request){STREAM, &watch_request.base, &titan__v1__event__descriptor, 0},
                                   count_each, b, NULL, &b->error);
    watch_request.after_event_id = UINT64_MAX;
    b->stopped = rpc_channel_stream(
        channel, &(struct rpc_request){STREAM, &watch_request.base, &titan__v1__event__descriptor, 0}, stop_each, b,
        NULL, &b->error);
    b->interrupted = rpc_channel_stream(
        channel, &(struct rpc_request){STREAM, &watch_request.base, &titan__v1__event__descriptor, 0}, interrupt_each,
        b, &interrupted, &b->error);
    rpc_channel_close(channel);
    return NULL;
}

struct joiner {
    uv_work_t work;
    struct blocking *blocking;
    bool done;
};

static void joiner_work(uv_work_t *work)
{
    (void)blocking_thread(((struct joiner *)work->data)->blocking);
}

static void joiner_done(uv_work_t *work, int status)
{
    (void)status;
    ((struct joiner *)work->data)->done = true;
}

static void use_channel(struct fixture *f, struct blocking *b)
{
    struct joiner joiner = {.blocking = b};
    joiner.work.data = &joiner;
    assert_int_equal(uv_queue_work(&f->loop, &joiner.work, joiner_work, joiner_done), 0);
    run_until(f, &joiner.done);
}

static void test_channel(void **state)
{
    struct fixture *f = *state;
    struct blocking b = {.target = f->target};
    use_channel(f, &b);
    assert_string_equal(b.passed, "");
    assert_int_equal(b.unary, TITAN_OK);
    assert_int_equal(b.number, 7);
    assert_int_equal(b.missing, TITAN_EUNSUPPORTED);
    assert_int_equal(b.stream, TITAN_OK);
    assert_int_equal(b.messages, 50);
    assert_int_equal(b.stopped, TITAN_OK);
    assert_int_equal(b.interrupted, TITAN_ECANCELLED);
    run_until_count(f, &f->closed, f->opened);
}

/* Of several addresses the one that answers is found, each call is made once, and the others are told of. */
static void test_channel_of_several(void **state)
{
    struct fixture *f = *state;
    char target[128];
    struct blocking b = {.target = target};
    (void)snprintf(target, sizeof(target), "127.0.0.1:1,127.0.0.1:2,127.0.0.1:%d", f->port);
    use_channel(f, &b);
    assert_int_equal(b.unary, TITAN_OK);
    assert_int_equal(b.number, 7);
    assert_int_equal(f->submits, 1);
    assert_int_equal(b.stream, TITAN_OK);
    assert_int_equal(b.messages, 50);
    assert_string_equal(b.passed, "127.0.0.1:1: Connection refused; 127.0.0.1:2: Connection refused");
    run_until_count(f, &f->closed, f->opened);

    struct blocking none = {.target = "127.0.0.1:1,127.0.0.1:2"};
    use_channel(f, &none);
    assert_int_equal(none.unary, TITAN_EUNREACHABLE);
    assert_int_equal(none.error.sys_errno, ENOTCONN);
    assert_string_equal(none.error.msg, "no answer from any server: 127.0.0.1:1: Connection refused; "
                                        "127.0.0.1:2: Connection refused");
}

static void test_reconnect(void **state)
{
    struct fixture *f = *state;
    char target[64];
    struct rpc_client *one = f->client;
    (void)snprintf(target, sizeof(target), "127.0.0.1:1,127.0.0.1:%d", f->port);
    assert_int_equal(rpc_client_open(&f->loop, target, NULL, &f->client, NULL), TITAN_OK);
    for (int i = 0; i < 2; i++) { /* by itself it stays where it is */
        submit(f, "", "1", 0);
        run_until_count(f, &f->replies, i + 1);
        assert_int_equal(f->error.status, TITAN_EUNREACHABLE);
        assert_string_equal(rpc_client_target(f->client), "127.0.0.1:1");
    }
    rpc_client_reconnect(f->client, true);
    assert_string_equal(rpc_client_target(f->client), strchr(target, ',') + 1);
    submit(f, "", "1", 0);
    run_until_count(f, &f->replies, 3);
    assert_int_equal(f->error.status, TITAN_OK);
    rpc_client_reconnect(f->client, true);
    assert_string_equal(rpc_client_target(f->client), "127.0.0.1:1"); /* round */
    bool down = false;
    rpc_client_close(f->client, set_true, &down);
    run_until(f, &down);
    f->client = one;
}

/* Stands in front of the C library's. */
static _Atomic int pauses;
int nanosleep(const struct timespec *time, struct timespec *rest) /* timing: the library's own pauses */
{
    atomic_fetch_add(&pauses, 1);
    return -clock_nanosleep(CLOCK_MONOTONIC, 0, time, rest); /* timing: the library's own pauses */
}

static bool paused(struct fixture *f)
{
    f->replies = 0;
    atomic_store(&pauses, 0);
    submit(f, "", "well", 0);
    run_until_count(f, &f->replies, 1);
    assert_int_equal(f->error.status, TITAN_OK);
    return atomic_load(&pauses) > 0;
}

enum { MANY = 300, FILES = 4096 };

/* For both ends of MANY. */
static bool may_have_files(void)
{
    struct rlimit files;
    (void)getrlimit(RLIMIT_NOFILE, &files);
    return files.rlim_cur >= FILES;
}

static void connect_many(struct fixture *f, int fds[MANY])
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    (void)snprintf(address.sun_path, sizeof(address.sun_path), "%s", f->socket);
    for (int i = 0; i < MANY; i++) {
        fds[i] = socket(AF_UNIX, SOCK_STREAM, 0);
        assert_true(fds[i] >= 0);
        assert_int_equal(connect(fds[i], (struct sockaddr *)&address, sizeof(address)), 0);
        (void)uv_run(&f->loop, UV_RUN_NOWAIT);
    }
}

/* Between two looks at all of them the queue's thread rests, where they are many. */
static void test_many_connections(void **state)
{
    struct fixture *f = *state;
    int fds[MANY];
    if (!may_have_files())
        skip();
    assert_false(paused(f));
    connect_many(f, fds);
    AWAIT(paused(f));
    for (int i = 0; i < MANY; i++)
        (void)close(fds[i]);
    AWAIT(!paused(f));
}

/* Clients do not wait for others' connections, which may be idle. */
static void test_many_clients(void **state)
{
    struct fixture *f = *state;
    int fds[MANY];
    if (!may_have_files())
        skip();
    connect_many(f, fds);
    for (int i = 0; i < 100; i++)
        assert_false(paused(f));
    for (int i = 0; i < MANY; i++)
        (void)close(fds[i]);
}

/* Stands in front of abseil's SetMutexDeadlockDetectionMode(OnDeadlockCycle): the first in the order of symbols. */
static int lock_mode = -1, lock_modes;
void set_lock_mode(int mode) __asm__("_ZN4absl7debian329SetMutexDeadlockDetectionModeENS0_15OnDeadlockCycleE");
void set_lock_mode(int mode)
{
    lock_mode = mode;
    lock_modes++;
}

/* Each of the tests before has opened the library. */
static void test_lock_checks(void **state)
{
    (void)state;
    assert_int_equal(lock_mode, 0);
    assert_int_equal(lock_modes, 1);
}

/* --- calls from this process -------------------------------------------------------------------------------------- */

struct local_client {
    struct fixture *f;
    uint64_t room; /* messages that it still takes */
    struct rpc_call *call;
};

static void on_local_message(const ProtobufCMessage *message, void *data)
{
    struct local_client *c = data;
    struct fixture *f = c->f;
    f->messages++;
    c->room--;
    if (message->descriptor == &titan__v1__submit_response__descriptor) {
        f->number = ((const Titan__V1__SubmitResponse *)message)->job_id;
    } else {
        const uint64_t id = ((const Titan__V1__Event *)message)->id;
        f->in_order = f->last_id == id - 1;
        f->last_id = id;
    }
}

static bool local_has_room(void *data)
{
    return ((struct local_client *)data)->room > 0;
}

static void on_local_end(titan_status status, const char *text, void *data)
{
    struct fixture *f = ((struct local_client *)data)->f;
    f->ends++;
    f->error.status = status;
    (void)snprintf(f->text, sizeof(f->text), "%s", text);
}

static const struct rpc_local local_submit = {on_local_message, NULL, on_local_end,
                                              &titan__v1__submit_response__descriptor};
static const struct rpc_local local_watch = {on_local_message, local_has_room, on_local_end,
                                             &titan__v1__event__descriptor};

static struct rpc_call *local_submits(struct local_client *c, const char *name, const char *authorization)
{
    Titan__V1__SubmitRequest request = TITAN__V1__SUBMIT_REQUEST__INIT;
    request.name = (char *)name;
    request.recipe = (char *)"four";
    const struct rpc_local_caller caller = {{.kind = RPC_ID_NONE, .name = "anonymous"}, "http:1.2.3.4", authorization};
    return rpc_local_call(c->f->server, UNARY, &caller, &request.base, &local_submit, c);
}

static struct rpc_call *local_watches(struct local_client *c, uint64_t count)
{
    Titan__V1__WatchEventsRequest request = TITAN__V1__WATCH_EVENTS_REQUEST__INIT;
    request.after_event_id = count;
    request.job_id = 10;
    const struct rpc_local_caller caller = {{.kind = RPC_ID_NONE, .name = "anonymous"}, "http:1.2.3.4", NULL};
    return rpc_local_call(c->f->server, STREAM, &caller, &request.base, &local_watch, c);
}

/* The end of a local call is a timer of 0 ms, behind which UV_RUN_ONCE would wait for something else. */
static void turn_until_count(struct fixture *f, const int *count, int wanted)
{
    while (*count < wanted)
        (void)uv_run(&f->loop, UV_RUN_NOWAIT);
}

static void of_submit(const struct rpc_method_calls *calls, void *data)
{
    if (strcmp(calls->path, UNARY) == 0)
        *(struct rpc_method_calls *)data = *calls;
}

static void test_local_unary(void **state)
{
    struct fixture *f = *state;
    struct rpc_method_calls calls = {NULL, NULL, NULL};
    struct local_client c = {.f = f};
    f->token = "Bearer x";
    assert_non_null(local_submits(&c, "", "Bearer x"));
    assert_int_equal(f->messages, 1);
    assert_int_equal(f->number, 4);
    assert_string_equal(f->peer, "http:1.2.3.4");
    assert_int_equal(f->asked, 1);
    assert_int_equal(f->ends, 0); /* nothing ends before the loop's next turn */
    turn_until_count(f, &f->ends, 1);
    assert_int_equal(f->error.status, TITAN_OK);
    assert_int_equal(f->closed, 1);

    assert_non_null(local_submits(&c, "fail", "Bearer x"));
    turn_until_count(f, &f->ends, 2);
    assert_int_equal(f->error.status, TITAN_EUNPLACEABLE);
    assert_string_equal(f->text, "8 workers do not fit 4 slots (lower elastic.max_workers)");
    rpc_server_calls(f->server, of_submit, &calls); /* they count as any others */
    assert_int_equal(calls.codes[0], 1);
    assert_int_equal(calls.codes[9], 1); /* FAILED_PRECONDITION */
    assert_non_null(calls.duration);
}

/* The feed stops at a client without room, and goes on from there. */
static void test_local_stream(void **state)
{
    struct fixture *f = *state;
    struct local_client c = {.f = f, .room = 3};
    struct rpc_call *call = local_watches(&c, 10);
    assert_int_equal(f->messages, 3);
    c.room = 5;
    rpc_local_drained(call);
    assert_int_equal(f->messages, 8);
    rpc_local_drained(call);
    assert_int_equal(f->messages, 8);
    c.room = 5;
    rpc_local_drained(call);
    turn_until_count(f, &f->ends, 1);
    assert_int_equal(f->error.status, TITAN_OK);
    assert_int_equal(f->last_id, 10);
    assert_true(f->in_order);
    assert_int_equal(f->closed_cancelled, 0);
}

static void test_local_leave(void **state)
{
    struct fixture *f = *state;
    struct local_client c = {.f = f, .room = 3};
    struct rpc_call *call = local_watches(&c, UINT64_MAX);
    rpc_local_leave(call);
    assert_int_equal(f->closed, 0);
    turn_until_count(f, &f->closed, 1);
    assert_int_equal(f->closed_cancelled, 1);
    assert_int_equal(f->ends, 0);
    assert_non_null(local_submits(&c, "hang", NULL));
    rpc_local_leave(f->hung);
    turn_until_count(f, &f->closed, 2);
    assert_null(f->hung);
}

/* Rights that are lost, and the end of the server, end a local call as any other. */
static void test_local_review(void **state)
{
    struct fixture *f = *state;
    struct local_client c = {.f = f, .room = 3};
    (void)local_watches(&c, UINT64_MAX);
    rpc_server_review(f->server);
    turn_until_count(f, &f->ends, 1);
    assert_int_equal(f->error.status, TITAN_EPERM);
    assert_string_equal(f->text, "no more");
    (void)local_submits(&c, "hang", NULL);
    rpc_client_close(f->client, set_true, &f->client_down);
    run_until(f, &f->client_down);
    f->client = NULL;
    server_stop(f);
    assert_int_equal(f->ends, 2);
    assert_int_equal(f->error.status, TITAN_EUNREACHABLE);
    assert_int_equal(f->closed, 2);
}

#define WITH_SERVER(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int main(void)
{
    (void)signal(SIGPIPE, SIG_IGN);
    log_set_level(LOG_LEVEL_ERROR);
    struct rlimit files; /* a user's 1,024 are too few for both ends of MANY */
    (void)getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = MIN(files.rlim_max, FILES);
    (void)setrlimit(RLIMIT_NOFILE, &files);
    const struct CMUnitTest tests[] = {
        WITH_SERVER(test_unary),
        WITH_SERVER(test_error),
        WITH_SERVER(test_concurrent),
        WITH_SERVER(test_costly),
        WITH_SERVER(test_stream),
        WITH_SERVER(test_back_pressure),
        WITH_SERVER(test_bidi),
        WITH_SERVER(test_send_limit),
        WITH_SERVER(test_authorize),
        WITH_SERVER(test_deadline),
        WITH_SERVER(test_cancel),
        WITH_SERVER(test_client_close),
        WITH_SERVER(test_shutdown_hung),
        WITH_SERVER(test_shutdown_drains),
        WITH_SERVER(test_oversize),
        WITH_SERVER(test_burst),
        WITH_SERVER(test_garbage_message),
        WITH_SERVER(test_not_utf8),
        cmocka_unit_test(test_nul),
        WITH_SERVER(test_unknown_method),
        WITH_SERVER(test_garbage_bytes),
        WITH_SERVER(test_connection_copied_by_a_fork),
        WITH_SERVER(test_calls_of_connections),
        cmocka_unit_test_setup_teardown(test_late_request, setup_impatient, teardown),
        WITH_SERVER(test_taken),
        WITH_SERVER(test_stale_socket),
        WITH_SERVER(test_unreachable),
        WITH_SERVER(test_token_over_socket),
        WITH_SERVER(test_health),
        WITH_SERVER(test_reflection),
        WITH_SERVER(test_reflection_v1),
        cmocka_unit_test(test_reflection_lookup),
        WITH_SERVER(test_channel),
        WITH_SERVER(test_channel_of_several),
        WITH_SERVER(test_reconnect),
        cmocka_unit_test_setup_teardown(test_many_connections, setup_resting, teardown),
        WITH_SERVER(test_many_clients),
        cmocka_unit_test(test_lock_checks),
        WITH_SERVER(test_local_unary),
        WITH_SERVER(test_local_stream),
        WITH_SERVER(test_local_leave),
        WITH_SERVER(test_local_review),
    };
    return cmocka_run_group_tests_name("rpc", tests, NULL, NULL);
}
