/* SPDX-License-Identifier: Apache-2.0 */
/* top.c - titanctl top: jobs, nodes and the workers of one job, redrawn as they change.
 *
 * A round requests the screen's content in successive calls: a page of jobs and their number, the nodes, and for each
 * job on the page its new steps. A round's length does not depend on the number of jobs. A stream follows the events of
 * the selected job, which list its workers. */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>
#include <uv.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/utf8.h"
#include "base/vec.h"
#include "ctl/client.h"
#include "ctl/command.h"
#include "ctl/output.h"
#include "ctl/plot.h"
#include "ctl/split_window.h"
#include "ctl/tls.h"
#include "ctl/top_screen.h"
#include "proto/rpc/client.h"

enum { ROUND_MS = 1000, SOON_MS = 150, JOBS_MOST = 200, WIDTH = 100, HEIGHT = 40 };
enum { COUNT_MOST = 20000 /* limit of the server's count */, WORKERS_MOST = 1024 };

/* Jobs in screen order: running, waiting, ended. */
static Titan__V1__JobState running[] = {TITAN__V1__JOB_STATE__FORMING, TITAN__V1__JOB_STATE__RUNNING,
                                        TITAN__V1__JOB_STATE__RECOVERING, TITAN__V1__JOB_STATE__RESIZING,
                                        TITAN__V1__JOB_STATE__CANCELLING};
static Titan__V1__JobState waiting[] = {TITAN__V1__JOB_STATE__PENDING};
static Titan__V1__JobState ended[] = {TITAN__V1__JOB_STATE__COMPLETED, TITAN__V1__JOB_STATE__FAILED,
                                      TITAN__V1__JOB_STATE__CANCELLED};
static const struct {
    Titan__V1__JobState *states;
    size_t n;
} groups[] = {{running, ARRAY_SIZE(running)}, {waiting, ARRAY_SIZE(waiting)}, {ended, ARRAY_SIZE(ended)}};

/* Start of a page. */
struct place {
    size_t group;
    char token[128];
    uint64_t before; /* number of jobs on earlier pages */
};

/* The newest steps of a job that is, or was, on the screen. */
struct curve {
    uint64_t job, epoch, step; /* epoch and step are of the job's newest point */
    double losses[TOP_LOSSES];
    size_t n;
    struct split_window splits;
    bool seen; /* the job was seen in this round */
};

struct top {
    struct ctl *ctl;
    uv_loop_t loop;
    struct rpc_client *client;
    struct rpc_stream *events, *metrics;
    uv_timer_t timer;
    uv_signal_t interrupt, terminate, resize;
    uv_poll_t keys;
    struct termios before; /* settings of the terminal at the start */
    bool live, raw, with_ended, asking, over, client_down;
    bool anew;  /* another page was requested during a round */
    bool drawn; /* a complete round was drawn */

    struct place *places; /* starts of the pages up to this page, and of the next page */
    size_t n_places, cap_places, page;
    struct place next; /* start of the next page, while a page is assembled */
    struct top_job jobs[JOBS_MOST], coming[JOBS_MOST];
    struct split_mean splits[JOBS_MOST]; /* splits of the jobs, as last drawn */
    size_t n_jobs, n_coming, asked;      /* asked: index of the next job to request steps for */
    uint64_t total;                      /* jobs on all pages; 0: unknown */
    bool more;
    uint64_t selected;
    struct curve *curves;
    size_t n_curves, cap_curves;
    struct top_node *nodes;
    size_t n_nodes, cap_nodes;

    uint64_t watched; /* the job with the event stream */
    uint64_t last_event;
    struct top_worker *workers;
    size_t n_workers, cap_workers;
    char lines[TOP_EVENTS][256];

    char trouble[256];
    titan_status status;
    struct titan_error *err;
};

static void ask_jobs(struct top *t);
static void begin_round(struct top *t);
static void ask_steps(struct top *t);
static void watch(struct top *t);

/* --- end ---------------------------------------------------------------------------------------------------------- */

