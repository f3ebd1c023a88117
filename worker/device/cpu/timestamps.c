/* SPDX-License-Identifier: Apache-2.0 */
/* timestamps.c - when a stream reaches a place. The thread that runs the stream reads the clock there. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "worker/device/cpu/cpu.h"

struct timestamps {
    int n;
    int64_t ns[]; /* written by the streams */
};

titan_status cpu_timestamps_open(struct device *dev, int n, struct timestamps **ret, struct titan_error *err)
{
    (void)dev;
    titan_assert(n >= 0);
    struct timestamps *p = calloc(1, sizeof *p + (size_t)n * sizeof p->ns[0]);
    if (!p)
        return titan_fail(err, TITAN_ENOMEM, "%d timestamps: out of memory", n);
    p->n = n;
    *ret = p;
    return TITAN_OK;
}

void cpu_timestamps_close(struct timestamps *p)
{
    free(p);
}

titan_status cpu_timestamps_begin(struct timestamps *p, struct titan_error *err)
{
    (void)err;
    memset(p->ns, 0, (size_t)p->n * sizeof p->ns[0]);
    return TITAN_OK;
}

static titan_status take_time(void *arg, struct titan_error *err)
{
    (void)err;
    *(int64_t *)arg = clock_mono_ns();
    return TITAN_OK;
}

titan_status cpu_timestamp(struct timestamps *p, int i, struct stream *s, struct titan_error *err)
{
    titan_assert(i >= 0 && i < p->n);
    return cpu_stream_call(s, take_time, &p->ns[i], err);
}

titan_status cpu_timestamps_read(struct timestamps *p, int64_t *ret, struct titan_error *err)
{
    (void)err;
    memcpy(ret, p->ns, (size_t)p->n * sizeof p->ns[0]);
    return TITAN_OK;
}
