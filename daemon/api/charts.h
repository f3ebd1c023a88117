/* SPDX-License-Identifier: Apache-2.0 */
/* charts.h - what charts of jobs show: curves of their metrics, and marks from their events (proto/curves.h,
 * proto/history.h), for the page over HTTP.
 *
 * Rows are read from the store in slices of CHARTS_SLICE_MS, with rests between, so that the loop goes on. What was
 * read stays for the next chart of the job, which reads on behind it. A job of many steps is shown by a sample of them
 * until all were read.
 *
 * Bounds: CHARTS_MOST series of metrics (a job, or a part of one) and as many logs of events are kept; those that
 * nobody waits for go first. The caller asks for rights before. All functions run on the loop. */
#ifndef TITAN_DAEMON_API_CHARTS_H
#define TITAN_DAEMON_API_CHARTS_H

#include "base/buf.h"
#include "daemon/coordinator/coordinator.h"

enum {
    CHARTS_MOST = 32,     /* 2 MB each, at most */
    CHARTS_JOBS = 8,      /* of one chart */
    CHARTS_POINTS = 2000, /* ranges of one curve, at most */
    CHARTS_SLICE_MS = 2,
    CHARTS_REST_MS = 4,    /* between two slices; while a chart is waited for 1 ms */
    CHARTS_WAIT_MS = 200,  /* a chart that is not complete then is shown as it is */
    CHARTS_SAMPLE = 1000,  /* steps of a sample */
    CHARTS_SAMPLED = 5000, /* of more steps than these a sample is read first */
};

struct charts;
struct chart; /* a chart that is being made */

struct chart_job {
    uint64_t id;
    uint64_t step; /* last committed */
};
struct chart_query {
    struct chart_job jobs[CHARTS_JOBS];
    size_t n;
    uint64_t from, to; /* steps; 0 and UINT64_MAX = all */
    size_t points;     /* 1 to CHARTS_POINTS */
};

struct charts *charts_new(uv_loop_t *loop, struct coordinator *c); /* NULL: out of memory */
/* done() is called once, in a later turn of the loop: with the chart as JSON, {"jobs": [...]}, or with an error; the
 * chart is gone then. NULL: TITAN_ELIMIT or TITAN_ENOMEM in err. */
struct chart *charts_ask(struct charts *s, const struct chart_query *q,
                         void (*done)(struct buf *json, const struct titan_error *err, void *data), void *data,
                         struct titan_error *err);
void charts_leave(struct chart *chart); /* done() is not called */
/* Once no chart is being made. */
void charts_close(struct charts *s, void (*done)(void *), void *data);

#endif
