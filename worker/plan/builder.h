/* SPDX-License-Identifier: Apache-2.0 */
/* builder.h - what build.c (the walk over a rank's schedule), pipeline.c (what travels between stages) and gradients.c
 * (sums, reductions, update) share while a program is written. Private to the builder. */
#ifndef TITAN_WORKER_PLAN_BUILDER_H
#define TITAN_WORKER_PLAN_BUILDER_H

#include "worker/plan/build.h"
#include "worker/tensor/tree.h"
#include "worker/tensor/weight_gather.h"

#define NONE (-1)

/* How a rank's microbatch gradients become one. */
enum summing {
    SUM_STEP,       /* added up unsharded, reduced once */
    SUM_MICROBATCH, /* each reduced at once, added up as shards */
    SUM_CANONICAL   /* in the tree of tree.h */
};

/* A unit of this rank while the step is written. */
struct unit_state {
    int shard, state;         /* external buffers, or the received shard of a copied table; NONE: another rank's unit */
    int error;                /* external buffer; NONE: codes of the unit's gradient keep no errors */
    int replica_error;        /* the same of codes between replicas */
    int *grad;                /* [slot]: gradients; only [0] when summing by step; NONE: none yet */
    int parts;                /* experts_parts(): gradient buffers of a slot, with successive ids */
    struct tensor reduced;    /* what norm and update read */
    struct tensor codes;      /* what a buddy gets in its place, or none */
    struct tensor received;   /* canonical: slices of all subtrees */
    struct tree_stack *trees; /* [parts]: canonical: finished subtrees of this rank; ids are slots */
    bool *done;               /* [slot]: canonical: its gradient is whole */
    struct coded coded;       /* how its parameters are gathered, as float8 codes */
    struct weight_gather gather; /* and as codes of few bits, which are decoded before their use */
    struct tensor levels;        /* learned ones of these codes, or none */
    uint64_t scaled; /* bits of its weights with a place in `scales`: those with codes, or with static scales all */
    struct tensor scales;
    int64_t next; /* canonical: slot whose gradient is pushed next */
};

/* What a stage passes on for a slot: the activation, later its gradient. */
struct stage_pass {
    struct tensor x, dx;
};

/* Messages of a point-to-point channel to this rank, in the order in which the other side sends them. */
struct inbox {
    int sender, n, next;
    struct message *messages;
};
#define P2P_CHANNELS (CHANNEL_COUNT - CHANNEL_FORWARD_NEXT)

struct builder {
    const struct build_options *opt;
    const struct layout *layout;
    const struct model *model;
    int pp, pp_rank, batch_rank;
    int64_t from, share, share_max; /* microbatches of this rank in the global batch */
    enum summing summing;
    int64_t rounds, rows_even; /* of a layer's experts: rounds, and even share of rows */
    int expert_parts;
    struct emitter e;
    struct block k;
    struct tensor statistics;
    struct unit_state *units; /* [model units] */
    int owned;                /* external buffer: state of the matrices that this rank owns */
    int n_reduced;
    int *reduced; /* units in the order of their reductions */
    /* build.c's own */
    struct cell_plan *cells;
    struct execution *executions;
    int n_cells, n_executions, next_gather;
    struct layer_pass *layers; /* [local unit][slot] */
    size_t n_layers;
    struct stage_pass *stages;                     /* [stage][slot] */
    struct block_tokens *tokens;                   /* [slot]; all.buffer NONE: not loaded yet */
    int *local;                                    /* [model units]: number among this rank's units, or NONE */
    struct tensor *bias, *expert_tokens, *dropped; /* [model units]: experts' tensors of struct block, or none */
    struct tensor seen;                            /* as in struct block */
    /* pipeline.c's own */
    struct inbox inboxes[P2P_CHANNELS];
    double **starts; /* [pp rank][cell]: begin of a cell by the schedule */
    struct sent *sent;
    int n_sent, first_sent;
};

static inline bool unit_is_mine(const struct builder *b, int unit)
{
    return b->layout->units[unit].pp_rank == b->pp_rank;
}
/* Does this rank add to the unit's gradient? */
static inline bool unit_adds_here(const struct builder *b, int unit)
{
    return unit_is_mine(b, unit) || (unit == 0 && layout_copies_table(b->layout, b->pp_rank));
}
static inline int unit_group_size(const struct builder *b, int unit)
{
    return mesh_group_size(&b->layout->mesh, b->layout->units[unit].group);
}
/* Bytes of a unit's state buffer: masters and kinds of state, or these alone where the shard is the masters. */
static inline size_t builder_state_bytes(const struct builder *b, int unit)
{
    const struct state_types types = b->opt->types;
    const bool shared = !b->opt->offload && types.master == b->opt->dt;

    return state_types_bytes(types, shared ? 0 : b->layout->units[unit].shard, layout_unit_kept(b->layout, unit));
}
/* Sets the stamp of the actions that are written next. */
static inline void builder_stamp(struct builder *b, enum phase phase, int unit, int stage, int slot)
{
    b->e.phase = phase;
    b->e.stream = STREAM_COMPUTE;
    b->e.unit = unit;
    b->e.stage = stage;
    b->e.microbatch = slot;
}

static inline struct stage_pass *stage_pass(const struct builder *b, int stage, int slot)
{
    return &b->stages[(int64_t)stage * b->share_max + slot];
}

/* --- pipeline.c --------------------------------------------------------------------------------------------------- */
/* Plans which rank sends what to this rank, and when by the schedule. Does nothing without a pipeline. */
titan_status pipeline_plan(struct builder *b, struct titan_error *err) TITAN_MUST_USE;
void pipeline_free(struct builder *b);
/* Emits, before a cell, the RECVs of all messages that the schedule has sent by then, the cell's own input among them.
 * place: the cell's index in this rank's line of the schedule. */
void pipeline_begin(struct builder *b, int place);
/* Hands on the result of a cell: F's activation to the next stage, the gradient of I or B to the stage before. If that
 * stage is on the same rank, the result stays there. Without such a stage nothing happens. */
void pipeline_send(struct builder *b, const struct cell *cell, int place);
/* For a tied head on another rank than the embedding, before all cells: the embedding's rank sends its shard of the
 * table to the head's rank. */
void pipeline_share_table(struct builder *b);
/* Behind all cells, once the table's gradient is reduced: the head's rank sends its part, and the embedding's rank adds
 * it. */
void pipeline_share_gradient(struct builder *b);

/* --- gradients.c -------------------------------------------------------------------------------------------------- */
/* Canonical: plans which subtrees each rank of the batch holds and in which order they are added (program.sum). */
titan_status gradients_plan(struct builder *b, struct titan_error *err) TITAN_MUST_USE;
/* The buffer that a weight gradient of (unit, slot) goes to. *ret_first: the buffer is new. */
int gradients_buffer(struct builder *b, int unit, int slot, bool *ret_first);
/* Closes the gradient of (unit, slot): nothing more is added to it. last: nothing more is added to the unit in this
 * step. Called for empty slots, too. */
void gradients_close(struct builder *b, int unit, int slot, bool last);
/* Emits norm, agreement, decision, update. */
void gradients_update(struct builder *b);

#endif
