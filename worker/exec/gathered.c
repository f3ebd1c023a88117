/* SPDX-License-Identifier: Apache-2.0 */
/* gathered.c - weights that travel in few bits: what a rank sends of its range, and a unit's parameters from what all
 * ranks of its group sent (tensor/weight_gather.h). */
#include <assert.h>

#include "worker/exec/executor.h"
#include "worker/tensor/weight_gather.h"

static_assert(WEIGHT_GATHER_RUNS <= WEIGHT_RUNS, "a device takes all gaps of a range");

titan_status exec_encode_weights(const struct call *c, uint8_t *codes, char *others, const char *shard)
{
    const struct op_weight_encode *const q = &c->p->weight_encode;
    const struct layout *const l = c->e->p->layout;
    const int unit = c->a->unit;
    const enum dtype dt = (enum dtype)c->p->dt;
    const int64_t elem = (int64_t)dtype_bytes(dt), begin = layout_begin(l, unit, c->e->opt.rank);
    const int member = (int)(begin / q->n);
    struct weight_gap gaps[WEIGHT_GATHER_RUNS];
    struct coded_part parts[CODED_MAX + 1];
    struct weight_gather g;
    int64_t done = 0;
    int n;

    weight_gather_init(l, unit, (enum weight_codec)q->codec, (size_t)elem, &g);
    titan_assert(g.codec == (enum weight_codec)q->codec && g.coded.shard == q->n && g.codes_bytes == q->bytes &&
                 g.others == q->rest);
    struct weight_encode_args a = {.codes = codes,
                                   .x = shard,
                                   .dt = dt,
                                   .codec = g.codec,
                                   .n = q->n,
                                   .bucket = g.bucket,
                                   .shift = weight_shift(c->e->opt.seed, c->e->batch->step, unit),
                                   .runs = weight_gather_gaps(&g, member, gaps)};
    for (int i = 0; i < a.runs; i++)
        a.run[i] = (struct weight_run){gaps[i].from, gaps[i].to};
    TRY(c->ops->weight_encode(c->s, &a));

    coded_parts(&g.coded, member, parts, &n);
    for (int i = 0; i < n; i++) {
        TRY(c->ops->copy(c->s, others + parts[i].at * elem, shard + (parts[i].from - begin) * elem,
                         (size_t)(parts[i].count * elem)));
        done = parts[i].at + parts[i].count;
    }
    return c->ops->zero(c->s, others + done * elem, (size_t)((q->rest - done) * elem));
}

titan_status exec_decode_weights(const struct call *c, char *full, const uint8_t *codes, const char *others)
{
    const struct op_weight_decode *const q = &c->p->weight_decode;
    const enum dtype dt = (enum dtype)c->p->dt;
    const int64_t elem = (int64_t)dtype_bytes(dt);
    struct coded_part parts[CODED_MAX + 1];
    struct weight_gather g;
    int n;

    weight_gather_init(c->e->p->layout, c->a->unit, (enum weight_codec)q->codec, (size_t)elem, &g);
    const int64_t members = g.coded.members;
    titan_assert(g.codec == (enum weight_codec)q->codec && g.coded.padded == q->n &&
                 members * g.codes_bytes == q->bytes && members * g.others == q->rest);
    TRY(c->ops->weight_decode(c->s, ARGS(weight_decode, .out = full, .codes = codes, .dt = dt, .codec = g.codec,
                                         .pieces = members, .n = g.coded.shard, .bucket = g.bucket)));
    for (int m = 0; m < (int)members; m++) {
        coded_parts(&g.coded, m, parts, &n);
        for (int i = 0; i < n; i++)
            TRY(c->ops->copy(c->s, full + parts[i].from * elem, others + (m * g.others + parts[i].at) * elem,
                             (size_t)(parts[i].count * elem)));
    }
    return TITAN_OK;
}
