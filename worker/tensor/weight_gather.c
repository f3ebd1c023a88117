/* SPDX-License-Identifier: Apache-2.0 */
/* weight_gather.c - see weight_gather.h. */
#include "worker/tensor/weight_gather.h"

#include "base/cleanup.h"

/* Bits of a unit's tensors with codes. They depend on the model and on the cut of tensors alone. */
static uint64_t tensors_with_codes(const struct layout *l, int unit)
{
    const struct model_unit *const u = &l->model->units[unit];
    const bool copies = layout_unit_parts(l, unit) > 1;
    uint64_t bits = 0;

    for (int i = 0; i < u->n_tensors && u->n_tensors <= 64; i++) {
        const struct model_tensor *const t = &l->model->tensors[u->first_tensor + i];
        const bool whole = t->split == SPLIT_NONE && copies;
        if (t->ndim == 2 && t->role != ROLE_GATE && !model_is_expert_bias(t) && t->numel >= WEIGHT_BUCKET && !whole)
            bits |= UINT64_C(1) << i;
    }
    return bits;
}

/* The largest power of two, up to WEIGHT_BUCKET, that divides the block that ranges and experts' matrices consist of.
 */
static int64_t bucket_of(const struct layout *l, int unit)
{
    const int64_t block = l->units[unit].block;

    return l->canonical ? MIN(block & -block, WEIGHT_BUCKET) : WEIGHT_BUCKET;
}

void weight_gather_init(const struct layout *layout, int unit, enum weight_codec codec, size_t elem,
                        struct weight_gather *ret)
{
    const struct unit_layout *const u = &layout->units[unit];
    struct weight_gather g = {.codec = codec, .bucket = bucket_of(layout, unit)};
    const int members = mesh_group_size(&layout->mesh, u->group);

    *ret = (struct weight_gather){0};
    if (codec == WEIGHTS_WHOLE || g.bucket < WEIGHT_BUCKET_MIN || (members == 1 && !layout->canonical))
        return;
    coded_split(layout, unit, tensors_with_codes(layout, unit), elem, &g.coded);
    if (g.coded.n == 0 || g.coded.n_runs >= WEIGHT_GATHER_RUNS)
        return;
    g.codes_bytes = weight_codes_bytes(codec, u->shard, g.bucket);
    g.filled = (u->numel + MODEL_ALIGN - 1) / MODEL_ALIGN * MODEL_ALIGN;
    g.others = MAX(g.coded.others, MODEL_ALIGN);
    const size_t sent = (size_t)g.codes_bytes + (size_t)g.others * elem;
    if (!layout->canonical && sent >= (size_t)u->shard * elem)
        return;
    g.own_codes = members > 1 ? (size_t)members * sent : 0;
    g.own_others = g.own_codes + (size_t)g.codes_bytes;
    g.bytes = g.own_codes + sent;
    *ret = g;
}

int weight_gather_gaps(const struct weight_gather *gather, int member, struct weight_gap ret[WEIGHT_GATHER_RUNS])
{
    const struct coded *const c = &gather->coded;
    const int64_t begin = member * c->shard;
    struct coded_part parts[CODED_MAX + 1];
    int n;

    titan_assert(gather->codec != WEIGHTS_WHOLE);
    coded_parts(c, member, parts, &n);
    titan_assert(n < WEIGHT_GATHER_RUNS);
    for (int i = 0; i < n; i++)
        ret[i] = (struct weight_gap){parts[i].from - begin, parts[i].from - begin + parts[i].count};
    /* Behind the unit's end a range is filled up. */
    if (gather->filled < begin + c->shard)
        ret[n++] = (struct weight_gap){MAX(gather->filled - begin, 0), c->shard};
    return n;
}
