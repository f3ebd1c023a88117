/* SPDX-License-Identifier: Apache-2.0 */
/* attempt.h - what each rank says after an attempt to write a checkpoint, and what that comes to. */
#ifndef TITAN_WORKER_EPOCH_ATTEMPT_H
#define TITAN_WORKER_EPOCH_ATTEMPT_H

#include "worker/comm/comm.h"

#define ATTEMPT_WORDS 48 /* doubles that carry words */

struct attempt {
    double failed, stop, must; /* 0 or 1; told to stop as it is; told to stop with a checkpoint */
    char why[ATTEMPT_WORDS * sizeof(double)];
};

/* Collective over comm of world ranks (NULL: alone): all[rank] becomes what that rank says, a rank's own *a among them.
 * TITAN_ECONFLICT: a rank says what cannot be. */
titan_status attempt_gather(const struct device_handle *device, const struct comm_ops *ops, struct comm *comm,
                            int world, const struct attempt *a, struct attempt *all, struct stream *s,
                            struct titan_error *err) TITAN_MUST_USE;
/* Collective over comm of world ranks (NULL: alone). *a, a rank's own, becomes that of the first that has failed, or
 * else rank 0's; stop, must: any rank was told to. TITAN_ECONFLICT: a rank says what cannot be. */
titan_status attempt_agree(const struct device_handle *device, const struct comm_ops *ops, struct comm *comm, int world,
                           struct attempt *a, struct stream *s, struct titan_error *err) TITAN_MUST_USE;

#endif
