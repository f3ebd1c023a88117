/* SPDX-License-Identifier: Apache-2.0 */
/* page_api.c - see page_api.h. */
#include "daemon/page_api.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

#include "base/arena.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/slowest.h"
#include "base/utf8.h"
#include "daemon/api/charts.h"
#include "daemon/api/methods.h"
#include "proto/message_json.h"
#include "proto/ranges.h"
#include "titan/v1/titan.pb-c.h"

#define SERVICE "/titan.v1.Titan/"
#define JSON_TYPE "application/json"

struct page_method {
    const char *name; /* of the path */
    const char *path;
    const char *type;
    bool lines; /* an answer is a line for each message, and the newest count */
    const ProtobufCMessageDescriptor *request;
    const char *fields; /* that may be given, with spaces around; NULL = all of the request's */
    struct rpc_local local;
};

/* A question whether a job may be shown. */
struct job_check {
    struct asked *asked;
    struct rpc_call *call; /* NULL = it has ended */
    struct chart_job *job; /* of the query */
};

/* A request for curves. */
struct curves_asked {
    struct chart_query query;
    struct job_check checks[CHARTS_JOBS];
    size_t open; /* checks that have not ended */
    struct chart *chart;
};

/* A request under way. */
struct asked {
    LIST_ENTRY(asked) link;
    struct page_api *api;
    const struct page_method *method;
    struct http_exchange *exchange;
    struct rpc_call *call;       /* NULL = it has ended */
    struct curves_asked *curves; /* NULL = a request for something else */
    struct buf text;             /* the answer so far; not of a stream */
    bool answered;               /* its answer was given, or its stream has begun */
    bool streams;                /* its stream has begun */
};

/* An answer with curves, for those that ask soon. */
struct shared {
    struct chart_query query;
    struct http_body *body; /* NULL = none */
    int64_t made_ms;
};
enum { SHARED = 8 };

struct page_api {
    uv_loop_t *loop;
    struct coordinator *coordinator;
    struct rpc_server *server;
    LIST_HEAD(all_asked, asked) all;
    uint32_t n_streams;
    struct charts *charts;
    struct shared shared[SHARED];
    uv_timer_t begin_timer, alive_timer;
    int open_handles;
    void (*answered)(unsigned status, void *data);
    void *data;
    void (*done)(void *);
    void *done_data;
};

/* --- answers ------------------------------------------------------------------------------------------------------ */

static unsigned http_status(titan_status status, bool known)
{
    switch (status) {
    case TITAN_OK:
        return 200;
    case TITAN_EINVAL:
        return 400;
    case TITAN_EPERM:
        return known ? 403 : 401;
    case TITAN_ENOTFOUND:
        return 404;
    case TITAN_ELIMIT:
    case TITAN_EAGAIN:
        return 429;
    case TITAN_EUNREACHABLE:
    case TITAN_ETIMEDOUT:
        return 503;
    default:
        return 500;
    }
}

static void put_error(struct buf *out, titan_status status, const char *text)
{
    const int code = titan_status_grpc(status);
    struct json_writer w = {.out = out};
    char fit[1024]; /* a client's text may be cut within a character */
    const int n = snprintf(fit, sizeof(fit), "%s", text);
    const size_t len = MIN((size_t)MAX(n, 0), sizeof(fit) - 1);
    for (size_t at; (at = utf8_check(fit, len)) < len;)
        fit[at] = '?';
    json_begin_object(&w, NULL);
    json_put_string(&w, "error", fit);
    json_put_string(&w, "code", rpc_code_name(code >= 0 && code < RPC_CODES ? (unsigned)code : 2));
    json_end_object(&w);
}

static struct http_body *error_body(titan_status status, const char *text)
{
    struct buf b = BUF_INIT;
    put_error(&b, status, text);
    buf_puts(&b, "\n");
    return http_body_new(&b, JSON_TYPE);
}

