/* SPDX-License-Identifier: Apache-2.0 */
/* strided.cu - copies and adds rows of matrices, where one row of one side belongs to several rows of the other. */
#include "worker/device/cuda/kernel.cuh"

#define ROWS 8 /* rows of a block; each has one warp */

static unsigned row_blocks(int64_t rows)
{
    const int64_t blocks = (rows + ROWS - 1) / ROWS;
    return (unsigned)(blocks < 65536 ? blocks : 65536);
}

/* Copies words W that have the size of the elements, whatever their type. */
template <class W>
__global__ static void __launch_bounds__(THREADS)
    copy_2d(W *dst, int64_t ldd, const W *src, int64_t lds, int64_t rows, int64_t cols, int64_t repeat)
{
    for (int64_t r = (int64_t)blockIdx.x * ROWS + threadIdx.y; r < rows; r += (int64_t)gridDim.x * ROWS) {
        const int64_t from = r / repeat * lds;
        for (int64_t c = threadIdx.x; c < cols; c += WARP)
            dst[r * ldd + c] = src[from + c];
    }
}

template <class W> static int launch_copy(void *stream, const struct strided_args *a)
{
    return LAUNCH(copy_2d<W>, row_blocks(a->rows), dim3(WARP, ROWS), 0, stream, (W *)a->dst, a->ldd, (const W *)a->src,
                  a->lds, a->rows, a->cols, a->repeat);
}

int cuda_copy_2d(void *stream, const struct strided_args *a)
{
    if (a->rows == 0 || a->cols == 0)
        return 0;
    switch (dtype_bytes(a->dt)) {
    case 8:
        return launch_copy<uint64_t>(stream, a);
    case 2:
        return launch_copy<uint16_t>(stream, a);
    case 1:
        return launch_copy<uint8_t>(stream, a);
    default:
        return launch_copy<uint32_t>(stream, a);
    }
}

template <class T>
__global__ static void __launch_bounds__(THREADS)
    add_2d(T *dst, int64_t ldd, const T *src, int64_t lds, int64_t rows, int64_t cols, int64_t repeat)
{
    for (int64_t r = (int64_t)blockIdx.x * ROWS + threadIdx.y; r < rows; r += (int64_t)gridDim.x * ROWS) {
        for (int64_t c = threadIdx.x; c < cols; c += WARP) {
            float sum = num_load(dst + r * ldd + c);
            for (int64_t i = r * repeat; i < (r + 1) * repeat; i++)
                sum += num_load(src + i * lds + c);
            num_store(dst + r * ldd + c, sum);
        }
    }
}

int cuda_add_2d(void *stream, const struct strided_args *a)
{
    if (a->rows == 0 || a->cols == 0)
        return 0;
    const dim3 block(WARP, ROWS);
    return TYPED(a->dt, LAUNCH(add_2d<T>, row_blocks(a->rows), block, 0, stream, (T *)a->dst, a->ldd, (const T *)a->src,
                               a->lds, a->rows, a->cols, a->repeat));
}
