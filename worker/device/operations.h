/* SPDX-License-Identifier: Apache-2.0 */
/* operations.h - arguments of a device's operations, with what each one computes. device.h has the rules and the shape
 * letters. Related operations share a struct; each reads the fields that its contract names. C and CUDA C++ include
 * this file. */
#ifndef TITAN_WORKER_DEVICE_OPERATIONS_H
#define TITAN_WORKER_DEVICE_OPERATIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/codecs.h"
#include "base/rng.h"
#include "base/weight_codes.h"

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

/* copy_2d: copies rows of cols elements of any type; rows of dst are ldd apart, rows of src lds. Row r of dst (rows) =
 * row r / repeat of src. So one row can be copied several times (a rotary key shared by all heads).
 * add_2d: the reverse: row r of dst (rows) += rows r*repeat .. r*repeat + repeat-1 of src, bf16 or fp32. The rows are
 * added in that order and the result is rounded once. dst and src do not overlap. */
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
 * Packed rows of several groups (struct matmul_args) have a bias for each group:
 * add_bias_grouped: x (N,C) += bias (groups,C) of the row's group. Rows beyond the sum of counts (parts,groups) int32
 * stay unchanged.
 * bias_wgrad_grouped: dbias (groups,C) fp32 = beta*dbias + the sum over the rows of each group of the last part; beta
 * is 0 or 1. Sums of EXPERT_SPLIT rows are added one after the other. */
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

/* Rows in the largest piece of a grouped product. A round may end after a multiple of these rows of one expert. */
#define EXPERT_SPLIT 256

struct float8_product; /* device.h */

/* How the operands of a product become int8, as SwitchBack does (Wortsman et al. 2023, arXiv:2304.13013). An element
 * becomes the code round(x * f), to nearest even, where f = 127 / s, computed in fp64 and rounded to fp32. s is the
 * largest magnitude of the element's line along k, at least INT8_LEAST; so codes of a line of zeros are 0. Each line of
 * a has an s. All of b has one, or with b_lines each of its lines. Codes are multiplied and summed exactly, in int32.
 * An element of c is sum * (1/f_a) * (1/f_b) in fp32, from left to right, and then added to c where beta is 1.
 * An error is at most s_a/254 * (sum of |b|) + s_b/254 * (sum of |a|) + k * s_a * s_b / 254^2 for lines a and b, and
 * rounding in fp32. A line with an element that is not finite has a product that is not finite. All devices have this.
 */
struct int8_product {
    bool b_lines;
};
#define INT8_LEAST 1e-30
#define INT8_DEPTH_MAX 131072 /* largest k: sums stay below 2^31 */

/* Rows that are kept as their int8 codes (SwitchBack's algorithm 3): codes (N,P) with P = C up to a multiple of 16 and
 * zeros behind C, then what a code of 1 stands for in each row, (N) fp32.
 * rows_encode: codes of x (N,C), those that matmul_i8 makes of the rows of a, and 1/f_a.
 * rows_decode: out (N,C) = code * (1/f_a) in fp32, rounded to dt. A row with an element that was not finite has no
 * element that is finite. Any bytes can be decoded.
 * x, out and codes are at multiples of 16 bytes. */
static inline int64_t int8_row_codes(int64_t c)
{
    return (c + 15) / 16 * 16;
}
static inline int64_t int8_rows_bytes(int64_t n, int64_t c)
{
    return n * (int8_row_codes(c) + (int64_t)sizeof(float));
}
struct rows_encode_args {
    uint8_t *codes;
    const void *x;
    enum dtype dt;
    int64_t n, c;
};
struct rows_decode_args {
    void *out;
    const uint8_t *codes;
    enum dtype dt;
    int64_t n, c;
};

