/* mesh.h - the ranks of an epoch as a grid with named axes, outermost first. */
#ifndef TITAN_WORKER_PLAN_MESH_H
#define TITAN_WORKER_PLAN_MESH_H

#include "base/recipe.h"

enum mesh_axis { AXIS_PP, AXIS_DP_REPLICATE, AXIS_DP_SHARD, AXIS_CP, AXIS_TP, AXIS_COUNT };

struct mesh {
    int world;
    int size[AXIS_COUNT];
};

/* "dp_shard" */
const char *mesh_axis_name(enum mesh_axis axis);
/* The recipe's degrees on this many ranks; -1 takes the rest. TITAN_EINVAL when they do not multiply to world,
 * TITAN_EUNSUPPORTED for an axis that this version cannot split. */
titan_status mesh_build(const struct recipe *recipe, int world, struct mesh *ret,
                        struct titan_error *err) TITAN_MUST_USE;
/* Position of a rank on every axis, and back. */
void mesh_coords(const struct mesh *mesh, int rank, int ret[AXIS_COUNT]);
int mesh_rank(const struct mesh *mesh, const int coords[AXIS_COUNT]);

#endif
