/* SPDX-License-Identifier: Apache-2.0 */
/* growth.h - starts the workers that a job may have. */
#ifndef TITAN_DAEMON_COORDINATOR_RUN_GROWTH_H
#define TITAN_DAEMON_COORDINATOR_RUN_GROWTH_H

#include "daemon/coordinator/records/core_record.h"

/* Starts the workers that the job may have now. */
void grow_job(struct core *c, struct jobrec *j);
void growth_start(struct core *c, struct jobrec *j, uint32_t count);

#endif
