/* SPDX-License-Identifier: Apache-2.0 */
/* charts.c - see charts.h. */
#include "daemon/api/charts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/slowest.h"
#include "daemon/api/api.h"
#include "daemon/coordinator/shell/event_message.h"
#include "proto/curves.h"
#include "proto/history.h"

#define ROWS 256 /* of one query */

/* Metrics of a job between two steps. */
struct series {
    uint64_t job_id, from, to;
    struct curves curves, sample;
    size_t sampled;       /* steps of the sample that were looked for; CHARTS_SAMPLE = all */
    uint64_t after;       /* the last step that was read */
    uint64_t epoch, last; /* of that step; the last step that there is, as far as is known */
    bool settled;         /* all that is stored was read */
    bool complete;        /* it was, once: the sample is gone */
    unsigned waiting;     /* charts that wait for it */
    int64_t used_ms;
};

/* Events of a job. */
struct past {
    uint64_t job_id, after;
    struct history history;
    bool settled;
    unsigned waiting;
    int64_t used_ms;
};

struct chart {
    LIST_ENTRY(chart) link;
    struct charts *charts;
    size_t n, points;
    struct series *series[CHARTS_JOBS];
    struct past *pasts[CHARTS_JOBS];
    int64_t until_ms; /* shown as it is from then on */
    struct buf json;  /* so far */
    size_t put;       /* jobs in it */
    void (*done)(struct buf *json, const struct titan_error *err, void *data);
    void *data;
};

struct charts {
    struct coordinator *c;
    struct series series[CHARTS_MOST]; /* job_id 0 = free */
    struct past pasts[CHARTS_MOST];
    size_t next_series, next_past; /* whose turn it is */
    LIST_HEAD(all_charts, chart) waiting;
    uv_timer_t timer;
    void (*done)(void *);
    void *done_data;
};

/* --- reading ------------------------------------------------------------------------------------------------------ */

struct reading {
    struct series *series;
    struct past *past;
    size_t rows;
    bool beyond; /* a step behind the last wanted step */
    bool no_memory;
};

static bool each_sampled(const struct metric *m, void *data)
{
    struct reading *r = data;
    struct series *s = r->series;
    struct api_point point;
    if (m->step <= s->to)
        curves_add(&s->sample, api_metric_point(m, &point));
    return true;
}

static bool each_metric(const struct metric *m, void *data)
{
    struct reading *r = data;
    struct series *s = r->series;
    struct api_point point;
    r->beyond = m->step > s->to;
    if (r->beyond)
        return false;
    curves_add(&s->curves, api_metric_point(m, &point));
    s->after = m->step;
    s->epoch = m->epoch;
    r->rows++;
    return true;
}

/* Reads a little of the series. */
static titan_status read_series(struct charts *t, struct series *s, struct titan_error *err)
{
    struct reading r = {.series = s};
    struct db *db = store_metrics_reader(t->c->store);
    if (!db)
        return titan_fail(err, TITAN_EIO, "metrics.db could not be opened; the coordinator's log says why");
    if (s->sampled < CHARTS_SAMPLE) {
        const uint64_t last = MIN(s->to, s->last), part = (last - s->from) / CHARTS_SAMPLE;
        const uint64_t step = ++s->sampled == CHARTS_SAMPLE ? last : s->from + part * (s->sampled - 1);
        const struct metric_filter one = {s->job_id, step ? step - 1 : 0, 1};
        return metric_list(db, &one, each_sampled, &r, err);
    }
    if (shell_fills_metrics(t->c, s->job_id))
        return TITAN_OK; /* earlier steps are being stored */
    if (s->epoch)        /* steps that were trained again come again */
        TRY(metric_reached(db, s->job_id, s->after, s->epoch, &s->after, err));
    s->after = MAX(s->after, MAX(s->from, UINT64_C(1)) - 1);
    TRY(metric_list(db, &(struct metric_filter){s->job_id, s->after, ROWS}, each_metric, &r, err));
    s->settled = r.rows < ROWS || r.beyond;
    if (s->settled && !s->complete) {
        s->complete = true;
        curves_free(&s->sample);
    }
    return TITAN_OK;
}

static bool each_event(const struct event *e, void *data)
{
    struct reading *r = data;
    const Titan__V1__Event event = event_message(e);
    r->no_memory = !history_add(&r->past->history, &event);
    r->past->after = e->id;
    r->rows++;
    return !r->no_memory;
}

