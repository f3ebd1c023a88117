/* SPDX-License-Identifier: Apache-2.0 */
/* layout.h - where every parameter lies: which elements each rank of the mesh holds.
 *
 * There are three cuts, one inside the other:
 * - pp: a unit belongs to the stage of its layer, and a stage to a pp rank.
 * - tp (expert units: ep, and inside each expert tp if the mesh cuts experts; layers of a mesh that rotates: dp_shard):
 * a tensor is cut in equal parts by rows or by columns (model_tensor.split), or whole on each rank. All local parts of
 * a unit lie in one flat buffer, cut tensors first, whole tensors from `whole` on.
 * - fsdp (expert units, and layers of a mesh that rotates: expert_shard): the padded flat buffer is cut into equal
 * ranges, one per rank. dp_replicate ranks hold the same, but for the kind of state of which each replica has a value
 * of its own (state_kinds.each). Of that kind checkpoints and resizes keep the mean over the replicas.
 *
 * A rank's state consists of the units of its stages, and of what the rank keeps as an owner (owners.h). Each unit has
 * the masters of the rank's range, then the optimizer's kinds of state (base/optimizers.h) one after the other. A kind
 * of all the unit's tensors has an element
 * for each element of the range. A kind of some tensors has elements for these tensors' parts of the range, without the
 * others. Seen from the global tensor, a range is a set of boxes (struct shard_slice). One intersection routine
 * (shard_slice_overlap) serves checkpoints, live resharding and export.
 *
 * coded: the kinds of state are blocks of codes (base/moment_codes.h). Ranges, and tensors that are not glued, begin at
 * multiples of a block. A unit's kinds together take a multiple of CODED_UNIT elements, so that the next unit is
 * aligned. Blocks are the same on all meshes that cut tensors alike: for every number of pp, replicas and ranges, and
 * of ep if an expert's matrices are multiples of a block.
 *
 * bucketed: where tensor-parallel ranks, or those of a mesh that rotates, hold tensors whole, ranges (and their cuts)
 * are multiples of CODEC_BUCKET, as is `whole`. So no bucket of a gradient's codes has values of cut tensors and of
 * whole ones, and whole tensors have the same codes on all ranks that hold them.
 *
 * canonical: ranges are multiples of the unit's block, which depends on the model only. So sums over blocks are the
 * same for every data-parallel degree. Every matrix of an expert starts and ends at a block boundary, so sums over
 * experts are the same for every expert-parallel degree. */
#ifndef TITAN_WORKER_TENSOR_LAYOUT_H
#define TITAN_WORKER_TENSOR_LAYOUT_H

#include "base/error.h"
#include "base/moment_codes.h"
#include "base/optimizers.h"
#include "worker/tensor/mesh.h"
#include "worker/tensor/model.h"
#include "worker/tensor/owners.h"
#include "worker/tensor/shard_slice.h"

/* A tensor's local part on one tp (expert units: ep) rank. */
struct local_tensor {
    int64_t offset;     /* first element in the unit's flat buffer, the same on all ranks */
    int64_t rows, cols; /* a vector has 1 row */
    int64_t next;       /* offset of the unit's next tensor, or the unit's numel: gaps belong to the tensor before */
};

struct unit_layout {
    int stage, pp_rank;
    int64_t numel;             /* elements of the local flat buffer, up to the end of the last tensor */
    int64_t whole;             /* first element of the whole tensors; a multiple of block */
    int64_t shard;             /* elements one rank of the group holds */
    int64_t padded;            /* shard * group size */
    int64_t offset;            /* elements of this rank's ranges of earlier units */
    int64_t kept;              /* elements of the kinds of state of earlier units */
    int64_t span[STATE_KINDS]; /* elements of each kind of state of this unit, on every rank; 0: owners keep it */
    int64_t block;             /* the layout's block, or a smaller one that divides an expert's matrices */
    enum group cut;            /* ranks that tensors are cut over: GROUP_TP, GROUP_EP or GROUP_ROTATE */
    enum group group;          /* ranks that share a buffer out: GROUP_FSDP or GROUP_EXPERT_SHARD */
    enum channel sum;          /* where gradients of whole tensors are summed over `cut`; not of experts */
    enum channel gather, reduce;
};

/* A global tensor of the state: a parameter (kind 0), or kind kinds.name[kind - 1] of the parameter. */
struct state_spec {
    int kind, tensor;
};

