/* SPDX-License-Identifier: Apache-2.0 */
/* sequence.c - sequences cut over context-parallel ranks. */
#include "worker/tensor/sequence.h"
#include "base/error.h"

void sequence_index(const struct sequence_cut *cut, int rank, int32_t *ret)
{
    const int64_t local = cut->t / cut->cp, chunk = local / 2;
    const bool pair = cut->balanced && cut->cp > 1;

    titan_assert(rank >= 0 && rank < cut->cp && cut->t % cut->cp == 0);
    for (int64_t s = 0; s < cut->b; s++)
        for (int64_t i = 0; i < local; i++) {
            const int64_t tail = 2 * (int64_t)cut->cp - 1 - rank;
            const int64_t at = !pair ? rank * local + i : i < chunk ? rank * chunk + i : tail * chunk + i - chunk;
            *ret++ = (int32_t)(s * cut->t + at);
        }
}