static titan_status read_past(struct charts *t, struct past *p, struct titan_error *err)
{
    struct reading r = {.past = p};
    const struct event_filter filter = {.job_id = p->job_id, .after = p->after, .limit = ROWS};
    TRY(event_list(store_reader(t->c->store), &filter, each_event, &r, err));
    p->settled = r.rows < ROWS;
    return r.no_memory ? titan_fail(err, TITAN_ENOMEM, "charts: out of memory") : TITAN_OK;
}

/* --- what is kept ------------------------------------------------------------------------------------------------- */

static void drop_series(struct series *s)
{
    curves_free(&s->curves);
    curves_free(&s->sample);
    *s = (struct series){0};
}

static void drop_past(struct past *p)
{
    history_free(&p->history);
    *p = (struct past){0};
}

static void drop_all(struct charts *t)
{
    for (size_t i = 0; i < CHARTS_MOST; i++) {
        titan_assert(t->series[i].waiting == 0 && t->pasts[i].waiting == 0);
        drop_series(&t->series[i]);
        drop_past(&t->pasts[i]);
    }
}

/* The series of a chart, read on behind what it has. NULL: there is no room, or no memory. */
static struct series *take_series(struct charts *t, const struct chart_job *job, const struct chart_query *q,
                                  struct titan_error *err)
{
    struct series *s = NULL;
    for (size_t i = 0; i < CHARTS_MOST; i++) {
        struct series *x = &t->series[i];
        if (x->job_id == job->id && x->from == q->from && x->to == q->to) {
            s = x;
            break;
        }
        if (x->waiting == 0 && (!s || x->used_ms < s->used_ms))
            s = x;
    }
    if (!s) {
        (void)titan_fail(err, TITAN_ELIMIT, "%d charts are being made already", CHARTS_MOST);
        return NULL;
    }
    if (s->job_id != job->id || s->from != q->from || s->to != q->to) {
        drop_series(s);
        const uint64_t last = MIN(q->to, job->step);
        const bool many = last > q->from && last - q->from > CHARTS_SAMPLED;
        *s = (struct series){.job_id = job->id, .from = q->from, .to = q->to, .sampled = many ? 0 : CHARTS_SAMPLE};
        if (!curves_init(&s->curves) || !curves_init(&s->sample)) {
            drop_series(s);
            (void)titan_fail(err, TITAN_ENOMEM, "charts: out of memory");
            return NULL;
        }
    }
    s->last = job->step;
    s->settled = false;
    s->waiting++;
    return s;
}

static struct past *take_past(struct charts *t, uint64_t job_id, struct titan_error *err)
{
    struct past *p = NULL;
    for (size_t i = 0; i < CHARTS_MOST; i++) {
        struct past *x = &t->pasts[i];
        if (x->job_id == job_id) {
            p = x;
            break;
        }
        if (x->waiting == 0 && (!p || x->used_ms < p->used_ms))
            p = x;
    }
    if (!p) {
        (void)titan_fail(err, TITAN_ELIMIT, "%d charts are being made already", CHARTS_MOST);
        return NULL;
    }
    if (p->job_id != job_id) {
        drop_past(p);
        p->job_id = job_id;
    }
    p->settled = false;
    p->waiting++;
    return p;
}

static void chart_free(struct chart *x)
{
    const int64_t now_ms = clock_mono_ms();
    for (size_t i = 0; i < x->n; i++) {
        if (x->series[i]) {
            titan_assert(x->series[i]->waiting > 0);
            x->series[i]->waiting--;
            x->series[i]->used_ms = now_ms;
        }
        if (x->pasts[i]) {
            titan_assert(x->pasts[i]->waiting > 0);
            x->pasts[i]->waiting--;
            x->pasts[i]->used_ms = now_ms;
        }
    }
    LIST_REMOVE(x, link);
    buf_free(&x->json);
    free(x);
}

/* --- charts ------------------------------------------------------------------------------------------------------- */

