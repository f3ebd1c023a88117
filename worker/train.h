/* SPDX-License-Identifier: Apache-2.0 */
/* train.h - the training loop. */
#ifndef TITAN_WORKER_TRAIN_H
#define TITAN_WORKER_TRAIN_H

#include "base/recipe.h"
#include "worker/elastic/membership.h"

struct train_options {
    const struct recipe *recipe;   /* resolved */
    struct membership *membership; /* source of epochs and commands; borrowed */
    int threads;      /* number of CPU compute threads, unless the recipe sets it; 0 = all cores of the affinity mask */
    int device_index; /* index among the GPUs that this process sees */
};

/* Trains, in as many epochs as needed. TITAN_OK: the last step is done (and its checkpoint is written), or the run was
 * told to stop. Any other status is the failure that ended the run; the membership has been told about it. */
titan_status train(const struct train_options *options, struct titan_error *err) TITAN_MUST_USE;

#endif
