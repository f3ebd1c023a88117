/* SPDX-License-Identifier: Apache-2.0 */
/* stream.c - streams, events, host calls in stream order, and failures that travel with them (cuda.h). */
#include <sched.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/progress.h"
#include "worker/device/cuda/cuda.h"
#include "worker/device/cuda/kernels.h"

#define SPIN_NS 50000 /* a waiting host spins this long, then sleeps between checks */

titan_status cuda_stream_open(struct device *dev, const char *name, bool compute, struct stream **ret,
                              struct titan_error *err)
{
    (void)name;
    TRY(cuda_enter(dev, err));
    struct stream *s = calloc(1, sizeof *s);
    if (!s)
        return titan_fail(err, TITAN_ENOMEM, "no memory for a stream");
    s->dev = dev;
    /* Streams of collectives and copies get the higher priority, because products wait for them. */
    int least = 0, greatest = 0;
    cudaError_t e = cudaDeviceGetStreamPriorityRange(&least, &greatest);
    if (e == cudaSuccess)
        e = cudaStreamCreateWithPriority(&s->native, cudaStreamNonBlocking, compute ? least : greatest);
    if (e == cudaSuccess)
        e = cudaHostAlloc((void **)&s->raised, 3 * sizeof(int), cudaHostAllocPortable | cudaHostAllocMapped);
    if (e == cudaSuccess && compute) /* allocated now, so that no step allocates */
        e = cudaMalloc(&s->work, CUDA_MATMUL_WORK_BYTES);
    if (e == cudaSuccess)
        e = cudaMalloc((void **)&s->seen, sizeof(int));
    if (e == cudaSuccess)
        e = cuda_clear(dev, s->seen, sizeof(int));
    if (e != cudaSuccess) {
        titan_status st = cuda_fail(err, e, "opening a stream");
        cuda_stream_close(s);
        return st;
    }
    s->told = s->raised + 1;
    s->fault = s->raised + 2;
    *s->raised = *s->told = *s->fault = 0;
    *ret = s;
    return TITAN_OK;
}

void cuda_stream_close(struct stream *s)
{
    if (!s)
        return;
    (void)pthread_mutex_lock(&s->dev->watch_lock);
    for (int i = 0; i < s->dev->n_watches; i++)
        s->dev->watches[i].forget(s->dev->watches[i].comm, s);
    (void)pthread_mutex_unlock(&s->dev->watch_lock);
    if (cuda_enter(s->dev, NULL) == TITAN_OK) {
        if (s->native) {
            (void)cudaStreamSynchronize(s->native);
            (void)cudaStreamDestroy(s->native);
        }
        (void)cudaFree(s->work);
        (void)cudaFree(s->seen);
        (void)cudaFreeHost(s->raised);
    }
    free(s);
}

void stream_raise(struct stream *s, titan_status status, const char *text)
{
    titan_assert(status != TITAN_OK && text);
    (void)pthread_mutex_lock(&s->dev->lock);
    if (__atomic_load_n(s->raised, __ATOMIC_RELAXED) == 0) {
        (void)titan_fail(&s->error, status, "%s", text);
        __atomic_store_n(s->raised, (int)status, __ATOMIC_RELEASE);
    }
    (void)pthread_mutex_unlock(&s->dev->lock);
}

titan_status stream_failure(struct stream *s, struct titan_error *err)
{
    /* what a kernel of this stream found; other failures came from another stream */
    static const char *const found[FAULT_COUNT] = {
        [FAULT_CHOICE] = "a token's choice names no expert",
        [FAULT_ROWS] = "more rows arrived for this rank's experts than its buffer holds",
        [FAULT_COUNTS] = "the groups of a product have more rows than there are",
    };
    int told = __atomic_load_n(s->told, __ATOMIC_ACQUIRE);
    if (told == 0)
        return TITAN_OK;
    if (!err)
        return (titan_status)told;
    (void)pthread_mutex_lock(&s->dev->lock);
    const int fault = __atomic_load_n(s->fault, __ATOMIC_ACQUIRE);
    if (s->error.status == (titan_status)told)
        *err = s->error;
    else if (fault > FAULT_NONE && fault < FAULT_COUNT)
        (void)titan_fail(err, (titan_status)told, "%s", found[fault]);
    else
        (void)titan_fail(err, (titan_status)told, "a stream this one waited for failed: %s",
                         titan_status_text((titan_status)told));
    (void)pthread_mutex_unlock(&s->dev->lock);
    return (titan_status)told;
}

