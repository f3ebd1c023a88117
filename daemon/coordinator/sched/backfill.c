/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/coordinator/sched/backfill.h"

#include <string.h>

#include "base/cleanup.h"
#include "base/mutant.h"
#include "daemon/coordinator/outbox/transitions.h"
#include "daemon/coordinator/records/job_queue.h"
#include "daemon/coordinator/records/job_table.h"

void backfill_begin(const struct core *c, struct jobrec *j)
{
    titan_assert(!j->lane && j->n_workers == 0);
    const struct jobrec *first = queue_head_of(c, j->device)->job;
    j->status.passed = first && !MUTANT(BACKFILL_KEPT) ? first->id : 0;
}

void backfills_fall_due(struct core *c, const struct jobrec *next, const char *device)
{
    for (struct jobrec *j = c->active; j; j = j->next) {
        if (!j->status.passed || j->status.passed == next->id || strcmp(j->device, device) != 0 ||
            !queue_before(next, j))
            continue;
        j->status.passed = next->id;
        store_status(c, j);
    }
}

void backfills_end(struct core *c)
{
    for (struct jobrec *j = c->active; j; j = j->next) {
        const struct jobrec *first = j->status.passed ? core_find_job(c, j->status.passed) : NULL;
        if (!j->status.passed || (first && first->state == JOB_PENDING))
            continue;
        j->status.passed = 0;
        store_status(c, j);
    }
}
