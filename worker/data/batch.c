/* SPDX-License-Identifier: Apache-2.0 */
/* batch.c - tokens of a microbatch on one context-parallel rank. */
#include "worker/data/batch.h"

#include "base/error.h"

int64_t batch_tokens(const struct sequence_cut *cut)
{
    titan_assert(cut->b > 0 && cut->t > 0 && cut->cp > 0);
    return cut->b * cut->t / cut->cp;
}

int64_t batch_fill(const struct sequence_cut *cut, int cp_rank, const int32_t *inputs, const int32_t *targets,
                   const int32_t *starts, int32_t *ret)
{
    const int64_t n = batch_tokens(cut);
    int32_t *const input = ret, *const target = ret + n, *const position = ret + 2 * n, *const index = ret + 3 * n,
                   *const start = ret + 4 * n;
    int64_t counted = 0;

    titan_assert(cp_rank >= 0 && cp_rank < cut->cp);
    sequence_index(cut, cp_rank, index);
    for (int64_t i = 0; i < n; i++) {
        const int32_t at = index[i];
        input[i] = inputs[at];
        target[i] = targets[at];
        start[i] = (int32_t)(at / cut->t * cut->t) + (starts ? starts[at] : 0);
        position[i] = at - start[i];
        counted += target[i] >= 0;
    }
    for (int k = 1; k <= cut->modules; k++) {
        int32_t *const further = ret + batch_rows(k - 1) * n;
        for (int64_t i = 0; i < n; i++) {
            const int64_t at = index[i], place = at % cut->t + k;
            const bool there = place < cut->t;
            const bool together = there && (!starts || (starts[at + k] == starts[at] &&
                                                        (place + 1 == cut->t || starts[at + k + 1] == starts[at])));
            further[i] = there ? inputs[at + k] : 0;
            further[n + i] = together ? targets[at + k] : -1;
        }
    }
    return counted;
}
