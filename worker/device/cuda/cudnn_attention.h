/* SPDX-License-Identifier: Apache-2.0 */
/* cudnn_attention.h - attention by cuDNN where it is installed and a call allows it; everything else is attention.cu's.
 *
 * It takes bf16, causal, in any order but ATTENTION_FIXED. Gradients that repeat need scratch of the square of the
 * sequence: they go in parts of heads or sequences, and not at all where one key head's queries are too many. The
 * library is loaded, and a shape's plan made, when it is first asked for; plans stay until the device is closed. That
 * there is no library, or no engine for a shape, is said once. */
#ifndef TITAN_WORKER_DEVICE_CUDA_CUDNN_ATTENTION_H
#define TITAN_WORKER_DEVICE_CUDA_CUDNN_ATTENTION_H

#include "worker/device/cuda/cuda.h"

struct cudnn_attention; /* a device's library, handle and plans; thread-safe */

/* major: of the device's compute capability. */
titan_status cudnn_attention_open(int major, struct cudnn_attention **ret, struct titan_error *err) TITAN_MUST_USE;
void cudnn_attention_close(struct cudnn_attention *c); /* NULL is fine */

/* Enqueue on a stream that has not failed, forward or (backward) the gradients. False: the caller's own kernels serve,
 * and write all that may have been enqueued of it. */
bool cudnn_attention(struct stream *s, const struct attention_args *a, bool backward);
/* Scratch of the gradients with tensors in dense rows; 0: cuDNN does not serve the shape. */
size_t cudnn_attention_work_bytes(struct device *dev, const struct attention_shape *shape);

#endif
