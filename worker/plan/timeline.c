/* SPDX-License-Identifier: Apache-2.0 */
/* timeline.c - trace events of actions. */
#include "worker/plan/timeline.h"

#include <math.h>

/* Before every event but the first. */
static const char *comma(const struct buf *out)
{
    return out->len >= 2 && out->data[out->len - 2] == '[' ? "" : ",\n";
}

void timeline_begin(struct buf *out)
{
    buf_puts(out, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n");
}

void timeline_name(struct buf *out, int pid, const char *name, const struct program *p)
{
    buf_printf(out, "%s{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%d,\"args\":{\"name\":\"%s\"}}", comma(out), pid,
               name);
    for (int k = 0; k < STREAM_COUNT; k++)
        if (p->streams >> k & 1)
            buf_printf(out,
                       ",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":\"%s\"}}",
                       pid, k, program_stream_name((enum stream_id)k));
}

void timeline_actions(struct buf *out, int pid, const struct program *p, const double *start, const double *end)
{
    for (int i = 0; i < p->n_actions; i++) {
        const struct action *a = &p->actions[i];
        /* Ends are rounded, not lengths: what begins where another ends still does so in whole nanoseconds. */
        const long long from = llround(start[i] * 1e9), to = llround(end[i] * 1e9);
        if (to <= from)
            continue;
        buf_printf(out,
                   "%s{\"ph\":\"X\",\"name\":\"%s\",\"cat\":\"%s\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,"
                   "\"args\":{\"action\":%d,\"unit\":%d,\"stage\":%d,\"microbatch\":%d}}",
                   comma(out), op_name((enum op)a->op), phase_name((enum phase)a->phase), pid, a->stream,
                   (double)from / 1e3, (double)(to - from) / 1e3, i, a->unit, a->stage, a->microbatch);
    }
}

void timeline_end(struct buf *out)
{
    buf_puts(out, "\n]}\n");
}