static void client_closed(void *data)
{
    ((struct top *)data)->client_down = true;
}

static void finish(struct top *t, titan_status status)
{
    if (t->over)
        return;
    titan_assert(t->client && !t->client_down);
    t->over = true;
    t->status = status;
    uv_handle_t *handles[] = {(uv_handle_t *)&t->timer, (uv_handle_t *)&t->interrupt, (uv_handle_t *)&t->terminate,
                              (uv_handle_t *)&t->resize};
    for (size_t i = 0; i < ARRAY_SIZE(handles); i++)
        uv_close(handles[i], NULL);
    if (t->raw)
        uv_close((uv_handle_t *)&t->keys, NULL);
    rpc_client_close(t->client, client_closed, t);
}

/* A live screen waits for a missing server. A single frame does not wait, nor does a screen that never had an
 * answer. */
static void fail(struct top *t, const struct titan_error *err)
{
    if (t->over || err->status == TITAN_ECANCELLED)
        return;
    t->asking = false;
    if (t->live && t->drawn && err->status == TITAN_EUNREACHABLE) {
        (void)snprintf(t->trouble, sizeof(t->trouble), "the server does not answer; waiting for it");
        rpc_client_reconnect(t->client, true);
        return;
    }
    if (t->err) {
        *t->err = *err;
        ctl_unreachable_hint(t->ctl->server, t->err);
    }
    finish(t, t->err ? t->err->status : err->status);
}

/* --- the screen --------------------------------------------------------------------------------------------------- */

static void size_of(const struct top *t, int *ret_width, int *ret_height)
{
    struct winsize size;
    const char *lines = getenv("LINES");
    const char *columns = getenv("COLUMNS");
    *ret_width = columns && atoi(columns) > 0 ? atoi(columns) : WIDTH;
    *ret_height = lines && atoi(lines) > 0 ? atoi(lines) : HEIGHT;
    if (t->ctl->online && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 0) {
        *ret_width = size.ws_col;
        *ret_height = size.ws_row;
    }
}

static struct curve *curve_of(struct top *t, uint64_t job)
{
    for (size_t i = 0; i < t->n_curves; i++)
        if (t->curves[i].job == job)
            return &t->curves[i];
    return NULL;
}

static size_t selected_of(const struct top *t)
{
    for (size_t i = 0; i < t->n_jobs; i++)
        if (t->jobs[i].id == t->selected)
            return i;
    return 0;
}

static void draw(struct top *t)
{
    titan_assert(t->n_jobs <= JOBS_MOST);
    if (t->over || !t->drawn)
        return;
    _cleanup_(buf_free) struct buf text = BUF_INIT, frame = BUF_INIT;
    const uint64_t shown = t->places[t->page].before + t->n_jobs;
    struct top_screen s = {.color = t->ctl->color && t->live,
                           .unicode = plot_unicode(),
                           .live = t->live,
                           .server = t->ctl->server,
                           .trouble = *t->trouble ? t->trouble : NULL,
                           .now_ms = clock_wall_ms(),
                           .jobs = t->jobs,
                           .n_jobs = t->n_jobs,
                           .selected = selected_of(t),
                           .page = t->page,
                           .more = t->more,
                           .rest = t->total - MIN(t->total, shown),
                           .uncounted = t->total > COUNT_MOST,
                           .nodes = t->nodes,
                           .n_nodes = t->n_nodes,
                           .workers = t->workers,
                           .n_workers = t->n_workers};
    size_of(t, &s.width, &s.height);
    memcpy(s.events, t->lines, sizeof(s.events));
    for (size_t i = 0; i < t->n_jobs; i++) {
        const struct curve *h = curve_of(t, t->jobs[i].id);
        t->jobs[i].losses = h ? h->losses : NULL;
        t->jobs[i].n_losses = h ? h->n : 0;
        t->jobs[i].split = h && split_window_mean(&h->splits, &t->splits[i]) ? &t->splits[i] : NULL;
    }
    top_screen_put(&s, &frame);
    if (!t->live) {
        (void)output_line(&frame);
        return;
    }
    buf_puts(&text, "\033[H");
    for (const char *at = frame.data ? frame.data : ""; *at;) {
        const size_t len = strcspn(at, "\n");
        (void)!buf_append(&text, at, len);
        at += len + (at[len] == '\n');
        buf_puts(&text,
                 *at ? "\033[K\n" : "\033[K\033[J"); /* no newline after the last line: the screen would scroll */
    }
    (void)fwrite(text.data, 1, text.len, stdout);
    if (fflush(stdout) != 0)
        finish(t, TITAN_OK);
}

