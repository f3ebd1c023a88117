/* SPDX-License-Identifier: Apache-2.0 */
/* Streams from the store: events and metrics. A watcher remembers how far it has sent. When something new is durable,
 * or its stream has room again, it continues to read from there. So it sends stored rows, in order, without gaps; steps
 * repeated after a recovery are sent again. */
#include <stdlib.h>
#include <string.h>

#include "base/slowest.h"
#include "daemon/api/api.h"
#include "daemon/coordinator/shell/event_message.h"

#define READ_AT_ONCE 64 /* rows of one query */
/* queries in a row before other calls run; rows of other users' jobs are not sent, so they never fill the queue */
#define READS_MAX 4
#define READ_ON_MS 1

struct watcher {
    struct watcher *prev, *next;
    struct coordinator *owner;
    struct rpc_call *call;
    bool metrics, audit, follow;
    uv_timer_t read_on;
    bool full;     /* the stream's queue is full; on_drain follows */
    bool again;    /* more rows may be stored than were read */
    bool settling; /* metrics: the watcher waits only for rows stored before metrics_stored reaches `until` */
    uint64_t until;
    uint64_t job_id, after;
    uint64_t epoch;   /* metrics: newest epoch sent; 0 = none */
    int64_t since_ms; /* audit */
    char actor[256];  /* audit; "" = all actors */
    titan_status failed;
    struct auth_user user;
    bool sees_all;
    uint64_t last_job; /* last job whose access was checked ... */
    bool last_seen;    /* ... and the result */
};

static void with_owner(const struct job *job, void *data)
{
    struct watcher *w = data;
    w->last_seen = job_owned_by(job, &(struct job_owner){w->user.uid, w->user.name});
}

/* May the watcher see events of this job? A user sees events of its own jobs, and events of no job. */
static bool may_see(struct watcher *w, uint64_t job_id)
{
    struct coordinator *c = w->owner;
    if (w->sees_all || job_id == 0)
        return true;
    if (w->last_job != job_id) {
        w->last_job = job_id;
        w->last_seen = false;
        (void)!job_cache_get(c->jobs, store_reader(c->store), job_id, with_owner, w, NULL);
    }
    return w->last_seen;
}

static bool send_row(struct watcher *w, const ProtobufCMessage *m, uint64_t at)
{
    titan_assert(at > w->after && !w->failed);
    titan_status status = rpc_call_send(w->call, m);
    if (status == TITAN_OK)
        w->after = at;
    w->full = status == TITAN_EAGAIN;
    if (status != TITAN_OK && status != TITAN_EAGAIN)
        w->failed = status;
    return status == TITAN_OK;
}

static bool each_event(const struct event *e, void *data)
{
    titan_assert(e->id > ((struct watcher *)data)->after);
    struct watcher *w = data;
    w->again = true;
    if (!may_see(w, e->job_id)) {
        w->after = e->id;
        return true;
    }
    const Titan__V1__Event m = event_message(e);
    return send_row(data, &m.base, e->id);
}

const Titan__V1__MetricPoint *api_metric_point(const struct metric *x, struct api_point *memory)
{
    Titan__V1__MetricPoint *m = &memory->point;
    titan__v1__metric_point__init(m);
    m->step = x->step;
    m->at_ms = x->at_ms;
    m->loss = x->loss;
    m->loss_max = x->loss_max;
    m->grad_norm = x->grad_norm;
    m->learning_rate = x->learning_rate;
    m->tokens_per_second = x->tokens_per_second;
    m->tflops = x->tflops;
    m->mfu = x->mfu;
    m->mfu_causal = x->mfu_causal;
    m->step_ms = x->step_ms;
    m->tokens = x->tokens;
    m->epoch = x->epoch;
    m->world_size = x->world_size;
    m->memory_bytes = x->memory_bytes;
    m->skipped_steps = x->skipped_steps;
    memory->evaluation = api_evaluation(&x->evaluation);
    if (memory->evaluation.step)
        m->validation = &memory->evaluation;
    if (x->split.slowest >= 0) {
        Titan__V1__StepSplit *split = &memory->split;
        titan__v1__step_split__init(split);
        split->data_ms = x->split.data;
        split->compute_ms = x->split.compute;
        split->communication_ms = x->split.communication;
        split->checkpoint_ms = x->split.checkpoint;
        split->straggler_ms = x->split.stragglers;
        split->slowest_busy_ms = x->split.slowest_busy;
        split->slowest_rank = (uint32_t)x->split.slowest;
        m->split = split;
    }
    if (x->expert_tokens_mean > 0) {
        Titan__V1__ExpertLoad *experts = &memory->experts;
        titan__v1__expert_load__init(experts);
        experts->least = x->expert_tokens_min;
        experts->most = x->expert_tokens_max;
        experts->mean = x->expert_tokens_mean;
        experts->dropped = x->dropped;
        experts->further_rounds = x->further_rounds;
        experts->room_needed = x->room_needed;
        m->experts = experts;
    }
    return m;
}

