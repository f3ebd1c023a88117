/* SPDX-License-Identifier: Apache-2.0 */
/* holdings.c - gathers what the members of an epoch hold in memory, and decides whether that is a complete state. */
#include "worker/elastic/holdings.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "worker/elastic/peer_values.h"

void held_shards_close(struct held_shards *shards)
{
    state_close(shards->own);
    state_close(shards->copy);
    *shards = (struct held_shards){0};
}

/* Does any rank give shard `a`, or a replica of it? own: count only ranks that have it as their own shard, not as a
 * buddy's copy. */
static bool is_given(const struct holdings *h, int a, bool own)
{
    const struct mesh *mesh = &h->from->mesh;
    bool found = false;

    mesh_group_members(mesh, GROUP_REPLICATE, a, h->candidates);
    for (int i = 0; i < mesh_group_size(mesh, GROUP_REPLICATE); i++) {
        const int replica = h->candidates[i];
        found = found || (h->holder[replica] >= 0 && !(own && h->copied[replica]));
    }
    return found;
}

static struct skipped_steps skipped_of(const struct holding *x)
{
    return (struct skipped_steps){.total = (uint64_t)x->skipped,
                                  .in_a_row = (uint64_t)x->skipped_in_a_row,
                                  .first = (uint64_t)x->skipped_first,
                                  .last = (uint64_t)x->skipped_last};
}

/* Decides whether the holdings are a complete state. If they are, finds the state's step, and the rank that gives each
 * shard. */
static titan_status judge(struct holdings *h, struct titan_error *err)
{
    const int holders = h->view->holders;
    const struct holding *furthest = NULL;

    titan_assert(h->from->mesh.world == holders);
    /* A rank counts as the holder of a shard only if its own numbers fit the shard. */
    for (int a = 0; a < holders; a++) {
        const int rank = h->view->holder_ranks[a];
        const struct holding *x = rank >= 0 && rank < h->ranks ? &h->all[rank] : NULL;
        const bool its =
            x && x->present != 0 && x->rank == a && x->world == holders && x->total == (double)layout_total(h->from, a);
        h->holder[a] = its ? rank : -1;
        if (its && (!furthest || x->step > furthest->step))
            furthest = x;
    }
    if (!furthest)
        return titan_fail(err, TITAN_ECONFLICT, "state in memory: no rank holds any shard");
    titan_assert(furthest->present != 0);

    /* Finds a rank with the furthest step's statistics, and the number of ranks one step behind. */
    h->statistics_from = -1;
    h->step = (uint64_t)furthest->step;
    h->tokens = (uint64_t)furthest->tokens;
    h->skipped = skipped_of(furthest);
    for (int a = 0; a < holders; a++) {
        const struct holding *x = h->holder[a] >= 0 ? &h->all[h->holder[a]] : NULL;
        if (!x)
            continue;
        const bool there = x->step == furthest->step;
        const struct skipped_steps skipped = skipped_of(x);
        if (there ? x->tokens != furthest->tokens || memcmp(&skipped, &h->skipped, sizeof skipped) != 0
                  : x->step + 1 != furthest->step || x->prepared == 0)
            return titan_fail(err, TITAN_ECONFLICT, "state in memory: rank %d has step %.0f, others step %.0f", a,
                              x->step, furthest->step);
        h->behind += !there;
        h->published = h->published || (there && x->published != 0);
        if (there && x->statistics_size > 0 && h->statistics_from < 0) {
            h->statistics_from = h->holder[a];
            h->statistics_size = (int64_t)x->statistics_size;
        }
    }
    if (h->behind > 0 && h->statistics_from < 0)
        return titan_fail(err, TITAN_ECONFLICT, "state in memory: no rank has the statistics of step %lu any more",
                          (unsigned long)h->step);
    titan_assert(h->statistics_from < h->ranks && h->behind < holders);
    h->settled = h->behind == 0;
    for (int a = 0; a < holders; a++)
        h->settled = h->settled && h->holder[a] >= 0 && h->all[h->holder[a]].settled != 0;

    h->recovery_source = RECOVERY_SOURCE_MEMORY;
    for (int a = 0; a < holders; a++)
        if (h->holder[a] < 0)
            h->recovery_source =
                MAX(h->recovery_source, is_given(h, a, true) ? RECOVERY_SOURCE_REPLICA : RECOVERY_SOURCE_BUDDY);
    for (int a = 0; a < holders && h->recovery_source == RECOVERY_SOURCE_BUDDY; a++) {
        if (is_given(h, a, true))
            continue;
        /* If a shard and all its replicas are lost, the copy that its buddy has is used. */
        for (int buddy = 0; buddy < holders && h->holder[a] < 0; buddy++) {
            const int rank = h->holder[buddy];
            if (rank < 0 || h->copied[buddy] || h->all[rank].owner != a ||
                h->all[rank].owner_total != (double)layout_total(h->from, a))
                continue;
            h->holder[a] = rank;
            h->copied[a] = true;
        }
    }
    for (int a = 0; a < holders; a++) {
        titan_assert(h->holder[a] < h->ranks && (!h->copied[a] || h->holder[a] >= 0));
        if (!is_given(h, a, false))
            return titan_fail(err, TITAN_ECONFLICT, "state in memory: no rank holds the part of rank %d of %d", a,
                              holders);
    }
    return TITAN_OK;
}