/* --- a round: jobs ------------------------------------------------------------------------------------------------ */

static size_t page_size(const struct top *t)
{
    int width, height;
    size_of(t, &width, &height);
    return MIN(top_screen_jobs(height), (size_t)JOBS_MOST);
}

static size_t groups_shown(const struct top *t)
{
    return t->with_ended ? ARRAY_SIZE(groups) : ARRAY_SIZE(groups) - 1;
}

static void on_nodes(const ProtobufCMessage *reply, const struct titan_error *err, void *data)
{
    struct top *t = data;
    if (t->over || (err->status != TITAN_OK && err->status != TITAN_EPERM)) {
        fail(t, err);
        return;
    }
    t->n_nodes = 0;
    const Titan__V1__ListNodesResponse *nodes = (const Titan__V1__ListNodesResponse *)reply;
    for (size_t i = 0; nodes && i < nodes->n_nodes; i++) {
        const Titan__V1__Node *node = nodes->nodes[i];
        struct top_node to = {.slots = node->slots, .slots_used = node->slots_used};
        output_fit(&node->base);
        (void)snprintf(to.name, sizeof(to.name), "%s", node->name);
        (void)snprintf(to.state, sizeof(to.state), "%s", node->state);
        (void)snprintf(to.device, sizeof(to.device), "%s", node->device);
        (void)snprintf(to.reason, sizeof(to.reason), "%s", node->reason);
        to.reason[utf8_check(to.reason, strlen(to.reason))] = '\0';
        if (!VEC_PUSH(t->nodes, t->n_nodes, t->cap_nodes, to))
            break;
    }
    ask_steps(t);
}

static void ask_nodes(struct top *t)
{
    const Titan__V1__ListNodesRequest request = TITAN__V1__LIST_NODES_REQUEST__INIT;
    rpc_client_call(t->client,
                    &(struct rpc_request){TITAN_METHOD("ListNodes"), &request.base,
                                          &titan__v1__list_nodes_response__descriptor, CALL_MS},
                    on_nodes, t);
}

static void on_count(const ProtobufCMessage *reply, const struct titan_error *err, void *data)
{
    struct top *t = data;
    if (t->over || err->status != TITAN_OK) {
        fail(t, err);
        return;
    }
    t->total = ((const Titan__V1__ListJobsResponse *)reply)->total;
    ask_nodes(t);
}

static void ask_count(struct top *t)
{
    Titan__V1__JobState states[16];
    Titan__V1__ListJobsRequest request = TITAN__V1__LIST_JOBS_REQUEST__INIT;
    if (!t->more) {
        t->total = 0;
        ask_nodes(t);
        return;
    }
    for (size_t i = 0; i < groups_shown(t); i++) {
        titan_assert(request.n_states + groups[i].n <= ARRAY_SIZE(states));
        memcpy(states + request.n_states, groups[i].states, groups[i].n * sizeof(*states));
        request.n_states += groups[i].n;
    }
    request.states = states;
    request.page_size = 1;
    request.count = true;
    rpc_client_call(t->client,
                    &(struct rpc_request){TITAN_METHOD("ListJobs"), &request.base,
                                          &titan__v1__list_jobs_response__descriptor, CALL_MS},
                    on_count, t);
}

