/* SPDX-License-Identifier: Apache-2.0 */
/* scales.h - how large the values of a step are, from its program alone: static scales of float8 products (Scalify:
 * Balança et al. 2024, arXiv:2407.17353).
 *
 * Each operation has a rule: the mean square of what it writes from the mean squares of what it reads. Elements count
 * as independent, with mean 0. Initial weights are as model.h draws them. With root mean squares s and a sum of length
 * K:
 *
 *   product                  s_a s_b sqrt(K)            sum of two       sqrt(s_a^2 + s_b^2)
 *   sum over n ranks         s sqrt(n)                  copies, gathers  s
 *   norm                     the gain's                 its gradient     s_dout s_gain / s_x
 *   gradient of the logits   1 / sqrt(V), of the sum of the tokens' losses: neither the number of tokens nor the loss
 *                            matters, and as the loss falls, it stays within a factor of some 2
 *   attention                s_v sqrt(f). f: the mean over tokens of the sum of squares of a token's weights, where
 *                            scores are normal and a token sees all before it
 *   its gradients            dV: s_dout sqrt(f); dQ: score scale s_dout s_v s_k sqrt(D_v f), dK with s_q
 *   silu(a) b                s_b sqrt(E[silu(a)^2]), a is normal
 *
 * Scalify rounds each scale to a power of two where it arises. Here squares go on unrounded, and a product's scale is
 * rounded once: rounding down at each sum would keep a residual stream from growing at all. */
#ifndef TITAN_WORKER_PLAN_SCALES_H
#define TITAN_WORKER_PLAN_SCALES_H

#include "worker/plan/build.h"

/* Training makes weights larger, and so activations, but not what a norm has passed. An e4m3 operand is expected as
 * large as with matrices of SCALES_GROWTH times their initial size, and scaled to a root mean square of
 * 2^-SCALES_MARGIN to twice that: at least 896 times it is not beyond 448. A product of two such weights begins at
 * 2^-6, with normal values still. e5m2 has 16 binary digits on either side of 1: gradients are as large as at first,
 * without a margin. */
#define SCALES_GROWTH 4
#define SCALES_MARGIN 2

/* Does the operation have a rule? All have one: for integers, statistics and what no product reads it is "1". */
bool scales_has_rule(enum op op);
/* Applies the rule to an action's operands: squares[n] are the mean squares of those that it reads, and become those of
 * what it writes. members: size of a collective's group; of other operations, of the tensor-parallel group. */
void scales_rule(enum op op, const struct op_params *params, int members, double *squares, int n);
/* The mean square of each operand of the program: before its action where the action reads it, else behind it. squares:
 * [p->n_operands]. A value from outside the program is 1, if it is no weight. growth: how many times as large as at
 * first the matrices are. */
titan_status scales_propagate(const struct program *p, double growth, double *squares,
                              struct titan_error *err) TITAN_MUST_USE;
/* The exponent of the power of two by which an operand with this mean square is multiplied before it is rounded. */
int scales_power(double square, enum float8 type);
/* Chooses converters->powers of all converted layers. They are those of a step of one rank with one sequence of t
 * tokens, so they are the same on every mesh, and however much is computed again. */
titan_status scales_choose(const struct build_options *like, int64_t t, struct converters *converters,
                           struct titan_error *err) TITAN_MUST_USE;

#endif