/* An answer to a request that has not become a call. */
static void refuse(struct page_api *p, struct http_answer *a, const struct titan_error *err)
{
    a->status = http_status(err->status, true);
    a->body = error_body(err->status, err->msg);
    p->answered(a->body ? a->status : 500, p->data);
}

static void answer(struct asked *x, unsigned status, struct http_body *body)
{
    titan_assert(!x->answered);
    x->answered = true;
    x->api->answered(body ? status : 500, x->api->data);
    http_exchange_answer(x->exchange, status, body);
}

/* --- curves ------------------------------------------------------------------------------------------------------- */

static bool same_query(const struct chart_query *a, const struct chart_query *b)
{
    bool same = a->n == b->n && a->from == b->from && a->to == b->to && a->points == b->points;
    for (size_t i = 0; same && i < a->n; i++)
        same = a->jobs[i].id == b->jobs[i].id;
    return same;
}

static void on_chart(struct buf *json, const struct titan_error *err, void *data)
{
    struct asked *x = data;
    struct page_api *p = x->api;
    struct shared *place = &p->shared[0];
    x->curves->chart = NULL;
    if (err->status != TITAN_OK) {
        answer(x, http_status(err->status, true), error_body(err->status, err->msg));
        return;
    }
    for (size_t i = 1; i < SHARED; i++)
        if (p->shared[i].made_ms < place->made_ms)
            place = &p->shared[i];
    http_body_unref(place->body);
    *place =
        (struct shared){.query = x->curves->query, .body = http_body_new(json, JSON_TYPE), .made_ms = clock_mono_ms()};
    answer(x, 200, place->body ? http_body_ref(place->body) : NULL);
}

/* All jobs may be shown. */
static void begin_chart(struct asked *x)
{
    struct page_api *p = x->api;
    struct titan_error err = {0};
    const int64_t now_ms = clock_mono_ms();
    struct http_body *body = NULL;
    for (size_t i = 0; i < SHARED; i++) {
        struct shared *s = &p->shared[i];
        if (s->body && now_ms - s->made_ms >= PAGE_API_SHARED_MS)
            http_body_unref(TAKE(s->body));
        if (s->body && same_query(&s->query, &x->curves->query))
            body = http_body_ref(s->body);
    }
    if (body)
        answer(x, 200, body);
    else if (!(x->curves->chart = charts_ask(p->charts, &x->curves->query, on_chart, x, &err)))
        answer(x, http_status(err.status, true), error_body(err.status, err.msg));
}

static void on_job(const ProtobufCMessage *message, void *data)
{
    const struct job_check *check = data;
    const Titan__V1__GetJobResponse *reply = (const Titan__V1__GetJobResponse *)message;
    check->job->step = reply->job->step;
}

static void leave_checks(struct curves_asked *c)
{
    for (size_t i = 0; i < c->query.n; i++)
        if (c->checks[i].call)
            rpc_local_leave(TAKE(c->checks[i].call));
    c->open = 0;
}

static void on_job_end(titan_status status, const char *text, void *data)
{
    struct job_check *check = data;
    struct asked *x = check->asked;
    const bool known = rpc_call_identity(check->call)->kind != RPC_ID_NONE;
    check->call = NULL;
    titan_assert(x->curves->open > 0);
    if (status != TITAN_OK) {
        leave_checks(x->curves);
        answer(x, http_status(status, known), error_body(status, text));
    } else if (--x->curves->open == 0) {
        begin_chart(x);
    }
}

static const struct rpc_local job_local = {on_job, NULL, on_job_end, &titan__v1__get_job_response__descriptor};

static void ask_for_jobs(struct asked *x, const struct rpc_local_caller *caller)
{
    struct curves_asked *c = x->curves;
    c->open = c->query.n;
    for (size_t i = 0; i < c->query.n; i++) {
        Titan__V1__GetJobRequest request = TITAN__V1__GET_JOB_REQUEST__INIT;
        struct job_check *check = &c->checks[i];
        *check = (struct job_check){.asked = x, .job = &c->query.jobs[i]};
        request.job_id = check->job->id;
        check->call = rpc_local_call(x->api->server, SERVICE "GetJob", caller, &request.base, &job_local, check);
        if (check->call)
            continue;
        leave_checks(c);
        answer(x, 503, error_body(TITAN_EUNREACHABLE, "the server does not take calls now"));
        return;
    }
}