static void on_jobs(const ProtobufCMessage *reply, const struct titan_error *err, void *data)
{
    struct top *t = data;
    if (t->over || err->status != TITAN_OK) {
        fail(t, err);
        return;
    }
    if (t->anew) {
        t->asking = false;
        begin_round(t);
        return;
    }
    const Titan__V1__ListJobsResponse *page = (const Titan__V1__ListJobsResponse *)reply;
    output_fit(reply);
    *t->trouble = '\0';
    for (size_t i = 0; i < page->n_jobs && t->n_coming < JOBS_MOST; i++) {
        const Titan__V1__Job *job = page->jobs[i];
        struct top_job *to = &t->coming[t->n_coming++];
        *to = (struct top_job){.id = job->id,
                               .epoch = job->epoch,
                               .step = job->step,
                               .steps = job->steps,
                               .state = job->state,
                               .loss = job->loss,
                               .tokens_per_second = job->tokens_per_second,
                               .mfu = job->mfu,
                               .workers = job->world_size,
                               .restarts = job->restarts};
        (void)snprintf(to->name, sizeof(to->name), "%s", job->name);
        (void)snprintf(to->user, sizeof(to->user), "%s", job->user);
        (void)snprintf(to->reason, sizeof(to->reason), "%s", job->reason);
        to->name[utf8_check(to->name, strlen(to->name))] = '\0';
        to->user[utf8_check(to->user, strlen(to->user))] = '\0';
        to->reason[utf8_check(to->reason, strlen(to->reason))] = '\0';
    }
    (void)snprintf(t->next.token, sizeof(t->next.token), "%s", page->next_page_token);
    if (!*t->next.token)
        t->next.group++;
    if (t->n_coming < page_size(t) && t->next.group < groups_shown(t)) {
        ask_jobs(t);
        return;
    }

    /* The complete page replaces the previous one. */
    titan_assert(t->asking);
    memcpy(t->jobs, t->coming, sizeof(t->jobs));
    t->n_jobs = t->n_coming;
    t->more = t->next.group < groups_shown(t);
    t->next.before = t->places[t->page].before + t->n_jobs;
    if (t->more && t->n_places == t->page + 1)
        (void)!VEC_PUSH(t->places, t->n_places, t->cap_places, t->next);
    else if (t->more)
        t->places[t->page + 1] = t->next;
    if (t->n_jobs > 0)
        t->selected = t->jobs[selected_of(t)].id;
    for (size_t i = 0; i < t->n_curves; i++)
        t->curves[i].seen = false;
    t->asked = 0;
    watch(t);
    ask_count(t);
}

static void ask_jobs(struct top *t)
{
    titan_assert(t->next.group < ARRAY_SIZE(groups) && t->n_coming < page_size(t));
    Titan__V1__ListJobsRequest request = TITAN__V1__LIST_JOBS_REQUEST__INIT;
    request.states = groups[t->next.group].states;
    request.n_states = groups[t->next.group].n;
    request.page_size = (uint32_t)(page_size(t) - t->n_coming);
    request.page_token = t->next.token;
    rpc_client_call(t->client,
                    &(struct rpc_request){TITAN_METHOD("ListJobs"), &request.base,
                                          &titan__v1__list_jobs_response__descriptor, CALL_MS},
                    on_jobs, t);
}

static void begin_round(struct top *t)
{
    if (t->asking || t->over)
        return;
    titan_assert(t->page < t->n_places);
    t->asking = true;
    t->anew = false;
    t->n_coming = 0;
    t->next = t->places[t->page];
    ask_jobs(t);
}

static void begin_anew(struct top *t)
{
    t->anew = t->asking;
    begin_round(t);
}

/* --- a round: steps ----------------------------------------------------------------------------------------------- */

