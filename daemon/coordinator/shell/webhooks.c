/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/coordinator/shell/webhooks.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/hex.h"
#include "base/mac.h"
#include "base/slowest.h"
#include "daemon/common/thread.h"
#include "daemon/coordinator/shell/event_message.h"
#include "proto/http/http_client.h"
#include "proto/message_json.h"

#define READ_AT_ONCE 64 /* rows of one query */
#define READS_MAX 4     /* queries in a row before the loop goes on */
#define READ_ON_MS 1
#define SKIPPED_MAX 4096 /* events that nobody wants, after which the row moves without a delivery */
#define RETRY_MS 250
#define RETRY_MAX_MS 60000
#define STORE_AGAIN_MS 1000
#define REFUSED_TRIES 5
#define END_WAIT_MS 2000
#define STACK_BYTES (512 << 10)
#define KEY "webhook:"

static const struct log hook_log = {.subsystem = "webhook"};

struct webhook {
    struct webhook *next;
    struct coordinator *owner;
    struct webhook_options options;
    char place[256], key[sizeof(KEY) + WEBHOOK_NAME];
    atomic_uint uses; /* by the loop, the thread, and writes under way; the last one frees it */

    /* the loop's */
    enum { HOOK_CLOSED, HOOK_BEGINS, HOOK_IDLE, HOOK_SENDS, HOOK_STORES } phase;
    uint64_t at, stored; /* the last event that was delivered or not wanted; the row's */
    bool more;           /* the last query had rows */
    int64_t due_ms;      /* monotonic clock: nothing is done before */
    int64_t event_ms;    /* wall clock: when the event in `id` happened */
    uint64_t delivered, failures, passed_over;
    unsigned failed, refused; /* tries of this event, in a row */
    char trouble[200];

    /* of whom the turn is; the other waits */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool sends, answered, stop, ended; /* sends: the thread has the turn */
    uint64_t id;                       /* the event to send; 0 = none */
    struct buf body;
    char gap[64]; /* header; "" = none */
    struct http_client *client;
    struct http_posted answer;
};

struct webhooks {
    struct webhooks_options options;
    struct webhook *list;
    uint64_t generation;   /* of the list */
    struct places *places; /* to be stored again at places_ms: the disk was full */
    int64_t places_ms;
    uv_async_t answers;
    uv_timer_t timer;
    void (*closed)(void *coordinator);
};

static void unuse(struct webhook *w)
{
    if (atomic_fetch_sub(&w->uses, 1) > 1)
        return;
    http_client_free(w->client);
    buf_free(&w->body);
    (void)pthread_cond_destroy(&w->changed);
    (void)pthread_mutex_destroy(&w->lock);
    free(w);
}

/* --- the thread --------------------------------------------------------------------------------------------------- */

static void post(struct webhook *w)
{
    _cleanup_(buf_free) struct buf secret = BUF_INIT;
    char id[64], stamp[64], signature[48 + 2 * MAC_BYTES], hex[2 * MAC_BYTES + 1], number[24];
    const char *headers[8] = {"Content-Type: application/json", "Expect:", id, stamp, signature,
                              w->gap[0] ? w->gap : NULL,        NULL};
    struct titan_error err = {0};
    uint8_t proof[MAC_BYTES];
    struct mac mac;
    /* Read for each POST, so that a new secret counts from the next one on. */
    if (webhook_secret(&w->options, &secret, &err) != TITAN_OK) {
        w->answer = (struct http_posted){.status = 0};
        (void)snprintf(w->answer.text, sizeof(w->answer.text), "%.159s", err.msg);
        return;
    }
    (void)snprintf(number, sizeof(number), "%" PRId64, clock_wall_ms() / 1000);
    mac_begin(&mac, secret.data, secret.len);
    mac_add(&mac, number, strlen(number));
    mac_add(&mac, ".", 1);
    mac_add(&mac, w->body.data, w->body.len);
    mac_end(&mac, proof);
    mac_wipe(secret.data, secret.len);
    hex_write(proof, MAC_BYTES, hex);
    (void)snprintf(id, sizeof(id), "Titan-Event-Id: %" PRIu64, w->id);
    (void)snprintf(stamp, sizeof(stamp), "Titan-Timestamp: %s", number);
    (void)snprintf(signature, sizeof(signature), "Titan-Signature: sha256=%s", hex);
    http_client_post(w->client,
                     &(struct http_post){.url = w->options.url,
                                         .ca = w->options.ca,
                                         .headers = headers,
                                         .body = w->body.data,
                                         .len = w->body.len,
                                         .timeout_ms = w->options.timeout_ms},
                     &w->answer);
}