/* matmul: c (M,N) = beta*c + op(a) op(b), op = transpose where ta/tb. a is (M,K), or (K,M) with ta; b is (K,N), or
 * (N,K) with tb. a and b are ab_dt (bf16 or fp32), c is c_dt (ab_dt or fp32); beta is 0 or 1.
 *     forward  y (N,out) = x (N,in) W^T         ta=0 tb=1
 *     dgrad    dx (N,in) = dy (N,out) W         ta=0 tb=0
 *     wgrad    dW (out,in) += dy^T x            ta=1 tb=0 beta=1 c_dt=fp32
 * matmul_grouped: the same for packed rows of several groups, each with a matrix of its own. counts (parts,groups)
 * int32, device, has the number of rows of each group. The rows of group e follow the rows of group e-1, and each part
 * follows the previous part. All counts together are at most m (k with ta). Rows beyond their sum are not read or
 * written. The groups' matrices lie one after the other, with rows ldb (ldc with ta) apart. All parts use the same
 * matrices. A row's product does not depend on the other parts, and a part's product does not depend on other parts.
 *     !ta  c (rows,N) = beta*c + a (rows,K) op(b_e), b (groups,K,N), or (groups,N,K) with tb: forward and dgrad
 *      ta  c_e (M,N) = beta*c_e + a_e^T b_e, a (rows,M), b (rows,N), c (groups,M,N) fp32, tb 0: wgrad of the rows of
 *          the last part only. The product of a group without rows is 0. Sums of EXPERT_SPLIT rows are added one
 *          after the other
 * matmul_f8: matmul of the operands in float8. work: matmul_f8_work_bytes() of scratch. A device without float8 or its
 * blocks (info.float8, info.mxfp8) returns TITAN_EUNSUPPORTED.
 * matmul_i8: matmul of the operands in int8, without ta. work: matmul_i8_work_bytes() of scratch. */
struct matmul_args {
    void *c;
    const void *a, *b;
    enum dtype c_dt, ab_dt;
    bool ta, tb;
    int64_t ldc, lda, ldb, m, n, k;
    float beta;
    const int32_t *counts;
    int64_t groups, parts;
    const struct float8_product *how; /* the caller may reuse it when the call returns */
    void *work;
    const struct int8_product *int8; /* the same */
};

/* Checks the arguments of every kind of product. Arguments for only grouped, float8 or int8 products are not checked.
 */
static inline bool matmul_args_valid(const struct matmul_args *a)
{
    return compute_type(a->ab_dt) && (a->c_dt == a->ab_dt || a->c_dt == DTYPE_F32) && a->m >= 0 && a->n >= 0 &&
           a->k >= 0 && a->lda >= (a->ta ? a->m : a->k) && a->ldb >= (a->tb ? a->k : a->n) && a->ldc >= a->n &&
           (a->beta == 0.0f || a->beta == 1.0f);
}

/* --- embedding ---------------------------------------------------------------------------------------------------- */

/* embed: out (N,C) = table[tokens - first]. table (V,C) dt has rows [first, first+V) of the vocabulary. A token outside
 * these rows gives a row of zeros (another rank has it).
 * embed_wgrad: dtable (V,C) fp32 += rows of dout (N,C) dt, in token order (deterministic). Tokens outside the table are
 * skipped. */
struct embed_args {
    void *out;
    float *dtable;
    const int32_t *tokens;
    const void *table, *dout;
    enum dtype dt;
    int64_t n, c, v, first;
};

/* --- RMSNorm (Zhang and Sennrich 2019, arXiv:1910.07467) ---------------------------------------------------------- */

/* rmsnorm: out (N,C) = x * rstd * gain. rstd (N) fp32 = 1/sqrt(mean(x^2)+eps) is kept for backward. gain (C) is dt.
 * offset: gains are stored less 1, and the operation adds 1 in fp32.
 * rmsnorm_dgrad: dx (N,C) = residual + the gradient to x. residual (N,C) may be dx; NULL: only the gradient. dx may not
 * alias dout.
 * rmsnorm_dgain: dgain (C) fp32 += sum over N of dout * x * rstd, in a fixed order.
 * add_rmsnorm: h (N,C) = a + b, rounded to dt, then rmsnorm of h. The bits are the same as from add followed by
 * rmsnorm, but memory is passed over only once. h may alias a or b; out may alias none of them. */
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