static void end_round(struct top *t)
{
    titan_assert(!t->metrics && t->asked >= t->n_jobs);
    size_t n = 0;
    for (size_t i = 0; i < t->n_curves; i++)
        if (t->curves[i].seen)
            t->curves[n++] = t->curves[i];
    t->n_curves = n;
    t->asking = false;
    if (!t->live && t->events)
        return; /* a single frame also shows events, so it waits for them */
    t->drawn = true;
    draw(t);
    if (!t->live)
        finish(t, TITAN_OK);
    else if (t->anew)
        begin_round(t);
}

static void on_point(struct rpc_stream *stream, const ProtobufCMessage *message, void *data)
{
    (void)stream;
    struct top *t = data;
    const Titan__V1__MetricPoint *point = (const Titan__V1__MetricPoint *)message;
    const struct top_job *job = &t->jobs[t->asked];
    struct curve *h = curve_of(t, job->id);
    if (!h || point->step <= h->step || (point->step > job->step && point->epoch < job->epoch))
        return; /* the point is not new, or was lost with its epoch */
    if (h->n == TOP_LOSSES)
        memmove(h->losses, h->losses + 1, (--h->n) * sizeof(*h->losses));
    h->losses[h->n++] = point->loss;
    h->epoch = point->epoch;
    h->step = point->step;
    split_window_add(&h->splits, point);
}

static void on_points_end(struct rpc_stream *stream, const struct titan_error *err, void *data)
{
    (void)stream;
    struct top *t = data;
    t->metrics = NULL;
    if (t->over || err->status == TITAN_EUNREACHABLE) {
        fail(t, err);
        return;
    }
    t->asked++;
    ask_steps(t);
}

/* Requests the new steps of the next job that has any. A curve keeps the newest steps, however long the job. */
static void ask_steps(struct top *t)
{
    static const struct rpc_stream_events events = {on_point, on_points_end};
    for (; t->asked < t->n_jobs; t->asked++) {
        const struct top_job *job = &t->jobs[t->asked];
        struct curve *h = curve_of(t, job->id);
        if (!h && job->step > 0 && VEC_PUSH(t->curves, t->n_curves, t->cap_curves, (struct curve){.job = job->id}))
            h = &t->curves[t->n_curves - 1];
        if (!h)
            continue;
        h->seen = true;
        if (job->step < h->step && job->epoch > h->epoch) /* steps are trained again */
            *h = (struct curve){.job = job->id, .seen = true};
        if (job->step <= h->step)
            continue;
        Titan__V1__MetricsRequest request = TITAN__V1__METRICS_REQUEST__INIT;
        struct titan_error err;
        request.job_id = job->id;
        request.after_step = MAX(h->step, job->step - MIN(job->step, (uint64_t)TOP_LOSSES));
        if (rpc_client_stream(
                t->client,
                &(struct rpc_request){TITAN_METHOD("Metrics"), &request.base, &titan__v1__metric_point__descriptor, 0},
                &events, t, &t->metrics, &err) != TITAN_OK)
            fail(t, &err);
        return;
    }
    end_round(t);
}

/* --- events of the selected job ----------------------------------------------------------------------------------- */

static struct top_worker *worker_of(struct top *t, uint64_t id)
{
    for (size_t i = 0; i < t->n_workers; i++)
        if (t->workers[i].id == id)
            return &t->workers[i];
    return VEC_PUSH(t->workers, t->n_workers, t->cap_workers, (struct top_worker){.id = id, .rank = -1, .state = "?"})
               ? &t->workers[t->n_workers - 1]
               : NULL;
}

static int by_rank(const void *a, const void *b)
{
    const struct top_worker *x = a, *y = b;
    const uint32_t rank_x = (uint32_t)x->rank, rank_y = (uint32_t)y->rank; /* ranks of -1 sort last */
    return rank_x != rank_y ? (rank_x < rank_y ? -1 : 1) : (x->id > y->id) - (x->id < y->id);
}

