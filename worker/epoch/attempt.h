/* SPDX-License-Identifier: Apache-2.0 */
/* attempt.h - each rank's result of an attempt to write a checkpoint, and the ranks' joint result. */
#ifndef TITAN_WORKER_EPOCH_ATTEMPT_H
#define TITAN_WORKER_EPOCH_ATTEMPT_H

#include "worker/elastic/peer_values.h"

struct attempt {
    double failed, stop, must; /* 0 or 1. stop: commanded to stop at once; must: commanded to stop with a checkpoint */
    char why[PEER_WORDS];
};

/* Collective: all[r] becomes the *a of rank r, for all ranks. TITAN_ECONFLICT: a rank's values are impossible. */
titan_status attempt_gather(const struct peer_ranks *ranks, const struct attempt *a, struct attempt *all,
                            struct titan_error *err) TITAN_MUST_USE;
/* Collective: *a becomes the result of the first rank that failed, or rank 0's if no rank failed. stop and must are set
 * if any rank had them set. TITAN_ECONFLICT: a rank's values are impossible. */
titan_status attempt_agree(const struct peer_ranks *ranks, struct attempt *a, struct titan_error *err) TITAN_MUST_USE;

#endif