/* False: out of memory. */
static bool put_job(const struct series *s, struct past *p, size_t points, struct json_writer *w)
{
    enum { SLOWEST = 8 };
    static const struct {
        int curve;
        const char *name;
    } parts[] = {{CURVES_DATA, "data_ms"},
                 {CURVES_COMPUTE, "compute_ms"},
                 {CURVES_COMMUNICATION, "communication_ms"},
                 {CURVES_CHECKPOINT, "checkpoint_ms"},
                 {CURVES_STRAGGLERS, "straggler_ms"}};
    const struct curves *c = s->sample.n > 0 ? &s->sample : &s->curves;
    struct curves shown = *c;
    shown.ranges = malloc(MAX(c->n, (size_t)1) * sizeof(*shown.ranges));
    if (!shown.ranges)
        return false;
    memcpy(shown.ranges, c->ranges, c->n * sizeof(*shown.ranges));
    const uint64_t steps = MIN(s->to, s->last) > s->from ? MIN(s->to, s->last) - s->from : 0;
    json_begin_object(w, NULL);
    json_put_uint(w, "job_id", s->job_id);
    json_put_bool(w, "complete", s->settled);
    json_put_real(w, "done",
                  s->settled || steps == 0 ? 1 : fmin((double)(s->after - MIN(s->from, s->after)) / (double)steps, 1));
    json_put_uint(w, "tokens", c->tokens);
    json_put_uint(w, "skipped_steps", c->skipped_steps);
    curves_shrink(&shown, points);
    curves_put_page(&shown, "curves", w);
    free(shown.ranges);
    if (c->splits > 0) {
        json_begin_object(w, "split");
        for (size_t i = 0; i < ARRAY_SIZE(parts); i++)
            json_put_real(w, parts[i].name, curves_mean_of_all(c, parts[i].curve));
        json_end_object(w);
    } else {
        json_put_raw(w, "split", "null");
    }
    uint32_t ranks[SLOWEST];
    const size_t n = curves_slowest(c, SLOWEST, ranks);
    json_begin_array(w, "slowest");
    for (size_t i = 0; i < n; i++) {
        const struct curves_rank *rank = &c->ranks[ranks[i]];
        json_begin_object(w, NULL);
        json_put_uint(w, "rank", ranks[i]);
        json_put_string(w, "node", history_node_of(&p->history, ranks[i]));
        json_put_uint(w, "steps", rank->steps);
        json_put_uint(w, "of", c->splits);
        json_put_real(w, "busy_ms", rank->busy_ms / (double)rank->steps);
        json_put_real(w, "waited_ms", rank->waited_ms / (double)rank->steps);
        json_end_object(w);
    }
    json_end_array(w);
    history_end(&p->history);
    history_put_page(&p->history, w);
    json_end_object(w);
    return true;
}

static void finish(struct chart *x, const struct titan_error *err)
{
    void (*const done)(struct buf *, const struct titan_error *, void *) = x->done;
    void *const data = x->data;
    struct buf json = x->json;
    x->json = BUF_INIT;
    chart_free(x);
    done(&json, err, data);
    buf_free(&json);
}

/* Writes one more job, as a slice has time for no more, and ends the chart behind the last one. */
static void show(struct chart *x)
{
    HANDLER("charts.show");
    struct titan_error err = {0};
    struct json_writer w = {.out = &x->json};
    buf_puts(&x->json, x->put == 0 ? "{\"jobs\":[" : ",");
    const bool whole = put_job(x->series[x->put], x->pasts[x->put], x->points, &w);
    if (++x->put == x->n)
        buf_puts(&x->json, "]}\n");
    if (!whole || buf_failed(&x->json))
        (void)titan_fail(&err, TITAN_ENOMEM, "charts: out of memory");
    if (err.status != TITAN_OK || x->put == x->n)
        finish(x, &err);
}

/* Can it be shown? Samples come first, whatever the time; the rest of such a series takes longer than people wait. */
static bool ready(const struct chart *x, int64_t now_ms)
{
    bool all = true;
    for (size_t i = 0; i < x->n; i++) {
        const struct series *s = x->series[i];
        if (s->sampled < CHARTS_SAMPLE)
            return false;
        all = all && (s->settled || s->sample.n > 0) && x->pasts[i]->settled;
    }
    return all || now_ms >= x->until_ms;
}

