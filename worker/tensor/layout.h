/* SPDX-License-Identifier: Apache-2.0 */
/* layout.h - where every parameter lies: which elements each rank of the mesh holds.
 *
 * Three cuts, one inside the other. pp: a unit belongs to the stage its layer is in (a stage to a pp rank). tp (for
 * expert units: ep, and inside each expert tp where the mesh says so): a tensor is cut in equal parts by rows or by
 * columns (model_tensor.split), or whole on each rank; all of a unit's local parts lie in one flat buffer, cut tensors
 * first, whole ones from `whole` on. fsdp (expert units: expert_shard): the flat buffer, padded, is cut into equal
 * ranges, one a rank; dp_replicate ranks hold the same.
 *
 * A rank's state is, unit by unit of its stages, the masters of its range, then their m, then their v: they begin at
 * element 3 * offset and are `shard` elements each. Seen from the global tensor a range is a set of boxes (struct
 * shard_slice), and one intersection routine (shard_slice_overlap) serves checkpoints, live resharding and export.
 *
 * canonical: ranges are multiples of the unit's block, which depends on the model only, so that sums over blocks are
 * the same for every data-parallel degree. Every matrix of an expert begins with a block and ends with one, so sums
 * over experts are the same for every expert-parallel degree. */
#ifndef TITAN_WORKER_TENSOR_LAYOUT_H
#define TITAN_WORKER_TENSOR_LAYOUT_H

#include "base/error.h"
#include "worker/tensor/mesh.h"
#include "worker/tensor/model.h"
#include "worker/tensor/shard_slice.h"

/* A tensor's part on one tp (ep) rank. */
struct local_tensor {
    int64_t offset;     /* first element in the unit's flat buffer, the same on all ranks */
    int64_t rows, cols; /* vectors: 1 row */
};

struct unit_layout {
    int stage, pp_rank;
    int64_t numel;    /* of the local flat buffer, up to the end of the last tensor */
    int64_t whole;    /* first element of the tensors that are not cut; a multiple of block */
    int64_t shard;    /* elements one rank of the group holds */
    int64_t padded;   /* shard * group size */
    int64_t offset;   /* elements of the ranges before this one on the same rank */
    int64_t block;    /* the layout's, or a smaller one that divides an expert's matrices */
    enum group group; /* GROUP_FSDP or GROUP_EXPERT_SHARD */
    enum channel gather, reduce;
};

struct layout {
    const struct model *model; /* borrowed */
    struct mesh mesh;
    int stages;
    bool v_order; /* stage s on rank s mod pp, or in a V (base/schedule.h) */
    bool canonical;
    int64_t block;   /* elements */
    int *first_unit; /* [stages + 1]: a stage's units are first_unit[s]..first_unit[s+1] */
    struct unit_layout *units;
    struct local_tensor *tensors; /* of every model tensor */
    int64_t *total;               /* per pp rank: elements of a rank's state */
};

struct layout_options {
    const struct model *model;
    struct mesh mesh;
    int stages; /* 0: one per pp rank */
    bool v_order;
    const int *first_layer; /* [stages + 1], recipe_split_layers; NULL: one stage has all */
    bool canonical;
};

titan_status layout_open(const struct layout_options *options, struct layout **ret,
                         struct titan_error *err) TITAN_MUST_USE;
/* From the recipe: its stages, schedule order and split. */
titan_status layout_of_recipe(const struct recipe *recipe, const struct model *model, const struct mesh *mesh,
                              struct layout **ret, struct titan_error *err) TITAN_MUST_USE;
void layout_close(struct layout *layout); /* NULL is fine */

int layout_stage_rank(const struct layout *layout, int stage); /* pp rank */
/* Is the head's matrix the embedding's, and the head on another pp rank than the embedding, which trains it? */
bool layout_tied_across_ranks(const struct layout *layout);
/* Is it, and this the head's pp rank? It computes with a copy of the matrix. */
bool layout_copies_table(const struct layout *layout, int pp_rank);
/* Elements of this rank's state. */
int64_t layout_total(const struct layout *layout, int rank);
/* How many different local flat buffers a unit has: tp, for expert units ep, or ep * tp; and which one a rank has a
 * range of. */
int layout_unit_parts(const struct layout *layout, int unit);
int layout_unit_part(const struct layout *layout, int unit, int rank);
/* First element of a rank's range of a unit, in the flat buffer. */
int64_t layout_begin(const struct layout *layout, int unit, int rank);
/* Elements of a rank's range of a unit that it counts in sums over the model: ranges of whole tensors are counted by tp
 * (ep) rank 0 only, everything by dp_replicate rank 0 only, and nothing by other pp ranks than the unit's. The counted
 * part is the beginning of the range; canonical: whole blocks of it. */
int64_t layout_counted(const struct layout *layout, int unit, int rank);
/* Blocks of a unit's flat buffer on one tp (ep) rank (canonical), the same for every data-parallel degree. */
int64_t layout_unit_blocks(const struct layout *layout, int unit);
/* Elements of one expert's matrix; of other tensors: all of them. */
int64_t layout_expert_numel(const struct layout *layout, int tensor);
/* Rows of a tensor's part on a rank that lie together in the tensor: all of them, or those of an expert that is cut. */
int64_t layout_stretch(const struct layout *layout, int tensor);
/* Where such rows begin in the tensor that begin at row `from` of the part, and the part's first column. */
void layout_origin(const struct layout *layout, int tensor, int rank, int64_t from, int64_t *ret_row, int64_t *ret_col);

/* The global tensors of the training state: every parameter, then optim.m.NAME, then optim.v.NAME, then what else a
 * model keeps (expert biases). Owned (free). */
titan_status layout_specs(const struct model *model, struct tensor_spec **ret, int *ret_n,
                          struct titan_error *err) TITAN_MUST_USE;
/* Expert biases (models with a balance_rate or expert_bias): every rank has room for those of all layers, and keeps
 * those of its own stages, whole: n_experts numbers a layer. */
int64_t layout_biases(const struct model *model);                 /* elements, 0: none */
int64_t layout_all_experts(const struct model *model);            /* experts of all layers, with biases or without */
int64_t layout_bias_offset(const struct model *model, int layer); /* where a layer's begin, of either */

/* What several ranks can hold alike: the cut tensors of a unit's range (dp_replicate ranks), the whole ones (also tp or
 * ep ranks), biases (all of a stage). */
enum share { SHARE_CUT, SHARE_WHOLE, SHARE_BIAS };

/* The slices of the specs that a rank holds, ordered by spec, then by place. state: 3 * layout_total elements, biases:
 * layout_biases; both NULL: slices without data. at: the element of the state, biases behind its last one. takes: which
 * of them are wanted, NULL: all. Owned (free). */
titan_status layout_slices(const struct layout *layout, int rank, float *state, float *biases,
                           bool (*takes)(void *arg, int unit, enum share share), void *arg, struct shard_slice **ret,
                           int *ret_n, struct titan_error *err) TITAN_MUST_USE;
/* Only those the rank answers for, so that every element of every spec is one rank's: what it writes in a checkpoint.
 */
titan_status layout_owned_slices(const struct layout *layout, int rank, float *state, float *biases,
                                 struct shard_slice **ret, int *ret_n, struct titan_error *err) TITAN_MUST_USE;

#endif
