/* SPDX-License-Identifier: Apache-2.0 */
/* footprint.h - the memory of a process beside what its program needs. */
#ifndef TITAN_WORKER_PLAN_FOOTPRINT_H
#define TITAN_WORKER_PLAN_FOOTPRINT_H

#include "worker/plan/cost.h"

/* For its communicators: where devices compute in the host's memory what the program's transfers touch of shared
 * segments (comm_shm_touched), all ranks on one machine, and with copies (plan_copy_bytes, 0: none) what their
 * gradients do; on others the machine's memory_peers. 0 where a rank is alone. */
size_t footprint_of_peers(const struct machine *m, const struct program *p, size_t copy_bytes);

#endif