/* rope: rotary embedding in place on adjacent pairs (2i,2i+1) of each head (Su et al. 2021, arXiv:2104.09864). x points
 * at head 0 of row 0; rows are ldx apart, heads D apart. positions (N) int32; cos, sin (positions, D/2) fp32. backward:
 * rotates by the negative angle. */
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
    /* a sequence's sums for a head have the same bits whatever else is in the call, and whatever the strides */
    ATTENTION_FIXED,
    ATTENTION_REPEATABLE, /* the device chooses; the same call gives the same bits */
    ATTENTION_ANY         /* the same call need not give the same bits */
};

/* A product of queries and keys. Without masks it is causal: query i of a sequence sees keys 0..i (Tq == Tk). With
 * masks (all three pointers or none), query i sees key j where start[i] <= key_index[j] <= index[i]. index is a token's
 * place in the whole batch. start is the place of the first token of the token's document. Rows may come in any order,
 * so a rank can hold any part of the sequences. */
struct attention_shape {
    enum dtype dt;
    int64_t b, tq, tk;            /* sequences; queries and keys of each */
    int64_t h, kv;                /* query and key/value heads, kv divides h */
    int64_t d, dv;                /* width of a query/key head, of a value head */
    const int32_t *index, *start; /* (B*Tq), device; NULL = causal */
    const int32_t *key_index;     /* (B*Tk) */
    float scale;                  /* factor of the scores; 0: 1/sqrt(D) */
    enum attention_order order;
    float softcap; /* a scaled score s becomes softcap tanh(s / softcap); 0: no cap */
};

/* attention: grouped-query attention. In each of B sequences, Tq queries look at the sequence's Tk keys. q (B*Tq,H,D)
 * with row stride ldq, k (B*Tk,K,D) with ldk, v (B*Tk,K,Dv) with ldv, out (B*Tq,H,Dv) with ldo. lse (B,H,Tq) fp32:
 * log-sum-exp of each row's scaled scores. The mask decides which query sees which key. A row that sees no key gets out
 * 0 and lse -inf. A block of the score matrix that the mask hides completely costs no product.
 * attention_dgrad: OVERWRITES dq, dk and dv, each with its own stride, with the contribution of these keys. out, lse
 * and dout belong to the whole row, which may have seen more keys. work: attention_work_bytes() of scratch. Formulas:
 * Dao 2023, arXiv:2307.08691, algorithm 2. */
struct attention_args {
    void *out;
    float *lse;
    const void *q, *k, *v, *dout;
    void *dq, *dk, *dv, *work;
    int64_t ldq, ldk, ldv, ldo, lddq, lddk, lddv, lddo;
    struct attention_shape shape;
};

/* attention_merge: merges two partial results over different keys. lse = log(exp(lse) + exp(other_lse)). out = the mean
 * of out and other, weighted by their shares, computed in fp32. out, other (B*T,H,Dv) with row stride ld; lse
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

/* attention_sink: attention sinks (Xiao et al. 2023, arXiv:2309.17453). Adds sinks (H) dt to the softmax denominator of
 * each row of x (B*T,H,Dv): lse = log(exp(x_lse) + exp(sink)), out = x exp(x_lse - lse). Rows ldo apart; lse (B,H,T).
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

/* swiglu: out (N,F) = silu(gate) * up. gate and up (N,F) have row stride ldgu (they are halves of one product). counts
 * (parts) int32: only the first rows are computed, as many as the sum of counts; the other rows stay unchanged. counts
 * NULL: all N rows. gelu: uses GELU in its tanh form (Hendrycks and Gimpel 2016, arXiv:1606.08415) in place of silu.
 * limit above 0: out = g sigmoid(alpha g) (u + 1) with g = min(gate, limit) and u = up clamped to +-limit.
 * swiglu_dgrad: computes dgate and dup (N,F), rows lddgu apart, from dout (N,F). dgate and dup may be gate and up. */
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

