/* SPDX-License-Identifier: Apache-2.0 */
/* Requests to the pages of titand, any bytes of a client: the HTTP server and the API behind it, over a real
 * connection. The methods' calls and charts are made here. A first byte says how they end.
 *
 *   - what comes back is HTTP, or nothing
 *   - a request that becomes a call is a whole message; the client's fields are in it, and nothing else
 *   - no call, chart or connection is left when the client has gone */
#include "tests/fuzz/common.h"

#include <arpa/inet.h>
#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/api/charts.h"
#include "daemon/page_api.h"
#include "proto/ranges.h"
#include "titan/v1/titan.pb-c.h"

enum { CALLS = 32, TURNS = 200 };

static uv_loop_t loop;
static struct http_server *server;
static struct page_api *api;
static int port;
static uint8_t how;

struct rpc_call {
    const struct rpc_local *local; /* NULL = free */
    void *data;
    bool left;
};
static struct rpc_call calls[CALLS];

struct chart {
    void (*done)(struct buf *json, const struct titan_error *err, void *data); /* NULL = free */
    void *data;
};
static struct chart charts[CALLS];

/* --- what the API calls ------------------------------------------------------------------------------------------- */

struct rpc_call *__wrap_rpc_local_call(struct rpc_server *s, const char *path, const struct rpc_local_caller *caller,
                                       const ProtobufCMessage *request, const struct rpc_local *local, void *data);
struct rpc_call *__wrap_rpc_local_call(struct rpc_server *s, const char *path, const struct rpc_local_caller *caller,
                                       const ProtobufCMessage *request, const struct rpc_local *local, void *data)
{
    struct rpc_call *call = calls;
    struct titan_error err = {0};
    Titan__V1__Job job = TITAN__V1__JOB__INIT;
    (void)s;
    fuzz_assert(strncmp(path, "/titan.v1.Titan/", 16) == 0 && !caller->identity.secure);
    const size_t size = protobuf_c_message_get_packed_size(request);
    uint8_t *bytes = malloc(size + 1);
    fuzz_assert(bytes && protobuf_c_message_pack(request, bytes) == size);
    ProtobufCMessage *again = protobuf_c_message_unpack(request->descriptor, NULL, size, bytes);
    fuzz_assert(again);
    if (range_check(request, &err) != TITAN_OK)
        fuzz_error(TITAN_EINVAL, &err);
    protobuf_c_message_free_unpacked(again, NULL);
    free(bytes);
    while (call < calls + CALLS && call->local)
        call++;
    if (call == calls + CALLS || (how & 1))
        return NULL;
    *call = (struct rpc_call){.local = local, .data = data};
    ProtobufCMessage *message = calloc(1, local->reply->sizeof_message);
    fuzz_assert(message);
    protobuf_c_message_init(local->reply, message);
    if (strcmp(local->reply->short_name, "GetJobResponse") == 0)
        ((Titan__V1__GetJobResponse *)message)->job = &job;
    for (int i = 0; i < (local->has_room ? 40 : 1) && !(how & 2); i++)
        if (!local->has_room || local->has_room(data))
            local->on_message(message, data);
    free(message);
    return call;
}

void __wrap_rpc_local_leave(struct rpc_call *call);
void __wrap_rpc_local_leave(struct rpc_call *call)
{
    fuzz_assert(call->local && !call->left);
    call->left = true;
}

void __wrap_rpc_local_drained(struct rpc_call *call);
void __wrap_rpc_local_drained(struct rpc_call *call)
{
    fuzz_assert(call->local && !call->left);
}

const struct rpc_identity *__wrap_rpc_call_identity(const struct rpc_call *call);
const struct rpc_identity *__wrap_rpc_call_identity(const struct rpc_call *call)
{
    static const struct rpc_identity nobody = {.name = "anonymous"};
    fuzz_assert(call->local);
    return &nobody;
}

uint64_t __wrap_api_newest_event(struct coordinator *c);
uint64_t __wrap_api_newest_event(struct coordinator *c)
{
    (void)c;
    return 1000;
}

struct charts *__wrap_charts_new(uv_loop_t *l, struct coordinator *c);
struct charts *__wrap_charts_new(uv_loop_t *l, struct coordinator *c)
{
    (void)l, (void)c;
    return (struct charts *)(void *)charts;
}

struct chart *__wrap_charts_ask(struct charts *s, const struct chart_query *q,
                                void (*done)(struct buf *json, const struct titan_error *err, void *data), void *data,
                                struct titan_error *err);
struct chart *__wrap_charts_ask(struct charts *s, const struct chart_query *q,
                                void (*done)(struct buf *json, const struct titan_error *err, void *data), void *data,
                                struct titan_error *err)
{
    struct chart *x = charts;
    (void)s;
    fuzz_assert(q->n > 0 && q->n <= CHARTS_JOBS && q->points > 0 && q->points <= CHARTS_POINTS && q->from <= q->to);
    while (x < charts + CALLS && x->done)
        x++;
    if (x == charts + CALLS) {
        (void)titan_fail(err, TITAN_ELIMIT, "too many");
        return NULL;
    }
    *x = (struct chart){done, data};
    return x;
}

