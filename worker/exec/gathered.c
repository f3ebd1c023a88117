/* SPDX-License-Identifier: Apache-2.0 */
/* gathered.c - weights that travel in few bits: what a rank sends of its range, and a unit's parameters from what all
 * ranks of its group sent (tensor/weight_gather.h). */
#include <assert.h>

#include "worker/exec/executor.h"
#include "worker/tensor/weight_gather.h"

static_assert(WEIGHT_GATHER_RUNS <= WEIGHT_RUNS, "a device takes all gaps of a range");

/* What a device is told of this rank's range of n values: its buckets, and which values have no codes. */
static void describe_range(const struct call *c, enum weight_codec codec, int64_t n, const char *shard,
                           struct weight_gather *ret, struct weight_encode_args *ret_args)
{
    const struct layout *const l = c->e->p->layout;
    const enum dtype dt = (enum dtype)c->p->dt;
    struct weight_gap gaps[WEIGHT_GATHER_RUNS];

    weight_gather_init(l, c->a->unit, codec, dtype_bytes(dt), ret);
    titan_assert(ret->codec == codec && ret->coded.shard == n);
    *ret_args = (struct weight_encode_args){.x = shard, .dt = dt, .codec = codec, .n = n, .bucket = ret->bucket};
    ret_args->runs = weight_gather_gaps(ret, (int)(layout_begin(l, c->a->unit, c->e->opt.rank) / n), gaps);
    for (int i = 0; i < ret_args->runs; i++)
        ret_args->run[i] = (struct weight_run){gaps[i].from, gaps[i].to};
}

static float shift_of(const struct call *c)
{
    return weight_shift(c->e->opt.seed, c->e->batch->step, c->a->unit);
}

titan_status exec_encode_weights(const struct call *c, uint8_t *codes, char *others, const char *shard,
                                 const float *levels)
{
    const struct op_weight_encode *const even = &c->p->weight_encode;
    const struct op_weight_encode_by *const by = &c->p->weight_encode_by;
    const int64_t size = levels ? by->n : even->n, rest = levels ? by->rest : even->rest;
    const int64_t elem = (int64_t)dtype_bytes((enum dtype)c->p->dt);
    const int64_t begin = layout_begin(c->e->p->layout, c->a->unit, c->e->opt.rank);
    struct coded_part parts[CODED_MAX + 1];
    struct weight_gather g;
    struct weight_encode_args a;
    int64_t done = 0;
    int n;

    describe_range(c, (enum weight_codec)(levels ? by->codec : even->codec), size, shard, &g, &a);
    titan_assert(g.codes_bytes == (levels ? by->bytes : even->bytes) && g.others == rest);
    a.codes = codes;
    a.table = levels;
    a.shift = levels ? 0 : shift_of(c);
    TRY(c->ops->weight_encode(c->s, &a));

    coded_parts(&g.coded, (int)(begin / size), parts, &n);
    for (int i = 0; i < n; i++) {
        TRY(c->ops->copy(c->s, others + parts[i].at * elem, shard + (parts[i].from - begin) * elem,
                         (size_t)(parts[i].count * elem)));
        done = parts[i].at + parts[i].count;
    }
    return c->ops->zero(c->s, others + done * elem, (size_t)((rest - done) * elem));
}

titan_status exec_decode_weights(const struct call *c, char *full, const uint8_t *codes, const char *others,
                                 const float *levels)
{
    const struct op_weight_decode *const even = &c->p->weight_decode;
    const struct op_weight_decode_by *const by = &c->p->weight_decode_by;
    const enum weight_codec codec = (enum weight_codec)(levels ? by->codec : even->codec);
    const enum dtype dt = (enum dtype)c->p->dt;
    const int64_t elem = (int64_t)dtype_bytes(dt);
    struct coded_part parts[CODED_MAX + 1];
    struct weight_gather g;
    int n;

    weight_gather_init(c->e->p->layout, c->a->unit, codec, (size_t)elem, &g);
    const int64_t members = g.coded.members;
    titan_assert(g.codec == codec && g.coded.padded == (levels ? by->n : even->n) &&
                 members * g.codes_bytes == (levels ? by->bytes : even->bytes) &&
                 members * g.others == (levels ? by->rest : even->rest));
    TRY(c->ops->weight_decode(c->s, ARGS(weight_decode, .out = full, .codes = codes, .dt = dt, .codec = g.codec,
                                         .table = levels, .pieces = members, .n = g.coded.shard, .bucket = g.bucket)));
    for (int m = 0; m < (int)members; m++) {
        coded_parts(&g.coded, m, parts, &n);
        for (int i = 0; i < n; i++)
            TRY(c->ops->copy(c->s, full + parts[i].from * elem, others + (m * g.others + parts[i].at) * elem,
                             (size_t)(parts[i].count * elem)));
    }
    return TITAN_OK;
}

titan_status exec_count_weights(const struct call *c, int32_t *counts, const char *shard)
{
    const struct op_weight_count *const q = &c->p->weight_count;
    struct weight_gather g;
    struct weight_encode_args a;

    titan_assert(q->bins == WEIGHT_BINS);
    describe_range(c, (enum weight_codec)q->codec, q->n, shard, &g, &a);
    TRY(c->ops->zero(c->s, counts, WEIGHT_BINS * sizeof *counts));
    return c->ops->weight_count(c->s, counts, &a);
}

titan_status exec_learn_levels(const struct call *c, float *levels, const int32_t *counts)
{
    const struct op_weight_learn *const q = &c->p->weight_learn;

    titan_assert(q->bins == WEIGHT_BINS && q->entries == 2 << weight_bits((enum weight_codec)q->codec));
    return c->ops->weight_learn(c->s, ARGS(weight_learn, .table = levels, .counts = counts, .ranks = q->ranks,
                                           .ld = q->ld, .codec = (enum weight_codec)q->codec, .shift = shift_of(c)));
}
