/* SPDX-License-Identifier: Apache-2.0 */
/* groups.c - opening, splitting and closing an epoch's communicators. */
#include "worker/epoch/groups.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/failpoint.h"
#include "base/flight.h"
#include "worker/epoch/epoch.h"

#define ALL_RANKS CHANNEL_COUNT /* in the flight recorder: group of all ranks, with departing ranks */

int groups_ranks(const struct epoch_view *view)
{
    titan_assert(view->world >= 1 && view->departing >= 0);
    return view->world + view->departing;
}

/* --- all ranks ---------------------------------------------------------------------------------------------------- */

/* Called on the control thread: from now on nothing in this epoch waits for a peer. */
static void revoke_epoch(void *arg)
{
    struct epoch *e = arg;
    groups_revoke(e);
    checkpoints_cancel(e);
}

void groups_revoke(struct epoch *e)
{
    struct comm *comm = atomic_load(&e->groups.comm);
    if (comm)
        e->groups.ops->revoke(comm);
}

titan_status groups_connect(struct epoch *e, struct titan_error *err)
{
    struct membership *m = e->t->members;
    struct groups *const g = &e->groups;
    const struct device_plugin *plugin = e->t->device.plugin;
    struct comm_config config = {.epoch = e->view.epoch,
                                 .rank = e->view.rank,
                                 .world = groups_ranks(&e->view),
                                 .addresses = e->view.addresses,
                                 .listener = m->listener,
                                 .memfd = e->view.memfd,
                                 .device = &e->t->device};
    struct comm *comm = NULL;

    titan_assert(!g->ops);
    titan_assert(e->view.rank >= 0 && e->view.rank < groups_ranks(&e->view));
    /* The flight recorder gets these groups here, because they are used before there is a mesh. */
    int members[FLIGHT_RANKS_MAX];
    const int ranks = MIN(groups_ranks(&e->view), FLIGHT_RANKS_MAX);
    for (int r = 0; r < ranks; r++)
        members[r] = r;
    flight_epoch(e->view.epoch, e->view.rank, groups_ranks(&e->view));
    flight_group(ALL_RANKS, "all", members, ranks);
    flight_group(CHANNEL_WORLD, recorder_group_name(CHANNEL_WORLD), members, MIN(e->view.world, ranks));
    if (groups_ranks(&e->view) == 1)
        return TITAN_OK;
    memcpy(config.id, e->view.comm_id, sizeof config.id);
    config.key = e->view.keyed ? e->view.key : NULL;
    g->ops = plugin->comm ? plugin->comm : e->view.memfd >= 0 ? &comm_shm : &comm_tcp;
    m->ops->on_revoke(m, revoke_epoch, e);
    TRY(g->ops->open(&config, m->ops->revoked(m), &comm, err));
    atomic_store(&g->comm, comm);
    TRY(failpoint("comm.opened", err));
    /* Checks again, because a revoke between open and store has found no communicator. */
    if (atomic_load(m->ops->revoked(m)))
        return titan_fail(err, TITAN_EREVOKED, "epoch %lu is revoked", (unsigned long)e->view.epoch);
    return TITAN_OK;
}

void groups_unwatch(struct epoch *e)
{
    struct membership *m = e->t->members;
    if (e->groups.ops)
        m->ops->on_revoke(m, NULL, NULL);
}

/* Passes a barrier. group: the barrier's group in the flight recorder. */
static titan_status wait_together(struct epoch *e, struct comm *comm, int ranks, int group, struct titan_error *err)
{
    struct stream *const s = e->t->streams[STREAM_COMPUTE];

    if (ranks == 1)
        return TITAN_OK;
    titan_assert(comm);
    const struct flight_mark mark =
        flight_begin(&(struct flight_what){.op = "BARRIER",
                                           .kind = FLIGHT_COLLECTIVE,
                                           .group = (uint8_t)group,
                                           .number = flight_number(group, FLIGHT_COLLECTIVE),
                                           .step = flight_steps(),
                                           .microbatch = -1,
                                           .peer = -1});
    TRY(e->groups.ops->barrier(comm, s));
    TRY(e->t->device.ops->stream_sync(s, err));
    flight_end(mark);
    return TITAN_OK;
}

