/* SPDX-License-Identifier: Apache-2.0 */
/* operations.h - arguments of a device's operations, with what each one computes; device.h has the rules and the shape
 * letters. Operations that belong together share a struct; each reads the fields that its contract names. C and CUDA
 * C++ include this. */
#ifndef TITAN_WORKER_DEVICE_OPERATIONS_H
#define TITAN_WORKER_DEVICE_OPERATIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum dtype { DTYPE_F32, DTYPE_BF16, DTYPE_F64, DTYPE_I32, DTYPE_U8 };
static inline size_t dtype_bytes(enum dtype dt)
{
    return dt == DTYPE_F64 ? 8 : dt == DTYPE_BF16 ? 2 : dt == DTYPE_U8 ? 1 : 4;
}

/* bf16 or fp32. */
static inline bool compute_type(enum dtype dt)
{
    return dt == DTYPE_F32 || dt == DTYPE_BF16;
}

/* The arguments of a call: ops->embed(s, ARGS(embed, .out = out, .tokens = tokens, ...)). Fields that are not named are
 * 0. */
#define ARGS(name, ...) (&(const struct name##_args){__VA_ARGS__})

/* --- movement ----------------------------------------------------------------------------------------------------- */

/* copy_2d: rows of cols elements, ldd and lds apart, any type: row r of dst (rows) = row r / repeat of src, so one row
 * can be laid beside several (a rotary key shared by all heads).
 * add_2d: the way back: row r of dst (rows) += rows r*repeat .. r*repeat + repeat-1 of src, bf16 or fp32, in that
 * order, rounded once. dst and src do not overlap. */
struct strided_args {
    void *dst;
    const void *src;
    int64_t ldd, lds;
    enum dtype dt;
    int64_t rows, cols, repeat;
};

/* --- biases of linear layers -------------------------------------------------------------------------------------- */

/* add_bias: x (N,C) dt += bias (C) dt, rows of x ld apart.
 * bias_wgrad: dbias (C) fp32 += sum over N of dout (N,C) dt, rows ld apart, in a fixed order.
 * The same for packed rows of several groups (struct matmul_args), each with a bias of its own:
 * add_bias_grouped: x (N,C) += bias (groups,C) of the row's group; rows beyond counts (parts,groups) int32 stay as they
 * are.
 * bias_wgrad_grouped: dbias (groups,C) fp32 = beta*dbias + sums over the rows of each group of the last part, of
 * EXPERT_SPLIT rows, which are added one after the other; beta is 0 or 1. */
struct bias_args {
    void *x;
    const void *bias, *dout;
    float *dbias;
    int64_t ld;
    enum dtype dt;
    const int32_t *counts;
    int64_t groups, parts, n, c;
    float beta;
};

/* --- products ----------------------------------------------------------------------------------------------------- */

/* Rows of one expert that a round may end behind, and multiples: those of the largest piece of a grouped product. */
#define EXPERT_SPLIT 256

struct float8_product; /* device.h */

/* matmul: c (M,N) = beta*c + op(a) op(b), op = transpose where ta/tb. a is (M,K), or (K,M) with ta; b is (K,N), or
 * (N,K) with tb. a and b are ab_dt (bf16 or fp32), c is c_dt (ab_dt or fp32); beta is 0 or 1.
 *   forward  y (N,out) = x (N,in) W^T         ta=0 tb=1
 *   dgrad    dx (N,in) = dy (N,out) W         ta=0 tb=0
 *   wgrad    dW (out,in) += dy^T x            ta=1 tb=0 beta=1 c_dt=fp32
 * matmul_grouped: the same for packed rows of several groups, each with a matrix of its own. counts (parts,groups)
 * int32, device: the rows of group e follow those of e-1, and a part follows the one before; they are m at most (k with
 * ta), and what lies beyond them is left alone. Matrices of the groups lie one after the other, their rows ldb (ldc
 * with ta) apart; every part has the same ones. A row's product does not depend on the parts there are, nor a part's on
 * the others.
 *   !ta  c (rows,N) = beta*c + a (rows,K) op(b_e), b (groups,K,N), or (groups,N,K) with tb: forward and dgrad
 *    ta  c_e (M,N) = beta*c_e + a_e^T b_e, a (rows,M), b (rows,N), c (groups,M,N) fp32, tb 0: wgrad, of the rows of
 *        one part, the last one that is given; the product of a group without rows is 0. Sums are of EXPERT_SPLIT
 *        rows, which are added one after the other
 * matmul_f8: matmul of the operands in float8. work: matmul_f8_work_bytes() of scratch. A device without it
 * (info.float8, info.mxfp8) answers TITAN_EUNSUPPORTED. */
