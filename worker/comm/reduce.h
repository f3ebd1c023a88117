/* SPDX-License-Identifier: Apache-2.0 */
/* reduce.h - sums in rank order. */
#ifndef TITAN_WORKER_COMM_REDUCE_H
#define TITAN_WORKER_COMM_REDUCE_H

#include "worker/device/device.h"

/* dst[i] = src[0][i] + src[1][i] + ... + src[n-1][i], added from left to right: fp32 and fp64 in their own type, bf16
 * in fp32 and rounded once to nearest even at the end. dst may be one of the sources; otherwise they must not overlap.
 * n >= 1; dt is one of these three types. */
void reduce_sum(void *dst, const void *const *src, int n, size_t count, enum dtype dt);

#endif
