/* mesh.c - ranks as a grid with named axes. */
#include "worker/plan/mesh.h"

const char *mesh_axis_name(enum mesh_axis axis)
{
    static const char *const names[AXIS_COUNT] = {"pp", "dp_replicate", "dp_shard", "cp", "tp"};
    return names[axis];
}

titan_status mesh_build(const struct recipe *recipe, int world, struct mesh *ret, struct titan_error *err)
{
    const int64_t degree[AXIS_COUNT] = {
        [AXIS_PP] = recipe->parallelism.pipeline_parallel_degree,
        [AXIS_DP_REPLICATE] = recipe->parallelism.data_parallel_replicate_degree,
        [AXIS_DP_SHARD] = recipe->parallelism.data_parallel_shard_degree,
        [AXIS_CP] = recipe->parallelism.context_parallel_degree,
        [AXIS_TP] = recipe->parallelism.tensor_parallel_degree,
    };
    int64_t fixed = 1;
    int rest = -1;

    for (int a = 0; a < AXIS_COUNT; a++) {
        if (degree[a] == -1) {
            if (rest >= 0)
                return titan_fail(err, TITAN_EINVAL, "parallelism: both %s and %s are -1, only one can take the rest",
                                  mesh_axis_name((enum mesh_axis)rest), mesh_axis_name((enum mesh_axis)a));
            rest = a;
        } else if (degree[a] < 1) {
            return titan_fail(err, TITAN_EINVAL, "parallelism: %s degree %ld is not positive",
                              mesh_axis_name((enum mesh_axis)a), (long)degree[a]);
        } else {
            fixed *= degree[a];
        }
    }
    if (world < 1 || world % fixed != 0 || (rest < 0 && fixed != world))
        return titan_fail(err, TITAN_EINVAL, "parallelism: the degrees multiply to %ld, which does not fit %d workers",
                          (long)fixed, world);
    struct mesh mesh = {.world = world};
    for (int a = 0; a < AXIS_COUNT; a++)
        mesh.size[a] = a == rest ? (int)(world / fixed) : (int)degree[a];
    for (int a = 0; a < AXIS_COUNT; a++)
        if (a != AXIS_DP_SHARD && mesh.size[a] != 1)
            return titan_fail(err, TITAN_EUNSUPPORTED, "parallelism: %s degree %d, this version splits dp_shard only",
                              mesh_axis_name((enum mesh_axis)a), mesh.size[a]);
    *ret = mesh;
    return TITAN_OK;
}

void mesh_coords(const struct mesh *mesh, int rank, int ret[AXIS_COUNT])
{
    for (int a = AXIS_COUNT - 1; a >= 0; a--) {
        ret[a] = rank % mesh->size[a];
        rank /= mesh->size[a];
    }
}

int mesh_rank(const struct mesh *mesh, const int coords[AXIS_COUNT])
{
    int rank = 0;
    for (int a = 0; a < AXIS_COUNT; a++)
        rank = rank * mesh->size[a] + coords[a];
    return rank;
}
