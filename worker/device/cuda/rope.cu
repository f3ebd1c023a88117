/* SPDX-License-Identifier: Apache-2.0 */
/* rope.cu - rotary position embedding on adjacent pairs (Su et al. 2021, arXiv:2104.09864). */
#include "worker/device/cuda/kernel.cuh"

/* A thread rotates pieces of heads. A head has `pieces` pieces. */
template <class T> __global__ static void rope(struct rope_args a, size_t count, size_t pieces, bool whole)
{
    const float sign = a.backward ? -1.0f : 1.0f;
    for (size_t p = grid_first(); p < count; p += grid_stride()) {
        const int64_t i = (int64_t)(p % pieces) * piece<T>::N, q = (int64_t)(p / pieces);
        const int64_t head = q % a.heads, row = q / a.heads, left = a.d - i;
        const int64_t angle = (int64_t)a.positions[row] * (a.d / 2) + i / 2;
        T *const at = (T *)a.x + row * a.ldx + head * a.d + i;
        piece<T> v = piece_load(at, left, whole);
        for (int k = 0; k < piece<T>::N; k += 2) {
            const int64_t of = angle + (k < left ? k / 2 : 0); /* elements behind the end are not stored */
            const float x = v.v[k], y = v.v[k + 1];
            const float c = a.cos[of], s = sign * a.sin[of];
            v.v[k] = x * c - y * s;
            v.v[k + 1] = x * s + y * c;
        }
        piece_store(at, v, left, whole);
    }
}

int cuda_rope(void *stream, const struct rope_args *a)
{
    const bool is_bf16 = a->dt == DTYPE_BF16;
    const size_t pieces = pieces_of(a->d, is_bf16), count = (size_t)a->n * (size_t)a->heads * pieces;
    const bool whole = in_pieces(row_bytes(a->d, is_bf16) | row_bytes(a->ldx, is_bf16), address(a->x));
    if (count == 0)
        return 0;
    return TYPED(a->dt, LAUNCH(rope<T>, grid_blocks(count), THREADS, 0, stream, *a, count, pieces, whole));
}