/* --- methods ------------------------------------------------------------------------------------------------------ */

static void on_message(const ProtobufCMessage *message, void *data)
{
    struct asked *x = data;
    struct json_writer w = {.out = &x->text, .pretty = true};
    message_json(&w, NULL, message);
    buf_puts(&x->text, "\n");
}

/* An answer with logs keeps the newest lines. */
static void keep_newest(struct buf *text)
{
    const char *line = text->len > PAGE_API_LOGS_MAX
                           ? memchr(text->data + text->len - PAGE_API_LOGS_MAX, '\n', PAGE_API_LOGS_MAX)
                           : NULL;
    if (line)
        buf_consume(text, (size_t)(line + 1 - text->data));
}

static void on_line(const ProtobufCMessage *message, void *data)
{
    struct asked *x = data;
    struct json_writer w = {.out = &x->text};
    message_json(&w, NULL, message);
    buf_puts(&x->text, "\n");
    if (x->text.len > 2 * PAGE_API_LOGS_MAX)
        keep_newest(&x->text);
}

static void begin_stream(struct asked *x)
{
    static const char head[] = "retry: 3000\n\n";
    if (x->answered)
        return;
    x->streams = http_exchange_stream(x->exchange, "text/event-stream");
    if (!x->streams) {
        answer(x, 500, NULL);
        return;
    }
    x->answered = true;
    x->api->answered(200, x->api->data);
    (void)!http_exchange_write(x->exchange, head, strlen(head));
}

/* A field of a server-sent event ends with its line; the writer of JSON leaves no line's end in a text. */
static void on_event(const ProtobufCMessage *message, void *data)
{
    struct asked *x = data;
    const Titan__V1__Event *event = (const Titan__V1__Event *)message;
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    struct json_writer w = {.out = &text};
    begin_stream(x);
    if (!x->streams)
        return;
    buf_printf(&text, "id: %llu\n", (unsigned long long)event->id);
    if (!strpbrk(event->type, "\r\n"))
        buf_printf(&text, "event: %s\n", event->type);
    buf_puts(&text, "data: ");
    message_json(&w, NULL, message);
    buf_puts(&text, "\n\n");
    (void)!http_exchange_write(x->exchange, text.data, text.len);
}

static bool has_room(void *data)
{
    const struct asked *x = data;
    return http_exchange_has_room(x->exchange);
}

static void on_end(titan_status status, const char *text, void *data)
{
    struct asked *x = data;
    const bool known = rpc_call_identity(x->call)->kind != RPC_ID_NONE;
    x->call = NULL;
    if (x->method->lines)
        keep_newest(&x->text);
    if (status != TITAN_OK)
        answer(x, http_status(status, known), error_body(status, text));
    else
        answer(x, 200, http_body_new(&x->text, x->method->type));
}

static void on_stream_end(titan_status status, const char *text, void *data)
{
    struct asked *x = data;
    _cleanup_(buf_free) struct buf last = BUF_INIT;
    if (status != TITAN_OK && !x->answered) {
        on_end(status, text, data);
        return;
    }
    x->call = NULL;
    begin_stream(x);
    if (!x->streams)
        return;
    if (status == TITAN_OK) {
        buf_puts(&last, "event: end\ndata: {}");
    } else {
        buf_puts(&last, "event: error\ndata: ");
        put_error(&last, status, text);
    }
    buf_puts(&last, "\n\n");
    (void)!http_exchange_write(x->exchange, last.data, last.len);
    http_exchange_end(x->exchange);
}

#define METHOD(name_, message_)                                                                                        \
    {                                                                                                                  \
        .name = #name_, .path = SERVICE #name_, .type = JSON_TYPE,                                                     \
        .request = &titan__v1__##message_##_request__descriptor, .local = {                                            \
            on_message,                                                                                                \
            NULL,                                                                                                      \
            on_end,                                                                                                    \
            &titan__v1__##message_##_response__descriptor                                                              \
        }                                                                                                              \
    }

