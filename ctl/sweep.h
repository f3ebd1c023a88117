/* SPDX-License-Identifier: Apache-2.0 */
/* sweep.h - titanctl submit --sweep: every combination of the values that some keys are given. */
#ifndef TITAN_CTL_SWEEP_H
#define TITAN_CTL_SWEEP_H

#include <stddef.h>

#include "base/options.h"

enum { SWEEP_KEYS_MAX = 8, SWEEP_JOBS_MAX = 1000 };

struct sweep {
    struct sweep_key {
        char **assignments; /* "optimizer.lr=1e-4", one for each value */
        size_t n, cap;
    } keys[SWEEP_KEYS_MAX];
    size_t n_keys;
    size_t jobs; /* combinations; 0: there is no --sweep */
    char id[9];  /* what all its jobs have as the label "sweep"; the same for the same idempotency key */
};

/* From --sweep KEY=V1,V2,...: commas within quotes and brackets divide nothing. TITAN_EINVAL. */
titan_status sweep_parse(const struct args *args, struct sweep *ret, struct titan_error *err) TITAN_MUST_USE;
/* Combination i, the last key's values fastest: n_keys assignments, the sweep's own, and NULL. */
void sweep_choose(const struct sweep *s, size_t i, const char *ret_assignments[SWEEP_KEYS_MAX + 1]);
void sweep_free(struct sweep *s);

#endif
