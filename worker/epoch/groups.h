/* SPDX-License-Identifier: Apache-2.0 */
/* groups.h - an epoch's communicators: one of all ranks, and one split from it for every kind of traffic in the mesh's
 * groups. They fail and are revoked together. */
#ifndef TITAN_WORKER_EPOCH_GROUPS_H
#define TITAN_WORKER_EPOCH_GROUPS_H

#include <stdatomic.h>

#include "worker/comm/comm.h"
#include "worker/elastic/membership.h"
#include "worker/tensor/mesh.h"

struct epoch;

/* Written by groups.c only. */
struct groups {
    const struct comm_ops *ops;  /* NULL when alone */
    _Atomic(struct comm *) comm; /* members and departing ranks; the control thread revokes it and its splits */
    struct comm *comms[CHANNEL_COUNT], *inbound[CHANNEL_COUNT]; /* as in exec_options */
};

/* Number of members and departing ranks. */
int groups_ranks(const struct epoch_view *view);
/* Opens the communicator of members and departing ranks; from now on a command to revoke ends every wait on it.
 * Collective, like all other calls here except revoke and close. */
titan_status groups_connect(struct epoch *e, struct titan_error *err) TITAN_MUST_USE;
/* Splits CHANNEL_WORLD off: the members alone. */
titan_status groups_split_members(struct epoch *e, struct titan_error *err) TITAN_MUST_USE;
/* Splits a communicator for every channel that any rank's program uses. */
titan_status groups_split_channels(struct epoch *e, struct titan_error *err) TITAN_MUST_USE;
/* Barrier: all ranks arrive, or none passes. */
titan_status groups_wait_for_all(struct epoch *e, struct titan_error *err) TITAN_MUST_USE;
titan_status groups_wait_for_members(struct epoch *e, struct titan_error *err) TITAN_MUST_USE;
void groups_revoke(struct epoch *e);
/* From now on, commands to revoke have no effect. */
void groups_unwatch(struct epoch *e);
void groups_close(struct epoch *e);
/* Opens memory at base as a window of the collectives' communicators with the same key on all members. keys: key of
 * every rank, in rank order; 0 = no key. *ret_refused: this rank's window was refused; err has the reason. */
titan_status groups_open_windows(struct epoch *e, void *base, size_t bytes, const double *keys, bool *ret_refused,
                                 struct titan_error *err) TITAN_MUST_USE;
/* Closes the open windows, before the first step. */
void groups_close_windows(struct epoch *e);
/* Call before steps use several of this epoch's communicators at a time. Waits until the last epoch's communicators are
 * freed. */
void groups_settle(const struct epoch *e);

#endif
