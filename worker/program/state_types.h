/* SPDX-License-Identifier: Apache-2.0 */
/* state_types.h - element types of a rank's part of the training state.
 *
 * A unit's state has its masters, then the optimizer's kinds of state (tensor/layout.h), dense. All are fp32, or the
 * kinds are bf16 (optimizer.state_dtype), or masters as well (training.dtype). A stored value is rounded to nearest
 * even. optimizer.state_rounding can have moments rounded at random. Kinds of DTYPE_U8 are blocks of 8-bit codes
 * (base/moment_codes.h). Each parameter's part begins with a block of its own, but for glued parameters
 * (tensor/model.h). All computation with these values is fp32. */
#ifndef TITAN_WORKER_PROGRAM_STATE_TYPES_H
#define TITAN_WORKER_PROGRAM_STATE_TYPES_H

#include "base/recipe.h"
#include "worker/device/device.h"

struct state_types {
    enum dtype compute; /* type of the gathered shard; where masters have this type, the shard is the masters */
    enum dtype master, moment;
};

static inline struct state_types state_types_of_recipe(const struct recipe *recipe, enum dtype compute)
{
    return (struct state_types){.compute = compute,
                                .master = recipe_master_bytes(recipe) == 2 ? DTYPE_BF16 : DTYPE_F32,
                                .moment = recipe_moment_bytes(recipe) == 4   ? DTYPE_F32
                                          : recipe_moment_bytes(recipe) == 2 ? DTYPE_BF16
                                                                             : DTYPE_U8};
}

/* Bytes of n masters and of `kept` elements of the kinds of state. */
static inline size_t state_types_bytes(struct state_types t, int64_t n, int64_t kept)
{
    return (size_t)n * dtype_bytes(t.master) + moment_bytes(t.moment, kept);
}

#endif