static void *serve(void *arg)
{
    struct webhook *w = arg;
    (void)pthread_mutex_lock(&w->lock);
    for (;;) {
        while (!w->stop && !w->sends)
            (void)pthread_cond_wait(&w->changed, &w->lock);
        if (w->stop)
            break;
        (void)pthread_mutex_unlock(&w->lock);
        post(w);
        (void)pthread_mutex_lock(&w->lock);
        w->sends = false;
        w->answered = true;
        if (!w->stop)
            (void)uv_async_send(&w->owner->webhooks->answers);
    }
    w->ended = true;
    (void)pthread_cond_broadcast(&w->changed);
    (void)pthread_mutex_unlock(&w->lock);
    unuse(w);
    return NULL;
}

/* --- its place in the event log ----------------------------------------------------------------------------------- */

struct place {
    struct webhook *w;
    uint64_t id;
};

static titan_status write_place(struct db *db, void *arg, struct titan_error *err)
{
    const struct place *p = arg;
    return db_run(db, err, "INSERT INTO meta VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
                  "tu", p->w->key, p->id);
}

static void set_timer(struct coordinator *c);
static void pump(struct webhook *w);

static void place_written(void *arg, const struct titan_error *err)
{
    struct place *p = arg;
    struct webhook *w = p->w;
    if (w->phase == HOOK_STORES && err->status == TITAN_OK) {
        w->stored = p->id;
        w->phase = HOOK_IDLE;
        w->due_ms = 0;
        pump(w);
    } else if (w->phase == HOOK_STORES) { /* the disk is full; the event is not sent again */
        w->due_ms = clock_mono_ms() + STORE_AGAIN_MS;
    }
    if (w->phase != HOOK_CLOSED)
        set_timer(w->owner);
    free(p);
    unuse(w);
}

static void store_place(struct webhook *w)
{
    struct place *p = calloc(1, sizeof(*p));
    titan_assert(p && w->at >= w->stored);
    *p = (struct place){w, w->at};
    if (w->phase != HOOK_CLOSED)
        w->phase = HOOK_STORES;
    w->due_ms = INT64_MAX;
    atomic_fetch_add(&w->uses, 1);
    store_write(w->owner->store, write_place, p, place_written);
}

/* The rows of all endpoints: new ones begin at the newest event, those of other names go. */
struct places {
    struct coordinator *owner;
    uint64_t generation;
    size_t n;
    char keys[WEBHOOKS_MAX][sizeof(KEY) + WEBHOOK_NAME];
    char all[WEBHOOKS_MAX * (sizeof(KEY) + WEBHOOK_NAME + 1) + 2]; /* with commas between and around */
};

static titan_status begin_places(struct db *db, void *arg, struct titan_error *err)
{
    const struct places *p = arg;
    TRY(db_run(db, err, "DELETE FROM meta WHERE key GLOB '" KEY "*' AND instr(?, ',' || key || ',') = 0", "t", p->all));
    for (size_t i = 0; i < p->n; i++)
        TRY(db_run(db, err,
                   "INSERT INTO meta VALUES (?, coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'events'), 0))"
                   " ON CONFLICT (key) DO NOTHING",
                   "t", p->keys[i]));
    return TITAN_OK;
}

static void places_begun(void *arg, const struct titan_error *err)
{
    struct places *p = arg;
    struct coordinator *c = p->owner;
    if (c->closing || p->generation != c->webhooks->generation) {
        free(p);
        return;
    }
    bool failed = err->status != TITAN_OK;
    for (struct webhook *w = c->webhooks->list; w && !failed; w = w->next) {
        int64_t row = 0;
        if (w->phase != HOOK_BEGINS)
            continue;
        failed =
            db_int(store_reader(c->store), &row, NULL, "SELECT value FROM meta WHERE key = ?", "t", w->key) != TITAN_OK;
        if (failed)
            break;
        w->at = w->stored = (uint64_t)row;
        w->phase = HOOK_IDLE;
        pump(w);
    }
    if (failed) {
        c->webhooks->places = TAKE(p);
        c->webhooks->places_ms = clock_mono_ms() + STORE_AGAIN_MS;
    }
    set_timer(c);
    free(p);
}

