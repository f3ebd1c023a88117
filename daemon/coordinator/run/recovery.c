/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/coordinator/run/recovery.h"

#include <string.h>

#include "base/cleanup.h"
#include "daemon/coordinator/outbox/events.h"

#define ORIGIN_MS 1000 /* longest wait for the origin of the state, after the first step */

void recovery_begin(struct core *c, struct jobrec *j)
{
    if (j->recovery.lost || !j->status.started_at_ms)
        return;
    recovery_clear(j);
    j->recovery.lost = c->now.mono_ms;
    j->recovery.from_step = j->status.step;
}

/* Finishes once the epoch runs and its members have reported where their state came from. The wait for these reports is
 * at most ORIGIN_MS. */
void recovery_finish(struct core *c, struct jobrec *j)
{
    titan_assert(!j->recovery.lost || j->recovery.lost <= c->now.mono_ms);
    const int64_t now = c->now.mono_ms;
    if (!j->recovery.lost || !j->recovery.stepped || j->epoch_state != EPOCH_RUNNING ||
        (!j->source.origin_known && now < j->recovery.stepped + ORIGIN_MS))
        return;
    emit_recovery_finished(c, j);
    memset(&j->recovery, 0, sizeof(j->recovery));
}

void recovery_revoked(struct core *c, struct jobrec *j)
{
    recovery_begin(c, j);
    j->recovery.revoked = c->now.mono_ms;
    j->recovery.quiet = 0;
    j->recovery.epochs++;
}

void recovery_quiet(struct core *c, struct jobrec *j)
{
    if (!j->recovery.quiet)
        j->recovery.quiet = c->now.mono_ms;
}

void recovery_formed(struct core *c, struct jobrec *j)
{
    j->recovery.formed = c->now.mono_ms;
    j->recovery.ready = j->recovery.stepped = 0;
}

void recovery_ready(struct core *c, struct jobrec *j)
{
    j->recovery.ready = c->now.mono_ms;
}

void recovery_stepped(struct core *c, struct jobrec *j)
{
    j->recovery.stepped = c->now.mono_ms;
}

void recovery_detected(struct jobrec *j, int64_t ms)
{
    titan_assert(ms >= 0);
    j->recovery.detect_ms = MAX(j->recovery.detect_ms, ms);
}

void recovery_clear(struct jobrec *j)
{
    memset(&j->recovery, 0, sizeof(j->recovery));
}

void recovery_restored(struct core *c, struct jobrec *j)
{
    j->recovery = (struct recovery){.lost = c->now.mono_ms, .from_step = j->status.step};
}
