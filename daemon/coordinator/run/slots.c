/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/coordinator/run/slots.h"

#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "daemon/coordinator/records/job_size.h"
#include "daemon/coordinator/records/job_table.h"
#include "daemon/coordinator/records/node_slots.h"
#include "daemon/coordinator/records/phase.h"

bool slots_usable(const struct noderec *n, const char *device)
{
    return node_accepts(n) && strcmp(n->device, device) == 0;
}

uint32_t slots_free(const struct core *c, const char *device, uint32_t *ret_all)
{
    uint32_t spare = 0, all = 0;
    for (const struct noderec *n = c->nodes; n; n = n->next) {
        if (!slots_usable(n, device))
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

/* Slots of this device that running jobs of this priority or a higher one wait for. */
uint32_t slots_claimed(const struct core *c, const char *device, int32_t priority)
{
    titan_assert(device[0]);
    uint32_t sum = 0;
    for (const struct jobrec *j = c->active; j; j = j->next)
        if (slots_held(j) && j->spec.priority >= priority && strcmp(j->device, device) == 0 &&
            size_kept(j) < j->size.claim)
            sum += j->size.claim - size_kept(j);
    return sum;
}

/* The device on which the job can have at least its minimum now. */
bool slots_choose_device(const struct core *c, struct jobrec *j, bool respect_claims)
{
    for (size_t i = 0; i < CORE_DEVICES; i++) {
        if (!job_fits_device(j, core_devices[i]))
            continue;
        uint32_t spare = slots_free(c, core_devices[i], NULL);
        uint32_t taken = respect_claims ? slots_claimed(c, core_devices[i], j->spec.priority) : 0;
        if (size_world(j, spare > taken ? spare - taken : 0) > 0) {
            titan_assert(j->n_workers == 0 || strcmp(j->device, core_devices[i]) == 0); /* a run is on one kind */
            (void)snprintf(j->device, sizeof(j->device), "%s", core_devices[i]);
            return true;
        }
    }
    return false;
}

/* A job that is to be queued again may have its newest steps in memory only: it gets its slots all the same, so that
 * it can form an epoch, write a checkpoint and free them, which is sooner than when it starves. */
uint32_t slots_held_back(const struct core *c, const struct jobrec *j)
{
    if (j->requeue)
        return 0;
    const struct jobrec *head = c->holding ? core_find_job(c, c->blocker) : NULL;
    bool before = head && head->state == JOB_PENDING && head->spec.priority > j->spec.priority;
    return before && job_fits_device(head, j->device) ? size_least(head) : 0;
}
