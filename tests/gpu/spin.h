/* SPDX-License-Identifier: Apache-2.0 */
/* spin.h - kernels of one thread that only take time; each returns a cudaError_t, as kernels.h. */
#ifndef TITAN_TESTS_GPU_SPIN_H
#define TITAN_TESTS_GPU_SPIN_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Runs for ns nanoseconds; 0: does nothing. */
int spin_for(void *stream, int64_t ns);
/* Runs until *go, pinned host memory, is not 0, but for most_ns at most. */
int spin_until(void *stream, const int *go, int64_t most_ns);

#ifdef __cplusplus
}
#endif

#endif
