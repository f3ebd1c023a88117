/* SPDX-License-Identifier: Apache-2.0 */
/* skipped.h - counts of steps without an update, because their loss or gradients were not finite. */
#ifndef TITAN_WORKER_STATE_SKIPPED_H
#define TITAN_WORKER_STATE_SKIPPED_H

#include <stdbool.h>
#include <stdint.h>

struct skipped_steps {
    uint64_t total;
    uint64_t in_a_row; /* up to the last committed step */
    /* First and last skipped step of the newest stretch; 0 = none. In a stretch at most SKIPPED_GAP other steps lie
     * between two skipped ones. */
    uint64_t first, last;
};

/* A stretch of skipped steps ends after this many steps with an update. */
#define SKIPPED_GAP 100

/* Counts committed step `step`. */
void skipped_count(struct skipped_steps *s, uint64_t step, bool skipped);
/* The first step of a stretch that still lasts at this step; 0 = none. */
uint64_t skipped_since(const struct skipped_steps *s, uint64_t step);
/* Are these numbers possible for a run of `step` steps? */
bool skipped_possible(const struct skipped_steps *s, uint64_t step);

#endif