static void take_worker(struct top *t, const Titan__V1__Event *event, const struct json *detail)
{
    static const struct {
        const char *type, *state;
    } states[] = {{"worker.starting", "starting"}, {"worker.started", "started"}, {"worker.ready", "ready"},
                  {"worker.stopping", "stopping"}, {"worker.stalled", "hangs"},   {"worker.straggler", NULL}};
    const uint64_t id = (uint64_t)json_int(detail, "worker", 0);
    if (id == 0)
        return;
    struct top_worker *w = worker_of(t, id);
    if (!w)
        return;
    if (strcmp(event->type, "worker.exited") == 0 || strcmp(event->type, "worker.lost") == 0) {
        VEC_REMOVE(t->workers, t->n_workers, w - t->workers);
        return;
    }
    if (event->rank >= 0)
        w->rank = event->rank;
    if (*event->node)
        (void)snprintf(w->node, sizeof(w->node), "%s", event->node);
    for (size_t i = 0; i < ARRAY_SIZE(states); i++)
        if (strcmp(states[i].type, event->type) == 0 && states[i].state) {
            w->state = states[i].state;
            w->since_ms = event->at_ms;
        }
    if (strcmp(event->type, "worker.straggler") == 0)
        (void)snprintf(w->note, sizeof(w->note), "slow: %.0f ms of its own a step, the others %.0f",
                       json_real(detail, "busy_ms", 0), json_real(detail, "median_ms", 0));
}

static void on_event(struct rpc_stream *stream, const ProtobufCMessage *message, void *data)
{
    struct top *t = data;
    if (stream != t->events)
        return; /* the event is of the previously selected job */
    const Titan__V1__Event *event = (const Titan__V1__Event *)message;
    struct json *detail = NULL;
    char at[16];
    output_fit(message);
    t->last_event = MAX(t->last_event, event->id);
    (void)!json_parse(event->detail, strlen(event->detail), &detail, NULL);
    if (strncmp(event->type, "worker.", 7) == 0)
        take_worker(t, event, detail);
    else if (strcmp(event->type, "run.ended") == 0)
        t->n_workers = 0;
    else if (strcmp(event->type, "epoch.formed") == 0)
        for (size_t i = 0; i < t->n_workers; i++)
            if (strcmp(t->workers[i].state, "ready") == 0) {
                t->workers[i].state = "trains";
                t->workers[i].since_ms = event->at_ms;
            }

    /* The events of an epoch list its workers in the order of their ranks. */
    const struct json *ids = strncmp(event->type, "epoch.", 6) == 0 ? json_get(detail, "workers") : NULL;
    if (ids && ids->type == JSON_ARRAY) {
        int32_t rank = 0;
        for (size_t i = 0; i < t->n_workers; i++)
            t->workers[i].rank = -1;
        for (const struct json *id = ids->first; id && rank < WORKERS_MOST; id = id->next, rank++) {
            struct top_worker *w = id->type == JSON_INT && id->integer > 0 ? worker_of(t, (uint64_t)id->integer) : NULL;
            if (w)
                w->rank = rank;
        }
    }
    json_free(detail);
    if (t->n_workers > 1)
        qsort(t->workers, t->n_workers, sizeof(*t->workers), by_rank);
    memmove(t->lines[0], t->lines[1], sizeof(t->lines) - sizeof(t->lines[0]));
    (void)snprintf(t->lines[TOP_EVENTS - 1], sizeof(t->lines[0]), "%s  %s", output_clock(event->at_ms, at),
                   *event->message ? event->message : event->type);
    if (t->live && t->drawn && !t->asking && uv_timer_get_due_in(&t->timer) > SOON_MS)
        (void)uv_timer_start(&t->timer, t->timer.timer_cb, SOON_MS, ROUND_MS);
}

static void on_events_end(struct rpc_stream *stream, const struct titan_error *err, void *data)
{
    (void)err; /* the next round reopens the stream if the server is there */
    struct top *t = data;
    if (t->events == stream)
        t->events = NULL;
    if (!t->live && !t->asking && !t->over)
        end_round(t);
}

/* Follows the events of the selected job. The stream of a finished job ends: each round opens it again and gets no new
 * events. */
