/* SPDX-License-Identifier: Apache-2.0 */
/* recovery_source.h - the source of an epoch's state (docs/membership.md): the source that the coordinator names when
 * it forms the epoch, and the source that the members have found in the end. */
#ifndef TITAN_DAEMON_COORDINATOR_RUN_RECOVERY_SOURCE_H
#define TITAN_DAEMON_COORDINATOR_RUN_RECOVERY_SOURCE_H

#include "daemon/coordinator/records/core_record.h"

/* Takes over the state that the worker reports to hold. */
void source_held(struct workrec *w, const Titan__Internal__WorkerQuiesced *q);
/* Sets source, source_epoch, holders, resume_step and checkpoint of the next epoch from its workers' states. */
void source_choose(struct jobrec *j);
/* Fills ret with holders of the source that are no members, in the source's rank order. ret has room for n_holders. */
uint32_t source_departing(const struct jobrec *j, struct workrec *const *members, uint32_t n, struct workrec **ret);
/* Every member of the epoch has its state shard. So older shards are not needed, and departing ranks may go. */
void source_installed(struct core *c, struct jobrec *j);
/* Calls source_installed() once rank 0 has its state and each departing rank has left the epoch. A departing rank that
 * is killed before may be inside the last barrier, and its peers would lose the epoch. */
void source_left(struct core *c, struct jobrec *j);
void source_ready(struct core *c, struct jobrec *j, struct workrec *w, const Titan__Internal__StateReady *m);
/* Sets the source from an epoch that agents have formed, or from the store. */
void source_take(struct jobrec *j, const Titan__Internal__FormEpoch *f);
void source_restore(struct jobrec *j, const struct core_saved_job *saved);

#endif
