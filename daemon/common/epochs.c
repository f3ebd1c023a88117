/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/common/epochs.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"

static int by_number(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static bool distinct(uint64_t *ids, size_t n) /* Are all ids distinct? Sorts them. */
{
    qsort(ids, n, sizeof(*ids), by_number);
    for (size_t i = 1; i < n; i++)
        if (ids[i] == ids[i - 1])
            return false;
    return true;
}

bool epoch_workers_distinct(const Titan__Internal__FormEpoch *f)
{
    const size_t n = f->n_members + f->n_departing;
    _cleanup_free_ uint64_t *ids = calloc(n + 1, sizeof(*ids));
    titan_assert(ids);
    for (size_t i = 0; i < n; i++)
        ids[i] = i < f->n_members ? f->members[i]->worker_id : f->departing[i - f->n_members]->worker_id;
    return distinct(ids, n);
}

bool epoch_holders_distinct(const Titan__Internal__FormEpoch *f)
{
    _cleanup_free_ uint64_t *ids = calloc(f->n_state_holders + 1, sizeof(*ids));
    titan_assert(ids);
    if (f->n_state_holders)
        memcpy(ids, f->state_holders, f->n_state_holders * sizeof(*ids));
    return distinct(ids, f->n_state_holders);
}