/* Starts the threads, and the rows. */
static void begin(struct coordinator *c)
{
    int64_t rows = 0;
    (void)!db_int(store_reader(c->store), &rows, NULL, "SELECT count(*) FROM meta WHERE key GLOB '" KEY "*'", "");
    if (!c->webhooks->list && rows == 0)
        return;
    struct places *p = calloc(1, sizeof(*p));
    titan_assert(p);
    p->owner = c;
    p->generation = ++c->webhooks->generation;
    (void)snprintf(p->all, sizeof(p->all), ",");
    for (struct webhook *w = c->webhooks->list; w; w = w->next) {
        const size_t len = strlen(p->all);
        struct titan_error err = {0};
        _cleanup_(buf_free) struct buf secret = BUF_INIT;
        memcpy(p->keys[p->n++], w->key, sizeof(w->key));
        (void)snprintf(p->all + len, sizeof(p->all) - len, "%s,", w->key);
        if (webhook_secret(&w->options, &secret, &err) != TITAN_OK)
            tlog_warn(&hook_log, "nothing is sent before the secret can be read",
                      "webhook=%s reason=\"%s\" hint=\"%s\"", w->options.name, err.msg, err.hint);
        if (secret.data)
            mac_wipe(secret.data, secret.len);
        atomic_store(&w->uses, 2);
        if (thread_start(STACK_BYTES, serve, w) != 0) {
            tlog_error(&hook_log, "no thread for an endpoint: it gets nothing before the next reload", "webhook=%s",
                       w->options.name);
            atomic_store(&w->uses, 1);
            w->ended = true;
            continue;
        }
        w->phase = HOOK_BEGINS;
    }
    store_write(c->store, begin_places, p, places_begun);
}

/* --- what is sent ------------------------------------------------------------------------------------------------- */

static bool each_event(const struct event *e, void *data)
{
    struct webhook *w = data;
    titan_assert(e->id > w->at);
    w->more = true;
    if (!webhook_wants(&w->options, e)) {
        w->at = e->id;
        return true;
    }
    const Titan__V1__Event m = event_message(e);
    struct json_writer json = {.out = &w->body};
    buf_clear(&w->body);
    message_json(&json, NULL, &m.base);
    titan_assert(!buf_failed(&w->body));
    w->id = e->id;
    w->event_ms = e->at_ms;
    w->failed = w->refused = 0;
    return false;
}

/* The next event, with the gap before it; TITAN_OK without one if there is none, or more is to be read (w->more). */
static titan_status take_next(struct webhook *w, struct titan_error *err)
{
    struct db *db = store_reader(w->owner->store);
    const uint64_t after = w->at;
    int64_t first = 0;
    w->more = true;
    for (int reads = 0; reads < READS_MAX && w->more && !w->id; reads++) {
        w->more = false;
        TRY(event_list(db, &(struct event_filter){.after = w->at, .limit = READ_AT_ONCE}, each_event, w, err));
    }
    if (w->id)
        TRY(db_int(db, &first, err, "SELECT min(id) FROM events", ""));
    if ((uint64_t)first > after + 1) {
        (void)snprintf(w->gap, sizeof(w->gap), "Titan-Gap: %" PRIu64 "-%" PRId64, after + 1, first - 1);
        tlog_warn(&hook_log, "events are not stored any more and were not sent",
                  "webhook=%s from=%" PRIu64 " to=%" PRId64, w->options.name, after + 1, first - 1);
    }
    return TITAN_OK;
}

/* Sends the next event if the endpoint is idle. */
static void pump(struct webhook *w)
{
    struct titan_error err = {0};
    if (w->phase != HOOK_IDLE || w->due_ms > clock_mono_ms())
        return;
    if (!w->id && take_next(w, &err) != TITAN_OK) {
        tlog_warn(&hook_log, "events cannot be read", "webhook=%s reason=\"%s\"", w->options.name, err.msg);
        w->due_ms = clock_mono_ms() + STORE_AGAIN_MS;
        return;
    }
    if (!w->id) {
        w->due_ms = w->more ? clock_mono_ms() + READ_ON_MS : 0;
        if (w->at - w->stored >= SKIPPED_MAX)
            store_place(w);
        return;
    }
    w->phase = HOOK_SENDS;
    w->due_ms = INT64_MAX;
    (void)pthread_mutex_lock(&w->lock);
    w->sends = true;
    (void)pthread_cond_broadcast(&w->changed);
    (void)pthread_mutex_unlock(&w->lock);
}

