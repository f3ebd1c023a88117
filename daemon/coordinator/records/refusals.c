/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/coordinator/records/refusals.h"

#include <string.h>

#include "base/cleanup.h"
#include "base/vec.h"

static size_t find(const struct jobrec *j, const struct noderec *n)
{
    size_t i = 0;
    while (i < j->n_refusals && j->refusals[i] != n)
        i++;
    return i;
}

bool refusal_holds(const struct jobrec *j, const struct noderec *n)
{
    return find(j, n) < j->n_refusals;
}

bool refusal_add(struct core *c, struct jobrec *j, const struct noderec *n)
{
    if (refusal_holds(j, n))
        return false;
    VEC_MUST_PUSH(j->refusals, j->n_refusals, j->cap_refusals, n);
    c->refusals++;
    return true;
}

void refusals_lift(struct core *c, const struct noderec *n)
{
    for (size_t b = 0; b < CORE_BUCKETS && c->refusals > 0; b++)
        for (struct jobrec *j = c->buckets[b]; j; j = j->hash_next) {
            const size_t i = find(j, n);
            if (i == j->n_refusals)
                continue;
            j->refusals[i] = j->refusals[--j->n_refusals];
            c->refusals--;
        }
}

void refusals_forget(struct core *c, struct jobrec *j)
{
    titan_assert(c->refusals >= j->n_refusals);
    c->refusals -= j->n_refusals;
    j->n_refusals = 0;
}

uint32_t refusals_room(const struct core *c, const struct jobrec *j)
{
    uint32_t most = 0;
    for (size_t i = 0; i < CORE_DEVICES; i++) {
        uint32_t slots = 0;
        for (const struct noderec *n = c->nodes; n && job_fits_device(j, core_devices[i]); n = n->next)
            slots += !n->given_up && strcmp(n->device, core_devices[i]) == 0 && !refusal_holds(j, n) ? n->slots : 0;
        most = MAX(most, slots);
    }
    return most;
}