/* Which experts a token goes to. scores = softmax or sigmoid of the logits, fp32. The router chooses the top_k experts
 * with the largest scores + bias, in falling order. Among equal values the lower expert comes first, -0 equals 0, and
 * NaN comes last.
 * With groups, each group is an equal number of consecutive experts. A group's value is the sum of its group_top_k best
 * scores + bias. Only experts of the top_groups best groups can be chosen, ordered in the same way (DeepSeek-AI 2024,
 * arXiv:2412.19437, section 2.1.2). So the choice depends on nothing but the bits of the scores, on every device.
 * A token's weights are the scores of its chosen experts, without the bias. With normalize they are divided by their
 * sum (+ 1e-20). Then the weights are multiplied by scale. Loss-free balancing: Wang et al. 2024, arXiv:2408.15664. */
struct router_shape {
    enum dtype dt; /* of logits and their gradient */
    int64_t n, experts, top_k;
    bool sigmoid, normalize;
    float scale;
    int64_t groups, top_groups, group_top_k; /* groups 0: none */
};

/* router: chosen (N,top_k) int32 and weights (N,top_k) fp32 from logits (N,E). bias (E) fp32, NULL = none. load (E)
 * fp32 += how often each expert was chosen; NULL = not counted (a second forward pass). numbers (N) int32, NULL =
 * experts are chosen by score. Otherwise the token with number i gets experts i*top_k to i*top_k+top_k-1, modulo E.
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

/* Where a rank's N tokens lie in the sequences of its tensor-parallel group. The tokens are `pieces` pieces of equal
 * size. The first piece starts at token `first`. Each next piece starts sequences * length / pieces tokens after the
 * previous start. */
struct token_rows {
    int64_t n, sequences, length, first, pieces;
};

/* Numbers per sequence for its balance loss: how often each of E experts was chosen, the sum of scores of each expert,
 * and the number of counted tokens. */
#define BALANCE_STATS(experts) (2 * (experts) + 1)

/* The balance loss of a router, for each sequence separately (DeepSeek-AI 2024, arXiv:2412.19437, eq. 17-20; over a
 * batch: Fedus et al. 2021, arXiv:2101.03961, eq. 4-6): sum_e f_e P_e. f_e = E / (top_k T) * how often expert e was
 * chosen by the T tokens of the sequence. P_e = the mean of expert e's scores over these tokens, where each token's
 * scores are divided by their sum. The loss is 1 if all experts are chosen equally often. The gradient treats f_e as a
 * constant.
 * balance_stats: stats (sequences,BALANCE_STATS(E)) fp32 of these tokens. targets (sequences*length); a token with a
 * target below 0 does not count. Reads from shape: dt, n, experts, top_k, sigmoid.
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
 * `tokens` tokens. Each loss is multiplied by the counted tokens of its sequence. dscores (sequences,E) fp32 = factor
 * times the gradient of the losses to a token's scores divided by their sum. The part of the gradient that is equal for
 * all experts is subtracted, because it changes no loss. So with equal loads dscores is 0. */
struct balance_loss_args {
    float *losses, *dscores;
    const float *stats;
    int64_t parts, sequences, experts, top_k, tokens;
    float factor;
};

/* permute: sorts all N*top_k choices by expert, and the choices of one expert by token. place (N*top_k) int32: the row
 * where choice i*top_k+j goes. counts (E) int32: the rows of each expert. rank_counts (ranks): the rows of each E/ranks
 * consecutive experts (what all_to_all_v sends). most > 0: an expert keeps only its first `most` rows. Choices of later
 * tokens get place -1, and *dropped += their number; dropped NULL = not counted. */
struct permute_args {
    int32_t *place, *counts, *rank_counts;
    float *dropped;
    const int32_t *chosen;
    int64_t n, top_k, experts, ranks, most;
};

/* permute_received: sorts the rows that arrived from all ranks. They lie by rank and then by expert; received (ranks,E)
 * int32, with row stride ld, has the number of rows for each expert here. place (rows): the place of each row in the
 * order by expert and then by rank, -1 for rows beyond the sum. counts (E) and rank_counts (ranks) are like permute's.
 * by_rank: rows stay in place, and counts (ranks,E) counts each rank's rows separately. If more rows arrived than
 * `rows`, the stream fails. */