static bool each_metric(const struct metric *x, void *data)
{
    titan_assert(x->step > ((struct watcher *)data)->after);
    struct api_point memory;
    ((struct watcher *)data)->again = true;
    if (!send_row(data, &api_metric_point(x, &memory)->base, x->step))
        return false;
    ((struct watcher *)data)->epoch = x->epoch;
    return true;
}

/* *ret: nothing more will come. Call it before the rows are read, so that no row slips in between. Metrics are stored
 * shortly after their report. The answer includes everything reported before the call (or before the job's end). */
static titan_status is_over(struct watcher *w, bool *ret, struct titan_error *err)
{
    struct coordinator *c = w->owner;
    bool ended = !w->follow;
    if (w->follow && w->job_id)
        TRY(api_job_ended(c, w->job_id, &ended, err));
    if (w->metrics && ended && !w->settling) {
        w->settling = true;
        w->until = c->metrics_taken;
        shell_flush_metrics(c);
    }
    titan_assert(w->until <= c->metrics_taken && c->metrics_stored <= c->metrics_taken);
    *ret = ended && (!w->metrics || (c->metrics_stored >= w->until && !shell_fills_metrics(c, w->job_id)));
    return TITAN_OK;
}

static titan_status list_rows(struct watcher *w, struct titan_error *err)
{
    if (!w->metrics) {
        const struct event_filter filter = {.job_id = w->job_id,
                                            .audit = w->audit,
                                            .actor = *w->actor ? w->actor : NULL,
                                            .since_ms = w->since_ms,
                                            .after = w->after,
                                            .limit = READ_AT_ONCE};
        return event_list(store_reader(w->owner->store), &filter, each_event, w, err);
    }
    titan_assert(w->job_id);
    struct db *db = store_metrics_reader(w->owner->store);
    if (!db)
        return titan_fail(err, TITAN_EIO, "metrics.db could not be opened; the coordinator's log says why");
    if (shell_fills_metrics(w->owner, w->job_id))
        return TITAN_OK; /* earlier steps are being stored; the caller asks again afterwards */
    if (w->epoch)        /* repeated steps are sent again */
        TRY(metric_reached(db, w->job_id, w->after, w->epoch, &w->after, err));
    return metric_list(db, &(struct metric_filter){w->job_id, w->after, READ_AT_ONCE}, each_metric, w, err);
}

uint64_t api_newest_event(struct coordinator *c)
{
    struct event_head head = {0};
    (void)!event_head(store_reader(c->store), &head, NULL);
    return head.id;
}

static void on_read_on(uv_timer_t *timer);

static void pump(struct watcher *w)
{
    titan_assert(!w->failed && !w->full);
    struct titan_error err = {0};
    bool over = false;
    titan_status status = TITAN_OK;
    for (int reads = 0; status == TITAN_OK; reads++) {
        if (reads == READS_MAX) {
            (void)uv_timer_start(&w->read_on, on_read_on, READ_ON_MS, 0);
            return;
        }
        w->again = false;
        status = is_over(w, &over, &err);
        if (status == TITAN_OK)
            status = list_rows(w, &err);
        if (!w->again || w->full || w->failed)
            break;
    }
    if (status != TITAN_OK)
        rpc_call_fail(w->call, &err);
    else if (over && !w->full && !w->failed)
        rpc_call_finish(w->call, TITAN_OK, NULL);
    else
        return;
    w->failed = TITAN_ECANCELLED; /* nothing more is sent; on_close frees the watcher */
}

static void on_read_on(uv_timer_t *timer)
{
    HANDLER("watch");
    struct watcher *w = timer->data;
    if (!w->full && !w->failed)
        pump(w);
}

void api_watch_poke(struct coordinator *c, uint64_t job_id)
{
    for (struct watcher *w = c->watchers, *next; w; w = next) {
        next = w->next;
        if ((w->job_id == job_id || w->job_id == 0) && !w->full && !w->failed)
            pump(w);
    }
    if (job_id)
        api_logs_job_moved(c, job_id);
}

