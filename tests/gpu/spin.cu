/* SPDX-License-Identifier: Apache-2.0 */
/* spin.cu - see spin.h. */
#include "tests/gpu/spin.h"
#include "worker/device/cuda/kernel.cuh"

#ifdef TITAN_EMULATE
#include <time.h>
static inline int64_t now_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}
#else
__device__ static inline int64_t now_ns(void)
{
    int64_t ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
}
#endif

__global__ static void spin(const volatile int *go, int64_t most_ns)
{
    const int64_t begin = now_ns();
    while (now_ns() - begin < most_ns && !(go && *go != 0)) {
    }
}

int spin_for(void *stream, int64_t ns)
{
    return LAUNCH(spin, 1, 1, 0, stream, NULL, ns);
}

int spin_until(void *stream, const int *go, int64_t most_ns)
{
    return LAUNCH(spin, 1, 1, 0, stream, go, most_ns);
}
