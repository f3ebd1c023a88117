/* SPDX-License-Identifier: Apache-2.0 */
/* build.h - the builder: layout, schedule and policies in, the step program of one class out.
 *
 * A rank walks its line of the pipeline schedule (one stage and plain accumulation when pp is 1); each cell becomes
 * executions of the stage's units - forward, input gradient, weight gradient - written by the model (model/block.h).
 * Around them the builder places gathers and releases of parameters, activations sent and received, reductions of
 * gradients, and at the end norm, agreement, decision and update.
 *
 * Data-parallel ranks share out the M microbatches of a global batch contiguously; a rank with fewer than others runs
 * the same schedule with its last slots empty and takes part in every fsdp collective all the same. Gradients are fp32:
 * summed over a rank's microbatches unsharded and reduced once (step), or reduced each time into the shard
 * (microbatch). canonical: microbatch gradients are added in the tree of tree.h instead, whole subtrees on their rank,
 * the rest by exchange of slices. Experts that ranks share have a gradient of each rank's tokens, which go up trees of
 * their own: one for each cp and tp rank, added in rank order.
 *
 * A forward-only program has the first half of that, and at the end the agreement: the statistics say the losses. */
#ifndef TITAN_WORKER_PLAN_BUILD_H
#define TITAN_WORKER_PLAN_BUILD_H

#include "base/schedule.h"
#include "worker/model/block.h"
#include "worker/program/program.h"
#include "worker/program/state_types.h"

enum reshard {
    RESHARD_DEFAULT, /* freed after forward, except where backward follows at once (the head); never in a pipeline */
    RESHARD_ALWAYS,  /* the same, and gathered again even there */
    RESHARD_NEVER    /* gathered once a step */
};

enum reduce_when {
    REDUCE_DEFAULT, /* microbatch where parameters are resharded and there is no pipeline, otherwise step */
    REDUCE_MICROBATCH,
    REDUCE_STEP
};

/* What a layer keeps from its forward for its backward; the rest is computed again. */
enum checkpointing {
    CHECKPOINT_NONE,     /* everything is kept */
    CHECKPOINT_PRODUCTS, /* attention, all products, what was reduced or exchanged between ranks */
    CHECKPOINT_OPS,      /* the same, but of products every keep_products-th alone, and of experts' none */
    CHECKPOINT_FULL      /* the layer's input alone */
};

struct build_options {
    const struct layout *layout;
    const struct schedule *schedule; /* of any number of microbatches >= the largest share; NULL when pp is 1 */
    enum dtype dt;
    struct state_types types; /* of masters and moments */
    int64_t b, t;             /* of a microbatch */
    bool masked, ring;        /* of struct block */
    enum attention_order order;
    int loss_chunks;
    double expert_parallel_room, expert_capacity; /* of struct block */
    bool round_robin;                             /* of struct block */
    const struct converters *converters;          /* NULL: none */
    const struct device_ops *ops;                 /* sizes of work */
    struct device *dev;
    int64_t microbatches; /* of the global batch */
    enum reshard reshard;
    enum reduce_when reduce;
    int prefetch; /* executions a gather is issued ahead */
    bool canonical;
    bool offload;                            /* masters and moments in host memory */
    const enum checkpointing *checkpointing; /* of every layer, modules' too */
    int keep_products;                       /* of CHECKPOINT_OPS; 0: 2 */
    bool split_gate_up;   /* gate and up are products of their own, as they are where a layer is CHECKPOINT_OPS */
    bool update_together; /* an OPTIMISE is of several units where nothing waits for one of them */
    bool forward_only; /* losses alone, for an evaluation; checkpointing is not read, nor canonical, but for the order
                          of experts' rows */
    bool draft;        /* unfinished (program_finish): passes come first */
};

/* The program of this rank's class. */
titan_status program_build(const struct build_options *options, int rank, struct program **ret,
                           struct titan_error *err) TITAN_MUST_USE;
/* Ranks with equal numbers have the same program: 0 <= class < program_classes(). */
int program_class(const struct build_options *options, int rank);
int program_classes(const struct build_options *options);
/* The lowest rank of a program class. */
int program_class_rank(const struct build_options *options, int class);
/* The class on the same pp rank with the largest share: what must be alike on all of them is decided by its program. */
int program_class_leader(const struct build_options *options, int class);

#endif
