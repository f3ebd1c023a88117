/* SPDX-License-Identifier: Apache-2.0 */
/* mesh.h - the ranks of an epoch as a grid with named axes, outermost first: pp, dp_replicate, dp_shard, cp, tp.
 *
 * Groups follow from the grid: a group's members are the ranks that differ in the group's axes only, in rank order.
 * Expert parallelism borrows ranks: dp_shard * cp * tp consecutive ranks are regrouped as expert_shard * ep, with ep
 * innermost. If experts are cut over tp (expert tensor parallelism), these ranks are regrouped as expert_shard * ep *
 * tp. Rotated tensor parallelism regroups dp_shard * cp ranks as parts of layers (dp_shard), and ranges of a part
 * (cp). Channels are the communicators that a program may use. A group has several channels if its operations run at
 * the same time on different streams. */
#ifndef TITAN_WORKER_TENSOR_MESH_H
#define TITAN_WORKER_TENSOR_MESH_H

#include "base/recipe.h"

enum mesh_axis { AXIS_PP, AXIS_DP_REPLICATE, AXIS_DP_SHARD, AXIS_CP, AXIS_TP, AXIS_COUNT };

enum group {
    GROUP_WORLD,
    GROUP_PP,
    GROUP_REPLICATE,
    GROUP_FSDP, /* dp_shard * cp: ranks that share a unit's state */
    GROUP_CP,
    GROUP_TP,
    GROUP_EP,
    /* dp_shard * cp * tp / ep, or / (ep * tp): ranks that share an expert unit's state. With rotate cp: ranks that
     * share the state of a layer's part. */
    GROUP_EXPERT_SHARD,
    GROUP_OWNERS, /* dp_shard * cp * tp: ranks that share out the matrices of a stage (owners.h) */
    GROUP_ROTATE, /* with rotate dp_shard: ranks that pass parts of layers round, otherwise the rank alone */
    GROUP_COUNT
};

/* X(name, group) */
#define CHANNELS(X)                                                                                                    \
    X(WORLD, GROUP_WORLD)                                                                                              \
    X(GATHER, GROUP_FSDP)                                                                                              \
    X(REDUCE, GROUP_FSDP)                                                                                              \
    X(REPLICATE, GROUP_REPLICATE)                                                                                      \
    X(CP, GROUP_CP)                                                                                                    \
    X(TP, GROUP_TP)                                                                                                    \
    X(EP, GROUP_EP)                                                                                                    \
    X(EXPERT_GATHER, GROUP_EXPERT_SHARD)                                                                               \
    X(EXPERT_REDUCE, GROUP_EXPERT_SHARD)                                                                               \
    X(OWNERS, GROUP_OWNERS)                                                                                            \
    X(ROTATE, GROUP_ROTATE)       /* parts of layers, and their gradients, to the next rank */                         \
    X(FORWARD_NEXT, GROUP_PP)     /* activations to pp rank + 1, modulo pp */                                          \
    X(FORWARD_PREVIOUS, GROUP_PP) /* activations to pp rank - 1 */                                                     \
    X(BACKWARD_NEXT, GROUP_PP)    /* gradients */                                                                      \
    X(BACKWARD_PREVIOUS, GROUP_PP)

enum channel {
#define X(name, group) CHANNEL_##name,
    CHANNELS(X)
#undef X
        CHANNEL_COUNT
};

struct mesh {
    int world;
    int size[AXIS_COUNT];
    int ep;
    bool cut_experts; /* experts are cut over tp, like the layers around them: ep borrows from dp_shard and cp only */
    /* Layers are cut over dp_shard as tp cuts them, and the parts go round the ranks (model/rotated.h). tp and ep are
     * 1. */
    bool rotate;
};

const char *mesh_axis_name(enum mesh_axis axis); /* "dp_shard" */
const char *channel_name(enum channel channel);  /* "GATHER" */
enum group channel_group(enum channel channel);

/* Applies the recipe's degrees to `world` ranks (recipe_mesh). */
titan_status mesh_build(const struct recipe *recipe, int world, struct mesh *ret,
                        struct titan_error *err) TITAN_MUST_USE;
/* Position of a rank on every axis, and back. */
void mesh_coords(const struct mesh *mesh, int rank, int ret[AXIS_COUNT]);
int mesh_rank(const struct mesh *mesh, const int coords[AXIS_COUNT]);

/* Number of parts that each expert is cut into: tp, or 1. */
int mesh_expert_cut(const struct mesh *mesh);
int mesh_group_size(const struct mesh *mesh, enum group group);
/* Distance in ranks from one member to the next. */
int mesh_group_stride(const struct mesh *mesh, enum group group);
/* Position of a rank in its group; members: mesh_group_size of them, in order. */
int mesh_group_rank(const struct mesh *mesh, enum group group, int rank);
void mesh_group_members(const struct mesh *mesh, enum group group, int rank, int *ret);

/* A point-to-point channel is a ring of edges from pp rank to pp rank. Each edge has its own communicator of two: NCCL
 * runs a communicator's operations in the order of their calls, and a rank's sends must not wait for its receives.
 * Edges of one colour have no rank in common, so one split per colour makes all communicators. */
int mesh_edge_colours(const struct mesh *mesh);
enum edge_side { EDGE_NONE, EDGE_SENDS, EDGE_RECEIVES };
/* The rank's side of its edge of this colour. members: the edge's two ranks in order, or the rank alone. */
enum edge_side mesh_edge(const struct mesh *mesh, enum channel channel, int colour, int rank, int members[2]);

/* Data-parallel degree, dp_replicate * dp_shard, and a rank's place in it. The place decides which samples the rank
 * reads. */
int mesh_batch_size(const struct mesh *mesh);
int mesh_batch_rank(const struct mesh *mesh, int rank);

#endif
