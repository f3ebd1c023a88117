/* SPDX-License-Identifier: Apache-2.0 */
/* rope.cu - rotary position embedding on adjacent pairs (Su et al. 2021, arXiv:2104.09864). */
#include "worker/device/cuda/kernel.cuh"

/* A thread rotates pieces of heads. A head has D = 2 * half elements and `pieces` pieces. */
template <class T>
__global__ static void rope(T *x, int64_t ldx, const int32_t *positions, const float *cosines, const float *sines,
                            size_t count, size_t pieces, int64_t heads, int64_t half, float sign, bool whole)
{
    for (size_t p = grid_first(); p < count; p += grid_stride()) {
        const int64_t i = (int64_t)(p % pieces) * piece<T>::N, q = (int64_t)(p / pieces);
        const int64_t head = q % heads, row = q / heads, left = 2 * half - i;
        const int64_t angle = (int64_t)positions[row] * half + i / 2;
        T *const at = x + row * ldx + head * half * 2 + i;
        piece<T> v = piece_load(at, left, whole);
        for (int k = 0; k < piece<T>::N; k += 2) {
            const int64_t of = angle + (k < left ? k / 2 : 0); /* elements behind the end are not stored */
            const float a = v.v[k], b = v.v[k + 1];
            const float c = cosines[of], s = sign * sines[of];
            v.v[k] = a * c - b * s;
            v.v[k + 1] = a * s + b * c;
        }
        piece_store(at, v, left, whole);
    }
}

int cuda_rope(void *stream, const struct rope_args *a)
{
    const bool is_bf16 = a->dt == DTYPE_BF16;
    const size_t pieces = pieces_of(a->d, is_bf16), count = (size_t)a->n * (size_t)a->heads * pieces;
    const bool whole = in_pieces(row_bytes(a->d, is_bf16) | row_bytes(a->ldx, is_bf16), address(a->x));
    const float sign = a->backward ? -1.0f : 1.0f;
    if (count == 0)
        return 0;
    return TYPED(a->dt, LAUNCH(rope<T>, grid_blocks(count), THREADS, 0, stream, (T *)a->x, a->ldx, a->positions, a->cos,
                               a->sin, count, pieces, a->heads, a->d / 2, sign, whole));
}