/* What is to be read next: first what a chart waits for, samples before all else. NULL: nothing. */
static struct series *next_series(struct charts *t)
{
    struct series *best = NULL;
    int best_rank = 0;
    for (size_t i = 0; i < CHARTS_MOST; i++) {
        struct series *s = &t->series[(t->next_series + i) % CHARTS_MOST];
        const int rank = s->job_id == 0 || s->settled ? 0 : 1 + 2 * (s->waiting > 0) + (s->sampled < CHARTS_SAMPLE);
        if (rank > best_rank) {
            best = s;
            best_rank = rank;
        }
    }
    if (best)
        t->next_series = (size_t)(best - t->series) + 1;
    return best;
}

static struct past *next_past(struct charts *t)
{
    for (size_t i = 0; i < CHARTS_MOST; i++) {
        struct past *p = &t->pasts[(t->next_past + i) % CHARTS_MOST];
        if (p->job_id == 0 || p->settled || p->waiting == 0)
            continue;
        t->next_past = (size_t)(p - t->pasts) + 1;
        return p;
    }
    return NULL;
}

static void on_slice(uv_timer_t *timer)
{
    HANDLER("charts");
    struct charts *t = timer->data;
    struct titan_error err = {0};
    const int64_t until_ns = clock_mono_ns() + (int64_t)CHARTS_SLICE_MS * 1000000;
    bool more = true;
    for (bool pasts = true; more && err.status == TITAN_OK && clock_mono_ns() < until_ns; pasts = !pasts) {
        struct past *p = pasts ? next_past(t) : NULL;
        struct series *s = p ? NULL : next_series(t);
        more = p || s;
        if (p)
            (void)!read_past(t, p, &err);
        else if (s)
            (void)!read_series(t, s, &err);
    }
    const int64_t now_ms = clock_mono_ms();
    for (struct chart *x = LIST_FIRST(&t->waiting), *next; x; x = next) {
        next = LIST_NEXT(x, link);
        if (err.status != TITAN_OK) {
            finish(x, &err);
        } else if (x->put > 0 || ready(x, now_ms)) {
            show(x);
            break; /* another slice shows the next job */
        }
    }
    if (err.status != TITAN_OK)
        drop_all(t);
    const bool waits = !LIST_EMPTY(&t->waiting);
    if (waits || next_series(t))
        (void)uv_timer_start(&t->timer, on_slice, waits ? 1 : CHARTS_REST_MS, 0);
}

struct chart *charts_ask(struct charts *t, const struct chart_query *q,
                         void (*done)(struct buf *json, const struct titan_error *err, void *data), void *data,
                         struct titan_error *err)
{
    titan_assert(q->n > 0 && q->n <= CHARTS_JOBS && q->points > 0 && q->points <= CHARTS_POINTS);
    struct chart *x = calloc(1, sizeof(*x));
    if (!x) {
        (void)titan_fail(err, TITAN_ENOMEM, "charts: out of memory");
        return NULL;
    }
    *x = (struct chart){.charts = t,
                        .n = q->n,
                        .points = q->points,
                        .until_ms = clock_mono_ms() + CHARTS_WAIT_MS,
                        .done = done,
                        .data = data};
    LIST_INSERT_HEAD(&t->waiting, x, link);
    for (size_t i = 0; i < q->n; i++)
        if (!(x->series[i] = take_series(t, &q->jobs[i], q, err)) ||
            !(x->pasts[i] = take_past(t, q->jobs[i].id, err))) {
            chart_free(x);
            return NULL;
        }
    (void)uv_timer_start(&t->timer, on_slice, 0, 0);
    return x;
}

void charts_leave(struct chart *x)
{
    chart_free(x);
}

struct charts *charts_new(uv_loop_t *loop, struct coordinator *c)
{
    struct charts *t = calloc(1, sizeof(*t));
    if (!t)
        return NULL;
    t->c = c;
    (void)uv_timer_init(loop, &t->timer);
    t->timer.data = t;
    return t;
}

static void on_closed(uv_handle_t *handle)
{
    struct charts *t = handle->data;
    void (*const done)(void *) = t->done;
    void *const data = t->done_data;
    drop_all(t);
    free(t);
    done(data);
}

void charts_close(struct charts *t, void (*done)(void *), void *data)
{
    titan_assert(LIST_EMPTY(&t->waiting));
    t->done = done;
    t->done_data = data;
    uv_close((uv_handle_t *)&t->timer, on_closed);
}
