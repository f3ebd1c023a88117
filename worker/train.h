/* SPDX-License-Identifier: Apache-2.0 */
/* train.h - the training loop. */
#ifndef TITAN_WORKER_TRAIN_H
#define TITAN_WORKER_TRAIN_H

#include "base/recipe.h"
#include "worker/elastic/membership.h"

struct train_options {
    const struct recipe *recipe;   /* resolved */
    struct membership *membership; /* which epochs there are; borrowed */
    int threads;      /* CPU compute threads when the recipe leaves it open; 0 = all of the affinity mask */
    int device_index; /* which GPU of those this process sees */
};

/* Train through as many epochs as it takes. TITAN_OK: the last step is done (and its checkpoint written) or the run was
 * told to stop. Otherwise what ended it; the membership has been told. */
titan_status train(const struct train_options *options, struct titan_error *err) TITAN_MUST_USE;

#endif
