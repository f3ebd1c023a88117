/* SPDX-License-Identifier: Apache-2.0 */
/* experts.h - the second half of a layer with a mixture of experts: y = h + shared(n) + sum of weights * expert(n), n =
 * norm(h).
 *
 * Tokens are routed from where they are cut over tp: each tp rank sends its own Ns, and inside experts nothing is cut.
 * mesh.cut_experts: the norm's output is gathered over tp, every tp rank routes all N in the same way and sends them to
 * the ranks of its own place in tp, which have its part of the experts' width; what comes back, and the gradients of
 * rows and router, are parts of sums, which a reduce-scatter makes whole. The gate's product, scores and weights are
 * fp32; a router chooses top_k experts by score + bias (device.h). Rows are sorted by expert; with expert parallelism
 * they travel to the rank of the expert and are sorted by expert once more, and come back the same way. Buffers have
 * room for the worst case, all ranks' tokens on this rank's experts, or for block.expert_parallel_room even shares;
 * what travels are the rows there are. Rows beyond that room come in further rounds, as many as the worst case needs:
 * dispatch, experts, way back one after the other in the same memory. Of these nothing is kept for backward, which
 * computes them again. Sums run in the order of one round: on the CPU every bit is the same.
 *
 * block.expert_capacity: an expert takes so many rows of the tokens that one rank has of a microbatch, those of the
 * first tokens: a token's fate depends on none behind it, and on choices alone, so it is the same for every ep, dp and
 * pp and on every device. Other rows do not travel, count for nothing in the token's sum and bring no gradient; the
 * weights of the token's other experts stay what they are.
 * Shared experts are one feed-forward layer, as in a dense layer.
 *
 * block.by_rank: the rows of each rank stay apart where they arrive, so products take the same rows together as on a
 * rank that has all experts, and each rank's rows have a weight gradient of their own: nothing depends on how many
 * ranks share the experts.
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
/* Of gate, shared experts and experts; begins the gradients of the experts' unit. */
void experts_wgrad(struct block *k, struct layer_units u, const struct layer_saved *saved,
                   const struct layer_back *back);

#endif
