/* SPDX-License-Identifier: Apache-2.0 */
/* sweep.h - titanctl submit --sweep: every combination of the given values of some keys. */
#ifndef TITAN_CTL_SWEEP_H
#define TITAN_CTL_SWEEP_H

#include <stddef.h>

#include "base/options.h"

enum { SWEEP_KEYS_MAX = 8, SWEEP_JOBS_MAX = 1000 };

struct sweep {
    struct sweep_key {
        char **assignments; /* "optimizer.lr=1e-4", one per value */
        size_t n, cap;
    } keys[SWEEP_KEYS_MAX];
    size_t n_keys;
    size_t jobs; /* number of combinations; 0: no --sweep */
    char id[9];  /* value of the label "sweep" of all its jobs; equal idempotency keys give equal ids */
};

/* Parses --sweep KEY=V1,V2,...; commas within quotes and brackets do not separate. TITAN_EINVAL. */
titan_status sweep_parse(const struct args *args, struct sweep *ret, struct titan_error *err) TITAN_MUST_USE;
/* Gives combination i: n_keys assignments, owned by the sweep, then NULL. From one combination to the next, the last
 * key varies fastest. */
void sweep_choose(const struct sweep *s, size_t i, const char *ret_assignments[SWEEP_KEYS_MAX + 1]);
void sweep_free(struct sweep *s);

#endif