struct matmul_args {
    void *c;
    const void *a, *b;
    enum dtype c_dt, ab_dt;
    bool ta, tb;
    int64_t ldc, lda, ldb, m, n, k;
    float beta;
    const int32_t *counts;
    int64_t groups, parts;
    const struct float8_product *how; /* the caller's again when the call is back */
    void *work;
};

/* A product's own arguments; counts and so on are apart. */
static inline bool matmul_args_valid(const struct matmul_args *a)
{
    return compute_type(a->ab_dt) && (a->c_dt == a->ab_dt || a->c_dt == DTYPE_F32) && a->m >= 0 && a->n >= 0 &&
           a->k >= 0 && a->lda >= (a->ta ? a->m : a->k) && a->ldb >= (a->tb ? a->k : a->n) && a->ldc >= a->n &&
           (a->beta == 0.0f || a->beta == 1.0f);
}

/* --- embedding ---------------------------------------------------------------------------------------------------- */

/* embed: out (N,C) = table[tokens - first]; table (V,C) dt is rows [first, first+V) of the vocabulary; a token outside
 * of them gives a row of zeros (another rank has it).
 * embed_wgrad: dtable (V,C) fp32 += rows of dout (N,C) dt, in token order (deterministic); tokens outside are passed
 * over. */
struct embed_args {
    void *out;
    float *dtable;
    const int32_t *tokens;
    const void *table, *dout;
    enum dtype dt;
    int64_t n, c, v, first;
};

/* --- RMSNorm (Zhang and Sennrich 2019, arXiv:1910.07467) ---------------------------------------------------------- */

/* rmsnorm: out (N,C) = x * rstd * gain; rstd (N) fp32 = 1/sqrt(mean(x^2)+eps), kept for backward. gain (C) dt; offset:
 * stored less 1, which is added in fp32.
 * rmsnorm_dgrad: dx (N,C) = residual + the gradient to x; residual (N,C), which may be dx, NULL: the gradient alone. dx
 * may not alias dout.
 * rmsnorm_dgain: dgain (C) fp32 += sum over N of dout * x * rstd, in a fixed order.
 * add_rmsnorm: h (N,C) = a + b, rounded to dt, then rmsnorm of h: the bits of add and rmsnorm, with one pass over
 * memory. h may alias a or b; out may alias none of them. */
struct norm_args {
    void *out, *h, *dx;
    float *rstd, *dgain;
    const void *a, *b, *x, *gain, *dout, *residual;
    enum dtype dt;
    int64_t n, c;
    float eps;
    bool offset;
};

/* --- attention ---------------------------------------------------------------------------------------------------- */

/* rope: rotary embedding in place on adjacent pairs (2i,2i+1) of each head (Su et al. 2021, arXiv:2104.09864): x points
 * at head 0 of row 0, rows ldx apart, heads D apart. positions (N) int32; cos, sin (positions, D/2) fp32. backward:
 * rotate by the negative angle. */
struct rope_args {
    void *x;
    int64_t ldx;
    const int32_t *positions;
    const float *cos, *sin;
    enum dtype dt;
    int64_t n, heads, d;
    bool backward;
};

/* The order of attention's sums. */
enum attention_order {
    ATTENTION_FIXED,      /* of one sequence and head they are the same whatever else is in the call, strides too */
    ATTENTION_REPEATABLE, /* the device's own: the same call gives the same bits */
    ATTENTION_ANY         /* the same call need not give the same bits */
};

/* A product of queries and keys. Without masks it is causal: query i of a sequence sees keys 0..i (Tq == Tk). With
 * masks (all three, or none), query i sees key j where start[i] <= key_index[j] <= index[i]: index is a token's place
 * in the whole batch, start the place of its document's first token. Rows may come in any order, so a rank can hold any
 * part of the sequences. */
