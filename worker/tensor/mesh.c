/* SPDX-License-Identifier: Apache-2.0 */
/* mesh.c - ranks as a grid with named axes. */
#include "worker/tensor/mesh.h"

#include "base/cleanup.h"

static const char *const axis_names[AXIS_COUNT] = {"pp", "dp_replicate", "dp_shard", "cp", "tp"};

static const char *const channel_names[CHANNEL_COUNT] = {
#define X(name, group) #name,
    CHANNELS(X)
#undef X
};

static const enum group channel_groups[CHANNEL_COUNT] = {
#define X(name, group) group,
    CHANNELS(X)
#undef X
};

const char *mesh_axis_name(enum mesh_axis axis)
{
    titan_assert(axis < AXIS_COUNT);
    return axis_names[axis];
}

const char *channel_name(enum channel channel)
{
    titan_assert(channel < CHANNEL_COUNT);
    return channel_names[channel];
}

enum group channel_group(enum channel channel)
{
    titan_assert(channel < CHANNEL_COUNT);
    return channel_groups[channel];
}

titan_status mesh_build(const struct recipe *recipe, int world, struct mesh *ret, struct titan_error *err)
{
    struct recipe_mesh m;

    TRY(recipe_mesh(recipe, world, &m, err));
    titan_assert(m.pp * m.dp_replicate * m.dp_shard * m.cp * m.tp == world);
    *ret = (struct mesh){.world = world,
                         .size = {(int)m.pp, (int)m.dp_replicate, (int)m.dp_shard, (int)m.cp, (int)m.tp},
                         .ep = (int)m.ep,
                         .cut_experts = m.etp > 1,
                         .rotate = m.rotate && m.dp_shard > 1};
    return TITAN_OK;
}

void mesh_coords(const struct mesh *mesh, int rank, int ret[AXIS_COUNT])
{
    titan_assert(rank >= 0);
    for (int a = AXIS_COUNT - 1; a >= 0; a--) {
        ret[a] = rank % mesh->size[a];
        rank /= mesh->size[a];
    }
}

int mesh_rank(const struct mesh *mesh, const int coords[AXIS_COUNT])
{
    int rank = 0;
    for (int a = 0; a < AXIS_COUNT; a++) {
        titan_assert(coords[a] >= 0 && coords[a] < mesh->size[a]);
        rank = rank * mesh->size[a] + coords[a];
    }
    return rank;
}

/* --- groups ------------------------------------------------------------------------------------------------------- */

/* A group has n ranks, `stride` apart. The pattern repeats after n * stride ranks. */
struct stride {
    int n, stride;
};

int mesh_expert_cut(const struct mesh *mesh)
{
    return mesh->cut_experts ? mesh->size[AXIS_TP] : 1;
}

static struct stride stride_of(const struct mesh *m, enum group group)
{
    const int tp = m->size[AXIS_TP], cp = m->size[AXIS_CP], shard = m->size[AXIS_DP_SHARD];
    const int replica = tp * cp * shard; /* ranks of one replica of one stage */
    const int cut = mesh_expert_cut(m);

    switch (group) {
    case GROUP_TP:
        return (struct stride){tp, 1};
    case GROUP_CP:
        return (struct stride){cp, tp};
    case GROUP_FSDP:
        return (struct stride){cp * shard, tp};
    case GROUP_EP:
        return (struct stride){m->ep, cut};
    case GROUP_EXPERT_SHARD:
        return m->rotate ? (struct stride){cp, tp} : (struct stride){replica / (m->ep * cut), m->ep * cut};
    case GROUP_OWNERS:
        return (struct stride){replica, 1};
    case GROUP_ROTATE:
        return m->rotate ? (struct stride){shard, cp * tp} : (struct stride){1, 1};
    case GROUP_REPLICATE:
        return (struct stride){m->size[AXIS_DP_REPLICATE], replica};
    case GROUP_PP:
        return (struct stride){m->size[AXIS_PP], replica * m->size[AXIS_DP_REPLICATE]};
    case GROUP_WORLD:
    case GROUP_COUNT:
        break;
    }
    return (struct stride){m->world, 1};
}

int mesh_group_size(const struct mesh *mesh, enum group group)
{
    return stride_of(mesh, group).n;
}

int mesh_group_stride(const struct mesh *mesh, enum group group)
{
    return stride_of(mesh, group).stride;
}

int mesh_group_rank(const struct mesh *mesh, enum group group, int rank)
{
    const struct stride s = stride_of(mesh, group);
    titan_assert(rank >= 0 && s.n >= 1 && s.stride >= 1);
    return rank / s.stride % s.n;
}

void mesh_group_members(const struct mesh *mesh, enum group group, int rank, int *ret)
{
    const struct stride s = stride_of(mesh, group);
    const int first = rank - mesh_group_rank(mesh, group, rank) * s.stride;

    titan_assert(first >= 0);
    for (int i = 0; i < s.n; i++)
        ret[i] = first + i * s.stride;
}

int mesh_edge_colours(const struct mesh *mesh)
{
    const int pp = mesh->size[AXIS_PP];
    return pp == 1 ? 0 : 2 + pp % 2;
}

/* Edges have alternating colours. In a ring with an odd number of edges the last edge has a colour of its own. */
static int edge_colour(int pp, int sender)
{
    return pp % 2 == 1 && sender == pp - 1 ? 2 : sender % 2;
}

enum edge_side mesh_edge(const struct mesh *mesh, enum channel channel, int colour, int rank, int members[2])
{
    const int pp = mesh->size[AXIS_PP], me = mesh_group_rank(mesh, GROUP_PP, rank);
    const bool next = channel == CHANNEL_FORWARD_NEXT || channel == CHANNEL_BACKWARD_NEXT;
    const int to = (me + (next ? 1 : pp - 1)) % pp, from = (me + (next ? pp - 1 : 1)) % pp;
    const bool sends = edge_colour(pp, me) == colour, receives = edge_colour(pp, from) == colour;
    const int other = rank + ((sends ? to : from) - me) * mesh_group_stride(mesh, GROUP_PP);

    titan_assert(channel >= CHANNEL_FORWARD_NEXT && channel < CHANNEL_COUNT);
    titan_assert(colour >= 0 && colour < mesh_edge_colours(mesh));
    members[0] = members[1] = rank;
    if (!sends && !receives)
        return EDGE_NONE;
    members[other < rank ? 0 : 1] = other;
    return sends ? EDGE_SENDS : EDGE_RECEIVES;
}

int mesh_batch_size(const struct mesh *mesh)
{
    return mesh->size[AXIS_DP_REPLICATE] * mesh->size[AXIS_DP_SHARD];
}

int mesh_batch_rank(const struct mesh *mesh, int rank)
{
    int at[AXIS_COUNT];

    mesh_coords(mesh, rank, at);
    return at[AXIS_DP_REPLICATE] * mesh->size[AXIS_DP_SHARD] + at[AXIS_DP_SHARD];
}
