/* SPDX-License-Identifier: Apache-2.0 */
/* timeline.c - trace events of actions. */
#include "worker/plan/timeline.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/json.h"

#define BEGIN "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n"
#define END "\n]}\n"
#define TRACE_MAX ((size_t)256 << 20)

/* The text before an event: nothing before the first event. */
static const char *comma(const struct buf *out)
{
    return out->len >= 2 && out->data[out->len - 2] == '[' ? "" : ",\n";
}

void timeline_begin(struct buf *out)
{
    buf_puts(out, BEGIN);
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

void timeline_actions(struct buf *out, int pid, const struct program *p, double zero, const double *start,
                      const double *end)
{
    const struct model_unit *const units = p->layout->model->units;

    for (int i = 0; i < p->n_actions; i++) {
        const struct action *a = &p->actions[i];
        /* Begin and end are rounded, not the length. So if one action begins where another ends, they still meet in
         * whole nanoseconds. */
        const long long from = llround((zero + start[i]) * 1e9), to = llround((zero + end[i]) * 1e9);
        if (to <= from)
            continue;

        /* "layers.3"; "embedding to layers.2" for a bucket or an update; "" for an action of no unit. */
        const bool several = a->op == OP_OPTIMISE || a->stream == STREAM_GATHER || a->stream == STREAM_REDUCE;
        int first = a->unit, last = a->unit;
        titan_assert(a->unit < p->layout->model->n_units);
        for (int k = 0; several && k < a->n_operands; k++) {
            const int unit = p->buffers[action_operands(p, a)[k].buffer].unit;
            first = unit >= 0 ? MIN(first, unit) : first;
            last = MAX(last, unit);
        }
        char name[72] = "";
        if (a->unit >= 0)
            (void)snprintf(name, sizeof name, "%s%s%s", units[first].name, first < last ? " to " : "",
                           first < last ? units[last].name : "");
        buf_printf(out,
                   "%s{\"ph\":\"X\",\"name\":\"%s%s%s\",\"cat\":\"%s\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,"
                   "\"args\":{\"action\":%d,\"unit\":\"%s\",\"stage\":%d,\"microbatch\":%d}}",
                   comma(out), op_name((enum op)a->op), *name ? " " : "", name, phase_name((enum phase)a->phase), pid,
                   a->stream, (double)from / 1e3, (double)(to - from) / 1e3, i, name, a->stage, a->microbatch);
    }
}

void timeline_end(struct buf *out)
{
    buf_puts(out, END);
}

static void close_json(struct json **doc)
{
    json_free(*doc);
}

titan_status timeline_reopen(const char *path, struct buf *out, double *ret_began, struct titan_error *err)
{
    _cleanup_(close_json) struct json *doc = NULL;
    double began = INFINITY;

    TRY(file_read(path, TRACE_MAX, out, err));
    if (out->len < sizeof BEGIN + sizeof END || memcmp(out->data, BEGIN, sizeof BEGIN - 1) != 0 ||
        memcmp(out->data + out->len - (sizeof END - 1), END, sizeof END - 1) != 0 ||
        json_parse(out->data, out->len, &doc, NULL) != TITAN_OK)
        return titan_fail(err, TITAN_EINVAL, "'%s' is no trace of a run", path);
    const struct json *events = json_get(doc, "traceEvents");
    for (const struct json *e = events->first; e; e = e->next)
        began = strcmp(json_string(e, "ph", ""), "X") == 0 ? fmin(began, json_real(e, "ts", INFINITY)) : began;
    if (!isfinite(began))
        return titan_fail(err, TITAN_EINVAL, "'%s' is a trace without events", path);
    *ret_began = began * 1e-6;
    out->len -= sizeof END - 1;
    out->data[out->len] = '\0';
    return TITAN_OK;
}