struct attention_shape {
    enum dtype dt;
    int64_t b, tq, tk;            /* sequences; queries and keys of each */
    int64_t h, kv;                /* query and key/value heads, kv divides h */
    int64_t d, dv;                /* width of a query/key head, of a value head */
    const int32_t *index, *start; /* (B*Tq), device; NULL = causal */
    const int32_t *key_index;     /* (B*Tk) */
    float scale;                  /* of the scores; 0: 1/sqrt(D) */
    enum attention_order order;
    float softcap; /* a scaled score s becomes softcap tanh(s / softcap); 0: it stays */
};

/* attention: grouped-query attention: B times Tq queries look at Tk keys of the same sequence. q (B*Tq,H,D) with row
 * stride ldq, k (B*Tk,K,D) with ldk, v (B*Tk,K,Dv) with ldv, out (B*Tq,H,Dv) with ldo. lse (B,H,Tq) fp32: log-sum-exp
 * of each row's scaled scores. The mask says which query sees which key; a row that sees nothing gets out 0 and lse
 * -inf. Blocks of the score matrix that the mask empties cost no product.
 * attention_dgrad: dq, dk, dv with strides of their own, OVERWRITTEN with what these keys contribute. out, lse and dout
 * belong to the whole row, which may have seen more keys than these. work: attention_work_bytes() of scratch. Formulas:
 * Dao 2023, arXiv:2307.08691, algorithm 2. */
struct attention_args {
    void *out;
    float *lse;
    const void *q, *k, *v, *dout;
    void *dq, *dk, *dv, *work;
    int64_t ldq, ldk, ldv, ldo, lddq, lddk, lddv, lddo;
    struct attention_shape shape;
};

/* attention_merge: two partial results over different keys become one: lse = log(exp(lse) + exp(other_lse)), out = the
 * mean of out and other weighted by their share, computed in fp32. out, other (B*T,H,Dv) with row stride ld; lse
 * (B,H,T). */
struct merge_args {
    void *out;
    float *lse;
    const void *other;
    const float *other_lse;
    int64_t ld;
    enum dtype dt;
    int64_t b, t, h, dv;
};

/* attention_sink: attention sinks (Xiao et al. 2023, arXiv:2309.17453): the softmax of each row of x (B*T,H,Dv) had
 * sinks (H) dt in its denominator, too: lse = log(exp(x_lse) + exp(sink)), out = x exp(x_lse - lse). Rows ldo apart;
 * lse (B,H,T).
 * attention_sink_dgrad: dsinks (H) fp32 = - sum over rows of exp(sink - lse) (dout . out), in a fixed order. */
struct sink_args {
    void *out;
    float *lse, *dsinks;
    const void *x, *dout, *sinks;
    const float *x_lse;
    int64_t ldo, lddo;
    enum dtype dt;
    int64_t b, t, h, dv;
};

/* --- feed-forward ------------------------------------------------------------------------------------------------- */

/* swiglu: out (N,F) = silu(gate) * up; gate and up (N,F) with row stride ldgu (they are halves of one product). counts
 * (parts) int32: of the N rows only as many as their sum are there, the others stay as they are; NULL: all. gelu: in
 * place of silu(x), GELU in its form with tanh (Hendrycks and Gimpel 2016, arXiv:1606.08415). limit above 0: out = g
 * sigmoid(alpha g) (u + 1) of g = min(gate, limit) and u = up within +-limit.
 * swiglu_dgrad: dgate and dup (N,F), rows lddgu apart, from dout (N,F). They may be gate and up. */
struct swiglu_args {
    void *out, *dgate, *dup;
    const void *gate, *up, *dout;
    int64_t ldgu, lddgu;
    enum dtype dt;
    int64_t n, f;
    const int32_t *counts;
    int64_t parts;
    bool gelu;
    float limit, alpha; /* not with gelu */
};

/* softcap: out (n) dt = cap * tanh(x / cap), cap > 0; out may be x.
 * softcap_dgrad: out (n) dt = dout * (1 - tanh(x / cap)^2); out may be dout. */
struct softcap_args {
    void *out;
    const void *x, *dout;
    enum dtype dt;
    float cap;
    size_t n;
};

/* --- mixture of experts ------------------------------------------------------------------------------------------- */

