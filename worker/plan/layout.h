/* layout.h - where every parameter lies: which elements each rank holds.
 *
 * A unit's flat buffer (model/model.h) is padded to a multiple of world * block and cut into equal ranges, one a rank.
 * A rank's state (masters, moments) is the concatenation of its ranges, unit by unit. Because a cut never splits a
 * block, sums over blocks are the same for every world size. */
#ifndef TITAN_WORKER_PLAN_LAYOUT_H
#define TITAN_WORKER_PLAN_LAYOUT_H

#include "worker/checkpoint/checkpoint.h"
#include "worker/model/model.h"

struct layout {
    const struct model *model; /* borrowed */
    int world;
    int64_t block;   /* elements; depends on the model only */
    int64_t *shard;  /* per unit: elements one rank holds, a multiple of block */
    int64_t *offset; /* per unit: where its range begins in a rank's state */
    int64_t total;   /* elements of a rank's state */
};

titan_status layout_open(const struct model *model, int world, struct layout **ret,
                         struct titan_error *err) TITAN_MUST_USE;
void layout_close(struct layout *layout); /* NULL is fine */

/* Elements of a unit's flat buffer with its padding. */
int64_t layout_padded(const struct layout *layout, int unit);
/* Blocks of one rank's state, and blocks of a unit that hold parameters (the same for every world size). */
int64_t layout_blocks(const struct layout *layout);
int64_t layout_unit_blocks(const struct layout *layout, int unit);
/* Index, among all ranks' blocks one rank after the other, of block b of a unit. */
int64_t layout_block_index(const struct layout *layout, int unit, int64_t b);

/* The global tensors of the training state: every parameter, then optim.m.NAME, then optim.v.NAME. Owned (free). */
titan_status layout_specs(const struct model *model, struct tensor_spec **ret, int *ret_n,
                          struct titan_error *err) TITAN_MUST_USE;
/* The pieces of them that a rank holds, pointing into its state arrays (layout->total each). Owned (free). */
titan_status layout_pieces(const struct layout *layout, int rank, float *master, float *m, float *v, struct piece **ret,
                           int *ret_n, struct titan_error *err) TITAN_MUST_USE;

#endif
