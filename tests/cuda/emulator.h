/* SPDX-License-Identifier: Apache-2.0 */
/* emulator.h - runs the CUDA kernels on the host, a block's threads as coroutines.
 *
 * For testing without a GPU: index arithmetic, barriers, reduction order and memory bounds are the kernels' own; speed,
 * memory ordering between warps and everything the hardware adds are not shown. Blocks run one after another, on the
 * stream's thread. Between two barriers a block's threads run one after another, in ascending order, or in
 * descending order with TITAN_EMULATE_ORDER=down: a missing barrier gives other bits in the two orders. A barrier that
 * some threads never reach, and a warp operation that not all lanes take part in, end the program with a message, and
 * so do threads that wait for each other for ever. Dynamic shared memory ends at a guard page and is filled with NaN
 * before each block. What Hopper does on its own, copies and products, is emulated_hopper.h. */
#ifndef TITAN_TESTS_CUDA_EMULATOR_H
#define TITAN_TESTS_CUDA_EMULATOR_H

#include <cuda_runtime_api.h>
#include <functional>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Blocks run one at a time, so a block's shared memory may be static. */
#undef __shared__
#define __shared__ static
#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __grid_constant__
#define __grid_constant__

#define EMULATE_THREADS_MAX 1024

struct emulated_thread {
    uint3 at;
    unsigned linear;
};
extern struct emulated_thread *emulated_self;
extern uint3 emulated_block_at;
extern dim3 emulated_block_dim, emulated_grid_dim;
#define threadIdx (emulated_self->at)
#define blockIdx (emulated_block_at)
#define blockDim (emulated_block_dim)
#define gridDim (emulated_grid_dim)

enum emulated_wait { EMULATED_RUNS, EMULATED_AT_WARP, EMULATED_AT_BLOCK, EMULATED_UNTIL, EMULATED_DONE };
/* Suspend this thread until all of its warp or block are there. */
void emulated_wait_for(enum emulated_wait what);
/* Suspend this thread until holds(of, value); what: said where that never comes. */
void emulated_wait_until(bool (*holds)(const void *of, uint64_t value), const void *of, uint64_t value,
                         const char *what);
/* End the program with a message that names the block and the thread. */
[[noreturn]] void emulated_fault(const char *what);
/* 8 bytes of one lane of this warp. */
void *emulated_lane(unsigned lane);
/* A word of the block for votes. */
extern int emulated_vote;

/* Enqueue on a stream of fake_cuda.h. */
int emulated_launch(void *stream, dim3 grid, dim3 block, size_t shared_bytes, std::function<void()> kernel);
float *emulated_shared(void);

/* The calling thread evaluates the arguments, as a launch does; the stream's thread has their values. */
template <class T> struct emulated_value {
    typedef T type;
};
template <class... P>
static inline int emulated_launch_of(void *stream, dim3 grid, dim3 block, size_t shared_bytes, void (*kernel)(P...),
                                     typename emulated_value<P>::type... arguments)
{
    return emulated_launch(stream, grid, block, shared_bytes, [=]() { kernel(arguments...); });
}
#define LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                                         \
    emulated_launch_of(stream, dim3(grid), dim3(block), (size_t)(shared_bytes), kernel, __VA_ARGS__)
#define DYNAMIC_SHARED(name) float *name = emulated_shared()
/* Aborts at an address that is no multiple of 16. */
#define LOAD_16(from) emulated_load_16(from)
#define STORE_16(to, value) emulated_store_16(to, value)
static inline void emulated_check_16(const void *p)
{
    if ((uintptr_t)p % 16 != 0) {
        fprintf(stderr, "an access of 16 bytes at %p\n", p);
        abort();
    }
}
static inline uint4 emulated_load_16(const void *from)
{
    uint4 value;
    emulated_check_16(from);
    memcpy(&value, from, sizeof value);
    return value;
}
static inline void emulated_store_16(void *to, uint4 value)
{
    emulated_check_16(to);
    memcpy(to, &value, sizeof value);
}

static inline void __syncthreads(void)
{
    emulated_wait_for(EMULATED_AT_BLOCK);
}

static inline int __syncthreads_or(int x)
{
    if (x)
        emulated_vote = 1;
    emulated_wait_for(EMULATED_AT_BLOCK);
    int result = emulated_vote;
    emulated_wait_for(EMULATED_AT_BLOCK);
    emulated_vote = 0;
    emulated_wait_for(EMULATED_AT_BLOCK);
    return result;
}

template <class V> static inline V __shfl_xor_sync(unsigned, V x, int offset)
{
    const unsigned lane = emulated_self->linear % 32;
    memcpy(emulated_lane(lane), &x, sizeof x);
    emulated_wait_for(EMULATED_AT_WARP);
    V result;
    memcpy(&result, emulated_lane(lane ^ (unsigned)offset), sizeof result);
    emulated_wait_for(EMULATED_AT_WARP);
    return result;
}

static inline unsigned __ballot_sync(unsigned, int x)
{
    int bit = x != 0;
    memcpy(emulated_lane(emulated_self->linear % 32), &bit, sizeof bit);
    emulated_wait_for(EMULATED_AT_WARP);
    unsigned result = 0;
    for (unsigned lane = 0; lane < 32; lane++) {
        memcpy(&bit, emulated_lane(lane), sizeof bit);
        result |= (unsigned)bit << lane;
    }
    emulated_wait_for(EMULATED_AT_WARP);
    return result;
}

static inline void __syncwarp(void)
{
    emulated_wait_for(EMULATED_AT_WARP);
}

/* Blocks of one launch run one after another; launches of other streams beside them. */
static inline double atomicAdd(double *to, double x)
{
    const double old = *to;
    *to += x;
    return old;
}
static inline unsigned long long atomicAdd(unsigned long long *to, unsigned long long x)
{
    return __atomic_fetch_add(to, x, __ATOMIC_RELAXED);
}

static inline int atomicAdd(int *to, int x)
{
    return __atomic_fetch_add(to, x, __ATOMIC_RELAXED);
}

static inline unsigned atomicMax(unsigned *to, unsigned x)
{
    unsigned old = *to;
    *to = old > x ? old : x;
    return old;
}

static inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}

static inline int __ffs(int x)
{
    return __builtin_ffs(x);
}

static inline void __threadfence_system(void)
{
    __sync_synchronize();
}

#endif
