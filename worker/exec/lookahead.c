/* SPDX-License-Identifier: Apache-2.0 */
/* lookahead.c - keeps the host only a little ahead of the device (struct lookahead in executor.h). Actions after the
 * agreement are not bounded, because otherwise the loss of a peer could leave an update of the state half enqueued. */
#include "base/cleanup.h"
#include "base/clock.h"
#include "worker/exec/executor.h"

#define AHEAD_NS 15000000 /* the device's time from mark to mark; the enqueued work is one to two times as long */
#define EVERY_FIRST 16
#define EVERY_LEAST 4
#define EVERY_MOST 64 /* an action is a few launches, and a stream's queue has room for a thousand launches */

titan_status lookahead_open(const struct device_handle *device, struct lookahead *ret, struct titan_error *err)
{
    *ret = (struct lookahead){.every = EVERY_FIRST};
    for (int i = 0; i < 2 && !device->info.host_memory; i++)
        TRY(device->ops->event_open(device->dev, &ret->marks[i], err));
    return TITAN_OK;
}

void lookahead_close(const struct device_ops *ops, struct lookahead *p)
{
    for (int i = 0; i < 2; i++)
        if (p->marks[i])
            ops->event_close(p->marks[i]);
}

void lookahead_begin(struct lookahead *p)
{
    p->passed = p->placed = 0;
    p->reached_ns = 0;
}

titan_status lookahead_bound(struct exec *e, int actions, struct titan_error *err)
{
    struct lookahead *const p = &e->lookahead;

    titan_assert(actions >= 1);
    p->passed += actions;
    if (!p->marks[0] || p->passed < p->every)
        return TITAN_OK;
    p->passed = 0;
    TRY(e->ops->event_record(p->marks[p->placed % 2], e->opt.streams[STREAM_COMPUTE], err));
    if (p->placed++ == 0)
        return TITAN_OK;
    const int64_t begin = clock_mono_ns();
    TRY(e->ops->event_sync(p->marks[p->placed % 2], err)); /* the previous mark */
    const int64_t now = clock_mono_ns();
    const bool waited = now - begin > AHEAD_NS / 100;
    /* If the host waited for both marks, the time between them is the device's time for `every` actions. */
    if (waited && p->reached_ns > 0) {
        const int64_t took = MAX(now - p->reached_ns, (int64_t)1), wanted = p->every * (int64_t)AHEAD_NS / took;
        p->every = (int)MIN(MAX(MIN(MAX(wanted, p->every / 2), p->every * 2), EVERY_LEAST), EVERY_MOST);
    }
    titan_assert(p->every >= EVERY_LEAST && p->every <= EVERY_MOST);
    p->reached_ns = waited ? now : 0;
    return TITAN_OK;
}