static const struct page_method methods[] = {
    METHOD(ListJobs, list_jobs),
    METHOD(GetJob, get_job),
    METHOD(GetRecipe, get_recipe),
    METHOD(ListNodes, list_nodes),
    METHOD(ListCheckpoints, list_checkpoints),
    METHOD(Counters, counters),
    METHOD(Version, version),
    {.name = "Logs",
     .path = SERVICE "Logs",
     .type = "application/x-ndjson",
     .lines = true,
     .request = &titan__v1__logs_request__descriptor,
     .fields = " job_id rank tail_lines ",
     .local = {on_line, NULL, on_end, &titan__v1__log_chunk__descriptor}},
    {.name = "events",
     .path = SERVICE "WatchEvents",
     .request = &titan__v1__watch_events_request__descriptor,
     .fields = " job_id ",
     .local = {on_event, has_room, on_stream_end, &titan__v1__event__descriptor}},
    {.name = "curves", .request = &titan__v1__get_job_request__descriptor, .fields = " "},
};
enum { LOGS = 7, EVENTS = 8, CURVES = 9 };

/* --- requests ----------------------------------------------------------------------------------------------------- */

struct filling {
    struct arena memory;
    const struct page_method *method;
    ProtobufCMessage *request;
    uint64_t given;       /* bits of the fields that were given */
    uint64_t after, last; /* of events */
    struct chart_query chart;
    bool has_after, has_tail;
    struct titan_error err;
};

/* False: it is no number of the field's type. */
static bool take_number(const char *text, uint64_t most, uint64_t *ret)
{
    char *end;
    errno = 0;
    *ret = strtoull(text, &end, 10);
    return *text >= '0' && *text <= '9' && !*end && errno == 0 && *ret <= most;
}

static bool take_value(struct filling *f, const ProtobufCFieldDescriptor *field, const char *text, void *to)
{
    uint64_t number = 0;
    const bool minus = *text == '-';
    const ProtobufCEnumValue *value;
    switch (field->type) {
    case PROTOBUF_C_TYPE_BOOL:
        *(protobuf_c_boolean *)to = strcmp(text, "true") == 0;
        return *(protobuf_c_boolean *)to || strcmp(text, "false") == 0;
    case PROTOBUF_C_TYPE_UINT32:
        if (!take_number(text, UINT32_MAX, &number))
            return false;
        *(uint32_t *)to = (uint32_t)number;
        return true;
    case PROTOBUF_C_TYPE_UINT64:
        return take_number(text, UINT64_MAX, to);
    case PROTOBUF_C_TYPE_INT32:
        if (!take_number(text + minus, INT32_MAX, &number))
            return false;
        *(int32_t *)to = minus ? -(int32_t)number : (int32_t)number;
        return true;
    case PROTOBUF_C_TYPE_ENUM:
        value = protobuf_c_enum_descriptor_get_value_by_name(field->descriptor, text);
        if (value)
            *(int *)to = value->value;
        return value != NULL;
    case PROTOBUF_C_TYPE_STRING:
        *(char **)to = arena_strdup(&f->memory, text);
        return true;
    default:
        return false;
    }
}

/* Room for one more item of a repeated field. */
static void *add_item(struct filling *f, const ProtobufCFieldDescriptor *field)
{
    char *const base = (char *)f->request;
    size_t *const n = (size_t *)(void *)(base + field->quantifier_offset);
    char **const list = (char **)(void *)(base + field->offset);
    const size_t bytes = range_item_bytes(field);
    if ((*n & (*n - 1)) == 0) { /* 0 and the powers of 2: it is full */
        char *more = arena_alloc(&f->memory, MAX(2 * *n, (size_t)1) * bytes);
        if (*n)
            memcpy(more, *list, *n * bytes);
        *list = more;
    }
    return *list + (*n)++ * bytes;
}

