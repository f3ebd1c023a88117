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
    need(c, ops->scale(c->s, y.p, 2.0f, 100000), "scale");
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
}
