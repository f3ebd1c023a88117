/* SPDX-License-Identifier: Apache-2.0 */
/* update.h - one optimizer update: Adam, AdamW or SGD on a range of masters. */
#ifndef TITAN_WORKER_OPTIM_UPDATE_H
#define TITAN_WORKER_OPTIM_UPDATE_H

#include "base/recipe.h"
#include "worker/device/device.h"
#include "worker/program/state_types.h"
#include "worker/tensor/layout.h"

/* The arithmetic of one update, the same for every range of the model. */
struct update {
    bool sgd;               /* SGD; otherwise Adam or AdamW, depending on args.l2 */
    struct adamw_args args; /* .rounding has only random and step; the range gives the parameter's values */
    uint64_t seed;          /* seed of the rounding */
};

/* The elements that an update changes: a rank's range of a unit, n elements. */
struct update_range {
    const struct layout *layout; /* NULL = unknown; allowed if moments are not rounded at random */
    int unit, rank;
    void *values; /* masters, m and v, n each, one after the other, in the recipe's types (state_types.h) */
    /* The shard is in the compute type. It may be the masters themselves, if the masters have that type. NULL = no
     * shard. */
    void *shard;
    const float *grad;
    int64_t n;
};

/* Makes a recipe's update. number: number of updates so far, this one included, from 1 (skipped steps do not count).
 * The summed gradient is divided by tokens and multiplied by clip. */
struct update update_of_recipe(const struct recipe *recipe, double learning_rate, uint64_t number, double tokens,
                               double clip);
/* Enqueues the update of all elements of count ranges, as one call if the device has such a call. dt: type of the
 * shards. */
titan_status update_apply(const struct update *update, const struct update_range *ranges, int count,
                          const struct device_ops *ops, enum dtype dt, struct stream *s) TITAN_MUST_USE;

#endif