void api_watch_metrics_stored(struct coordinator *c)
{
    for (struct watcher *w = c->watchers, *next; w; w = next) {
        next = w->next;
        if (w->settling && !w->full && !w->failed)
            pump(w);
    }
}

static void begin(struct coordinator *c, struct rpc_call *call, unsigned method, const struct watcher *wanted)
{
    struct titan_error err = {0};
    struct auth_user u;
    bool ended = false;
    titan_status status = TITAN_OK;
    size_t of_one = 0; /* streams of this user, which must leave room for other users' streams */
    for (const struct watcher *w = c->watchers; w; w = w->next)
        of_one += strcmp(rpc_call_identity(w->call)->name, rpc_call_identity(call)->name) == 0;
    api_user(c, call, &u);
    if (c->closing)
        status = titan_fail(&err, TITAN_EUNREACHABLE, "the coordinator is stopping");
    else if (c->n_watchers >= API_WATCHERS_MAX)
        status = titan_fail(&err, TITAN_ELIMIT, "%d streams are open already", API_WATCHERS_MAX);
    else if (of_one >= API_WATCHERS_OF_ONE_MAX)
        status = titan_fail(&err, TITAN_ELIMIT, "%d streams of %s are open already", API_WATCHERS_OF_ONE_MAX,
                            rpc_call_identity(call)->name);
    else if ((wanted->job_id || wanted->metrics) && (status = api_may(c, &u, method, wanted->job_id, &err)) == TITAN_OK)
        status = api_job_ended(c, wanted->job_id, &ended, &err);
    struct watcher *w = status == TITAN_OK ? malloc(sizeof(*w)) : NULL;
    if (status == TITAN_OK && !w)
        status = titan_fail(&err, TITAN_ENOMEM, "out of memory");
    if (status != TITAN_OK) {
        rpc_call_fail(call, &err);
        return;
    }
    *w = *wanted;
    w->user = u;
    w->sees_all = api_sees_all(c, &u, method);
    w->owner = c;
    w->call = call;
    (void)uv_timer_init(c->loop, &w->read_on);
    w->read_on.data = w;
    w->next = c->watchers;
    if (w->next)
        w->next->prev = w;
    c->watchers = w;
    c->n_watchers++;
    titan_assert(c->n_watchers <= API_WATCHERS_MAX && !w->prev);
    rpc_call_set_data(call, w);
    pump(w);
}

void api_watch_events(struct rpc_call *call, const ProtobufCMessage *base, void *data)
{
    const Titan__V1__WatchEventsRequest *request = (const Titan__V1__WatchEventsRequest *)base;
    begin(data, call, POLICY_WATCH_EVENTS,
          &(struct watcher){.job_id = request->job_id, .after = request->after_event_id, .follow = request->follow});
}

void api_audit_trail(struct rpc_call *call, const ProtobufCMessage *base, void *data)
{
    const Titan__V1__AuditRequest *request = (const Titan__V1__AuditRequest *)base;
    struct watcher w = {
        .audit = true, .after = request->after_event_id, .since_ms = request->since_ms, .follow = request->follow};
    titan_assert(strlen(request->actor) < sizeof(w.actor)); /* checked by its range */
    memcpy(w.actor, request->actor, strlen(request->actor) + 1);
    begin(data, call, POLICY_AUDIT, &w);
}

void api_metrics(struct rpc_call *call, const ProtobufCMessage *base, void *data)
{
    const Titan__V1__MetricsRequest *request = (const Titan__V1__MetricsRequest *)base;
    begin(data, call, POLICY_METRICS,
          &(struct watcher){.metrics = true,
                            .job_id = request->job_id,
                            .after = request->after_step,
                            .epoch = request->after_step ? request->after_epoch : 0,
                            .follow = request->follow});
}

void api_watch_drain(struct rpc_call *call, void *data)
{
    struct watcher *w = rpc_call_data(call);
    (void)data;
    if (!w || w->failed)
        return;
    w->full = false;
    pump(w);
}

static void on_closed(uv_handle_t *handle)
{
    free(handle->data);
}

void api_watch_closed(struct rpc_call *call, bool cancelled, void *data)
{
    struct coordinator *c = data;
    struct watcher *w = rpc_call_data(call);
    (void)cancelled;
    if (!w)
        return;
    if (w->next)
        w->next->prev = w->prev;
    *(w->prev ? &w->prev->next : &c->watchers) = w->next;
    titan_assert(c->n_watchers > 0 && w->owner == c);
    c->n_watchers--;
    uv_close((uv_handle_t *)&w->read_on, on_closed);
}
