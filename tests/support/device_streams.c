/* SPDX-License-Identifier: Apache-2.0 */
/* device_streams.c - streams: calls, events, and failures that stay. */
#include <string.h>

#include "support/device_checker.h"
#include "support/device_ops.h"

static titan_status call_count(void *arg, struct titan_error *err)
{
    (void)err;
    ++*(int *)arg;
    return TITAN_OK;
}
static titan_status call_fail(void *arg, struct titan_error *err)
{
    (void)arg;
    return titan_fail(err, TITAN_EPEER, "peer 7 vanished");
}

/* Operations that were kept run when they are launched, as often as that; what cannot be kept leaves the stream as it
 * was; a stream that has failed launches none. */
static void check_segments(struct checker *c)
{
    const struct device_ops *ops = c->ops;
    struct titan_error err = {0};
    struct segment *g = NULL, *none = NULL;
    struct tensor x = noise(c, 1000, DTYPE_F32, 1.0);
    double *want = values(c, x.n);
    int count = 0;

    need(c, ops->segment_begin(c->s, &err), "segment_begin");
    need(c, ops->scale(c->s, x.p, x.p, DTYPE_F32, 2.0f, 1000), "scale");
    need(c, ops->accumulate(c->s, x.p, x.p, 1000), "accumulate");
    need(c, ops->segment_end(c->s, &g, &err), "segment_end");
    result(c, same(c, download(c, &x), x.x, x.n, "kept"), "a segment that is kept has not run");
    for (int i = 0; i < 3; i++)
        need(c, ops->segment_launch(g, c->s), "segment_launch");
    for (int64_t i = 0; i < x.n; i++)
        want[i] = 64.0 * x.x[i];
    result(c, same(c, download(c, &x), want, x.n, "launched three times"), "and runs as often as it is launched");
    need(c, ops->segment_begin(c->s, &err), "segment_begin");
    need(c, ops->scale(c->s, x.p, x.p, DTYPE_F32, 2.0f, 1000), "scale");
    bool ok = ops->stream_call(c->s, call_count, &count, &err) != TITAN_OK;
    ok = ops->segment_end(c->s, &none, &err) == TITAN_EUNSUPPORTED && ok && !none;
    ok = ops->stream_sync(c->s, &err) == TITAN_OK && ok && count == 0;
    result(c, ok && same(c, download(c, &x), want, x.n, "refused"),
           "a call in a segment is refused, and nothing has run");
    need(c, ops->stream_call(c->s, call_fail, NULL, &err), "stream_call");
    ok = ops->stream_sync(c->s, &err) == TITAN_EPEER;
    (void)ops->segment_launch(g, c->s);
    ok = ok && ops->segment_begin(c->s, &err) == TITAN_EPEER && ops->stream_sync(c->s, &err) == TITAN_EPEER;
    ops->stream_clear(c->s);
    result(c, ok && same(c, download(c, &x), want, x.n, "failed"),
           "a stream that has failed launches none and keeps none");
    need(c, ops->segment_launch(g, c->s), "segment_launch");
    for (int64_t i = 0; i < x.n; i++)
        want[i] *= 4;
    result(c, same(c, download(c, &x), want, x.n, "launched again"), "until the failure is forgotten");
    ops->segment_close(g);
    sweep(c);
}

void device_streams_check(struct checker *c)
{
    const struct device_ops *ops = c->ops;
    struct event *e = NULL;
    struct titan_error err = {0};
    int count = 0;
    need(c, ops->event_open(c->h->dev, &e, &err), "event_open");
    need(c, ops->event_wait(e, c->side, &err), "wait for an event never recorded");
    for (int i = 0; i < 1000; i++)
        need(c, ops->stream_call(c->side, call_count, &count, &err), "stream_call");
    need(c, ops->event_record(e, c->side, &err), "event_record");
    need(c, ops->event_sync(e, &err), "event_sync");
    result(c, count == 1000, "stream_call: 1000 calls ran before the event after them");

    /* Work on the side stream is seen by the compute stream behind an event. */
    struct tensor x = noise(c, 100000, DTYPE_F32, 1.0), y = empty(c, 100000, DTYPE_F32);
    need(c, ops->copy(c->side, y.p, x.p, 400000), "copy");
    need(c, ops->event_record(e, c->side, &err), "event_record");
    need(c, ops->event_wait(e, c->s, &err), "event_wait");
    need(c, ops->scale(c->s, y.p, y.p, DTYPE_F32, 2.0f, 100000), "scale");
    double *want = values(c, x.n);
    for (int64_t i = 0; i < x.n; i++)
        want[i] = 2.0 * x.x[i];
    result(c, same(c, download(c, &y), want, x.n, "scaled copy"), "event_wait orders two streams");

    /* A failure sticks, skips what follows, passes through events, and is forgotten by clear. */
    count = 0;
    need(c, ops->stream_call(c->side, call_fail, NULL, &err), "stream_call");
    ops->stream_call(c->side, call_count, &count, NULL);
    ops->event_record(e, c->side, NULL);
    bool ok = ops->stream_sync(c->side, &err) == TITAN_EPEER && count == 0 && strstr(err.msg, "peer 7");
    ops->zero(c->side, y.p, 400000); /* the failure is known now; a GPU may run what was enqueued before that */
    ok = ok && ops->stream_sync(c->side, NULL) == TITAN_EPEER;
    result(c, ok, "a failed call sticks: later work is skipped, sync returns its status and message");
    result(c, ops->event_sync(e, &err) == TITAN_EPEER && strstr(err.msg, "peer 7"), "event_sync returns the failure");
    ops->event_wait(e, c->s, NULL);
    ok = ops->stream_sync(c->s, &err) == TITAN_EPEER;
    ops->stream_clear(c->s);
    result(c, ok && same(c, download(c, &y), want, x.n, "after a skipped zero"),
           "event_wait passes the failure to the other stream");
    ops->stream_clear(c->side);
    need(c, ops->stream_call(c->side, call_count, &count, &err), "stream_call");
    need(c, ops->stream_sync(c->side, &err), "stream_sync");
    need(c, ops->event_record(e, c->side, &err), "event_record");
    need(c, ops->event_sync(e, &err), "event_sync");
    result(c, count == 1, "stream_clear: the stream works again");
    ops->event_close(e);
    sweep(c);
    if (ops->segment_begin)
        check_segments(c);
}
