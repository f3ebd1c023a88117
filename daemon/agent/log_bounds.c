/* SPDX-License-Identifier: Apache-2.0 */
/* log_bounds.c - see log_bounds.h. */
#include "daemon/agent/log_bounds.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/agent/worker_logs.h"

#define CHECK_MS 250

struct log_bounds {
    uv_loop_t *loop;
    uv_timer_t timer;
    uv_work_t work;
    struct workers *workers;
    struct log log;
    uint64_t bytes_max;
    bool working;
    size_t n;
    char (*paths)[PATH_MAX]; /* what the thread works on */
    void (*done)(void *);
    void *done_data;
};

static void bound_run(uv_work_t *work)
{
    struct log_bounds *b = work->data;
    for (size_t i = 0; i < b->n; i++) {
        struct titan_error err = {0};
        if (log_bound(b->paths[i], b->bytes_max, &err) != TITAN_OK)
            tlog_warn(&b->log, "log cut short", "reason=\"%s\"", err.msg);
    }
}

static void bound_done(uv_work_t *work, int status)
{
    struct log_bounds *b = work->data;
    (void)status;
    titan_assert(b->working);
    b->working = false;
    free(b->paths);
    b->paths = NULL;
}

static void on_timer(uv_timer_t *timer)
{
    struct log_bounds *b = timer->data;
    const uint32_t max = workers_count(b->workers);
    if (max == 0) {
        (void)uv_timer_stop(timer); /* an idle agent does nothing */
        return;
    }
    workers_look_after(b->workers);
    if (b->working)
        return;
    b->n = 0;
    b->paths = calloc(max, sizeof(*b->paths));
    for (const struct worker *w = workers_first(b->workers); b->paths && w && b->n < max; w = w->next)
        if (!w->reported)
            memcpy(b->paths[b->n++], w->log_path, PATH_MAX);
    titan_assert(b->n <= max);
    b->working = b->n && uv_queue_work(b->loop, &b->work, bound_run, bound_done) == 0;
    if (!b->working) {
        free(b->paths);
        b->paths = NULL;
    }
}

struct log_bounds *log_bounds_open(uv_loop_t *loop, struct workers *workers, uint64_t bytes_max, const struct log *log)
{
    struct log_bounds *b = calloc(1, sizeof(*b));
    titan_assert(b);
    titan_assert(workers && bytes_max > 0);
    b->loop = loop;
    b->workers = workers;
    b->bytes_max = bytes_max;
    b->timer.data = b;
    b->work.data = b;
    b->log = *log;
    (void)uv_timer_init(loop, &b->timer);
    return b;
}

void log_bounds_watch(struct log_bounds *b)
{
    (void)uv_timer_start(&b->timer, on_timer, CHECK_MS, CHECK_MS);
}

bool log_bounds_working(const struct log_bounds *b)
{
    return b->working;
}

void log_bounds_stop(struct log_bounds *b)
{
    (void)uv_timer_stop(&b->timer);
}

static void on_closed(uv_handle_t *handle)
{
    struct log_bounds *b = handle->data;
    void (*done)(void *) = b->done;
    void *data = b->done_data;
    free(b);
    done(data);
}

void log_bounds_close(struct log_bounds *b, void (*done)(void *), void *data)
{
    titan_assert(!b->working && !b->paths);
    b->done = done;
    b->done_data = data;
    uv_close((uv_handle_t *)&b->timer, on_closed);
}
