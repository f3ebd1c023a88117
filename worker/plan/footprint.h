/* SPDX-License-Identifier: Apache-2.0 */
/* footprint.h - the memory of a process besides what its program needs. */
#ifndef TITAN_WORKER_PLAN_FOOTPRINT_H
#define TITAN_WORKER_PLAN_FOOTPRINT_H

#include "worker/plan/cost.h"

/* Memory of a process's communicators; 0 where a rank is alone. Where devices compute in the host's memory, it is what
 * the program's transfers touch of shared segments (comm_shm_touched), with all ranks on one machine. With copies
 * (copy_bytes, of plan_copy_bytes; 0: none) it includes what the copies' gradients touch. On other devices it is the
 * machine's memory_peers. */
size_t footprint_of_peers(const struct machine *m, const struct program *p, size_t copy_bytes);

#endif
