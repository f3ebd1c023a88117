/* SPDX-License-Identifier: Apache-2.0 */
/* latent.h - multi-head latent attention: keys and values come from one narrow latent vector per token, and all heads
 * share one rotated key.
 *
 *   q            = wq xn, or wq_b norm(wq_a xn)       heads of nope | rope
 *   latent, rope = wkv_a xn                           R | rope
 *   nope, v      = wkv_b norm(latent)                 heads of nope | v
 *   k            = nope | rotated rope                heads of nope | rope
 *
 * Scores are scaled by model_score_scale(). tp cuts heads: wq, wq_b and wkv_b by rows, wo by columns. Every tp rank has
 * wq_a, wkv_a and the norms whole. The gradients of these tensors are sums over tp ranks. DeepSeek-AI 2024,
 * arXiv:2405.04434 section 2.1. Private to worker/model. */
#ifndef TITAN_WORKER_MODEL_LATENT_H
#define TITAN_WORKER_MODEL_LATENT_H

#include "worker/model/block.h"

/* As attention_forward, attention_dgrad and attention_wgrad (parts.h). */
void latent_forward(struct block *k, const struct unit_buffers *u, const struct block_tokens *tokens,
                    struct layer_saved *saved);
struct tensor latent_dgrad(struct block *k, const struct unit_buffers *u, const struct block_tokens *tokens,
                           const struct layer_saved *saved, struct tensor dattn, struct layer_back *back);
void latent_wgrad(struct block *k, const struct unit_buffers *u, const struct layer_saved *saved,
                  const struct layer_back *back);

#endif