titan_status stream_fail_now(struct stream *s, titan_status status, const char *text)
{
    titan_assert(status != TITAN_OK);
    if (s->keeps) {
        if (s->kept.status == TITAN_OK)
            (void)titan_fail(&s->kept, status, "%s", text);
        return status;
    }
    stream_raise(s, status, text);
    int expected = 0;
    (void)__atomic_compare_exchange_n(s->told, &expected, (int)status, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
    return status;
}

bool stream_skips(struct stream *s)
{
    return __atomic_load_n(s->told, __ATOMIC_ACQUIRE) != 0 || cuda_enter(s->dev, NULL) != TITAN_OK;
}

titan_status stream_enqueued(struct stream *s, const char *what, int error)
{
    titan_assert(what);
    if (error == 0)
        return TITAN_OK;
    struct titan_error err;
    titan_status st = cuda_fail(&err, (cudaError_t)error, what);
    return stream_fail_now(s, st, err.msg);
}

titan_status stream_latch(struct stream *s, const struct stream *from)
{
    titan_assert(s != from);
    s->may_fail = true;
    return stream_enqueued(s, "passing a failure on",
                           cuda_latch(s->native, s->seen, s->told, s->raised, from ? from->seen : NULL));
}

/* Waits until query() no longer returns cudaErrorNotReady. From here, a kernel that hangs looks like a collective that
 * waits for a peer. So with open communicators this wait counts as waiting for others. Otherwise every survivor would
 * be taken for the rank that hangs. */
static cudaError_t wait_polling(struct device *dev, cudaError_t (*query)(void *what), void *what)
{
    titan_assert(query);
    const bool peers = __atomic_load_n(&dev->n_watches, __ATOMIC_ACQUIRE) > 0;
    const int64_t begin = clock_mono_ns();
    cudaError_t e = query(what);
    if (e != cudaErrorNotReady)
        return e;
    if (peers)
        progress_wait_begin();
    while ((e = query(what)) == cudaErrorNotReady) {
        if (clock_mono_ns() - begin < SPIN_NS)
            (void)sched_yield();
        else
            (void)nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
    }
    if (peers)
        progress_wait_end();
    return e;
}

static cudaError_t query_stream(void *what)
{
    return cudaStreamQuery(((struct stream *)what)->native);
}
static cudaError_t query_event(void *what)
{
    return cudaEventQuery(((struct event *)what)->native);
}

titan_status cuda_stream_sync(struct stream *s, struct titan_error *err)
{
    if (!cuda_segment_allows(s, "waiting for the stream"))
        return titan_fail(err, TITAN_EINVAL, "waiting for a stream within a segment");
    TRY(cuda_enter(s->dev, err));
    cudaError_t e = s->may_fail ? wait_polling(s->dev, query_stream, s) : cudaStreamSynchronize(s->native);
    if (e != cudaSuccess) {
        titan_status st = cuda_fail(err, e, "waiting for a stream");
        return stream_fail_now(s, st, err ? err->msg : cudaGetErrorString(e));
    }
    return stream_failure(s, err);
}

void cuda_stream_clear(struct stream *s)
{
    if (cuda_enter(s->dev, NULL) != TITAN_OK)
        return;
    (void)cudaMemsetAsync(s->seen, 0, sizeof(int), s->native);
    (void)cudaStreamSynchronize(s->native);
    (void)pthread_mutex_lock(&s->dev->lock);
    __atomic_store_n(s->raised, 0, __ATOMIC_RELEASE);
    __atomic_store_n(s->told, 0, __ATOMIC_RELEASE);
    __atomic_store_n(s->fault, 0, __ATOMIC_RELEASE);
    s->error = (struct titan_error){0};
    (void)pthread_mutex_unlock(&s->dev->lock);
}

struct host_call {
    struct stream *s;
    titan_status (*fn)(void *arg, struct titan_error *err);
    void *arg;
};

static void CUDART_CB run_host_call(void *data)
{
    struct host_call *call = data;
    titan_assert(call->s && call->fn);
    struct titan_error err = {0};
    if (__atomic_load_n(call->s->told, __ATOMIC_ACQUIRE) == 0) {
        titan_status st = call->fn(call->arg, &err);
        if (st != TITAN_OK)
            stream_raise(call->s, st, err.msg[0] ? err.msg : titan_status_text(st));
    }
    free(call);
}

titan_status cuda_stream_call(struct stream *s, titan_status (*fn)(void *arg, struct titan_error *err), void *arg,
                              struct titan_error *err)
{
    titan_assert(fn);
    if (!cuda_segment_allows(s, "a host call"))
        return titan_fail(err, TITAN_EINVAL, "a host call in a segment");
    if (stream_skips(s))
        return TITAN_OK;
    struct host_call *call = malloc(sizeof *call);
    if (!call)
        return titan_fail(err, TITAN_ENOMEM, "no memory for a host call");
    *call = (struct host_call){.s = s, .fn = fn, .arg = arg};
    cudaError_t e = cudaLaunchHostFunc(s->native, run_host_call, call);
    if (e != cudaSuccess) {
        free(call);
        (void)stream_enqueued(s, "a host call", (int)e);
        return stream_failure(s, err);
    }
    titan_status st = stream_latch(s, NULL);
    return st == TITAN_OK ? st : stream_failure(s, err);
}

void *cuda_stream_native(struct stream *s)
{
    return s->native;
}

titan_status cuda_event_open(struct device *dev, struct event **ret, struct titan_error *err)
{
    TRY(cuda_enter(dev, err));
    struct event *event = calloc(1, sizeof *event);
    if (!event)
        return titan_fail(err, TITAN_ENOMEM, "no memory for an event");
    event->dev = dev;
    cudaError_t e = cudaEventCreateWithFlags(&event->native, cudaEventDisableTiming);
    if (e != cudaSuccess) {
        free(event);
        return cuda_fail(err, e, "opening an event");
    }
    *ret = event;
    return TITAN_OK;
}

void cuda_event_close(struct event *e)
{
    if (!e)
        return;
    if (cuda_enter(e->dev, NULL) == TITAN_OK)
        (void)cudaEventDestroy(e->native);
    free(e);
}

titan_status cuda_event_record(struct event *e, struct stream *s, struct titan_error *err)
{
    if (!cuda_segment_allows(s, "an event"))
        return titan_fail(err, TITAN_EINVAL, "an event in a segment");
    TRY(cuda_enter(s->dev, err));
    e->from = s; /* set even on a failed stream: a stream that waits for the event then learns of the failure */
    if (__atomic_load_n(s->raised, __ATOMIC_ACQUIRE) != 0)
        (void)stream_latch(s, NULL);
    cudaError_t result = cudaEventRecord(e->native, s->native);
    return result == cudaSuccess ? TITAN_OK : cuda_fail(err, result, "recording an event");
}

titan_status cuda_event_wait(struct event *e, struct stream *s, struct titan_error *err)
{
    if (!cuda_segment_allows(s, "a wait"))
        return titan_fail(err, TITAN_EINVAL, "a wait in a segment");
    if (!e->from || stream_skips(s))
        return TITAN_OK;
    cudaError_t result = cudaStreamWaitEvent(s->native, e->native, 0);
    if (result != cudaSuccess)
        return cuda_fail(err, result, "waiting for an event");
    if (!e->from->may_fail || e->from == s)
        return TITAN_OK;
    titan_status st = stream_latch(s, e->from);
    return st == TITAN_OK ? st : stream_failure(s, err);
}

titan_status cuda_event_sync(struct event *e, struct titan_error *err)
{
    if (!e->from)
        return TITAN_OK;
    TRY(cuda_enter(e->dev, err));
    cudaError_t result = wait_polling(e->dev, query_event, e);
    if (result != cudaSuccess)
        return cuda_fail(err, result, "waiting for an event");
    return stream_failure(e->from, err);
}
