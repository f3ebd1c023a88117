/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/coordinator/run/slots.h"

#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "daemon/coordinator/records/job_queue.h"
#include "daemon/coordinator/records/job_size.h"
#include "daemon/coordinator/records/node_slots.h"
#include "daemon/coordinator/records/phase.h"
#include "daemon/coordinator/records/refusals.h"

bool slots_usable(const struct noderec *n, const char *device, const struct jobrec *j)
{
    return node_accepts(n) && strcmp(n->device, device) == 0 && !(j && refusal_holds(j, n));
}

uint32_t slots_free(const struct core *c, const char *device, const struct jobrec *j, uint32_t *ret_all)
{
    uint32_t spare = 0, all = 0;
    for (const struct noderec *n = c->nodes; n; n = n->next) {
        if (!slots_usable(n, device, j))
            continue;
        all += node_slots(c, n);
        spare += node_spare(c, n);
    }
    if (ret_all)
        *ret_all = all;
    return spare;
}

bool slots_held(const struct jobrec *j)
{
    return !phase_ends(j) && !j->requeue;
}

uint32_t slots_claimed(const struct core *c, const char *device, const struct jobrec *j)
{
    titan_assert(device[0]);
    uint32_t sum = 0;
    for (const struct jobrec *a = c->active; a; a = a->next) {
        if (!slots_held(a) || job_yields(a, j) || strcmp(a->device, device) != 0 || size_kept(a) >= a->size.claim)
            continue;
        const uint32_t claim = MIN(a->size.claim, queue_allows(c, a, NULL));
        sum += claim - MIN(claim, size_kept(a));
    }
    return sum;
}

void slots_set_device(struct jobrec *j, const char *device)
{
    titan_assert(j->n_workers == 0 || strcmp(j->device, device) == 0); /* a run stays on one device kind */
    (void)snprintf(j->device, sizeof(j->device), "%s", device);
}

bool slots_choose_device(const struct core *c, struct jobrec *j)
{
    for (size_t i = 0; i < CORE_DEVICES; i++) {
        if (!job_fits_device(j, core_devices[i]) || size_world(j, slots_free(c, core_devices[i], j, NULL)) == 0)
            continue;
        slots_set_device(j, core_devices[i]);
        return true;
    }
    return false;
}

/* A job that is to be queued again may have its newest steps only in memory. So it still gets its slots: it can form an
 * epoch, write a checkpoint and free the slots. This frees them sooner than starving would. */
uint32_t slots_held_back(const struct core *c, const struct jobrec *j)
{
    const struct queue_head *head = queue_head_of(c, j->device);
    return !j->requeue && head->held && job_yields(j, head->job) ? size_least(head->job) : 0;
}