/* The thread has come back with an answer, or without. */
static void take_answer(struct webhook *w)
{
    const unsigned status = w->answer.status;
    const bool refused = status >= 300 && status < 500 && status != 408 && status != 429;
    titan_assert(w->id > w->at);
    if (status < 200 || status > 299) {
        w->failures++;
        w->failed++;
        w->refused = refused ? w->refused + 1 : 0;
        if (status)
            (void)snprintf(w->trouble, sizeof(w->trouble), "answer %u%s%s", status, w->answer.text[0] ? ": " : "",
                           w->answer.text);
        else
            (void)snprintf(w->trouble, sizeof(w->trouble), "%s", w->answer.text);
        if (w->refused < REFUSED_TRIES) {
            const unsigned doubled = MIN(w->failed - 1, 16u);
            if (w->phase == HOOK_CLOSED)
                return;
            if ((w->failed & (w->failed - 1)) == 0)
                tlog_warn(&hook_log, "an event is not taken; trying again",
                          "webhook=%s place=%s event=%" PRIu64 " tries=%u reason=\"%s\"", w->options.name, w->place,
                          w->id, w->failed, w->trouble);
            w->phase = HOOK_IDLE;
            w->due_ms = clock_mono_ms() + MIN((int64_t)RETRY_MS << doubled, (int64_t)RETRY_MAX_MS);
            return;
        }
        w->passed_over++;
        tlog_warn(&hook_log, "an event is passed over: its receiver does not take it",
                  "webhook=%s place=%s event=%" PRIu64 " reason=\"%s\"", w->options.name, w->place, w->id, w->trouble);
    } else {
        w->delivered++;
        if (w->failed > 0)
            tlog_info(&hook_log, "events are taken again", "webhook=%s place=%s event=%" PRIu64 " tries=%u",
                      w->options.name, w->place, w->id, w->failed + 1);
        w->failed = 0;
    }
    w->at = w->id;
    w->id = 0;
    w->gap[0] = '\0';
    store_place(w);
}

static void on_timer(uv_timer_t *timer)
{
    HANDLER("webhooks");
    struct coordinator *c = timer->data;
    if (c->webhooks->places && c->webhooks->places_ms <= clock_mono_ms())
        store_write(c->store, begin_places, TAKE(c->webhooks->places), places_begun);
    for (struct webhook *w = c->webhooks->list; w; w = w->next) {
        if (w->due_ms > clock_mono_ms())
            continue;
        if (w->phase == HOOK_STORES)
            store_place(w);
        else
            pump(w);
    }
    set_timer(c);
}

static void set_timer(struct coordinator *c)
{
    int64_t due = c->webhooks->places ? c->webhooks->places_ms : INT64_MAX;
    for (const struct webhook *w = c->webhooks->list; w; w = w->next)
        if ((w->phase == HOOK_IDLE || w->phase == HOOK_STORES) && w->due_ms > 0)
            due = MIN(due, w->due_ms);
    if (due == INT64_MAX || c->closing)
        (void)uv_timer_stop(&c->webhooks->timer);
    else
        (void)uv_timer_start(&c->webhooks->timer, on_timer, (uint64_t)MAX(due - clock_mono_ms(), INT64_C(1)), 0);
}

static void on_answers(uv_async_t *async)
{
    HANDLER("webhooks");
    struct coordinator *c = async->data;
    for (struct webhook *w = c->webhooks->list; w; w = w->next) {
        (void)pthread_mutex_lock(&w->lock);
        const bool answered = w->answered && w->phase == HOOK_SENDS;
        w->answered = w->answered && !answered;
        (void)pthread_mutex_unlock(&w->lock);
        if (answered)
            take_answer(w);
    }
    set_timer(c);
}

void webhooks_committed(struct coordinator *c)
{
    if (!c->webhooks || !c->webhooks->list || c->closing)
        return;
    for (struct webhook *w = c->webhooks->list; w; w = w->next)
        pump(w);
    set_timer(c);
}

/* --- open and close ----------------------------------------------------------------------------------------------- */

/* Ends the endpoints. What was answered with 2xx meanwhile is stored. */
static void end_list(struct webhook *list)
{
    const int64_t until = clock_mono_ns() + (int64_t)END_WAIT_MS * 1000000;
    const struct timespec at = {.tv_sec = (time_t)(until / 1000000000), .tv_nsec = (long)(until % 1000000000)};
    for (struct webhook *w = list; w; w = w->next) {
        (void)pthread_mutex_lock(&w->lock);
        w->stop = true;
        http_client_abort(w->client);
        (void)pthread_cond_broadcast(&w->changed);
        (void)pthread_mutex_unlock(&w->lock);
    }
    for (struct webhook *w = list, *next; w; w = next) {
        next = w->next;
        int late = 0;
        (void)pthread_mutex_lock(&w->lock);
        while (!w->ended && !late)
            late = pthread_cond_timedwait(&w->changed, &w->lock, &at);
        const bool answered = w->ended && w->answered && w->phase == HOOK_SENDS;
        (void)pthread_mutex_unlock(&w->lock);
        const bool unstored = w->phase == HOOK_STORES && w->due_ms < INT64_MAX;
        w->phase = HOOK_CLOSED;
        if (answered)
            take_answer(w);
        else if (unstored)
            store_place(w);
        unuse(w);
    }
}

