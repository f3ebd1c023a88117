/* SPDX-License-Identifier: Apache-2.0 */
/* sequence.h - which tokens of a microbatch a context-parallel rank holds, and in which order.
 *
 * A sequence of t tokens is cut into 2*cp chunks. Rank r holds chunks r and 2*cp-1-r, so all ranks have the same number
 * of visible pairs under a causal mask (Llama 3, arXiv:2407.21783, 3.3.2). Without balance, each rank holds one
 * contiguous piece. A rank's rows are ordered by sequence, then by chunk. */
#ifndef TITAN_WORKER_TENSOR_SEQUENCE_H
#define TITAN_WORKER_TENSOR_SEQUENCE_H

#include <stdbool.h>
#include <stdint.h>

/* Numbers per token: input, target, position, index, start of its document. Each is a row of a microbatch as loaded. */
#define BATCH_ROWS 5
/* Modules of multi-token prediction add an input and a target each. */
static inline int64_t batch_rows(int64_t modules)
{
    return BATCH_ROWS + 2 * modules;
}

struct sequence_cut {
    int64_t b, t; /* sequences, tokens of each; t divides by 2*cp */
    int cp;
    bool balanced;
    int modules; /* number of modules of multi-token prediction */
};

/* Place in the whole microbatch (sequence * t + position) of each of this rank's b*t/cp rows. */
void sequence_index(const struct sequence_cut *cut, int rank, int32_t *ret);

#endif