static void watch(struct top *t)
{
    static const struct rpc_stream_events events = {on_event, on_events_end};
    struct titan_error unsaid;
    if (t->n_jobs == 0)
        return;
    if (t->watched != t->selected) {
        if (t->events)
            rpc_stream_cancel(t->events);
        t->events = NULL;
        t->watched = t->selected;
        t->last_event = 0;
        t->n_workers = 0;
        memset(t->lines, 0, sizeof(t->lines));
    }
    if (t->events)
        return;
    Titan__V1__WatchEventsRequest request = TITAN__V1__WATCH_EVENTS_REQUEST__INIT;
    request.job_id = t->watched;
    request.after_event_id = t->last_event;
    request.follow = t->live;
    (void)!rpc_client_stream(
        t->client, &(struct rpc_request){TITAN_METHOD("WatchEvents"), &request.base, &titan__v1__event__descriptor, 0},
        &events, t, &t->events, &unsaid);
}

/* --- keys --------------------------------------------------------------------------------------------------------- */

static void go_to_page(struct top *t, size_t page)
{
    titan_assert(t->page < t->n_places);
    if (page >= t->n_places || page == t->page)
        return;
    t->page = page;
    t->selected = 0;
    begin_anew(t);
}

static void press(struct top *t, char key)
{
    const size_t at = selected_of(t), page_before = t->page ? t->page - 1 : 0;
    const bool up = key == 'k';
    if (key == 'q') {
        finish(t, TITAN_OK);
    } else if (key == 'n') {
        go_to_page(t, t->page + 1);
    } else if (key == 'p') {
        go_to_page(t, page_before);
    } else if (key == 'a') {
        t->with_ended = !t->with_ended;
        t->n_places = 1;
        t->page = 0;
        begin_anew(t);
    } else if ((key == 'j' || up) && t->n_jobs > 0) {
        if (at == (up ? 0 : t->n_jobs - 1)) {
            go_to_page(t, up ? page_before : t->page + 1);
            return;
        }
        t->selected = t->jobs[up ? at - 1 : at + 1].id;
        watch(t);
        draw(t);
    }
}

/* Arrows and page keys are ESC [ A or ESC O A, ESC [ 5 ~; other sequences are ignored. */
static void on_keys(uv_poll_t *poll, int status, int events)
{
    (void)events;
    struct top *t = poll->data;
    char typed[64];
    const ssize_t n = status == 0 ? read(STDIN_FILENO, typed, sizeof(typed)) : 0;
    if (n <= 0) {
        finish(t, TITAN_OK); /* the terminal is gone */
        return;
    }
    for (ssize_t i = 0; i < n && !t->over; i++) {
        if (typed[i] != '\033') {
            press(t, typed[i]);
            continue;
        }
        if (i + 2 >= n || (typed[i + 1] != '[' && typed[i + 1] != 'O'))
            continue;
        i += 2;
        const char key = typed[i];
        press(t, key == 'A' ? 'k' : key == 'B' ? 'j' : key == '5' ? 'p' : key == '6' ? 'n' : '\0');
        while (i + 1 < n && key >= '0' && key <= '9' && typed[i] != '~')
            i++;
    }
}

static void on_signal(uv_signal_t *handle, int number)
{
    struct top *t = handle->data;
    if (number == SIGWINCH) {
        t->n_places = t->page + 1; /* pages of another size start elsewhere */
        draw(t);
        begin_anew(t);
    } else {
        finish(t, TITAN_OK);
    }
}

static void on_timer(uv_timer_t *timer)
{
    begin_round(timer->data);
}

/* --- the terminal ------------------------------------------------------------------------------------------------- */

static void signal_start(struct top *t, uv_signal_t *handle, int number)
{
    (void)uv_signal_init(&t->loop, handle);
    handle->data = t;
    (void)uv_signal_start(handle, on_signal, number);
}

