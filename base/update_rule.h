/* SPDX-License-Identifier: Apache-2.0 */
/* update_rule.h - the rules by which an optimizer changes parameters element by element: the rows RULE of
 * base/optimizers.def. */
#ifndef TITAN_BASE_UPDATE_RULE_H
#define TITAN_BASE_UPDATE_RULE_H

#include <stdbool.h>

enum update_rule {
#define RULE(name, states, squares) RULE_##name,
#include "base/optimizers.def"
    RULE_COUNT
};

#define UPDATE_STATES 3 /* most tensors of state of a rule */
#define UPDATE_OWN 2    /* most numbers that only one rule has */

#ifdef __CUDACC__
#define UPDATE_RULE_INLINE __host__ __device__ static inline
#else
#define UPDATE_RULE_INLINE static inline
#endif
/* How many tensors of state has a rule? */
UPDATE_RULE_INLINE int update_rule_states(enum update_rule rule)
{
    switch (rule) {
#define RULE(name, states, squares)                                                                                    \
    case RULE_##name:                                                                                                  \
        return states;
#include "base/optimizers.def"
    default:
        return 0;
    }
}

/* Is state i of a rule a mean of squares? Others have a sign. */
UPDATE_RULE_INLINE bool update_state_is_square(enum update_rule rule, int i)
{
    switch (rule) {
#define RULE(name, states, squares)                                                                                    \
    case RULE_##name:                                                                                                  \
        return (squares) >> i & 1;
#include "base/optimizers.def"
    default:
        return false;
    }
}

#endif
