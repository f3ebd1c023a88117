/* SPDX-License-Identifier: Apache-2.0 */
/* experts.h - the second half of a layer with a mixture of experts: y = h + shared(n) + sum of weights * expert(n), n =
 * norm(h).
 *
 * Routing. The gate's product, scores and weights are fp32. A router chooses top_k experts by score + bias (device.h).
 * Tokens are cut over tp: each tp rank routes and sends its own Ns, and an expert is not cut. With mesh.cut_experts the
 * norm's output is gathered over tp instead. Then every tp rank routes all N tokens, with the same result. A tp rank
 * sends the tokens to ranks with the same tp coordinate. These ranks have its part of the experts' width. The rows that
 * come back are parts of sums, and so are the gradients of rows and of the router. A reduce-scatter sums the parts.
 *
 * Exchange. Rows are sorted by expert. With expert parallelism they travel to the expert's rank and are sorted by
 * expert there. Results come back the same way. Only rows that exist travel.
 *
 * Rounds. Buffers have room for block.expert_parallel_room even shares, or for the worst case: all ranks' tokens choose
 * this rank's experts. Rows for which there is no room come in further rounds. A program has as many rounds as the
 * worst case needs. The rounds run one after the other in the same memory: dispatch, experts, and the way back. Only
 * the first round is kept for backward; the others are recomputed. Sums run in the order of one round, so on the CPU
 * results are the same bit for bit.
 *
 * block.expert_capacity limits the rows that an expert takes from one rank's tokens of a microbatch. An expert takes
 * the rows of the first tokens. So whether a row is dropped depends only on choices, and not on later tokens. The
 * result is the same for every ep, dp and pp, and on every device. Dropped rows do not travel, add nothing to the
 * token's sum and bring no gradient. The weights of the token's other experts do not change.
 *
 * Shared experts are one feed-forward layer, as in a dense layer.
 *
 * block.by_rank: rows from different ranks stay separate where they arrive. So a product has the same rows as on a rank
 * that has all experts, and each rank's rows have their own weight gradient. Nothing depends on how many ranks share
 * the experts.
 *
 * DeepSeek-AI 2024, arXiv:2401.06066 and arXiv:2412.19437 section 2.1.2. Private to worker/model. */
#ifndef TITAN_WORKER_MODEL_EXPERTS_H
#define TITAN_WORKER_MODEL_EXPERTS_H

#include "worker/model/block.h"

/* SAVED_H -> y (Ns,C) */
struct tensor experts_forward(struct block *k, struct layer_units u, const struct block_tokens *tokens,
                              struct layer_saved *saved);
/* dy (Ns,C) -> gradient of the norm's output (Ns,C) */
struct tensor experts_dgrad(struct block *k, struct layer_units u, const struct block_tokens *tokens,
                            const struct layer_saved *saved, struct tensor dy, struct layer_back *back);
/* Weight gradients of gate, shared experts and experts. Starts the gradients of the experts' unit
 * (block_begin_grads()). */
void experts_wgrad(struct block *k, struct layer_units u, const struct layer_saved *saved,
                   const struct layer_back *back);

#endif
