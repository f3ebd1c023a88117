/* SPDX-License-Identifier: Apache-2.0 */
/* mxfp4.h - values of OCP's MXFP4 (Microscaling Formats 1.0): blocks of 32 four-bit numbers (e2m1). Each block has an
 * 8-bit scale, a power of two. */
#ifndef TITAN_WORKER_CHECKPOINT_MXFP4_H
#define TITAN_WORKER_CHECKPOINT_MXFP4_H

#include <stdint.h>

#define MXFP4_BLOCK 32

/* Decodes n values; n is a multiple of MXFP4_BLOCK. A byte of codes has two values, the first in the lower half.
 * scales: 2^(scale - 127) for each block. */
void mxfp4_decode(float *out, const uint8_t *codes, const uint8_t *scales, int64_t n);

#endif