struct layout {
    const struct model *model; /* borrowed */
    struct mesh mesh;
    int stages;
    bool v_order; /* stage s on rank s mod pp, or in a V (base/schedule.h) */
    bool canonical, coded, bucketed;
    int cuts; /* equal parts that each range can be cut into, at multiples of 16 bytes of fp32 */
    struct state_kinds kinds;
    struct owners *owners; /* NULL: no matrix has an owner */
    int64_t block;         /* elements */
    int *first_unit;       /* [stages + 1]: a stage's units are first_unit[s]..first_unit[s+1] */
    struct unit_layout *units;
    struct local_tensor *tensors; /* per tensor of the model */
    int64_t *total;               /* [pp]: masters of a rank */
    int64_t *kept;                /* [pp]: elements of a rank's kinds of state, with those of owners */
    struct state_spec *specs;     /* [n_specs]: layout_specs() without biases */
    int n_specs;
};

#define CODED_UNIT ((int64_t)16 * MOMENT_BLOCK)

struct layout_options {
    const struct model *model;
    struct mesh mesh;
    int stages; /* 0: one per pp rank */
    bool v_order;
    const int *first_layer; /* [stages + 1], recipe_split_layers; NULL: one stage has all */
    bool canonical, coded, bucketed;
    int cuts; /* as in struct layout; 0: 1 */
    struct state_kinds kinds;
    const struct recipe *recipe; /* where owners keep kinds of state; borrowed for the call */
};

titan_status layout_open(const struct layout_options *options, struct layout **ret,
                         struct titan_error *err) TITAN_MUST_USE;
/* Makes the layout with the recipe's stages, schedule order and split. */
titan_status layout_of_recipe(const struct recipe *recipe, const struct model *model, const struct mesh *mesh,
                              struct layout **ret, struct titan_error *err) TITAN_MUST_USE;
void layout_close(struct layout *layout); /* NULL is fine */

int layout_stage_rank(const struct layout *layout, int stage); /* pp rank */
/* Are embeddings tied, with the head on another pp rank than the embedding? The embedding's rank trains the matrix. */
bool layout_tied_across_ranks(const struct layout *layout);
/* Is layout_tied_across_ranks() true, and pp_rank the head's? That rank computes with a copy of the matrix. */
bool layout_copies_table(const struct layout *layout, int pp_rank);
/* Does a rank add to a unit's gradient? It is of the unit's stage, or computes with the copied matrix. */
bool layout_adds(const struct layout *layout, int unit, int rank);
/* Bytes of the errors that a rank keeps of its gradient of a unit (base/codecs.h), a piece for each rank of the unit's
 * group. 0: the group has one rank. */
size_t layout_error_bytes(const struct layout *layout, int unit);
/* Bytes of the errors that a rank keeps of the codes which replicas send each other of a unit's range: those of a part
 * for each replica, then those of its own part of the sum. 0: there is one replica. */
size_t layout_replica_error_bytes(const struct layout *layout, int unit);
/* Masters of this rank; elements of its whole state, without biases. */
int64_t layout_total(const struct layout *layout, int rank);
int64_t layout_state(const struct layout *layout, int rank);
/* Elements of the state that a rank has room for as an owner. They are the last ones of its state. */
int64_t layout_owned(const struct layout *layout, int rank);
/* Elements of one of the kinds among them. */
int64_t layout_owned_span(const struct layout *layout, int rank, int kind);
/* Elements of a unit's kinds of state on a rank that has the unit. */
int64_t layout_unit_kept(const struct layout *layout, int unit);
/* Bits of the kinds of state that a tensor has. */
unsigned layout_kinds(const struct layout *layout, int tensor);
/* Where a rank's part of a tensor begins in a kind of its unit's state, in elements from the kind's begin on. */
int64_t layout_place(const struct layout *layout, int tensor, int rank, int kind);
/* coded: the end of the blocks that begin with this tensor, in the unit's flat buffer: its own, and what is glued to it
 * inside of a block. 0: the tensor begins inside of a block. */
int64_t layout_blocks_end(const struct layout *layout, int tensor);
/* Number of different local flat buffers of a unit: the size of its group `cut`; ep * tp if experts are cut.
 * layout_unit_part(): the buffer that a rank has a range of. */
int layout_unit_parts(const struct layout *layout, int unit);
int layout_unit_part(const struct layout *layout, int unit, int rank);
/* Do a rank of one layout and a rank of another have ranges of the same flat buffer of a unit? Both meshes cut tensors
 * alike. */