titan_status holdings_gather(const struct epoch_view *view, const struct layout *from, const struct brought *mine,
                             const struct peer_ranks *ranks, struct holdings *ret, struct titan_error *err)
{
    const struct train_state *own = mine->shards.own, *copy = mine->shards.copy;
    const size_t shards = (size_t)view->holders + 1;
    struct holding me = {.owner = -1};
    struct holdings h = {.view = view,
                         .from = from,
                         .ranks = ranks->n,
                         .all = calloc((size_t)ranks->n, sizeof *h.all),
                         .holder = calloc(shards, sizeof *h.holder),
                         .copied = calloc(shards, sizeof *h.copied),
                         .candidates = calloc(shards, sizeof *h.candidates)};

    titan_assert(ranks->n == view->world + view->departing);
    titan_assert(mine->statistics_size >= 0 && (mine->statistics_size == 0 || mine->statistics));
    if (own)
        me = (struct holding){.present = 1,
                              .rank = own->rank,
                              .world = own->layout->mesh.world,
                              .total = (double)own->total,
                              .step = (double)own->step,
                              .tokens = (double)own->tokens,
                              .skipped = (double)own->skipped.total,
                              .skipped_in_a_row = (double)own->skipped.in_a_row,
                              .skipped_first = (double)own->skipped.first,
                              .skipped_last = (double)own->skipped.last,
                              .owner = copy ? copy->rank : -1,
                              .owner_total = copy ? (double)copy->total : 0,
                              .prepared = mine->prepared,
                              .statistics_size = (double)mine->statistics_size,
                              .published = mine->published,
                              .settled = own->settled};
    titan_status status = TITAN_OK;
    if (!h.all || !h.holder || !h.copied || !h.candidates)
        status = titan_fail(err, TITAN_ENOMEM, "state: out of memory");
    if (status == TITAN_OK)
        status = peer_values_gather(ranks, &me, sizeof me, h.all, err);
    for (int r = 0; r < h.ranks && status == TITAN_OK; r++) {
        const struct holding *x = &h.all[r];
        /* A rank with shards of another world does not count in the verdict. So its number of statistics may be
         * larger. */
        const double statistics = x->world == view->holders ? (double)mine->statistics_most : PEER_VALUE_EXACT;
        const struct peer_value reported[] = {{"present", x->present, 0, 1},
                                              {"rank", x->rank, 0, COMM_WORLD_MAX},
                                              {"world", x->world, 0, COMM_WORLD_MAX},
                                              {"total", x->total, 0, PEER_VALUE_EXACT},
                                              {"step", x->step, 0, PEER_VALUE_EXACT},
                                              {"tokens", x->tokens, 0, PEER_VALUE_EXACT},
                                              {"skipped", x->skipped, 0, x->step},
                                              {"skipped_in_a_row", x->skipped_in_a_row, 0, x->skipped},
                                              {"skipped_last", x->skipped_last, 0, x->step},
                                              {"skipped_first", x->skipped_first, 0, x->skipped_last},
                                              {"owner", x->owner, -1, COMM_WORLD_MAX},
                                              {"owner_total", x->owner_total, 0, PEER_VALUE_EXACT},
                                              {"prepared", x->prepared, 0, 1},
                                              {"statistics_size", x->statistics_size, 0, statistics},
                                              {"published", x->published, 0, 1},
                                              {"settled", x->settled, 0, 1}};
        status = peer_values_check("state in memory", r, reported, ARRAY_SIZE(reported), err);
    }
    if (status == TITAN_OK)
        status = judge(&h, err);
    if (status != TITAN_OK) {
        holdings_clear(&h);
        return status;
    }
    *ret = h;
    return TITAN_OK;
}

void holdings_clear(struct holdings *h)
{
    free(h->all);
    free(h->holder);
    free(h->copied);
    free(h->candidates);
    *h = (struct holdings){0};
}