titan_status groups_wait_for_all(struct epoch *e, struct titan_error *err)
{
    return wait_together(e, atomic_load(&e->groups.comm), groups_ranks(&e->view), ALL_RANKS, err);
}

titan_status groups_wait_for_members(struct epoch *e, struct titan_error *err)
{
    titan_assert(e->view.rank < e->view.world);
    return wait_together(e, e->groups.comms[CHANNEL_WORLD], e->view.world, CHANNEL_WORLD, err);
}

/* --- groups of the mesh ------------------------------------------------------------------------------------------- */

static titan_status split(struct epoch *e, enum channel channel, const int *members, int n, struct comm **ret,
                          struct titan_error *err)
{
    struct membership *m = e->t->members;
    struct groups *const g = &e->groups;
    struct comm *const parent = channel == CHANNEL_WORLD ? atomic_load(&g->comm) : g->comms[CHANNEL_WORLD];

    titan_assert(parent && n >= 1);
    if (g->ops->split(parent, members, n, m->ops->revoked(m), ret, err) == TITAN_OK)
        return TITAN_OK;
    return titan_error_wrap(err, "communicator %s", channel_name(channel));
}

/* Each departing rank gets a communicator of its own. */
titan_status groups_split_members(struct epoch *e, struct titan_error *err)
{
    const bool departs = e->view.rank >= e->view.world;
    _cleanup_free_ int *members = calloc((size_t)e->view.world, sizeof *members);

    titan_assert(!e->groups.comms[CHANNEL_WORLD]);
    if (e->view.departing == 0 || e->view.world == 1) {
        e->groups.comms[CHANNEL_WORLD] = atomic_load(&e->groups.comm);
        return TITAN_OK;
    }
    if (!members)
        return titan_fail(err, TITAN_ENOMEM, "communicators: out of memory");
    for (int r = 0; r < e->view.world; r++)
        members[r] = r;
    return split(e, CHANNEL_WORLD, departs ? &e->view.rank : members, departs ? 1 : e->view.world,
                 &e->groups.comms[CHANNEL_WORLD], err);
}

/* All ranks split in the same order, also for channels that their own program does not use. */
titan_status groups_split_channels(struct epoch *e, struct titan_error *err)
{
    static const char *const policies[] = {
        [COMM_POLICY_DEFAULT] = "default", [COMM_POLICY_EFFICIENCY] = "efficiency", [COMM_POLICY_ZERO] = "zero"};
    const struct mesh *mesh = &e->plan.plan->mesh;
    _cleanup_free_ int *members = calloc((size_t)e->view.world, sizeof *members);

    if (!members)
        return titan_fail(err, TITAN_ENOMEM, "communicators: out of memory");
    struct groups *const g = &e->groups;
    for (int c = 0; c < CHANNEL_COUNT && e->view.world > 1; c++) {
        const enum group group = channel_group((enum channel)c);
        const int n = mesh_group_size(mesh, group);
        if (c == CHANNEL_WORLD || n == 1 || !(e->plan.channels >> c & 1))
            continue;
        mesh_group_members(mesh, group, e->view.rank, members);
        flight_group(c, recorder_group_name((enum channel)c), members, n);
        struct comm_tuning tuning = {0};
        /* Only these groups are tuned, because their transfers run beside products. Computation waits for the transfers
         * of all other groups. */
        if (group == GROUP_FSDP || group == GROUP_REPLICATE || group == GROUP_EXPERT_SHARD) {
            tuning.ctas_most = (int)e->t->recipe->nccl.max_ctas;
            for (size_t i = 0; i < ARRAY_SIZE(policies); i++)
                if (strcmp(policies[i], e->t->recipe->nccl.cta_policy) == 0)
                    tuning.policy = (enum comm_policy)i;
        }
        if (g->ops->tune)
            g->ops->tune(g->comms[CHANNEL_WORLD], &tuning);
        if (group != GROUP_PP)
            TRY(split(e, (enum channel)c, members, n, &g->comms[c], err));
        /* A pipeline's ring has a communicator for each edge. */
        for (int colour = 0; colour < mesh_edge_colours(mesh) && group == GROUP_PP; colour++) {
            int ends[2];
            const enum edge_side side = mesh_edge(mesh, (enum channel)c, colour, e->view.rank, ends);
            struct comm *edge = NULL;
            TRY(split(e, (enum channel)c, ends, side == EDGE_NONE ? 1 : 2, &edge, err));
            if (side == EDGE_NONE)
                g->ops->close(edge);
            else
                *(side == EDGE_SENDS ? &g->comms[c] : &g->inbound[c]) = edge;
        }
    }
    if (e->view.world > 1 && g->ops->tune) /* resets the tuning, so that later splits are not tuned */
        g->ops->tune(g->comms[CHANNEL_WORLD], &(struct comm_tuning){0});
    return TITAN_OK;
}