/* False: it has come before. */
static bool given_once(struct filling *f, const char *name, int bit)
{
    if (f->given >> bit & 1)
        (void)titan_fail(&f->err, TITAN_EINVAL, "%s: the field '%s' is given twice", f->method->name, name);
    f->given |= UINT64_C(1) << bit;
    return f->err.status == TITAN_OK;
}

static bool on_curves_field(struct filling *f, const char *name, const char *value)
{
    static const char *const names[] = {"job_id", "points", "from", "to"};
    struct chart_query *q = &f->chart;
    uint64_t number = 0;
    int i = 0;
    while (i < (int)ARRAY_SIZE(names) && strcmp(name, names[i]) != 0)
        i++;
    if (i == (int)ARRAY_SIZE(names)) {
        (void)titan_fail(&f->err, TITAN_EINVAL, "curves has no field '%.64s'", name);
        return false;
    }
    if (i == 0 && q->n == CHARTS_JOBS) {
        (void)titan_fail(&f->err, TITAN_EINVAL, "curves: at most %d jobs", CHARTS_JOBS);
        return false;
    }
    if (i > 0 && !given_once(f, name, i))
        return false;
    if (!take_number(value, i == 1 ? CHARTS_POINTS : INT64_MAX, &number) || (i < 2 && number == 0)) {
        (void)titan_fail(&f->err, TITAN_EINVAL, "curves: '%.64s' is no value of the field '%s'", value, name);
        return false;
    }
    if (i == 0)
        q->jobs[q->n++].id = number;
    else if (i == 1)
        q->points = (size_t)number;
    else
        *(i == 2 ? &q->from : &q->to) = number;
    return true;
}

static bool on_field(const char *name, const char *value, void *data)
{
    struct filling *f = data;
    const struct page_method *m = f->method;
    if (m == &methods[CURVES])
        return on_curves_field(f, name, value);
    const ProtobufCFieldDescriptor *field = protobuf_c_message_descriptor_get_field_by_name(m->request, name);
    char spaced[64];
    (void)snprintf(spaced, sizeof(spaced), " %s ", name);
    if (m == &methods[EVENTS] && (strcmp(name, "after") == 0 || strcmp(name, "last") == 0)) {
        const bool after = *name == 'a';
        if (!given_once(f, name, after ? 62 : 63))
            return false;
        f->has_after = f->has_after || after;
        if (take_number(value, UINT64_MAX, after ? &f->after : &f->last))
            return true;
    } else if (!field || field->type == PROTOBUF_C_TYPE_MESSAGE || (m->fields && !strstr(m->fields, spaced))) {
        (void)titan_fail(&f->err, TITAN_EINVAL, "%s has no field '%.64s'", m->name, name);
        return false;
    } else {
        const bool repeated = field->label == PROTOBUF_C_LABEL_REPEATED;
        titan_assert(m->request->n_fields <= 60);
        if (!repeated && !given_once(f, name, (int)(field - m->request->fields)))
            return false;
        f->has_tail = f->has_tail || strcmp(name, "tail_lines") == 0;
        if (take_value(f, field, value, repeated ? add_item(f, field) : (char *)f->request + field->offset))
            return true;
    }
    (void)titan_fail(&f->err, TITAN_EINVAL, "%s: '%.64s' is no value of the field '%s'", m->name, value, name);
    return false;
}

/* Is this a name of the machine itself? */
static bool local_host(const char *host)
{
    char name[64];
    struct in_addr address;
    const size_t len = *host == '[' ? strcspn(host, "]") + 1 : strcspn(host, ":");
    if (len >= sizeof(name))
        return false;
    (void)snprintf(name, sizeof(name), "%.*s", (int)len, host);
    return strcmp(name, "localhost") == 0 || strcmp(name, "[::1]") == 0 ||
           (inet_pton(AF_INET, name, &address) == 1 && ntohl(address.s_addr) >> 24 == 127);
}

