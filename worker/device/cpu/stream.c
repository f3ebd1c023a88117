/* SPDX-License-Identifier: Apache-2.0 */
/* stream.c - streams and events, and how a range of items is shared out between threads.
 *
 * The compute stream has no thread: its operations run in the caller. So a product is not handed over to another
 * thread, and the OpenMP team belongs to the training thread. Other streams (communication, copies) have a thread and a
 * queue. A caller that waits for such a stream runs the stream's queued tasks itself (event_help).
 *
 * An event counts tickets. A record takes the next ticket, which is marked done when the stream gets there. A wait
 * captures the newest ticket at the time of the call. So it never waits for a later record, and the order of calls
 * cannot cause a deadlock. */
#include <omp.h>
#include <signal.h>
#include <stdalign.h>
#include <stdlib.h>
#include <string.h>

#include "base/progress.h"
#include "worker/device/cpu/cpu.h"

/* Arguments of run_range. */
struct range_args {
    cpu_range fn;
    int64_t n, grain;
    alignas(16) unsigned char args[CPU_ARGS_MAX];
};

struct task {
    cpu_run run;
    bool always; /* also runs on a failed stream: events must be marked, or their waiters hang */
    struct stream_observer observer;
    alignas(16) unsigned char args[sizeof(struct range_args)];
};

struct stream {
    struct device *dev;
    bool compute;
    pthread_t thread;
    pthread_mutex_t lock; /* guards all fields below */
    pthread_cond_t wake, idle;
    struct task *ring; /* its capacity is a power of two */
    size_t head, count, capacity;
    bool busy; /* a task runs, on the stream's thread or on a thread that waits for the task */
    bool stop;
    struct stream_observer observer; /* observer of the operations that are enqueued from now on */
    titan_status status;             /* sticky */
    struct titan_error error;
};

struct event {
    pthread_mutex_t lock;
    pthread_cond_t done;
    uint64_t recorded, completed;
    struct stream *by;   /* stream of the newest record; tickets of the compute stream are complete at once */
    titan_status status; /* the stream's status when `completed` was reached */
    struct titan_error error;
};

/* Waits for another thread of this process. Progress is the other thread's responsibility, so this wait does not count
 * as a hang. */
static void wait_for(pthread_cond_t *cond, pthread_mutex_t *lock)
{
    progress_wait_begin();
    pthread_cond_wait(cond, lock);
    progress_wait_end();
}

static void task_run(struct stream *s, cpu_run run, const void *args)
{
    titan_assert(s->dev->threads >= 1);
    struct titan_error error = {0};
    struct cpu_context ctx = {.dev = s->dev, .threads = s->compute ? s->dev->threads : 1, .err = &error};
    titan_status status = run(&ctx, args);
    if (status != TITAN_OK) {
        if (error.status == TITAN_OK)
            titan_fail(&error, status, "operation on the cpu failed");
        pthread_mutex_lock(&s->lock);
        if (s->status == TITAN_OK) { /* the first failure stays */
            s->status = status;
            s->error = error;
            s->error.status = status;
        }
        pthread_mutex_unlock(&s->lock);
    }
}

static titan_status task_push(struct stream *s, cpu_run run, const void *args, size_t bytes, bool always)
{
    titan_status status = TITAN_OK;
    titan_assert(bytes <= sizeof(struct range_args));
    pthread_mutex_lock(&s->lock);
    if (s->status != TITAN_OK && !always)
        goto out;
    if (s->count == s->capacity) {
        const size_t capacity = s->capacity ? 2 * s->capacity : 64;
        struct task *ring = malloc(capacity * sizeof *ring);
        titan_assert((capacity & (capacity - 1)) == 0);
        if (!ring) {
            status = TITAN_ENOMEM;
            goto out;
        }
        for (size_t i = 0; i < s->count; i++)
            ring[i] = s->ring[(s->head + i) & (s->capacity - 1)];
        free(s->ring);
        s->ring = ring;
        s->head = 0;
        s->capacity = capacity;
    }
    struct task *t = &s->ring[(s->head + s->count) & (s->capacity - 1)];
    t->run = run;
    t->always = always;
    t->observer = s->observer;
    memcpy(t->args, args, bytes);
    titan_assert(s->count < s->capacity);
    s->count++;
    pthread_cond_signal(&s->wake);
out:
    pthread_mutex_unlock(&s->lock);
    return status;
}

titan_status cpu_enqueue(struct stream *s, cpu_run run, const void *args, size_t bytes)
{
    if (!s->compute)
        return task_push(s, run, args, bytes, false);
    if (s->status == TITAN_OK)
        task_run(s, run, args);
    return TITAN_OK;
}

