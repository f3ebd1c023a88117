/* SPDX-License-Identifier: Apache-2.0 */
/* fold.c - means over replicas, in pieces. */
#include "worker/elastic/fold.h"

#include <stdlib.h>

#include "base/cleanup.h"
#include "base/progress.h"

#define GATHERED ((int64_t)1 << 18) /* elements that are gathered at a time */

titan_status fold_replicas(const struct train_state *state, const struct peer_ranks *replicas, float *ret,
                           struct titan_error *err)
{
    const struct layout *const l = state->layout;
    const int n = replicas->n;
    int64_t most = 1;

    for (int u = 0; u < l->model->n_units; u++)
        most = MAX(most, MIN(l->units[u].shard, GATHERED));
    _cleanup_free_ float *all = malloc((size_t)(n * most) * sizeof *all);
    _cleanup_free_ float *own = malloc((size_t)most * sizeof *own);
    titan_assert(l->kinds.each && state->types.moment == DTYPE_F32);
    if (!all || !own)
        return titan_fail(err, TITAN_ENOMEM, "state: out of memory");
    for (int u = 0; u < l->model->n_units; u++) {
        const struct unit_layout *const unit = &l->units[u];
        if (unit->pp_rank != mesh_group_rank(&l->mesh, GROUP_PP, state->rank))
            continue;
        const char *const from =
            (const char *)state_unit(state, u) + state_types_bytes(state->types, unit->shard, layout_each_begin(l, u));
        for (int64_t at = 0; at < unit->shard; at += GATHERED) {
            const int64_t count = MIN(GATHERED, unit->shard - at);
            const size_t bytes = (size_t)count * sizeof *own;
            progress_action();
            TRY(state->device->ops->copy(replicas->s, own, from + (size_t)at * sizeof *own, bytes));
            TRY(state->device->ops->stream_sync(replicas->s, err));
            TRY(peer_values_gather(replicas, own, bytes, all, err));
            for (int64_t i = 0; i < count && ret; i++) {
                float sum = all[i];
                for (int r = 1; r < n; r++)
                    sum += all[r * count + i];
                ret[unit->offset + at + i] = n > 1 ? sum * (1.0f / (float)n) : sum;
            }
        }
    }
    return TITAN_OK;
}
