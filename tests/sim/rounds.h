/* SPDX-License-Identifier: Apache-2.0 */
/* rounds.h - many schedules, in processes side by side; what came of them. */
#ifndef TITAN_TESTS_SIM_ROUNDS_H
#define TITAN_TESTS_SIM_ROUNDS_H

#include "tests/sim/sim.h"

#define ROUNDS_FAILED_MAX 64

struct rounds {
    uint64_t first, count;
    int processes;
    bool stop_at_first; /* violation */
    bool quiet;         /* do not shrink and print */
};
struct rounds_result {
    uint64_t passed, failed, again; /* again: run twice, with the same trace both times */
    uint64_t failed_seeds[ROUNDS_FAILED_MAX];
    char invariant[8], text[600]; /* of the first */
    int end_signal;               /* that ended the process of the first; 0: none */
    double seconds;
    struct totals totals;
};
void rounds_run(const struct rounds *r, FILE *out, struct rounds_result *ret);
void rounds_print(FILE *out, const struct rounds *r, const struct rounds_result *result);

#endif
