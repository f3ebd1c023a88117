/* SPDX-License-Identifier: Apache-2.0 */
/* groups.h - an epoch's communicators: one of all ranks, and one split from it for every kind of traffic that the
 * mesh's groups have. They fail and are revoked as one. */
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
    _Atomic(struct comm *) comm; /* members and departing ranks; the control thread revokes it, and so its parts */
    struct comm *comms[CHANNEL_COUNT], *inbound[CHANNEL_COUNT]; /* as in exec_options */
};

/* Members and departing ranks. */
int groups_ranks(const struct epoch_view *view);
/* The communicator of members and departing ranks; from here on a command to revoke ends every wait on it. Collective,
 * as are the other calls but revoke and close. */
titan_status groups_connect(struct epoch *e, struct titan_error *err) TITAN_MUST_USE;
/* CHANNEL_WORLD: the members alone. */
titan_status groups_split_members(struct epoch *e, struct titan_error *err) TITAN_MUST_USE;
/* A communicator for every channel that any rank's program uses. */
titan_status groups_split_channels(struct epoch *e, struct titan_error *err) TITAN_MUST_USE;
/* All have come here, or none passes. */
titan_status groups_wait_for_all(struct epoch *e, struct titan_error *err) TITAN_MUST_USE;
titan_status groups_wait_for_members(struct epoch *e, struct titan_error *err) TITAN_MUST_USE;
void groups_revoke(struct epoch *e);
/* Commands to revoke are not heard any more. */
void groups_unwatch(struct epoch *e);
void groups_close(struct epoch *e);
/* Memory at base as a window of the communicators of collectives of which all members have the same key: of every rank,
 * in rank order, 0: has none. *ret_refused: some cannot, with the reason in err. */
titan_status groups_open_windows(struct epoch *e, void *base, size_t bytes, const double *keys, bool *ret_refused,
                                 struct titan_error *err) TITAN_MUST_USE;
/* Those that there are, before the first step. */
void groups_close_windows(struct epoch *e);
/* Wait until the last epoch's communicators are given back: before steps use several of this one's at a time. */
void groups_settle(const struct epoch *e);

#endif