struct received_args {
    int32_t *place, *counts, *rank_counts;
    const int32_t *received;
    int64_t ld, ranks, experts, rows;
    bool by_rank;
};

/* split_rounds: splits the received rows into rounds, because there is room for only `room` rows at a time. split
 * (ranks,rounds,E) int32 is computed from received (ranks,E). Rows are taken in the order by expert and then by rank. A
 * round ends after an expert's last row or after a multiple of EXPERT_SPLIT of its rows. Grouped products start a piece
 * there, so their sums keep every bit. by_rank: rows are taken by rank and then by expert. A round then ends in the
 * same way within one rank's rows for an expert. If the rounds cannot hold all rows, the stream fails. seen (2) fp32,
 * NULL = not counted: seen[0] += rounds after the first that take rows; seen[1] = the most rows received so far. */
struct split_args {
    int32_t *split;
    float *seen;
    const int32_t *received;
    int64_t ranks, experts, rounds, room;
    bool by_rank;
};

/* place_round: the sender's side of a round. The receiving ranks computed split (ranks,rounds,E). rank_counts (ranks):
 * the rows that go to each rank. place (rows): the place in this round of each row, rows sorted by rank and expert; -1:
 * the row belongs to another round. origin (rows) is the inverse of place, -1 beyond the round's rows. If a round has
 * more rows than `rows`, the stream fails. */
struct round_args {
    int32_t *place, *origin, *rank_counts;
    const int32_t *split;
    int64_t ranks, experts, rounds, round, rows;
};

/* scatter_rows: row place[i*top_k+j] of dst = weights[i*top_k+j] * row i of src (N,C); weights NULL = 1; a row with
 * place -1 is not written. Brings rows to the experts. With weights, it is the gradient of combine_rows to its rows.
 * combine_rows: row i of dst (N,C) = sum over j, in order and in fp32, of weights[i*top_k+j] * row place[i*top_k+j] of
 * src; place -1 adds nothing. Brings rows back from the experts. Without weights, it is the gradient of scatter_rows.
 * keep: a row of dst without any summand stays unchanged; otherwise it is 0.
 * combine_dweights: dweights[i*top_k+j] (N,top_k) fp32 = product of row i of dout (N,C) and row place[i*top_k+j] of
 * src; 0 where place is -1. */
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

/* Softmax cross-entropy in two steps, over a vocabulary that may be cut into parts. targets (N) int32; a negative
 * target is not counted. This part's logits (N,V) dt are columns [first, first+V).
 * loss_stats: stats (N,3) fp32 of this part: largest logit, sum of exp(logit - largest), the target's logit (0 if the
 * target is not in this part).
 * loss_finish: from the stats of all parts (parts,N,3), computes losses (N) fp32 in nats, 0 where not counted. dlogits
 * (N,V) dt = softmax - onehot of this part, zero rows where not counted; NULL = loss only. dlogits may alias logits.
 * loss: both steps at once for a whole vocabulary. stats (N,3), losses and dlogits have the same bits. */
struct loss_args {
    float *losses, *stats;
    void *dlogits;
    const void *logits;
    const int32_t *targets;
    enum dtype dt;
    int64_t parts, n, v, first;
};

/* --- hashes ------------------------------------------------------------------------------------------------------- */

/* hash: *out (device) += the sum of hash_element() (base/hash.h) over every element of x (rows, cols) bf16 or fp32,
 * dense. The sum is modulo 2^64 and therefore independent of its order. Element (r, c) has the key hash_mix(key + r),
 * the place first + c and the bits of its value in fp32. x may be memory of alloc_host. */
struct hash_args {
    uint64_t *out;
    const void *x;
    enum dtype dt;
    int64_t rows, cols;
    uint64_t key;
    int64_t first;
};

/* --- whole matrices ----------------------------------------------------------------------------------------------- */

/* unit: out (n) dt = x (n) fp32 / (sqrt(*sum) + eps). sum (device, fp64) is the sum of x's squares for a vector of
 * norm 1. The divisor's inverse is rounded to fp32. out may be x if dt is fp32. */
