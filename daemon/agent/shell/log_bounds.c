/* SPDX-License-Identifier: Apache-2.0 */
/* log_bounds.c - see log_bounds.h. */
#include "daemon/agent/shell/log_bounds.h"

#include <stdlib.h>
#include <string.h>

#include "base/slowest.h"
#include "daemon/agent/shell/worker_logs.h"

#define CHECK_MS 250

struct log_bounds {
    uv_loop_t *loop;
    uv_timer_t timer;
    struct workers *workers;
    struct file_pool *files;
    struct log log;
    uint64_t bytes_max;
    size_t working;
    void (*done)(void *);
    void *done_data;
};

/* One check of a worker's log. */
struct log_look {
    struct file_task task; /* must be the first member */
    struct log_bounds *owner;
    struct log log;
    uint64_t worker_id, bytes_max;
    char job_dir[PATH_MAX], path[PATH_MAX];
};

static void look_run(struct file_task *k)
{
    const struct log_look *x = (const struct log_look *)(const void *)k;
    struct titan_error err = {0};
    if (log_bound(x->path, x->bytes_max, &err) != TITAN_OK)
        tlog_warn(&x->log, "log cut short", "reason=\"%s\"", err.msg);
}

static void look_over(const struct log_look *x)
{
    struct log_bounds *b = x->owner;
    struct worker *w = workers_find(b->workers, x->worker_id);
    titan_assert(b->working > 0);
    b->working--;
    if (w)
        w->bounding = false;
}

static void look_done(struct file_task *k)
{
    look_over((const struct log_look *)(const void *)k);
    free(k);
}

static void look_given_up(struct file_task *k, bool started)
{
    look_over((const struct log_look *)(const void *)k);
    if (!started)
        free(k);
}

static void on_timer(uv_timer_t *timer)
{
    HANDLER("worker.log");
    static const struct file_calls calls = {.run = look_run, .done = look_done, .given_up = look_given_up};
    struct log_bounds *b = timer->data;
    if (workers_count(b->workers) == 0) {
        (void)uv_timer_stop(timer); /* no worker is left, and an idle agent uses no processor time */
        return;
    }
    workers_look_after(b->workers);
    for (struct worker *w = workers_first(b->workers); w; w = w->next) {
        struct log_look *x = !w->reported && !w->start && !w->bounding ? calloc(1, sizeof(*x)) : NULL;
        if (!x)
            continue;
        x->owner = b;
        x->log = b->log;
        x->worker_id = w->id;
        x->bytes_max = b->bytes_max;
        x->task.key = x->job_dir;
        memcpy(x->job_dir, w->job_dir, PATH_MAX);
        memcpy(x->path, w->log_path, PATH_MAX);
        w->bounding = file_pool_add(b->files, &x->task, &calls, sizeof(*x), NULL) == TITAN_OK;
        b->working += w->bounding;
        if (!w->bounding)
            free(x);
    }
}

struct log_bounds *log_bounds_open(uv_loop_t *loop, struct workers *workers, struct file_pool *files,
                                   uint64_t bytes_max, const struct log *log)
{
    struct log_bounds *b = calloc(1, sizeof(*b));
    titan_assert(b);
    b->loop = loop;
    b->workers = workers;
    b->files = files;
    b->bytes_max = bytes_max;
    b->timer.data = b;
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
    return b->working > 0;
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
    titan_assert(!b->working);
    b->done = done;
    b->done_data = data;
    uv_close((uv_handle_t *)&b->timer, on_closed);
}
