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
    bool sgd;               /* otherwise Adam or AdamW, as args.l2 says */
    struct adamw_args args; /* .rounding: random and step; what depends on the parameter comes with the range */
    uint64_t seed;          /* of the rounding */
};

/* What an update changes: a rank's range of a unit, n elements. */
struct update_range {
    const struct layout *layout; /* NULL: not known, which will do where moments are not rounded at random */
    int unit, rank;
    void *values; /* masters, m and v, n each, one after the other, in the recipe's types (state_types.h) */
    void *shard; /* in the compute type; may be the masters themselves, where that is their type; NULL: there is none */
    const float *grad;
    int64_t n;
};

/* By the recipe. number: how many updates there have been with this one, from 1 (skipped steps do not count). The
 * summed gradient is divided by tokens and multiplied by clip. */
struct update update_of_recipe(const struct recipe *recipe, double learning_rate, uint64_t number, double tokens,
                               double clip);
/* Enqueue the update of all elements of count ranges, as one call of the device where it has that. dt: the shards'. */
titan_status update_apply(const struct update *update, const struct update_range *ranges, int count,
                          const struct device_ops *ops, enum dtype dt, struct stream *s) TITAN_MUST_USE;

#endif
