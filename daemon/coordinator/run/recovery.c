#include "daemon/coordinator/run/recovery.h"

#include <string.h>

#include "daemon/coordinator/outbox/events.h"

#define ORIGIN_MS 1000 /* behind the first step: how long the origin of the state is waited for */

void recovery_begin(struct core *c, struct jobrec *j)
{
    if (j->recovery.lost || !j->status.started_at_ms)
        return;
    memset(&j->recovery, 0, sizeof(j->recovery));
    j->recovery.lost = c->now.mono_ms;
    j->recovery.from_step = j->status.step;
}

/* When it runs and its members have said where their state came from; they are waited for no longer than ORIGIN_MS. */
void recovery_finish(struct core *c, struct jobrec *j)
{
    const int64_t now = c->now.mono_ms;
    if (!j->recovery.lost || !j->recovery.stepped || j->epoch_state != EPOCH_RUNNING ||
        (!j->origin_known && now < j->recovery.stepped + ORIGIN_MS))
        return;
    emit_recovery_finished(c, j);
    memset(&j->recovery, 0, sizeof(j->recovery));
}