struct unit_args {
    void *out;
    const float *x;
    const double *sum;
    enum dtype dt;
    float eps;
    size_t n;
};

/* polynomial: out (n,n) dt = a I + b x + c y, with x (n,n) dt and y (n,n) fp32, all dense. out may be x. */
struct polynomial_args {
    void *out;
    const void *x;
    const float *y;
    enum dtype dt;
    float a, b, c;
    int64_t n;
};

/* orthonormal: x (rows,cols) fp32 becomes an orthonormal basis of a space with its rows: by Gram-Schmidt, each row
 * against the rows before, twice. A row of zeros stays. jacobi: rotates rows of x (rows,cols) fp32 in pairs until all
 * are orthogonal (Hestenes 1958), and rows of y (rows,ycols) fp32 like them. out (kept,ycols) fp32 = the rows of y for
 * the longest rows of x, the longest first, each divided by its norm, and with the sign that makes its largest
 * component positive. So with x = y A and orthonormal y, out has singular vectors of x's left side; the norms of x's
 * rows are the singular values. y may not overlap out. Pairs follow in a fixed order, all in each of at most
 * JACOBI_SWEEPS turns. A pair is orthogonal if its product is 1e-6 of both norms or less. work (device):
 * jacobi_work_bytes(). rows may not exceed cols or ycols. Products are summed in fp64, rows rounded to fp32. All is
 * dense. */
#define JACOBI_SWEEPS 16
struct orthonormal_args {
    float *x;
    int64_t rows, cols;
};
struct jacobi_args {
    float *x, *y, *out;
    void *work;
    int64_t rows, cols, ycols, kept;
};
static inline size_t jacobi_work_bytes(int64_t rows)
{
    return JACOBI_SWEEPS * sizeof(double) + (size_t)rows * sizeof(double);
}

/* Ranger21's parts (Wright and Demeure 2021, arXiv:2106.13731); all fp32 and dense. Sums over rows are fp64.
 * row_gradient, for each row of g (rows,cols) and of the weights w, in this order:
 *     g = scale g
 *     clip: where |g| > most = ROW_CLIP max(|w|, ROW_CLIP_LEAST), g = g most / max(|g|, 1e-6)
 *     centralize: g = g - mean g
 *     normalize, if there are more than two columns: g = g / (sqrt(mean of (g - mean g)^2) + 1e-8)
 * w is read only for clip. */
#define ROW_CLIP 1e-2
#define ROW_CLIP_LEAST 1e-3
struct row_gradient_args {
    float *g;
    const float *w;
    int64_t rows, cols;
    float scale;
    bool clip, centralize, normalize;
};

/* moments: out (n) = a / D, of the gradient g' = scale g. m and v are the moments, v = beta2 v + (1 - beta2) g'^2.
 *     previous NULL: m = beta1 m + (1 - beta1) g', a = m / bias1
 *     else: p = beta1^2 previous + (1 - beta1^2) g', a = ((1 + beta0) p - beta0 m) / sqrt((1 + beta0)^2 + beta0^2) /
 * bias1, previous = m, m = p: positive-negative momentum (Xie et al. 2021, arXiv:2103.17182) largest NULL: D = sqrt(v /
 * bias2) + eps; else largest = max(largest, v) takes the place of v softplus: D = ln(1 + e^(MOMENTS_SOFTPLUS D)) /
 * MOMENTS_SOFTPLUS; D stays where the power is above 20 */
#define MOMENTS_SOFTPLUS 50
struct moments_args {
    float *out, *m, *v, *previous, *largest;
    const float *g;
    float scale, beta0, beta1, beta2, eps, bias1, bias2;
    bool softplus;
    size_t n;
};

/* row_decay: d (rows,cols) = d + decay f w, with f = f_all f_row. sum (device, fp64) NULL: f_all = 1; else f_all = 1 /
 * sqrt(*sum mean), or 0 if *sum is 0. norm_loss: f_row = 1 - 1 / (|row of w| + 1e-8), otherwise 1.
 * slow (rows,cols) not NULL: then d = kept (w - slow) / lr + (1 - kept) d, so that w - lr d is kept slow + (1 - kept)
 * of what it was. Elements of slow that are 0 count as w: there is no slow weight yet. */
