/* SPDX-License-Identifier: Apache-2.0 */
/* recovery_source.h - where the state of an epoch comes from (docs/membership.md): what the coordinator names when it
 * forms one, and what its members found in the end. */
#ifndef TITAN_DAEMON_COORDINATOR_RUN_RECOVERY_SOURCE_H
#define TITAN_DAEMON_COORDINATOR_RUN_RECOVERY_SOURCE_H

#include "daemon/coordinator/records/core_record.h"

/* What the worker says it holds. */
void source_held(struct workrec *w, const Titan__Internal__WorkerQuiesced *q);
/* Set source, source_epoch, holders, resume_step and checkpoint of the next epoch from what its workers hold. */
void source_choose(struct jobrec *j);
/* Holders of the source that are not among the members, in the source's rank order; ret has room for n_holders. */
uint32_t source_departing(const struct jobrec *j, struct workrec *const *members, uint32_t n, struct workrec **ret);
/* Every member of the epoch has its state shard: no older one is needed, and departing ranks may go. */
void source_installed(struct core *c, struct jobrec *j);
void source_ready(struct core *c, struct jobrec *j, struct workrec *w, const Titan__Internal__StateReady *m);
/* The source as it is in an epoch that agents have formed; as it is in the store. */
void source_take(struct jobrec *j, const Titan__Internal__FormEpoch *f);
void source_restore(struct jobrec *j, const struct core_saved_job *saved);

#endif