void cpu_for(const struct cpu_context *ctx, int64_t n, int64_t grain, cpu_range fn, const void *args)
{
    titan_assert(ctx->threads >= 1);
    int64_t parts = MIN((int64_t)ctx->threads, grain > 0 ? (n + grain - 1) / grain : n);
    if (n <= 0)
        return;
    if (parts <= 1) {
        fn(args, 0, n, 0);
        return;
    }
    /* Always all threads, whatever the number of ranges: libgomp ends the threads that a smaller team leaves out. */
#pragma omp parallel num_threads(ctx->threads)
    {
        const int64_t i = omp_get_thread_num(), of = MIN(parts, (int64_t)omp_get_num_threads());
        if (i < of)
            fn(args, n * i / of, n * (i + 1) / of, (int)i);
    }
}

static titan_status run_range(const struct cpu_context *ctx, const void *p)
{
    const struct range_args *r = p;
    cpu_for(ctx, r->n, r->grain, r->fn, r->args);
    return TITAN_OK;
}

titan_status cpu_enqueue_range(struct stream *s, cpu_range fn, int64_t n, int64_t grain, const void *args, size_t bytes)
{
    struct range_args r = {.fn = fn, .n = n, .grain = grain};
    titan_assert(n >= 0 && grain > 0 && bytes <= CPU_ARGS_MAX);
    memcpy(r.args, args, bytes);
    return cpu_enqueue(s, run_range, &r, sizeof r);
}

/* Runs the first task on this thread. The caller holds the lock, which is released while the task runs. */
static void run_next(struct stream *s)
{
    titan_assert(s->count > 0 && !s->busy);
    struct task t = s->ring[s->head];
    s->head = (s->head + 1) & (s->capacity - 1);
    s->count--;
    s->busy = true;
    bool skip = s->status != TITAN_OK && !t.always;
    pthread_mutex_unlock(&s->lock);
    if (!skip) {
        progress_work_begin();
        progress_action();
        if (t.observer.begin)
            t.observer.begin(t.observer.arg);
        task_run(s, t.run, t.args);
        if (t.observer.end)
            t.observer.end(t.observer.arg);
        progress_work_end();
    }
    pthread_mutex_lock(&s->lock);
    s->busy = false;
    if (s->count == 0)
        pthread_cond_broadcast(&s->idle);
}

static void *stream_main(void *arg)
{
    struct stream *s = arg;
    pthread_mutex_lock(&s->lock);
    for (;;) {
        while (s->busy || (s->count == 0 && !s->stop))
            pthread_cond_wait(&s->wake, &s->lock);
        if (s->count == 0)
            break;
        run_next(s);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

titan_status cpu_stream_open(struct device *dev, const char *name, bool compute, struct stream **ret,
                             struct titan_error *err)
{
    struct stream *s = calloc(1, sizeof(*s));
    if (!s)
        return titan_fail(err, TITAN_ENOMEM, "stream '%s': out of memory", name);
    s->dev = dev;
    s->compute = compute;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->wake, NULL);
    pthread_cond_init(&s->idle, NULL);
    if (!compute) {
        /* Only the main thread handles signals. */
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        int rc = pthread_create(&s->thread, NULL, stream_main, s);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        if (rc != 0) {
            s->compute = true; /* marks the stream as having no thread to join */
            cpu_stream_close(s);
            return titan_fail(err, TITAN_EDEVICE, "stream '%s': cannot start a thread: %s", name, strerror(rc));
        }
        char text[16];
        snprintf(text, sizeof(text), "%.15s", name);
        (void)pthread_setname_np(s->thread, text);
    }
    *ret = s;
    return TITAN_OK;
}

void cpu_stream_close(struct stream *s)
{
    if (!s)
        return;
    if (!s->compute) {
        pthread_mutex_lock(&s->lock);
        s->stop = true;
        pthread_cond_signal(&s->wake);
        pthread_mutex_unlock(&s->lock);
        pthread_join(s->thread, NULL);
    }
    pthread_cond_destroy(&s->idle);
    pthread_cond_destroy(&s->wake);
    pthread_mutex_destroy(&s->lock);
    free(s->ring);
    free(s);
}

titan_status cpu_stream_sync(struct stream *s, struct titan_error *err)
{
    pthread_mutex_lock(&s->lock);
    while (s->count > 0 || s->busy)
        wait_for(&s->idle, &s->lock);
    titan_status status = s->status;
    if (status != TITAN_OK && err)
        *err = s->error;
    pthread_mutex_unlock(&s->lock);
    return status;
}

void cpu_stream_clear(struct stream *s)
{
    pthread_mutex_lock(&s->lock);
    titan_assert(s->count == 0 && !s->busy);
    s->status = TITAN_OK;
    memset(&s->error, 0, sizeof(s->error));
    pthread_mutex_unlock(&s->lock);
}

struct call_args {
    titan_status (*fn)(void *arg, struct titan_error *err);
    void *arg;
};

static titan_status run_call(const struct cpu_context *ctx, const void *p)
{
    const struct call_args *a = p;
    return a->fn(a->arg, ctx->err);
}

titan_status cpu_stream_call(struct stream *s, titan_status (*fn)(void *arg, struct titan_error *err), void *arg,
                             struct titan_error *err)
{
    titan_assert(fn);
    struct call_args a = {fn, arg};
    titan_status status = cpu_enqueue(s, run_call, &a, sizeof(a));
    return status == TITAN_OK ? TITAN_OK : titan_fail(err, status, "call cannot be queued: out of memory");
}

void cpu_stream_observe(struct stream *s, const struct stream_observer *o)
{
    titan_assert(!s->compute && (!o || (o->begin && o->end)));
    pthread_mutex_lock(&s->lock);
    s->observer = o ? *o : (struct stream_observer){NULL};
    pthread_mutex_unlock(&s->lock);
}

void *cpu_stream_native(struct stream *s)
{
    (void)s;
    return NULL;
}

titan_status cpu_event_open(struct device *dev, struct event **ret, struct titan_error *err)
{
    (void)dev;
    struct event *e = calloc(1, sizeof(*e));
    if (!e)
        return titan_fail(err, TITAN_ENOMEM, "event: out of memory");
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->done, NULL);
    *ret = e;
    return TITAN_OK;
}

