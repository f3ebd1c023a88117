/* SPDX-License-Identifier: Apache-2.0 */
/* whole.h - the whole model on one device: no other ranks, no training state, own memory. For text generation and for
 * tests against a reference. It runs a program like a training step's, built by block.h for a mesh of one rank.
 *
 * Parameters are set once as fp32 per tensor, or initialized from a seed, and kept in the compute type. All pointers
 * are host pointers. One thread at a time. */
#ifndef TITAN_WORKER_INFER_WHOLE_H
#define TITAN_WORKER_INFER_WHOLE_H

#include "worker/checkpoint/trained.h"
#include "worker/device/device.h"
#include "worker/tensor/model.h"

struct whole_model;

struct whole_options {
    const struct model *model;          /* borrowed */
    const struct device_handle *device; /* borrowed */
    enum dtype dt;                      /* compute type: DTYPE_F32 or DTYPE_BF16 */
    int64_t b, t;                       /* room for b sequences of t tokens */
};

/* Sequences of one call; b and t may be smaller than at open. */
struct whole_batch {
    const int32_t *tokens;  /* (b, t) */
    const int32_t *targets; /* (b, t) for a loss; below 0: not counted */
    int64_t b, t;
};

titan_status whole_model_open(const struct whole_options *options, struct whole_model **ret,
                              struct titan_error *err) TITAN_MUST_USE;
void whole_model_close(struct whole_model *w); /* NULL is fine */

/* Sets parameter number tensor of model->tensors from numel fp32 values. */
titan_status whole_model_set(struct whole_model *w, int tensor, const float *values,
                             struct titan_error *err) TITAN_MUST_USE;
/* Sets the biases of all the model's experts (layout_biases numbers, layer after layer); they are 0 before the first
 * call. No effect on a model without biases. */
titan_status whole_model_set_biases(struct whole_model *w, const float *biases, struct titan_error *err) TITAN_MUST_USE;
/* Loads all parameters and biases from a checkpoint of this model. */
titan_status whole_model_load(struct whole_model *w, const struct trained *t, struct titan_error *err) TITAN_MUST_USE;
/* Sets all parameters to their initial values. */
titan_status whole_model_init(struct whole_model *w, uint64_t seed, struct titan_error *err) TITAN_MUST_USE;

/* Sets an expert's capacity in even shares of a call's tokens, as in training with moe.overflow = "drop"; 0, the
 * initial value = unlimited. */
void whole_model_set_expert_capacity(struct whole_model *w, double capacity);

/* Logits (b, t, V) fp32 of a batch. */
titan_status whole_model_logits(struct whole_model *w, const struct whole_batch *batch, float *logits,
                                struct titan_error *err) TITAN_MUST_USE;
/* Logits (V) of the last of t tokens only. */
titan_status whole_model_next(struct whole_model *w, const int32_t *tokens, int64_t t, float *logits,
                              struct titan_error *err) TITAN_MUST_USE;

/* Returns the sum of the losses over counted tokens, in nats, and its gradients. grads[i]: numel values of parameter i;
 * grads NULL: the loss alone. Gradients are of the trained loss, which includes balance_loss and the losses of modules
 * of multi-token prediction. */
titan_status whole_model_loss(struct whole_model *w, const struct whole_batch *batch, double *ret_loss_sum,
                              float *const *grads, struct titan_error *err) TITAN_MUST_USE;
/* The sum of the losses of the multi-token prediction modules in the last whole_model_loss() with gradients. */
titan_status whole_model_mtp_loss(struct whole_model *w, double *ret, struct titan_error *err) TITAN_MUST_USE;

#endif
