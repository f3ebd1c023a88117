/* SPDX-License-Identifier: Apache-2.0 */
/* batch.h - a microbatch in the form that LOAD reads: five numbers per token, and two more for each module of
 * multi-token prediction.
 *
 * index = sequence*t + position numbers a microbatch's tokens; a query sees the keys from its document's start to
 * itself. Positions count from the document's start. Pure.
 *
 * At position i, module k has the input and the target of position i + k. Position i counts in the module under three
 * conditions: i + k is in the same sequence, it counts for the loss itself, and its input and target belong to the
 * document of i. Behind the end of the sequence, the input is token 0. Neither this input nor an input of another
 * document affects a position that counts. Attention brings them only to later positions of i's document, and the
 * inputs of these positions lie even further on. */
#ifndef TITAN_WORKER_DATA_BATCH_H
#define TITAN_WORKER_DATA_BATCH_H

#include "worker/tensor/sequence.h"

int64_t batch_tokens(const struct sequence_cut *cut); /* N: tokens of a microbatch on one context-parallel rank */
/* Fills tokens (batch_rows, N) of one context-parallel rank, from inputs and targets (b, t). starts (b, t): position in
 * its sequence where each input's document begins; NULL: a sequence is one document. Returns the number of counted
 * tokens (target >= 0). */
int64_t batch_fill(const struct sequence_cut *cut, int cp_rank, const int32_t *inputs, const int32_t *targets,
                   const int32_t *starts, int32_t *ret);

#endif
