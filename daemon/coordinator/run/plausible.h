/* SPDX-License-Identifier: Apache-2.0 */
/* plausible.h - can it be what an agent says? Steps, epochs, paths, parts in an epoch. */
#ifndef TITAN_DAEMON_COORDINATOR_RUN_PLAUSIBLE_H
#define TITAN_DAEMON_COORDINATOR_RUN_PLAUSIBLE_H

#include "daemon/coordinator/records/core_record.h"

/* Can the job's epochs have come to this number? */
bool plausible_epoch(const struct core *c, const struct jobrec *j, uint64_t epoch);
/* Has the job a worker there, or a member of a quorum configuration? */
bool plausible_part(const struct jobrec *j, const struct noderec *n);
/* The same for an epoch: is one of its members or departing ranks of that node? */
bool plausible_member(const struct jobrec *j, const struct noderec *n, const Titan__Internal__FormEpoch *f);
/* Is it where the job keeps its checkpoint of that step? UINT64_MAX = of any. */
bool plausible_path(const struct jobrec *j, uint64_t step, const char *path);
/* Can the job be at that step at all? */
bool plausible_step(const struct jobrec *j, uint64_t step);
/* And have come to it in this epoch by now? Not to be asked before its origin can have been reported. */
bool plausible_reached(const struct core *c, const struct jobrec *j, uint64_t step);

#endif
