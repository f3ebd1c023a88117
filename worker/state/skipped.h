/* SPDX-License-Identifier: Apache-2.0 */
/* skipped.h - steps without an update, as their loss or gradients were not finite: how many, and how it stands. */
#ifndef TITAN_WORKER_STATE_SKIPPED_H
#define TITAN_WORKER_STATE_SKIPPED_H

#include <stdbool.h>
#include <stdint.h>

struct skipped_steps {
    uint64_t total;
    uint64_t in_a_row;    /* up to the last committed step */
    uint64_t first, last; /* of the newest stretch of them, in which no more than SKIPPED_GAP steps lie between two; 0:
                           * there was none */
};

/* A run is well again behind so many steps that all counted. */
#define SKIPPED_GAP 100

/* Step `step` is committed. */
void skipped_count(struct skipped_steps *s, uint64_t step, bool skipped);
/* The first step of a stretch that has not ended at this one; 0: there is none. */
uint64_t skipped_since(const struct skipped_steps *s, uint64_t step);
/* Can these be the numbers of a run of so many steps? */
bool skipped_possible(const struct skipped_steps *s, uint64_t step);

#endif
