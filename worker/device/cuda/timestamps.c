/* SPDX-License-Identifier: Apache-2.0 */
/* timestamps.c - when a stream reaches a place, by CUDA's events. The device takes the times without the host. A host
 * call in the stream's order would take some 50 us instead, and the stream would stand still meanwhile. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "worker/device/cuda/cuda.h"

struct timestamps {
    struct device *dev;
    cudaEvent_t from; /* reference event: all times are counted from it */
    int64_t from_ns;  /* host time of the reference event */
    int n;
    cudaEvent_t *events; /* [n]; NULL: the place has never had a time */
    bool *taken;         /* [n]: the place has a time since timestamps_begin */
};

titan_status cuda_timestamps_open(struct device *dev, int n, struct timestamps **ret, struct titan_error *err)
{
    titan_assert(n >= 0);
    TRY(cuda_enter(dev, err));
    struct timestamps *p = calloc(1, sizeof *p);
    if (!p)
        return titan_fail(err, TITAN_ENOMEM, "no memory for timestamps");
    *p = (struct timestamps){.dev = dev, .n = n};
    p->events = calloc((size_t)n + 1, sizeof *p->events);
    p->taken = calloc((size_t)n + 1, sizeof *p->taken);
    const cudaError_t e = p->events && p->taken ? cudaEventCreateWithFlags(&p->from, cudaEventDefault) : cudaSuccess;
    if (!p->from) {
        cuda_timestamps_close(p);
        return e == cudaSuccess ? titan_fail(err, TITAN_ENOMEM, "no memory for timestamps")
                                : cuda_fail(err, e, "opening timestamps");
    }
    *ret = p;
    return TITAN_OK;
}

void cuda_timestamps_close(struct timestamps *p)
{
    if (!p)
        return;
    if (cuda_enter(p->dev, NULL) == TITAN_OK) {
        for (int i = 0; p->events && i < p->n; i++)
            if (p->events[i])
                (void)cudaEventDestroy(p->events[i]);
        if (p->from)
            (void)cudaEventDestroy(p->from);
    }
    free(p->events);
    free(p->taken);
    free(p);
}

/* Sets the reference on an idle stream, so that the host knows the event's time. */
titan_status cuda_timestamps_begin(struct timestamps *p, struct titan_error *err)
{
    TRY(cuda_enter(p->dev, err));
    memset(p->taken, 0, (size_t)p->n * sizeof *p->taken);
    const int64_t before = clock_mono_ns();
    cudaError_t e = cudaEventRecord(p->from, p->dev->clearing);
    if (e == cudaSuccess)
        e = cudaStreamSynchronize(p->dev->clearing);
    p->from_ns = before + (clock_mono_ns() - before) / 2;
    return e == cudaSuccess ? TITAN_OK : cuda_fail(err, e, "setting the clock of timestamps");
}

titan_status cuda_timestamp(struct timestamps *p, int i, struct stream *s, struct titan_error *err)
{
    titan_assert(i >= 0 && i < p->n && s->dev == p->dev);
    if (!cuda_segment_allows(s, "a timestamp"))
        return titan_fail(err, TITAN_EINVAL, "a timestamp in a segment");
    if (stream_skips(s))
        return TITAN_OK;
    cudaError_t e = p->events[i] ? cudaSuccess : cudaEventCreateWithFlags(&p->events[i], cudaEventDefault);
    if (e == cudaSuccess)
        e = cudaEventRecord(p->events[i], s->native);
    p->taken[i] = e == cudaSuccess;
    return e == cudaSuccess ? TITAN_OK : cuda_fail(err, e, "taking a timestamp");
}

titan_status cuda_timestamps_read(struct timestamps *p, int64_t *ret, struct titan_error *err)
{
    TRY(cuda_enter(p->dev, err));
    for (int i = 0; i < p->n; i++) {
        float ms = 0;
        const cudaError_t e = p->taken[i] ? cudaEventElapsedTime(&ms, p->from, p->events[i]) : cudaSuccess;
        if (e != cudaSuccess)
            return cuda_fail(err, e, "reading timestamps");
        ret[i] = p->taken[i] ? p->from_ns + (int64_t)((double)ms * 1e6) : 0;
    }
    return TITAN_OK;
}