/* Which experts a token goes to. scores = softmax or sigmoid of the logits, fp32; the top_k largest of scores + bias
 * are chosen, in falling order: of equal ones the lower expert first, -0 is 0, NaN comes last. With groups, equal ones
 * of experts in a row, only those of the top_groups groups with the largest sum of their group_top_k best scores + bias
 * can be chosen, in the same order (DeepSeek-AI 2024, arXiv:2412.19437, section 2.1.2). So the choice follows from the
 * bits of the scores alone, on every device. A token's weights are the scores of its choice, without the bias, divided
 * by their sum (+ 1e-20) where normalize, times scale. Loss-free balancing: Wang et al. 2024, arXiv:2408.15664. */
struct router_shape {
    enum dtype dt; /* of logits and their gradient */
    int64_t n, experts, top_k;
    bool sigmoid, normalize;
    float scale;
    int64_t groups, top_groups, group_top_k; /* groups 0: none */
};

/* router: chosen (N,top_k) int32, weights (N,top_k) fp32 of logits (N,E). bias (E) fp32, NULL = none. load (E) fp32 +=
 * how often each expert was chosen; NULL = not wanted (a second forward pass). numbers (N) int32, NULL = by score: the
 * experts of token number i are i*top_k to i*top_k+top_k-1, modulo E.
 * router_dgrad: dlogits (N,E) from dweights (N,top_k) fp32 for the same choice. dlogits may alias logits. */
struct router_args {
    int32_t *chosen;
    float *weights, *load;
    const void *logits;
    const float *bias, *dweights;
    const int32_t *numbers;
    void *dlogits;
    struct router_shape shape;
};

/* Where N tokens of a rank lie among those of the sequences that it and its tensor-parallel group have: pieces of equal
 * size, the first one from token `first` on, each of the others sequences * length / pieces tokens behind the one
 * before it. */
struct token_rows {
    int64_t n, sequences, length, first, pieces;
};

/* Numbers of a sequence that its balance loss is of: how often each of E experts was chosen, the sums of the scores of
 * each, and the tokens that count. */
#define BALANCE_STATS(experts) (2 * (experts) + 1)

/* The balance loss of a router, of each sequence by itself (DeepSeek-AI 2024, arXiv:2412.19437, eq. 17-20; over a
 * batch: Fedus et al. 2021, arXiv:2101.03961, eq. 4-6): sum_e f_e P_e, f_e = E / (top_k T) * how often expert e was
 * chosen by the T tokens of the sequence, P_e = the mean over them of their scores, each token's divided by their sum.
 * 1 where all experts are chosen equally often. f_e is a constant to the gradient.
 * balance_stats: stats (sequences,BALANCE_STATS(E)) fp32 of these tokens; targets (sequences*length), of which those
 * below 0 do not count. Of shape: dt, n, experts, top_k, sigmoid.
 * balance_dgrad: dlogits (N,E) += the gradient to the logits, from balance_loss's dscores. */
struct balance_args {
    float *stats;
    void *dlogits;
    const void *logits;
    const float *dscores;
    const int32_t *chosen, *targets;
    struct router_shape shape;
    struct token_rows rows;
};

/* balance_loss: losses (sequences) fp32 from the stats of all parts (parts,sequences,BALANCE_STATS(E)) of sequences of
 * so many tokens: each times the tokens of its sequence that count. dscores (sequences,E) fp32: factor times the
 * gradient of these to a token's scores divided by their sum, less what all experts have alike: that changes no loss,
 * and of even loads nothing is left. */
struct balance_loss_args {
    float *losses, *dscores;
    const float *stats;
    int64_t parts, sequences, experts, top_k, tokens;
    float factor;
};

/* permute: the order of all N*top_k choices by expert, those of one expert in token order: place (N*top_k) int32 is the
 * row where choice i*top_k+j goes, counts (E) int32 the rows of each expert, rank_counts (ranks) those of E/ranks
 * experts in a row (what all_to_all_v sends). most > 0: of an expert's rows only the first so many count, those of
 * later tokens have place -1; *dropped += how many, NULL = not wanted. */
struct permute_args {
    int32_t *place, *counts, *rank_counts;
    float *dropped;
    const int32_t *chosen;
    int64_t n, top_k, experts, ranks, most;
};

/* permute_received: what arrived from all ranks, received (ranks,E) int32 rows for each expert here with row stride ld,
 * lies by rank and then by expert: place (rows) is where each goes to lie by expert and then by rank, -1 for rows
 * beyond the sum; counts (E) and rank_counts (ranks) as of permute. by_rank: they stay where they are, and counts
 * (ranks,E) has the rows of each rank apart. More rows arrived than rows holds: a failure of the stream. */
