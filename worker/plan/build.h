/* build.h - the builder: model, layout and batch in, one rank's step program out.
 *
 * Fully sharded data parallelism over any number of ranks (Zhao et al. 2023, arXiv:2304.11277). The M logical
 * microbatches of a global batch are shared out contiguously; a rank with fewer than others takes part in every
 * collective all the same. Gathers are issued `prefetch` visits ahead of the compute that needs them. Gradients are
 * accumulated over a rank's microbatches in fp32, unsharded, and reduced once, each unit as soon as its last weight
 * gradient is there. canonical: microbatch gradients are added in the tree of tree.h instead, whole subtrees on their
 * rank, the rest by exchange of slices. */
#ifndef TITAN_WORKER_PLAN_BUILD_H
#define TITAN_WORKER_PLAN_BUILD_H

#include "worker/model/layers.h"
#include "worker/plan/program.h"

enum reshard {
    RESHARD_DEFAULT, /* freed after forward, except where backward follows at once (the head) */
    RESHARD_ALWAYS,  /* the same, and gathered again even there */
    RESHARD_NEVER    /* gathered once a step */
};

struct build_options {
    const struct layout *layout;
    const struct layer_ctx *shape; /* sizes of a microbatch: ops, dev, model, dt, b, t are used */
    int64_t microbatches;          /* of the global batch */
    enum reshard reshard;
    int prefetch; /* visits */
    bool canonical;
    bool recompute; /* activation checkpointing: forward of each layer again before its backward */
};

titan_status program_build(const struct build_options *options, int rank, struct program **ret,
                           struct titan_error *err) TITAN_MUST_USE;

#endif