/* Fills in the request. */
static titan_status take_request(struct page_api *p, const struct http_request *r, struct filling *f)
{
    if (!r->identity->secure && r->host && !local_host(r->host))
        return titan_fail(&f->err, TITAN_EPERM,
                          "not permitted: without TLS only a name of this machine is served, as localhost");
    const char *const name = r->path + strlen(PAGE_API_PATH);
    for (size_t i = 0; i < ARRAY_SIZE(methods) && !f->method; i++)
        if (strcmp(name, methods[i].name) == 0)
            f->method = &methods[i];
    if (!f->method)
        return titan_fail(&f->err, TITAN_ENOTFOUND, "there is no '%.64s' here", r->path);
    f->request = arena_alloc(&f->memory, f->method->request->sizeof_message);
    protobuf_c_message_init(f->method->request, f->request);
    if (f->method == &methods[LOGS])
        ((Titan__V1__LogsRequest *)f->request)->rank = -1;
    f->chart = (struct chart_query){.to = UINT64_MAX, .points = PAGE_API_POINTS};
    if (!http_request_fields(r, on_field, f))
        return f->err.status != TITAN_OK
                   ? f->err.status
                   : titan_fail(&f->err, TITAN_EINVAL, "the fields of the request are no percent-encoded UTF-8");
    if (f->method == &methods[LOGS]) {
        Titan__V1__LogsRequest *logs = (Titan__V1__LogsRequest *)f->request;
        if (!f->has_tail)
            logs->tail_lines = PAGE_API_TAIL_LINES;
        if (logs->tail_lines == 0 || logs->tail_lines > PAGE_API_TAIL_LINES_MAX)
            return titan_fail(&f->err, TITAN_EINVAL, "Logs: tail_lines is 1 to %d", PAGE_API_TAIL_LINES_MAX);
    }
    if (f->method == &methods[CURVES] && (f->chart.n == 0 || f->chart.from > f->chart.to))
        return titan_fail(&f->err, TITAN_EINVAL,
                          f->chart.n == 0 ? "curves: job_id is not given" : "curves: from is behind to");
    if (f->method == &methods[EVENTS]) {
        Titan__V1__WatchEventsRequest *events = (Titan__V1__WatchEventsRequest *)f->request;
        events->follow = true;
        if (r->last_event_id && take_number(r->last_event_id, UINT64_MAX, &events->after_event_id)) {
            /* a client goes on where it was */
        } else if (f->has_after) {
            events->after_event_id = f->after;
        } else {
            const uint64_t newest = api_newest_event(p->coordinator);
            events->after_event_id = newest - MIN(f->last, newest);
        }
        if (p->n_streams >= PAGE_API_STREAMS_MAX)
            return titan_fail(&f->err, TITAN_ELIMIT, "%d streams of pages are open already", PAGE_API_STREAMS_MAX);
    }
    return TITAN_OK;
}

static void on_ended(void *data)
{
    struct asked *x = data;
    struct page_api *p = x->api;
    if (x->call)
        rpc_local_leave(x->call);
    if (x->curves)
        leave_checks(x->curves);
    if (x->curves && x->curves->chart)
        charts_leave(x->curves->chart);
    free(x->curves);
    if (x->method == &methods[EVENTS]) {
        titan_assert(p->n_streams > 0);
        if (--p->n_streams == 0)
            (void)uv_timer_stop(&p->alive_timer);
    }
    LIST_REMOVE(x, link);
    buf_free(&x->text);
    free(x);
}

static void on_drained(void *data)
{
    const struct asked *x = data;
    if (x->call)
        rpc_local_drained(x->call);
}

static const struct http_later later = {on_ended, on_drained};

/* A refused call has ended by now: the timer that ends calls was started before. */
static void on_begin(uv_timer_t *timer)
{
    struct page_api *p = timer->data;
    for (struct asked *x = LIST_FIRST(&p->all); x; x = LIST_NEXT(x, link))
        if (x->method == &methods[EVENTS] && x->call)
            begin_stream(x);
}

