/* SPDX-License-Identifier: Apache-2.0 */
#include "base/moment_codes.h"

/* The loops are compiled for each instruction set: without fused products in the machine they take many times as long.
 */
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define CLONED __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default"), optimize("O3")))
#else
#define CLONED
#endif

CLONED static void decode(const struct moment_block *from, int64_t blocks, bool square, float *ret)
{
    for (int64_t i = 0; i < blocks; i++)
        if (square)
            moment_block_decode(&from[i], MOMENT_BLOCK, true, ret + i * MOMENT_BLOCK);
        else
            moment_block_decode(&from[i], MOMENT_BLOCK, false, ret + i * MOMENT_BLOCK);
}

CLONED static void encode(struct moment_block *to, int64_t blocks, bool square, const float *values)
{
    for (int64_t i = 0; i < blocks; i++)
        if (square)
            moment_block_encode(&to[i], MOMENT_BLOCK, true, values + i * MOMENT_BLOCK);
        else
            moment_block_encode(&to[i], MOMENT_BLOCK, false, values + i * MOMENT_BLOCK);
}

void moment_blocks_decode(const struct moment_block *from, int64_t blocks, bool square, float *ret)
{
    decode(from, blocks, square, ret);
}

void moment_blocks_encode(struct moment_block *to, int64_t blocks, bool square, const float *values)
{
    encode(to, blocks, square, values);
}