struct received_args {
    int32_t *place, *counts, *rank_counts;
    const int32_t *received;
    int64_t ld, ranks, experts, rows;
    bool by_rank;
};

/* split_rounds: rows that come in rounds, because there is room for `room` at a time: split (ranks,rounds,E) int32, of
 * received (ranks,E). Taken in the order by expert and then by rank; a round ends behind an expert's last row or a
 * multiple of EXPERT_SPLIT of its rows, where grouped products start a piece: their sums keep every bit. by_rank: taken
 * by rank and then by expert, and a round ends there in the rows of each rank for an expert. More rows than rounds
 * hold: a failure of the stream. seen (2) fp32, NULL = not wanted: += rounds behind the first that take rows, and the
 * most rows received so far. */
struct split_args {
    int32_t *split;
    float *seen;
    const int32_t *received;
    int64_t ranks, experts, rounds, room;
    bool by_rank;
};

/* place_round: the sender's side of a round, split (ranks,rounds,E) as the ranks that receive have it: rank_counts
 * (ranks) rows go to each; place (rows) is where each of the rows, which lie by rank and expert, lies among those of
 * the round, -1: in another one; origin (rows) the other way round, -1 beyond their sum. More rows than rows holds: a
 * failure of the stream. */
struct round_args {
    int32_t *place, *origin, *rank_counts;
    const int32_t *split;
    int64_t ranks, experts, rounds, round, rows;
};

/* scatter_rows: row place[i*top_k+j] of dst = weights[i*top_k+j] * row i of src (N,C), NULL = 1; -1 goes nowhere. To
 * the experts; and with weights, combine's gradient to its rows.
 * combine_rows: row i of dst (N,C) = sum over j, in order and in fp32, of weights[i*top_k+j] * row place[i*top_k+j] of
 * src; -1 adds nothing. Back from the experts; and without weights, the gradient of scatter_rows. keep: a row of dst
 * that gets nothing stays as it is; otherwise it is 0.
 * combine_dweights: dweights[i*top_k+j] (N,top_k) fp32 = product of row i of dout (N,C) and row place[i*top_k+j] of
 * src; 0 at -1. */
struct placed_args {
    void *dst;
    float *dweights;
    const void *src, *dout;
    const int32_t *place;
    const float *weights;
    enum dtype dt;
    int64_t n, top_k, c;
    bool keep;
};

/* --- loss --------------------------------------------------------------------------------------------------------- */

/* Softmax cross-entropy over a vocabulary that may be cut in parts, in two steps. targets (N) int32; negative = not
 * counted. This part's logits (N,V) dt are columns [first, first+V).
 * loss_stats: stats (N,3) fp32 of this part: largest logit, sum of exp(logit - largest), the target's logit (0 where
 * the target is not in this part).
 * loss_finish: from the stats of all parts (parts,N,3): losses (N) fp32 nats, 0 where not counted; dlogits (N,V) dt =
 * softmax - onehot of this part, zero rows where not counted; NULL = loss only. dlogits may alias logits.
 * loss: both at once where the vocabulary is whole: stats (N,3), losses and dlogits with the same bits. */
struct loss_args {
    float *losses, *stats;
    void *dlogits;
    const void *logits;
    const int32_t *targets;
    enum dtype dt;
    int64_t parts, n, v, first;
};

/* --- hashes and initial values ------------------------------------------------------------------------------------ */

/* hash: *out (device) += hash_element() (base/hash.h) of every element of x (rows, cols) bf16 or fp32, dense, modulo
 * 2^64 and therefore in any order: element (r, c) has the key hash_mix(key + r), the place first + c and the bits of
 * its value in fp32. x may be memory of alloc_host. */
struct hash_args {
    uint64_t *out;
    const void *x;
    enum dtype dt;
    int64_t rows, cols;
    uint64_t key;
    int64_t first;
};

struct rng_weights; /* base/rng.h */

/* weights: out (rows, cols) bf16 or fp32, dense: element (r, c) is that of rng_weights() with the index first + r*width
 * + c, to the bit. out may be memory of alloc_host. */
struct weights_args {
    void *out;
    enum dtype dt;
    int64_t rows, cols, width, first;
    const struct rng_weights *weights; /* the caller's again when the call is back */
};

#endif
