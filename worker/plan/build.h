/* SPDX-License-Identifier: Apache-2.0 */
/* build.h - the builder: layout, schedule and policies in, the step program of one class out.
 *
 * A rank walks its line of the pipeline schedule (one stage and plain accumulation when pp is 1). Each cell becomes
 * executions of the stage's units: forward, input gradient, weight gradient. The model (model/block.h) writes them.
 * Around them the builder places gathers and releases of parameters, activations sent and received, and reductions of
 * gradients. At the end it places norm, agreement, decision and update.
 *
 * Data-parallel ranks share out the M microbatches of a global batch contiguously. A rank with fewer microbatches than
 * others runs the same schedule with its last slots empty, and takes part in every fsdp collective. Gradients are fp32.
 * They are summed over a rank's microbatches unsharded and reduced once (step), or reduced each time into the shard
 * (microbatch). In canonical mode, microbatch gradients are added in the tree of tree.h instead. A rank adds its own
 * whole subtrees. The subtrees of several ranks are added after an exchange of slices. Shared experts have a gradient
 * of each rank's tokens. These gradients go up trees of their own: one tree for each cp and tp rank, and the trees'
 * sums are added in rank order.
 *
 * With a codec, gradients are summed unsharded over the step. A rank codes a unit's gradient once (ENCODE), a piece for
 * each rank of the unit's group. The codes go to their ranks (ALL_TO_ALL), and each rank sums what it gets
 * (DECODE_SUM). Units whose group has one rank have none of this, and canonical sums take no codec.
 *
 * With a codec of replicas, what they sum goes in two phases on their channel. Each replica codes its range of the
 * unit's gradient, a piece for each replica (ENCODE, ALL_TO_ALL), and sums the pieces that it gets in the replicas'
 * order (DECODE_SUM). It codes that piece of the sum (ENCODE, ALL_GATHER), and decodes all pieces, its own as well
 * (DECODE): so all replicas have the same bits. The layout's ranges can be cut so (layout.cuts).
 *
 * A forward-only program has the forward half, and the agreement at the end, because the statistics carry the losses.
 */
#ifndef TITAN_WORKER_PLAN_BUILD_H
#define TITAN_WORKER_PLAN_BUILD_H

#include "base/schedule.h"
#include "base/weight_codes.h"
#include "worker/model/block.h"
#include "worker/program/program.h"
#include "worker/program/state_types.h"

enum reshard {
    RESHARD_DEFAULT, /* parameters are freed after forward, except where backward follows at once (the head); never in a
                        pipeline */
    RESHARD_ALWAYS,  /* parameters are freed after every use, also where backward follows at once */
    RESHARD_NEVER    /* parameters are gathered once a step */
};

enum reduce_when {
    REDUCE_DEFAULT, /* microbatch where parameters are resharded and there is no pipeline, otherwise step */
    REDUCE_MICROBATCH,
    REDUCE_STEP
};

/* What a layer keeps from its forward for its backward; the rest is computed again. */
enum checkpointing {
    CHECKPOINT_NONE,     /* everything is kept */
    CHECKPOINT_PRODUCTS, /* attention, all products, and everything that was reduced or exchanged between ranks */
    CHECKPOINT_OPS,      /* as CHECKPOINT_PRODUCTS, but only every keep_products-th product, and none of experts' */
    CHECKPOINT_FULL      /* the layer's input alone */
};

struct build_options {
    const struct layout *layout;
    const struct schedule *schedule; /* for any number of microbatches >= the largest share; NULL when pp is 1 */
    enum dtype dt;
    struct state_types types; /* of masters and moments */
    int64_t b, t;             /* sequences and tokens of a sequence in a microbatch */
    bool masked, ring;        /* as in struct block */
    bool rotate_in_place;     /* as in struct block */
    enum attention_order order;
    int loss_chunks;
    double expert_parallel_room, expert_capacity; /* as in struct block */
    bool round_robin;                             /* as in struct block */
    enum weight_codec gather_codec;               /* of gathered weights (tensor/weight_gather.h) */
    bool gather_learns;                           /* with learned levels (base/weight_codes.h) */
    const struct converters *converters;          /* NULL: none */
    const struct device_ops *ops;                 /* for sizes of work */
    struct device *dev;
    int64_t microbatches; /* of the global batch */
    enum reshard reshard;
    enum reduce_when reduce;
    int prefetch; /* how many executions ahead a gather is issued */
    bool canonical;
    int64_t scales_every;                    /* as in struct program; weights' static scales only */
    bool offload;                            /* masters and moments in host memory */
    const enum checkpointing *checkpointing; /* mode of every layer, also in multi-token prediction modules */
    int keep_products;                       /* for CHECKPOINT_OPS; 0: 2 */
    enum codec codec;           /* how gradients travel within the ranks of a unit's group; CODEC_NONE: sums in fp32 */
    enum codec replicate_codec; /* how sums over replicas travel; CODEC_NONE: in fp32 */
    bool stochastic;            /* codes of `codec` are rounded at random */
    bool tensor_scales;         /* a scaled `codec` has one scale for each tensor, not for each bucket */
    float error_decay;          /* of both codecs, where they have errors */
    bool buddies;               /* there are buddies, who get codes in place of a shard (build_forwards) */
    bool split_gate_up;         /* gate and up are separate products, as in a model with a CHECKPOINT_OPS layer */
    bool tensor_sums;           /* a direction section sums over whole tensors (optimizer_needs_sums) */
    struct parts_shape parts;   /* layout_replicas_differ(): what they send each other; method, kept and dt */
    const struct recipe *whole; /* layout->owners: its method makes the directions (optim/whole_matrix.h); borrowed */
    bool update_together;       /* one OPTIMISE updates several units where no action waits for a single unit */
    bool forward_only; /* losses alone, for an evaluation; checkpointing is not read, and canonical only for the order
                          of experts' rows */
    bool draft;        /* program_finish() is left to the caller: passes come first */
};

/* The program of this rank's class. */
titan_status program_build(const struct build_options *options, int rank, struct program **ret,
                           struct titan_error *err) TITAN_MUST_USE;
/* Do buddies get the codes that a unit's gradient shard is the sum of, and not the shard? The codes are fewer bytes,
 * and nothing but the sum happens to the gradient. */
bool build_forwards(const struct build_options *options, int unit);
/* The program class of a rank: 0 <= class < program_classes(). Ranks of one class have the same program. */
int program_class(const struct build_options *options, int rank);
int program_classes(const struct build_options *options);
/* The lowest rank of a program class. */
int program_class_rank(const struct build_options *options, int class);
/* The class with the largest share on the same pp rank. This class's program decides what must be alike in all classes
 * of the pp rank. */
int program_class_leader(const struct build_options *options, int class);

#endif