bool layout_same_buffer(const struct layout *x, int rank_x, const struct layout *y, int rank_y, int unit);
/* First element of a rank's range of a unit, in the flat buffer. */
int64_t layout_begin(const struct layout *layout, int unit, int rank);
/* Elements of its range of a unit that a rank counts in sums over the model. They are the beginning of the range;
 * canonical: in whole blocks. Ranges of whole tensors are counted by tp (ep) rank 0 only. All ranges are counted by
 * dp_replicate rank 0 only, and by the unit's pp rank only. */
int64_t layout_counted(const struct layout *layout, int unit, int rank);
/* Blocks of a unit's flat buffer on one tp (ep) rank (canonical). The number is the same for every data-parallel
 * degree. */
int64_t layout_unit_blocks(const struct layout *layout, int unit);
/* Elements of one expert's matrix; for other tensors all elements. */
int64_t layout_expert_numel(const struct layout *layout, int tensor);
/* A stretch: the rows of a tensor's local part that are consecutive in the tensor. It has all rows, or, if experts are
 * cut by rows, the rows of one expert. */
int64_t layout_stretch(const struct layout *layout, int tensor);
/* Finds a stretch in the tensor: the row of the tensor where the stretch begins, and the part's first column. from: the
 * stretch's first row in the local part. */
void layout_origin(const struct layout *layout, int tensor, int rank, int64_t from, int64_t *ret_row, int64_t *ret_col);

/* Lists the global tensors of the training state: every parameter, then each kind of state of every parameter that has
 * it (optim.KIND.NAME), then expert biases if the model has them. Owned (free). */
titan_status layout_specs(const struct layout *layout, struct tensor_spec **ret, int *ret_n,
                          struct titan_error *err) TITAN_MUST_USE;
/* Is a spec a parameter's kind of state? Is it a layer's biases? */
bool layout_spec_is_kept(const struct layout *layout, int spec);
bool layout_spec_is_bias(const struct layout *layout, int spec);
/* Has each replica a value of its own of some kind of state? */
static inline bool layout_replicas_differ(const struct layout *layout)
{
    return layout->kinds.each != 0;
}
/* Is it the kind of state of which each replica has a value of its own? */
bool layout_spec_is_each(const struct layout *layout, int spec);
/* Place of a slice of that kind among the elements of the kind, which are in the order of the masters: layout_total
 * elements. Where they begin in a unit's kinds of state, in elements: layout_each_begin. */
int64_t layout_each_place(const struct layout *layout, const struct shard_slice *slice);
int64_t layout_each_begin(const struct layout *layout, int unit);
/* Lists only the parameters, then the biases. */
titan_status layout_weight_specs(const struct model *model, struct tensor_spec **ret, int *ret_n,
                                 struct titan_error *err) TITAN_MUST_USE;
/* Expert biases exist in models with a balance_rate or expert_bias. A layer has n_experts of them. Every rank has room
 * for the biases of all layers. A rank keeps all biases of its own stages: they are not sharded. */
int64_t layout_biases(const struct model *model);                 /* number of biases; 0: none */
int64_t layout_all_experts(const struct model *model);            /* experts of all layers, even without biases */
int64_t layout_bias_offset(const struct model *model, int layer); /* where a layer's biases or experts begin */

/* Parts of the state that several ranks hold alike: cut tensors of a unit's range (dp_replicate ranks), whole tensors
 * (also tp or ep ranks), biases (all ranks of a stage). */
enum share { SHARE_CUT, SHARE_WHOLE, SHARE_BIAS };

/* Lists the slices of the specs that a rank holds, ordered by spec, then by place. state has layout_state elements,
 * biases has layout_biases. With both NULL the slices have no data. A slice's `at` is its element of the state; biases
 * come after the last one. takes: selects slices; NULL: all. Owned (free). */
titan_status layout_slices(const struct layout *layout, int rank, float *state, float *biases,
                           bool (*takes)(void *arg, int unit, enum share share), void *arg, struct shard_slice **ret,
                           int *ret_n, struct titan_error *err) TITAN_MUST_USE;
/* Lists only the slices that the rank writes in a checkpoint. Every element of every spec belongs to one rank. */
titan_status layout_owned_slices(const struct layout *layout, int rank, float *state, float *biases,
                                 struct shard_slice **ret, int *ret_n, struct titan_error *err) TITAN_MUST_USE;

#endif
