/* SPDX-License-Identifier: Apache-2.0 */
/* attempt.h - each rank's result of an attempt to write a checkpoint, and the ranks' joint result. */
#ifndef TITAN_WORKER_EPOCH_ATTEMPT_H
#define TITAN_WORKER_EPOCH_ATTEMPT_H

#include "worker/elastic/peer_values.h"

struct attempt {
    double failed, stop, must; /* 0 or 1; failed; commanded to stop at once; commanded to stop with a checkpoint */
    char why[PEER_WORDS];
};

/* Collective: all[rank] becomes that rank's *a, this rank's included. TITAN_ECONFLICT: a rank's values are impossible.
 */
titan_status attempt_gather(const struct peer_ranks *ranks, const struct attempt *a, struct attempt *all,
                            struct titan_error *err) TITAN_MUST_USE;
/* Collective: *a, this rank's own, becomes the first failed rank's, or else rank 0's; stop and must are set if any rank
 * had them. TITAN_ECONFLICT: a rank's values are impossible. */
titan_status attempt_agree(const struct peer_ranks *ranks, struct attempt *a, struct titan_error *err) TITAN_MUST_USE;

#endif
