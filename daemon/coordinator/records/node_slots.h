/* SPDX-License-Identifier: Apache-2.0 */
/* node_slots.h - usable slots of a node, given its GPUs. */
#ifndef TITAN_DAEMON_COORDINATOR_RECORDS_NODE_SLOTS_H
#define TITAN_DAEMON_COORDINATOR_RECORDS_NODE_SLOTS_H

#include "daemon/coordinator/records/core_record.h"

/* node_slots: all slots minus the unusable slots (GPU faulty or not yet known). A worker in an unusable slot still
 * counts as using a slot. node_spare: the usable slots that are free. */
uint32_t node_slots(const struct core *c, const struct noderec *n);
uint32_t node_spare(const struct core *c, const struct noderec *n);
/* First GPU that takes its slot out of use; NULL = none. */
const Titan__Internal__GpuState *node_faulty_gpu(const struct noderec *n);
/* A GPU that takes no worker, for messages: faulty, or not yet checked. */
const Titan__Internal__GpuState *node_unused_gpu(const struct noderec *n);

#endif
