/* SPDX-License-Identifier: Apache-2.0 */
/* update_rule.h - the rules by which an optimizer changes parameters element by element. worker/device/device.h has the
 * formulas. */
#ifndef TITAN_BASE_UPDATE_RULE_H
#define TITAN_BASE_UPDATE_RULE_H

#include <stdbool.h>

enum update_rule { RULE_ADAMW, RULE_SGD, RULE_LION, RULE_ADEMAMIX, RULE_DIRECTION, RULE_COUNT };

#define UPDATE_STATES 3 /* most tensors of state of a rule */

#ifdef __CUDACC__
#define UPDATE_RULE_INLINE __host__ __device__ static inline
#else
#define UPDATE_RULE_INLINE static inline
#endif
/* Is state i of a rule a mean of squares? Others have a sign. */
UPDATE_RULE_INLINE bool update_state_is_square(enum update_rule rule, int i)
{
    return i == 1 && (rule == RULE_ADAMW || rule == RULE_ADEMAMIX);
}

#endif