static titan_status show(struct top *t, struct titan_error *err)
{
    struct titan_error refused = {0};
    TRY(rpc_client_open(&t->loop, t->ctl->server, ctl_tls(), &t->client, err));
    (void)uv_timer_init(&t->loop, &t->timer);
    t->timer.data = t;
    signal_start(t, &t->interrupt, SIGINT);
    signal_start(t, &t->terminate, SIGTERM);
    signal_start(t, &t->resize, SIGWINCH);
    if (t->live) {
        titan_assert(!t->raw);
        if (isatty(STDIN_FILENO) && tcgetattr(STDIN_FILENO, &t->before) == 0) {
            struct termios raw = t->before;
            raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
            raw.c_cc[VSUSP] = _POSIX_VDISABLE; /* a stopped process would leave the terminal in raw mode */
            raw.c_cc[VMIN] = 0;
            raw.c_cc[VTIME] = 0;
            t->raw = tcsetattr(STDIN_FILENO, TCSANOW, &raw) == 0 && uv_poll_init(&t->loop, &t->keys, STDIN_FILENO) == 0;
            t->keys.data = t;
            if (t->raw)
                (void)uv_poll_start(&t->keys, UV_READABLE, on_keys);
        }
        (void)fputs("\033[?1049h\033[?25l\033[2J", stdout);
        (void)fflush(stdout);
    }
    (void)uv_timer_start(&t->timer, on_timer, 0, ROUND_MS);
    if (*ctl_token && rpc_client_token(t->client, ctl_token, &refused) != TITAN_OK)
        fail(t, &refused);
    (void)uv_run(&t->loop, UV_RUN_DEFAULT);
    titan_assert(t->over && t->client_down);
    if (t->live) {
        if (t->raw)
            (void)tcsetattr(STDIN_FILENO, TCSANOW, &t->before);
        (void)fputs("\033[?25h\033[?1049l", stdout);
        (void)fflush(stdout);
    }
    return t->status;
}

static titan_status run(void *with, const struct args *args, struct titan_error *err)
{
    struct ctl *ctl = with;
    if (ctl->json)
        return titan_fail(err, TITAN_EINVAL, "top: it has no JSON; list, nodes and events have");
    struct top *t = calloc(1, sizeof(*t));
    if (!t || !VEC_PUSH(t->places, t->n_places, t->cap_places, (struct place){0})) {
        free(t);
        return titan_fail(err, TITAN_ENOMEM, "top: out of memory");
    }
    t->ctl = ctl;
    t->err = err;
    t->live = ctl->online && !args_has(args, "once");
    t->with_ended = args_has(args, "all");
    int rc = uv_loop_init(&t->loop);
    titan_status status =
        rc == 0 ? show(t, err)
                : titan_fail(err, titan_status_from_errno(-rc), "cannot start a loop: %s", uv_strerror(rc));
    if (rc == 0)
        (void)uv_loop_close(&t->loop);
    free(t->places);
    free(t->curves);
    free(t->nodes);
    free(t->workers);
    free(t);
    return status;
}

const struct command command_top = {
    .name = "top",
    .summary = "watch jobs, nodes and workers on the whole terminal",
    .arguments = "",
    .text =
        "Jobs that run come first, then those that wait. Below: nodes, and of the selected job where the time of its "
        "newest\nsteps went, which rank the others waited for, workers and events. Keys: q quits, j and k or the "
        "arrows "
        "select a job, n\nand p turn pages, a shows those that have ended, too. Where standard output is no terminal "
        "one "
        "frame is printed;\nCOLUMNS and LINES say how large. Of several jobs that run it says of each where the time "
        "went and which rank was\nthe slowest.",
    .options = (const struct option_spec[]){{"once", '1', NULL, "print one frame and end", WORD_NONE},
                                            {"all", 'a', NULL, "also jobs that have ended", WORD_NONE},
                                            {NULL}},
    .examples = (const struct example[]){{"titanctl top", "what runs, and how it is doing"},
                                         {"titanctl top --all --once > now.txt", "one look, for a file"},
                                         {NULL}},
    .run = run,
};
