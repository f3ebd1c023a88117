/* SPDX-License-Identifier: Apache-2.0 */
/* mx_scales.h - where cuBLASLt reads MXFP8's scales (CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0; its manual, "1D Block
 * Scaling Factors Layout"). Scales are in tiles of 128 lines by 4 blocks. The tiles of one band of lines lie one after
 * the other. In a tile, 16 bytes in a row are the blocks of lines l, l + 32, l + 64 and l + 96. */
#ifndef TITAN_WORKER_DEVICE_CUDA_MX_SCALES_H
#define TITAN_WORKER_DEVICE_CUDA_MX_SCALES_H

#include <stddef.h>
#include <stdint.h>

#ifdef __CUDACC__
#define MX_INLINE __host__ __device__ static inline
#else
#define MX_INLINE static inline
#endif

#define MX_TILE_LINES 128
#define MX_TILE_BLOCKS 4
#define MX_TILE_BYTES ((int64_t)MX_TILE_LINES * MX_TILE_BLOCKS)

/* Tiles in a band of lines; blocks: blocks in a line. */
MX_INLINE int64_t mx_tiles_across(int64_t blocks)
{
    return (blocks + MX_TILE_BLOCKS - 1) / MX_TILE_BLOCKS;
}

MX_INLINE int64_t mx_scale_place(int64_t line, int64_t block, int64_t blocks)
{
    const int64_t tile = line / MX_TILE_LINES * mx_tiles_across(blocks) + block / MX_TILE_BLOCKS;
    const int64_t row = line % MX_TILE_LINES;
    return tile * MX_TILE_BYTES + row % 32 * 16 + row / 32 * 4 + block % MX_TILE_BLOCKS;
}

/* Bytes of all scales; tiles are whole. */
MX_INLINE size_t mx_scales_bytes(int64_t lines, int64_t blocks)
{
    return (size_t)((lines + MX_TILE_LINES - 1) / MX_TILE_LINES * mx_tiles_across(blocks) * MX_TILE_BYTES);
}

#endif