void __wrap_charts_leave(struct chart *x);
void __wrap_charts_leave(struct chart *x)
{
    fuzz_assert(x->done);
    x->done = NULL;
}

/* Calls and charts end as the input has it. */
static void end_some(void)
{
    static const titan_status ends[] = {TITAN_OK,     TITAN_EPERM, TITAN_ENOTFOUND, TITAN_ELIMIT,
                                        TITAN_EINVAL, TITAN_OK,    TITAN_EBUG,      TITAN_EUNREACHABLE};
    const titan_status status = ends[how >> 5];
    for (struct rpc_call *call = calls; call < calls + CALLS; call++) {
        if (call->local && !call->left && (how & 4))
            call->local->on_end(status, status == TITAN_OK ? "" : "a reason", call->data);
        if (call->left || (how & 4))
            *call = (struct rpc_call){0};
    }
    for (struct chart *x = charts; x < charts + CALLS; x++)
        if (x->done && (how & 8)) {
            struct buf json = BUF_INIT;
            struct titan_error err = {0};
            void (*const done)(struct buf *, const struct titan_error *, void *) = x->done;
            x->done = NULL;
            buf_puts(&json, "{}\n");
            if (status != TITAN_OK)
                (void)titan_fail(&err, status, "a reason");
            done(&json, &err, x->data);
            buf_free(&json);
        }
}

/* --- a client ----------------------------------------------------------------------------------------------------- */

static void on_answered(unsigned status, void *data)
{
    (void)data;
    fuzz_assert(status >= 200 && status < 600);
}

static void on_request(const struct http_request *r, struct http_answer *a, void *data)
{
    struct buf text = BUF_INIT;
    (void)data;
    if (strncmp(r->path, PAGE_API_PATH, strlen(PAGE_API_PATH)) == 0) {
        page_api_answer(api, r, a);
        return;
    }
    buf_puts(&text, "there is no such page\n");
    a->status = 404;
    a->body = http_body_new(&text, "text/plain");
}

static void open_once(void)
{
    const struct http_server_options options = {.look_ms = 1, .answer = on_request};
    if (server)
        return;
    fuzz_assert(uv_loop_init(&loop) == 0 && http_server_open(&loop, &options, &server, NULL) == TITAN_OK);
    fuzz_assert(http_server_listen(server, "127.0.0.1:0", NULL, &port, NULL) == TITAN_OK);
    api = page_api_new(&loop, NULL, NULL, on_answered, NULL);
    fuzz_assert(api);
}

/* True: the server has closed. */
static bool hear(int fd, bool *first)
{
    char bytes[4096];
    ssize_t n;
    while ((n = recv(fd, bytes, sizeof(bytes), MSG_DONTWAIT)) > 0) {
        fuzz_assert(!*first || n < 7 || memcmp(bytes, "HTTP/1.", 7) == 0);
        *first = false;
    }
    return n == 0 || (errno != EAGAIN && errno != EINTR);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint32_t inputs;
    struct sockaddr_in to = {.sin_family = AF_INET}, from = to;
    bool first = true, closed = false;
    struct fuzz_input in = {data, size};
    const struct linger at_once = {.l_onoff = 1, .l_linger = 0}; /* no ports wait for the ends of connections */
    open_once();
    how = (uint8_t)fuzz_take(&in, 1);
    to.sin_port = htons((uint16_t)port);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    fuzz_assert(fd >= 0 && fd < 100); /* none is left open */
    /* Each address has ports of its own, which wait for a minute where the server closes first. */
    from.sin_addr.s_addr = htonl(INADDR_LOOPBACK + inputs++ % 65536 * 4);
    fuzz_assert(bind(fd, (struct sockaddr *)&from, sizeof(from)) == 0);
    fuzz_assert(connect(fd, (struct sockaddr *)&to, sizeof(to)) == 0);
    (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    for (size_t at = 0; at < in.len && !closed;) {
        const ssize_t n =
            send(fd, in.data + at, MIN(in.len - at, (size_t)(how & 16 ? 50 : 65536)), MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno != EAGAIN)
            break;
        at += n > 0 ? (size_t)n : 0;
        (void)uv_run(&loop, UV_RUN_NOWAIT);
        end_some();
        closed = hear(fd, &first);
    }
    for (int i = 0; i < 8 && !closed; i++) {
        (void)uv_run(&loop, UV_RUN_NOWAIT);
        end_some();
        closed = hear(fd, &first);
    }
    (void)close(fd);
    how |= 4 | 8;
    for (int i = 0; http_server_counters(server).open > 0; i++) {
        fuzz_assert(i < 10000);
        (void)uv_run(&loop, i < TURNS ? UV_RUN_NOWAIT : UV_RUN_ONCE);
        end_some();
    }
    (void)uv_run(&loop, UV_RUN_NOWAIT);
    end_some();
    for (int i = 0; i < CALLS; i++)
        fuzz_assert(!calls[i].local && !charts[i].done);
    return 0;
}
