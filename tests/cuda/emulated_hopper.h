/* SPDX-License-Identifier: Apache-2.0 */
/* emulated_hopper.h - what worker/device/cuda/hopper.cuh has on the host: barriers in shared memory, copies and
 * products that run on their own.
 *
 * A copy's bytes land, and a product reads its tiles and adds to its sums, somewhere between the call and the wait for
 * it: at once, as late as can be, or at random, which TITAN_EMULATE_ASYNC says (early, late, or a number, the seed;
 * late if it says nothing). Until then the tile, or the sums in registers, are NaN. What hardware would do wrong
 * without a word ends the program with one:
 *   - a copy to a barrier that was not made known to copies, or one that brings more bytes than the barrier was told;
 *   - a copy into a tile that another copy fills, or that a product may still read;
 *   - a product of a tile that no copy filled, that has not landed, that landed in a phase which some warp has not
 *     waited for, or that plain stores changed since without a fence;
 *   - a product without a fence of registers since the last commit; sums that are written before the wait; lanes of the
 *     four warps that do not call the same;
 *   - sums added from what plain stores changed without a fence;
 *   - a block that ends before its copies have landed, its products and added sums were waited for. */
#ifndef TITAN_TESTS_CUDA_EMULATED_HOPPER_H
#define TITAN_TESTS_CUDA_EMULATED_HOPPER_H

#include <stddef.h>
#include <stdint.h>

/* A tensor of bf16 in dimensions, the first one dense, and the box that a copy takes of it. */
struct emulated_map {
    const char *base;
    int64_t size[4], stride[4]; /* strides in bytes */
    int columns, rows;          /* of the box, in the first two dimensions */
};

/* As an operand's descriptor counts: not where the window begins on the host. */
uint32_t emulated_address(const void *shared);

void emulated_barrier_init(uint64_t *barrier, unsigned arrivals);
void emulated_barrier_arrive(uint64_t *barrier, unsigned bytes); /* bytes: to land before the phase is over */
void emulated_barrier_wait(uint64_t *barrier, unsigned parity);
void emulated_fence_async(void);
/* Sums in device memory grow by those at from; until the thread waits these may not change. */
void emulated_add(float *to, const void *from, unsigned bytes);
void emulated_add_wait(void);
void emulated_copy(void *to, const struct emulated_map *map, uint64_t *barrier, const int (&at)[4]);

/* All 128 threads of four warps call these. sums: of this thread, n / 2 of them. a: its registers, or NULL and the
 * descriptor in a_tile. a_rows, b_rows: sums of products run along the rows of that tile. */
void emulated_mma(float *sums, int n, const uint32_t *a, uint64_t a_tile, uint64_t b_tile, bool a_rows, bool b_rows,
                  bool add);
void emulated_mma_fence(void);
void emulated_mma_commit(void);
void emulated_mma_wait(int left);

/* The emulator's: around each block, and between its threads. True: a copy has landed. */
void emulated_hopper_begin(char *shared, size_t bytes);
void emulated_hopper_end(void);
bool emulated_copies_at_random(void);
bool emulated_copy_lands(void);

#endif
