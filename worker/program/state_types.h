/* SPDX-License-Identifier: Apache-2.0 */
/* state_types.h - element types of a rank's part of the training state.
 *
 * Of a range of n parameters it has n masters, then n first and n second moments, dense. fp32 throughout, or moments in
 * bf16 (optimizer.state_dtype), or masters as well (training.dtype); a value is rounded to nearest even when it is
 * stored, moments by choice at random (optimizer.state_rounding), and what is computed with it is fp32. */
#ifndef TITAN_WORKER_PROGRAM_STATE_TYPES_H
#define TITAN_WORKER_PROGRAM_STATE_TYPES_H

#include "base/recipe.h"
#include "worker/device/device.h"

struct state_types {
    enum dtype compute; /* of what is gathered; where it is the masters' own, they are that */
    enum dtype master, moment;
};

static inline struct state_types state_types_of_recipe(const struct recipe *recipe, enum dtype compute)
{
    return (struct state_types){.compute = compute,
                                .master = recipe_master_bytes(recipe) == 2 ? DTYPE_BF16 : DTYPE_F32,
                                .moment = recipe_moment_bytes(recipe) == 2 ? DTYPE_BF16 : DTYPE_F32};
}

/* Of one parameter: its master and both moments. */
static inline size_t state_types_bytes(struct state_types t)
{
    return dtype_bytes(t.master) + 2 * dtype_bytes(t.moment);
}

#endif
