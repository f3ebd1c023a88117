/* SPDX-License-Identifier: Apache-2.0 */
/* update.h - one step's update of the parameters, by the rules of the run's optimizers (base/optimizers.h). */
#ifndef TITAN_WORKER_OPTIM_UPDATE_H
#define TITAN_WORKER_OPTIM_UPDATE_H

#include "base/recipe.h"
#include "worker/device/device.h"
#include "worker/optim/whole_matrix.h"
#include "worker/program/state_types.h"
#include "worker/tensor/layout.h"

/* Parameters with one arithmetic: matrices of layers, and the rest (base/optimizers.h). */
enum { PARAMS_MATRICES, PARAMS_REST, PARAMS_GROUPS };

/* The arithmetic of one step's update, the same for every range of the model. */
struct update {
    struct update_args args[PARAMS_GROUPS]; /* .rounding has only random and step; the range gives the rest */
    int kind[PARAMS_GROUPS][UPDATE_STATES]; /* which of the layout's kinds each state of a group's rule is; -1: none */
    float threshold[PARAMS_GROUPS];         /* bounds a tensor's rate, device.h: update_piece.excess; 0: no bound */
    const double *sums;                     /* of the model's tensors (update_sums, over all ranks); NULL: none */
    bool alike;                             /* both groups have the same arithmetic and kinds */
    uint64_t seed;                          /* seed of the rounding */
    struct whole_step whole;                /* for matrices that are updated whole */
    /* Where replicas send each other parts of their directions: the gradient that the update takes is the direction of
     * all parts, and these are the numbers of what comes before. */
    struct {
        float scale, beta; /* of a replica's sum of gradients, still to be multiplied by the number of replicas */
        bool sign;
        uint64_t number;
    } parts;
};

/* The elements that an update changes: a rank's range of a unit, n elements. */
struct update_range {
    const struct layout *layout; /* NULL = unknown; allowed for groups alike, moments not rounded at random */
    int unit, rank;
    void *values; /* masters (n), then the unit's kinds of state, in the recipe's types (state_types.h) */
    /* The shard is in the compute type. It may be the masters themselves, if the masters have that type. NULL = no
     * shard. */
    void *shard;
    const float *grad;
    int64_t n;
};

/* What an update depends on besides the recipe. */
struct update_step {
    double rate;     /* factor on the peak learning rates (base/learning_rate.h) */
    uint64_t number; /* of updates so far, this one included, from 1; skipped steps do not count */
    double tokens;   /* the summed gradient is divided by them */
    double clip;     /* and multiplied by this */
};
/* What replicas send each other, by parallelism.replicate_method. */
struct parts_shape parts_of_recipe(const struct recipe *recipe);
struct update update_of_recipe(const struct recipe *recipe, const struct update_step *step);
/* Enqueues: adds to sums (device, one for each tensor of the model) what this rank counts of the range's tensors. Each
 * element is counted by one rank. */
titan_status update_sums(const struct update *update, const struct update_range *range, double *sums,
                         const struct device_ops *ops, struct stream *s) TITAN_MUST_USE;
/* The state that `rank` keeps as an owner of matrices (layout_owned), in the type `moment`, from `next` fp32; and fp32
 * values of it. Enqueued. */
titan_status update_keep_owned(const struct layout *layout, int rank, enum dtype moment, void *state, const float *next,
                               const struct device_ops *ops, struct stream *s) TITAN_MUST_USE;
titan_status update_read_owned(const struct layout *layout, int rank, enum dtype moment, float *values,
                               const void *state, const struct device_ops *ops, struct stream *s) TITAN_MUST_USE;
/* Enqueues the update of all elements of count ranges, as one call if the device has such a call. dt: type of the
 * shards. */
titan_status update_apply(const struct update *update, const struct update_range *ranges, int count,
                          const struct device_ops *ops, enum dtype dt, struct stream *s) TITAN_MUST_USE;

#endif
