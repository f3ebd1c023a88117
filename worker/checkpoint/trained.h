/* SPDX-License-Identifier: Apache-2.0 */
/* trained.h - a checkpoint's model: its recipe, and its parameters without the optimizer's state. Generation, export
 * and evaluation start from it. */
#ifndef TITAN_WORKER_CHECKPOINT_TRAINED_H
#define TITAN_WORKER_CHECKPOINT_TRAINED_H

#include <limits.h>

#include "base/recipe.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/tensor/model.h"

struct trained {
    char path[PATH_MAX]; /* path of the checkpoint itself */
    struct checkpoint_info info;
    struct recipe recipe; /* resolved */
    struct model *model;
};

/* path: a checkpoint, or a folder of checkpoints (the newest is opened). */
titan_status trained_open(const char *path, struct trained *ret, struct titan_error *err) TITAN_MUST_USE;
void trained_close(struct trained *t);
/* Loads the n parameters of model->tensors from `first` on, one after the other, into out (sum of their numel). */
titan_status trained_load(const struct trained *t, int first, int n, float *out,
                          struct titan_error *err) TITAN_MUST_USE;
/* Loads the biases of all experts (layout_biases numbers); does nothing if the model has none. */
titan_status trained_load_biases(const struct trained *t, float *out, struct titan_error *err) TITAN_MUST_USE;

#endif
