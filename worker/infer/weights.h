/* SPDX-License-Identifier: Apache-2.0 */
/* weights.h - a model's parameters on one device in the compute type, and its experts' biases: all weights that a
 * program without training reads. One thread at a time. */
#ifndef TITAN_WORKER_INFER_WEIGHTS_H
#define TITAN_WORKER_INFER_WEIGHTS_H

#include "worker/checkpoint/trained.h"
#include "worker/device/device.h"
#include "worker/tensor/layout.h"

struct buffer; /* program/program.h */

struct weights {
    const struct device_handle *device; /* borrowed, as are layout and stream */
    const struct layout *layout;        /* for one rank */
    struct stream *stream;
    enum dtype dt;
    int64_t unit_max; /* elements of the largest unit */
    /* device memory */
    void **units;   /* per unit, in the compute type */
    float *biases;  /* NULL = none */
    float *staging; /* (unit_max) fp32; callers may use it between two calls */
};

/* Parameters are not set, biases are 0. *ret must be zeroed; weights_close zeroes it, also after a failure. */
titan_status weights_open(const struct layout *layout, const struct device_handle *device, enum dtype dt,
                          struct stream *s, struct weights *ret, struct titan_error *err) TITAN_MUST_USE;
void weights_close(struct weights *w);

/* Sets parameter number tensor of model->tensors from numel fp32 values. */
titan_status weights_set(struct weights *w, int tensor, const float *values, struct titan_error *err) TITAN_MUST_USE;
/* Sets all experts' biases (layout_biases numbers, layer after layer). No effect on a model without biases. */
titan_status weights_set_biases(struct weights *w, const float *biases, struct titan_error *err) TITAN_MUST_USE;
/* Loads all parameters and biases from a checkpoint of this model. */
titan_status weights_load(struct weights *w, const struct trained *t, struct titan_error *err) TITAN_MUST_USE;

/* Returns the memory of a program's SHARD or BIAS buffer (exec.h); NULL for other buffers. weights: a struct
 * weights. */
void *weights_bind(void *weights, const struct buffer *buffer);

#endif