void cpu_event_close(struct event *e)
{
    if (!e)
        return;
    pthread_cond_destroy(&e->done);
    pthread_mutex_destroy(&e->lock);
    free(e);
}

struct event_args {
    struct event *e;
    struct stream *s;
    uint64_t ticket;
};

static titan_status run_record(const struct cpu_context *ctx, const void *p)
{
    const struct event_args *a = p;
    titan_assert(a->ticket > 0);
    (void)ctx;
    pthread_mutex_lock(&a->s->lock);
    titan_status status = a->s->status;
    struct titan_error error = a->s->error;
    pthread_mutex_unlock(&a->s->lock);
    pthread_mutex_lock(&a->e->lock);
    if (a->ticket > a->e->completed) {
        a->e->completed = a->ticket;
        a->e->status = status;
        a->e->error = error;
    }
    pthread_cond_broadcast(&a->e->done);
    pthread_mutex_unlock(&a->e->lock);
    return TITAN_OK;
}

/* Runs the tasks queued before the event, unless the stream's own thread has begun them. So a collective that is waited
 * for at once costs no thread switch. If ranks have as many cores as computing threads, an extra thread often queues
 * behind another rank's thread, which in turn waits for the extra thread. With tensor parallelism on two cores this
 * cost a third of a step. */
static void event_help(struct event *e, uint64_t ticket)
{
    pthread_mutex_lock(&e->lock);
    struct stream *const s = e->completed < ticket ? e->by : NULL;
    pthread_mutex_unlock(&e->lock);
    if (!s)
        return;
    titan_assert(!s->compute);
    pthread_mutex_lock(&s->lock);
    while (s->count > 0 && !s->busy) {
        pthread_mutex_lock(&e->lock);
        const bool complete = e->completed >= ticket;
        pthread_mutex_unlock(&e->lock);
        if (complete)
            break;
        run_next(s);
    }
    if (s->count > 0)
        pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
}

static titan_status run_wait(const struct cpu_context *ctx, const void *p)
{
    const struct event_args *a = p;
    if (a->s->compute)
        event_help(a->e, a->ticket);
    pthread_mutex_lock(&a->e->lock);
    while (a->e->completed < a->ticket)
        wait_for(&a->e->done, &a->e->lock);
    titan_status status = a->e->status;
    if (status != TITAN_OK)
        *ctx->err = a->e->error;
    pthread_mutex_unlock(&a->e->lock);
    return status;
}

titan_status cpu_event_record(struct event *e, struct stream *s, struct titan_error *err)
{
    struct event_args a = {.e = e, .s = s};
    pthread_mutex_lock(&e->lock);
    titan_assert(!e->by || e->by == s || e->completed == e->recorded); /* tickets are completed in order */
    a.ticket = ++e->recorded;
    e->by = s;
    pthread_mutex_unlock(&e->lock);
    if (s->compute) {
        task_run(s, run_record, &a);
        return TITAN_OK;
    }
    titan_status status = task_push(s, run_record, &a, sizeof(a), true);
    return status == TITAN_OK ? TITAN_OK : titan_fail(err, status, "event cannot be queued: out of memory");
}

titan_status cpu_event_wait(struct event *e, struct stream *s, struct titan_error *err)
{
    struct event_args a = {.e = e, .s = s};
    pthread_mutex_lock(&e->lock);
    a.ticket = e->recorded;
    pthread_mutex_unlock(&e->lock);
    titan_status status = cpu_enqueue(s, run_wait, &a, sizeof(a));
    return status == TITAN_OK ? TITAN_OK : titan_fail(err, status, "wait cannot be queued: out of memory");
}

titan_status cpu_event_sync(struct event *e, struct titan_error *err)
{
    pthread_mutex_lock(&e->lock);
    uint64_t ticket = e->recorded;
    while (e->completed < ticket)
        wait_for(&e->done, &e->lock);
    titan_status status = e->status;
    if (status != TITAN_OK && err)
        *err = e->error;
    pthread_mutex_unlock(&e->lock);
    return status;
}