static void on_alive(uv_timer_t *timer)
{
    HANDLER("http.streams");
    struct page_api *p = timer->data;
    for (struct asked *x = LIST_FIRST(&p->all); x; x = LIST_NEXT(x, link))
        if (x->streams && x->call && http_exchange_has_room(x->exchange))
            (void)!http_exchange_write(x->exchange, ": \n\n", 4);
}

void page_api_answer(struct page_api *p, const struct http_request *r, struct http_answer *a)
{
    struct filling f = {.memory = {NULL}};
    struct asked *x = NULL;
    titan_status status = take_request(p, r, &f);
    if (status == TITAN_OK && !(x = calloc(1, sizeof(*x))))
        status = titan_fail(&f.err, TITAN_ENOMEM, "out of memory");
    if (status == TITAN_OK) {
        *x = (struct asked){.api = p, .method = f.method};
        if (f.method == &methods[CURVES] && (x->curves = calloc(1, sizeof(*x->curves))))
            x->curves->query = f.chart;
        if (x->curves || f.method != &methods[CURVES])
            x->exchange = http_answer_later(r, a, &later, x);
        if (!x->exchange)
            status = titan_fail(&f.err, TITAN_ENOMEM, "out of memory");
    }
    if (status != TITAN_OK) {
        if (x)
            free(x->curves);
        free(x);
        refuse(p, a, &f.err);
        arena_free(&f.memory);
        return;
    }
    LIST_INSERT_HEAD(&p->all, x, link);
    const bool streams = x->method == &methods[EVENTS];
    if (streams && p->n_streams++ == 0)
        (void)uv_timer_start(&p->alive_timer, on_alive, PAGE_API_ALIVE_MS, PAGE_API_ALIVE_MS);
    const struct rpc_local_caller caller = {
        .identity = *r->identity, .peer = r->peer, .authorization = r->authorization};
    if (x->curves) {
        arena_free(&f.memory);
        ask_for_jobs(x, &caller);
        return;
    }
    x->call = rpc_local_call(p->server, x->method->path, &caller, f.request, &x->method->local, x);
    arena_free(&f.memory);
    if (!x->call)
        answer(x, 503, error_body(TITAN_EUNREACHABLE, "the server does not take calls now"));
    else if (streams)
        (void)uv_timer_start(&p->begin_timer, on_begin, 0, 0);
}

/* --- life --------------------------------------------------------------------------------------------------------- */

struct page_api *page_api_new(uv_loop_t *loop, struct coordinator *coordinator, struct rpc_server *server,
                              void (*answered)(unsigned status, void *data), void *data)
{
    struct page_api *p = calloc(1, sizeof(*p));
    if (!p)
        return NULL;
    *p = (struct page_api){.loop = loop,
                           .coordinator = coordinator,
                           .server = server,
                           .open_handles = 3,
                           .answered = answered,
                           .data = data};
    p->charts = charts_new(loop, coordinator);
    if (!p->charts) {
        free(p);
        return NULL;
    }
    (void)uv_timer_init(loop, &p->begin_timer);
    (void)uv_timer_init(loop, &p->alive_timer);
    p->begin_timer.data = p->alive_timer.data = p;
    return p;
}

static void part_closed(void *data)
{
    struct page_api *p = data;
    if (--p->open_handles > 0)
        return;
    void (*const done)(void *) = p->done;
    void *const done_data = p->done_data;
    for (size_t i = 0; i < SHARED; i++)
        http_body_unref(p->shared[i].body);
    free(p);
    done(done_data);
}

static void on_closed(uv_handle_t *handle)
{
    part_closed(handle->data);
}

void page_api_close(struct page_api *p, void (*done)(void *), void *data)
{
    titan_assert(LIST_EMPTY(&p->all) && p->n_streams == 0);
    p->done = done;
    p->done_data = data;
    charts_close(p->charts, part_closed, p);
    uv_close((uv_handle_t *)&p->begin_timer, on_closed);
    uv_close((uv_handle_t *)&p->alive_timer, on_closed);
}
