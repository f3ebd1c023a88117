/* SPDX-License-Identifier: Apache-2.0 */
/* footprint.h - the memory that a process needs besides the memory of its program. */
#ifndef TITAN_WORKER_PLAN_FOOTPRINT_H
#define TITAN_WORKER_PLAN_FOOTPRINT_H

#include "worker/plan/cost.h"

/* Memory of a process's communicators; 0 where a rank is alone. Devices that compute in the host's memory: the part of
 * the shared segments that the program's transfers touch (comm_shm_touched), with all ranks on one machine. Transfers
 * of gradients to copies are included (copy_bytes from plan_copy_bytes(); 0: no copies). Other devices: the machine's
 * memory_peers. */
size_t footprint_of_peers(const struct machine *m, const struct program *p, size_t copy_bytes);

#endif
