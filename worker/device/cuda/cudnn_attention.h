/* SPDX-License-Identifier: Apache-2.0 */
/* cudnn_attention.h - attention by cuDNN where cuDNN is installed and a call allows it; attention.cu computes the rest.
 *
 * cuDNN is used for causal attention in bf16, in any order but ATTENTION_FIXED. Repeatable gradients need scratch
 * proportional to the square of the sequence. They are computed in parts of heads or sequences. If even the query heads
 * of one key head need too much scratch, cuDNN is not used. The library is loaded at the first call, and a shape's plan
 * is made at its first use. Plans stay until the device is closed. A missing library, or a shape without an engine, is
 * logged once. */
#ifndef TITAN_WORKER_DEVICE_CUDA_CUDNN_ATTENTION_H
#define TITAN_WORKER_DEVICE_CUDA_CUDNN_ATTENTION_H

#include "worker/device/cuda/cuda.h"

struct cudnn_attention; /* a device's library, handle and plans; thread-safe */

/* major: first number of the device's compute capability. */
titan_status cudnn_attention_open(int major, struct cudnn_attention **ret, struct titan_error *err) TITAN_MUST_USE;
void cudnn_attention_close(struct cudnn_attention *c); /* NULL is fine */

/* Enqueues the forward pass or the gradients (backward) on a stream that has not failed. False: the caller must use its
 * own kernels. These kernels overwrite everything that cuDNN may have enqueued and written. */
bool cudnn_attention(struct stream *s, const struct attention_args *a, bool backward);
/* Bytes of scratch for the gradients, for tensors with dense rows; 0: cuDNN does not compute the shape. */
size_t cudnn_attention_work_bytes(struct device *dev, const struct attention_shape *shape);

#endif