struct row_decay_args {
    float *d;
    const float *w, *slow;
    const double *sum;
    int64_t rows, cols;
    float decay, mean, kept, lr;
    bool norm_loss;
};

/* --- parts of directions that replicas send each other ------------------------------------------------------------ */

/* x (n) is cut in chunks of PARTS_CHUNK elements; n is a multiple of it. `kept` values of each chunk are sent, of d:
 *   PARTS_DCT       of C d, with the orthonormal DCT-II C (Peng et al. 2024, DeMo, arXiv:2411.19870): the values of
 *                   largest magnitude, of equal ones those with the lower numbers, in the order of their numbers. A NaN
 *                   is the largest.
 *   PARTS_RANDOM    one element of each PARTS_CHUNK / kept, drawn by (word, first + chunk, turn)
 *   PARTS_STRIDING  element word mod PARTS_CHUNK / kept of each
 *   PARTS_ALL       all; kept is PARTS_CHUNK
 * (the last three as in From and others 2025, FlexDeMo, arXiv:2502.06728). kept is 1 to PARTS_CHUNK, and without
 * PARTS_DCT a divisor of it. Values are sent as dt, bf16 rounded to nearest even.
 *
 * parts_extract: d = beta residual + scale x, all (n) fp32. sent: parts_bytes() (parts.h); what is behind the numbers
 * stays. x = d - what the sent values stand for: they themselves, or C^T of them. residual may not be x.
 * parts_combine: received (ranks, parts_bytes). out (n) fp32 = what the means of the values stand for. The mean of a
 * value is over the ranks that sent it, summed in rank order; values that no rank sent are 0. sign: out = 1, -1 or 0
 * instead, by its sign; a NaN stays one. */
#define PARTS_CHUNK 64
enum parts_method { PARTS_DCT, PARTS_RANDOM, PARTS_STRIDING, PARTS_ALL };

struct parts_shape {
    enum parts_method method;
    int kept;
    enum dtype dt; /* bf16 or fp32 */
    int64_t first; /* chunk of the whole that x begins with */
    uint64_t word; /* the same on all ranks; another in each step */
};
struct parts_extract_args {
    float *x;
    const float *residual;
    void *sent;
    struct parts_shape shape;
    float scale, beta;
    size_t n;
};
struct parts_combine_args {
    float *out;
    const void *received;
    struct parts_shape shape;
    int ranks;
    bool sign;
    size_t n;
};
static inline bool parts_valid(const struct parts_shape *z, size_t n)
{
    return compute_type(z->dt) && z->kept > 0 && z->kept <= PARTS_CHUNK && n % PARTS_CHUNK == 0 && z->first >= 0 &&
           (z->method == PARTS_DCT || PARTS_CHUNK % z->kept == 0) && (z->method != PARTS_ALL || z->kept == PARTS_CHUNK);
}

/* --- gradients that travel ---------------------------------------------------------------------------------------- */

/* What base/codecs.h defines. x (pieces,n) fp32 has a piece for each receiver, and a piece codec_buckets(n) buckets.
 * codes (pieces, codec_bytes(codec, n)) and error (pieces, codec_error_bytes(n)) are bytes, from a multiple of 16 on.
 * encode: codes of x, all bytes written. error: CODEC_LOCO's, read and then written; NULL with others. decay is in
 * [0, 1). largest (pieces,buckets) fp32: magnitudes that scales are made of, at least those of the values; NULL: each
 * bucket's own. stochastic, CODEC_INT8 and CODEC_INT4 only: rounds at random by words of the stream (key, step). x,
 * codes and error do not overlap.
 * decode_sum: out (n) fp32 = the sum of the values of `pieces` pieces of codes, at least one, in their order. No bytes
 * make it fail.
 * bucket_largest: one scale for each of `tensors` tensors, for encode's `largest`. Tensor t has the values begins[t] to
 * begins[t+1]-1 of all of x (pieces*n). largest (pieces,buckets) fp32: a bucket that lies within a tensor gets the
 * largest magnitude of all the tensor's such buckets. Any other bucket gets its own: what two tensors of different size
 * lose there would else be in the scale of the smaller. Magnitudes are of x + error if there is one; what is not finite
 * is larger than all else. of_tensor (tensors) fp32 = the tensors' largest magnitudes, 0 without a bucket. */
