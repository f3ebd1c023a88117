/* SPDX-License-Identifier: Apache-2.0 */
/* node_slots.h - the slots of a node that can be used, as its GPUs are. */
#ifndef TITAN_DAEMON_COORDINATOR_RECORDS_NODE_SLOTS_H
#define TITAN_DAEMON_COORDINATOR_RECORDS_NODE_SLOTS_H

#include "daemon/coordinator/records/core_record.h"

/* Its slots without those that take no worker, as their GPU is faulty or not known yet; a worker that is in one still
 * counts. And how many of them are free. */
uint32_t node_slots(const struct core *c, const struct noderec *n);
uint32_t node_spare(const struct core *c, const struct noderec *n);
/* The first GPU that takes its slot out of use; NULL = none. */
const Titan__Internal__GpuState *node_faulty_gpu(const struct noderec *n);
/* One that takes no worker, for messages: a faulty one, or one that has not been looked at. */
const Titan__Internal__GpuState *node_unused_gpu(const struct noderec *n);

#endif