titan_status groups_open_windows(struct epoch *e, void *base, size_t bytes, const double *keys, bool *ret_refused,
                                 struct titan_error *err)
{
    const struct mesh *mesh = &e->plan.plan->mesh;
    const struct groups *const g = &e->groups;
    _cleanup_free_ int *members = calloc((size_t)e->view.world, sizeof *members);

    if (!members)
        return titan_fail(err, TITAN_ENOMEM, "windows: out of memory");
    for (int c = 0; c < CHANNEL_COUNT; c++) {
        const enum group group = channel_group((enum channel)c);
        const int n = mesh_group_size(mesh, group);
        bool same = true;
        if (!g->comms[c] || group == GROUP_PP || group == GROUP_WORLD || n == 1)
            continue;
        mesh_group_members(mesh, group, e->view.rank, members);
        for (int i = 0; i < n; i++)
            same = same && keys[members[i]] > 0 && keys[members[i]] == keys[e->view.rank];
        if (!same)
            continue;
        const titan_status status = g->ops->window_open(g->comms[c], base, bytes, err);
        *ret_refused = *ret_refused || status == TITAN_EUNSUPPORTED;
        if (status != TITAN_OK && status != TITAN_EUNSUPPORTED)
            return titan_error_wrap(err, "communicator %s", channel_name((enum channel)c));
    }
    return TITAN_OK;
}

void groups_settle(const struct epoch *e)
{
    if (e->groups.ops && e->groups.ops->settle) /* a rank alone has no communicators */
        e->groups.ops->settle(e->t->device.dev);
}

void groups_close_windows(struct epoch *e)
{
    const struct groups *const g = &e->groups;

    for (int c = 0; c < CHANNEL_COUNT; c++)
        if (c != CHANNEL_WORLD && g->comms[c])
            g->ops->window_close(g->comms[c]);
}

void groups_close(struct epoch *e)
{
    struct groups *const g = &e->groups;
    struct comm *const comm = atomic_load(&g->comm);

    if (!comm)
        return;
    for (int c = 0; c < CHANNEL_COUNT; c++)
        for (int side = 0; side < 2; side++) {
            struct comm *const child = side == 0 ? g->comms[c] : g->inbound[c];
            if (c != CHANNEL_WORLD && child)
                g->ops->close(child);
        }
    if (g->comms[CHANNEL_WORLD] != comm)
        g->ops->close(g->comms[CHANNEL_WORLD]);
    g->ops->close(comm);
    memset(g->comms, 0, sizeof g->comms);
    memset(g->inbound, 0, sizeof g->inbound);
    atomic_store(&g->comm, NULL);
}