static void free_list(struct webhook *list)
{
    for (struct webhook *w = list, *next; w; w = next) {
        next = w->next;
        unuse(w);
    }
}

/* Makes endpoints without threads, each used by the loop. */
static titan_status make_list(struct coordinator *c, const struct webhooks_options *o, struct webhook **ret,
                              struct titan_error *err)
{
    pthread_condattr_t clock;
    struct webhook *list = NULL, **tail = &list;
    (void)pthread_condattr_init(&clock);
    (void)pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    titan_status status = TITAN_OK;
    for (size_t i = 0; i < o->n && status == TITAN_OK; i++) {
        struct webhook *w = calloc(1, sizeof(*w));
        titan_assert(w);
        w->owner = c;
        w->options = o->list[i];
        webhook_place(&w->options, w->place);
        (void)snprintf(w->key, sizeof(w->key), KEY "%s", w->options.name);
        atomic_store(&w->uses, 1);
        (void)pthread_mutex_init(&w->lock, NULL);
        (void)pthread_cond_init(&w->changed, &clock);
        *tail = w;
        tail = &w->next;
        status = http_client_new(&w->client, err);
    }
    (void)pthread_condattr_destroy(&clock);
    if (status == TITAN_OK) {
        *ret = list;
        return TITAN_OK;
    }
    free_list(list);
    err->status = TITAN_EINVAL; /* usage: a unit that ends with it is not restarted */
    return titan_error_wrap(err, "[[webhook]]");
}

titan_status webhooks_open(struct coordinator *c, struct titan_error *err)
{
    static const struct webhooks_options none;
    const struct webhooks_options *options = c->options.webhooks ? c->options.webhooks : &none;
    struct webhook *list = NULL;
    TRY(make_list(c, options, &list, err));
    c->webhooks = calloc(1, sizeof(*c->webhooks));
    titan_assert(c->webhooks);
    c->webhooks->options = *options;
    c->webhooks->list = list;
    return TITAN_OK;
}

void webhooks_start(struct coordinator *c)
{
    (void)uv_async_init(c->loop, &c->webhooks->answers, on_answers);
    (void)uv_timer_init(c->loop, &c->webhooks->timer);
    c->webhooks->answers.data = c->webhooks->timer.data = c;
    c->open_handles += 2;
    begin(c);
}

titan_status webhooks_reload(struct coordinator *c, const struct webhooks_options *options, struct titan_error *err)
{
    struct webhook *list = NULL;
    if (memcmp(options, &c->webhooks->options, sizeof(*options)) == 0)
        return TITAN_OK;
    TRY(make_list(c, options, &list, err));
    end_list(c->webhooks->list);
    free(TAKE(c->webhooks->places));
    c->webhooks->options = *options;
    c->webhooks->list = list;
    begin(c);
    set_timer(c);
    return TITAN_OK;
}

static void on_handle_closed(uv_handle_t *handle)
{
    struct coordinator *c = handle->data;
    c->webhooks->closed(c);
}

void webhooks_close(struct coordinator *c, void (*closed)(void *coordinator))
{
    c->webhooks->closed = closed;
    end_list(TAKE(c->webhooks->list));
    uv_close((uv_handle_t *)&c->webhooks->answers, on_handle_closed);
    uv_close((uv_handle_t *)&c->webhooks->timer, on_handle_closed);
}

void webhooks_free(struct coordinator *c)
{
    if (!c->webhooks)
        return;
    free_list(c->webhooks->list);
    free(c->webhooks->places);
    free(c->webhooks);
}

void webhooks_each(const struct coordinator *c, void (*each)(const struct webhook_state *s, void *data), void *data)
{
    for (const struct webhook *w = c->webhooks->list; w; w = w->next)
        each(&(struct webhook_state){.options = &w->options,
                                     .delivered = w->delivered,
                                     .failures = w->failures,
                                     .passed_over = w->passed_over,
                                     .lag_s = w->id ? (double)MAX(clock_wall_ms() - w->event_ms, INT64_C(0)) / 1000 : 0,
                                     .at = w->at,
                                     .failed = w->failed,
                                     .trouble = w->trouble},
             data);
}
