/* SPDX-License-Identifier: Apache-2.0 */
/* rotated.h - a layer whose weights come round (Rotated Tensor Parallelism, Luo et al. 2023, arXiv:2311.01635).
 *
 * The n ranks of GROUP_ROTATE have tokens of their own. Each keeps one part of the layer's matrices: an n-th of the
 * heads and of the feed-forward columns (layout.h). Turn i of a rank is with the part that is kept i ranks before it,
 * and turn 0 with its own part. A part needs no other part, as the outputs of all turns are added:
 *     h = x + sum over i of attention_i(norm(x))      y = h + sum over i of w2_i (silu(w1_i m) * w3_i m), m = norm(h)
 * The second sum needs the whole first one. So the parts of attention go round first, then those of the feed-forward
 * layer. For the input gradient the order is reversed. A rank's own part stays where it is: copies go from rank to
 * rank, n - 1 times in each pass.
 * - Out of place: the next part arrives in a second buffer while the current one is used (SHIFT).
 * - In place: when the current part has been used, the next one takes its place, piece by piece (ROTATE).
 * The gradient of a part goes the same way through turns 1, 2, ..., n - 1 of other ranks, and each adds what its tokens
 * give. Turn 0 is the last one: the gradient is home, summed over all n ranks. So the order of additions is another one
 * for each part, and that of outputs another one on each rank. Norms are whole on each rank.
 *
 * Layers have two norms, attention's four matrices and the three of the feed-forward layer, and nothing else. */
#ifndef TITAN_WORKER_MODEL_ROTATED_H
#define TITAN_WORKER_MODEL_ROTATED_H

#include "worker/model/block.h"

/* As layer_forward(), layer_dgrad() and layer_wgrad() of block.h. saved->parts gets what each turn saves, back->parts
 * what the weight gradients of each turn need. u->grads gets the gradients of the rank's own part, those of matrices
 * summed over the ranks. u->first must be true. */
struct tensor rotated_forward(struct block *k, const struct unit_buffers *u, const struct block_tokens *tokens,
                              struct tensor x, struct tensor statistics, struct layer_saved *saved);
struct tensor rotated_dgrad(struct block *k, const struct unit_buffers *u, const struct block_tokens *tokens,
                            const struct layer_saved *saved, struct tensor dy, struct layer_back *back);
void rotated_wgrad(struct block *k, const struct unit_buffers *u, const struct layer_saved *saved,
                   const struct layer_back *back);

#endif