struct encode_args {
    uint8_t *codes, *error;
    const float *x, *largest;
    enum codec codec;
    int64_t pieces, n;
    float decay;
    bool stochastic;
    struct rng_key key;
    uint64_t step;
};
struct decode_sum_args {
    float *out;
    const uint8_t *codes;
    enum codec codec;
    int64_t pieces, n;
};
struct bucket_largest_args {
    float *largest, *of_tensor;
    const float *x;
    const uint8_t *error; /* NULL: x alone */
    int64_t pieces, n;
    const int64_t *begins; /* host, (tensors + 1), growing; the caller may reuse it when the call returns */
    int64_t tensors;
};

/* --- initial values ----------------------------------------------------------------------------------------------- */

struct rng_weights; /* base/rng.h */

/* weights: out (rows, cols) bf16 or fp32, dense. Element (r, c) has the bits that rng_weights() gives for the index
 * first + r*width + c. out may be memory of alloc_host. */
struct weights_args {
    void *out;
    enum dtype dt;
    int64_t rows, cols, width, first;
    const struct rng_weights *weights; /* the caller may reuse it when the call returns */
};

/* --- weights in few bits ------------------------------------------------------------------------------------------ */

/* base/weight_codes.h has the codec's arithmetic, and what a piece of n values is. Buckets begin at multiples of
 * `bucket`.
 * weight_encode: codes, one piece, from x (n) dt. Values within the `runs` runs have no codes: they count for no bucket
 * and their codes are 0. A bucket without values has base and unit 0.
 * weight_decode: out (pieces,n) dt from codes, pieces one behind the other; values within runs are undefined. Any bytes
 * can be decoded.
 * With a table (2 n, n = 2^bits of int6 or int4) of weight_learn both use learned levels, and no shift.
 * weight_count: adds to counts (WEIGHT_BINS), as uint32, where the values of all buckets lie. codes, shift and table of
 * the arguments are not used.
 * weight_learn: the table from counts (ranks, WEIGHT_BINS), rows ld apart. Any counts give finite levels.
 * codes, x and out are at multiples of 16 bytes, and so is each piece of out. */
#define WEIGHT_RUNS 12
struct weight_run {
    int64_t from, to; /* elements, in ascending order */
};
struct weight_encode_args {
    uint8_t *codes;
    const void *x;
    enum dtype dt;
    enum weight_codec codec;
    int64_t n, bucket;
    float shift;        /* weight_shift() */
    const float *table; /* NULL: even levels */
    int runs;
    struct weight_run run[WEIGHT_RUNS];
};
struct weight_decode_args {
    void *out;
    const uint8_t *codes;
    enum dtype dt;
    enum weight_codec codec;
    const float *table; /* NULL: even levels */
    int64_t pieces, n, bucket;
};
struct weight_learn_args {
    float *table;
    const int32_t *counts;
    int64_t ranks, ld;
    enum weight_codec codec;
    float shift; /* weight_shift() */
};
static inline bool weight_learns(enum weight_codec codec)
{
    return codec > WEIGHTS_WHOLE && codec < WEIGHT_CODECS && 1 << weight_bits(codec) <= WEIGHT_LEVELS;
}
static inline bool weight_codes_valid(enum dtype dt, enum weight_codec codec, int64_t n, int64_t bucket)
{
    return compute_type(dt) && codec > WEIGHTS_WHOLE && codec < WEIGHT_CODECS && n >= 0 && bucket > 0 &&
           bucket <= WEIGHT_BUCKET && bucket % WEIGHT_BUCKET_MIN == 0;
}

#endif
