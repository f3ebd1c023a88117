/* SPDX-License-Identifier: Apache-2.0 */
/* device.h - what a training step needs from a machine: memory, streams, events and operations.
 *
 * A device is a loadable plug-in (libtitan-cpu.so, libtitan-cuda.so) that exports titan_device_plugin(). The worker
 * calls through these tables only. Rules that hold for every implementation:
 *
 * - Every operation is enqueued on a stream and runs in the stream's order. The host may see it run at once (the CPU's
 *   compute stream) or later. Pointers must stay valid until the stream has passed them.
 * - Pointers are device memory from alloc() (or host memory on a device with info.host_memory true), 64-byte
 *   aligned. Matrices are row-major; ld* are row strides in elements.
 * - Compute tensors are bf16 or fp32 (the dt argument); all of one call share it. Sums are accumulated in fp32 or
 *   better; softmax, norms and losses are computed in fp32. The same call on the same data gives the same bits, unless
 *   the call allows another order (attention_shape.order).
 * - Operations that compute gradients of parameters ADD to fp32 buffers (wgrad, *_dgain, embed_wgrad); gradients of
 *   activations are OVERWRITTEN unless said otherwise.
 * - An operation returns a status only for what can be known when it is enqueued (TITAN_EINVAL for shapes,
 *   TITAN_EDEVICE for a failed launch). What fails later is sticky on its stream: later operations of that stream are
 *   skipped, waiting on its events passes the failure on, stream_sync returns it, stream_clear forgets it. A GPU cannot
 *   take back what is enqueued when a failure becomes known: that runs on undefined data, except host calls, adamw, sgd
 *   and router_balance, which are skipped on every device.
 *
 * Shape letters: N tokens (= batch rows x sequence), B sequences, T tokens a sequence, C model width, H query heads,
 * K key/value heads (H % K == 0), D head width, F feed-forward width, V vocabulary. */
#ifndef TITAN_WORKER_DEVICE_DEVICE_H
#define TITAN_WORKER_DEVICE_DEVICE_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/float8.h"
#include "base/rng.h"

#define TITAN_DEVICE_ABI 20 /* declarations d7e718392f858724 (tests/docs/test_abi.py) */

enum dtype { DTYPE_F32, DTYPE_BF16, DTYPE_F64, DTYPE_I32, DTYPE_U8 };
static inline size_t dtype_bytes(enum dtype dt)
{
    return dt == DTYPE_F64 ? 8 : dt == DTYPE_BF16 ? 2 : dt == DTYPE_U8 ? 1 : 4;
}

struct device; /* implementation's own */
struct stream;
struct event;
struct segment;
struct timestamps;

struct device_options {
    int index;   /* which one, where a machine has several */
    int threads; /* CPU: threads for the compute stream; 0 = all of the process's affinity mask */
};

struct device_info {
    char name[64];          /* "NVIDIA H200", "cpu avx512 amx-bf16" */
    bool host_memory;       /* device memory is host memory */
    bool bf16_fast;         /* bf16 products are faster than fp32 ones; false: recipes with "auto" compute in fp32 */
    bool float8;            /* has matmul_f8; false: recipes with float8 compute in the compute type, and say so */
    bool mxfp8;             /* has it with blocks; false: recipes with MXFP8 are refused */
    uint64_t memory_bytes;  /* total */
    uint64_t memory_free;   /* of it when the device was opened: what a run can have. 0 = unknown */
    double peak_flops_bf16; /* dense; 0 = unknown. CPU: measured on one core, times the cores used */
    double peak_flops_f32;
    uint64_t hardware; /* a GPU, or the cores that a process may use: other devices with this number share it */
    double share;      /* of what the hardware can do, this device's peak; up to 1 */
};

static inline double device_peak(const struct device_info *info, enum dtype dt)
{
    return dt == DTYPE_BF16 ? info->peak_flops_bf16 : info->peak_flops_f32;
}

/* How bf16 moments are rounded when they are stored: to nearest even, or at random (base/bf16.h). Element i of a call
 * is element place = origin + (first + i) / cols * ld + (first + i) % cols of its parameter, a box of a matrix ld wide,
 * and has word place of the stream (key, step) (rng_words): m takes its lower 16 bits, v the upper ones. m and v are
 * computed as fma(beta1, m, (1-beta1) * g) and fma(beta2, v, (1-beta2) * (g*g)), with g = fma(l2, w, gradient): the
 * bits do not depend on the device, nor on how a parameter is cut. */
struct moment_rounding {
    bool random;
    struct rng_key key;
    uint64_t step;
    int64_t first, cols, ld, origin; /* elements */
};

struct adamw_args {
    float lr, beta1, beta2, eps, weight_decay;
    float grad_scale;   /* multiplies the gradient first: clip factor and mean over tokens */
    float bias1, bias2; /* 1 - beta1^t, 1 - beta2^t */
    bool l2;            /* weight decay goes into the gradient: Adam; otherwise it is decoupled: AdamW */
    /* Types of master, and of m and v: fp32, or bf16 (of the moments, or of all three). */
    enum dtype master, moment;
    float mean, clip; /* bf16 masters: what grad_scale is the product of */
    struct moment_rounding rounding;
};

/* What one of several updates in a call changes; as the arguments of adamw. */
struct adamw_range {
    void *master, *m, *v;
    const float *grad;
    uint16_t *shadow;
    size_t n;
    struct moment_rounding rounding; /* in place of the call's */
};

/* Combinations of types that an update has. */
static inline bool adamw_types_valid(const struct adamw_args *a, const uint16_t *shadow)
{
    const struct moment_rounding *const r = &a->rounding;
    if (r->random && (a->moment != DTYPE_BF16 || r->first < 0 || r->cols <= 0 || r->ld < r->cols || r->origin < 0))
        return false;
    return a->master == DTYPE_BF16 ? a->moment == DTYPE_BF16 && !shadow
                                   : a->master == DTYPE_F32 && (a->moment == DTYPE_F32 || a->moment == DTYPE_BF16);
}

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

/* How the operands of a product become float8. Each is multiplied by a scale in fp32 and rounded to its type; the sums
 * of products of such values, fp32, are divided by both scales. A scale is the type's largest value / the largest
 * magnitude, which is taken to be 1e-12 at least, in fp64 and rounded to fp32, and with power_of_two down to a power of
 * two: one of the whole operand or, with lines, one of each line along k, a row of op(a) or a column of op(b). A line
 * or operand with an element that is not finite gives a product that is not; with one scale a CPU keeps a NaN to its
 * line. (torchao's dynamic scaling.) A GPU's sums of such products keep some 14 bits. */
struct float8_product {
    enum float8 a, b;
    bool a_lines, b_lines, power_of_two;
    const float *b_scale; /* device: b is codes of e4m3 already (float8_encode), rows ldb bytes apart, made with this */
    /* MXFP8 (base/float8.h) in place of all this: both are e4m3, a scale for each MX_BLOCK elements of a line, from its
     * first one on; the last block may be shorter. Needs info.mxfp8. */
    bool blocks;
};

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

/* Where N tokens of a rank lie among those of the sequences that it and its tensor-parallel group have: pieces of equal
 * size, the first one from token `first` on, each of the others sequences * length / pieces tokens behind the one
 * before it. */
struct token_rows {
    int64_t n, sequences, length, first, pieces;
};
static inline int64_t token_rows_place(const struct token_rows *z, int64_t row)
{
    const int64_t each = z->n / z->pieces;
    return row / each * (z->sequences * z->length / z->pieces) + z->first + row % each;
}
static inline bool token_rows_valid(const struct token_rows *z)
{
    return z->n >= 0 && z->sequences > 0 && z->length > 0 && z->pieces > 0 && z->n % z->pieces == 0 && z->first >= 0 &&
           z->sequences * z->length % z->pieces == 0 &&
           z->first + z->n / z->pieces <= z->sequences * z->length / z->pieces;
}

/* Numbers of a sequence that its balance loss is of: how often each of E experts was chosen, the sums of the scores of
 * each, and the tokens that count. */
#define BALANCE_STATS(experts) (2 * (experts) + 1)

/* Where a library keeps scores' gradients as bf16 so that a call repeats (ATTENTION_REPEATABLE): it takes heads or
 * sequences in parts of so many bytes, the query heads of a key head together, and none where those take more. */
#define ATTENTION_PART_BYTES ((int64_t)512 << 20)
#define ATTENTION_GROUP_PARTS 4

static inline float attention_scale(const struct attention_shape *z)
{
    return z->scale > 0 ? z->scale : 1.0f / sqrtf((float)z->d);
}

/* Groups of equal size with room for a choice. */
static inline bool router_groups_valid(const struct router_shape *z)
{
    if (z->groups == 0)
        return true;
    const int64_t width = z->groups > 0 ? z->experts / z->groups : 0;
    return width > 0 && z->experts % z->groups == 0 && z->top_groups > 0 && z->top_groups <= z->groups &&
           z->group_top_k > 0 && z->group_top_k <= width && z->top_k <= z->top_groups * width;
}

/* How a product of one shape, type and alignment is carried out, where a device knows several ways: they differ in time
 * and in the order of their sums. */
#define PRODUCT_WAY_BYTES 72
struct product_way {
    uint64_t product;               /* which one; the same number in every process of this version */
    bool chosen;                    /* false: the first way that the device would take, which no one compared */
    uint8_t how[PRODUCT_WAY_BYTES]; /* the device's own; of use to devices of one kind and one version of libraries */
};

/* Rows of one expert that a round may end behind, and multiples: those of the largest piece of a grouped product. */
#define EXPERT_SPLIT 256

/* Called before and after each thing that is enqueued, on the thread that runs it. */
struct stream_observer {
    void (*begin)(void *arg), (*end)(void *arg);
    void *arg;
};

struct device_ops {
    /* --- device ------------------------------------------------------------------------------------------------ */
    titan_status (*open)(const struct device_options *options, struct device **ret, struct titan_error *err);
    void (*close)(struct device *dev); /* NULL is fine */
    void (*info)(struct device *dev, struct device_info *ret);
    /* Bytes: the most memory that was seen in use since the last call with begin, by this one too; 0: not known. The
     * CPU: what this process had resident; a GPU: what was in use on it when this was called, by any process. */
    uint64_t (*memory_peak)(struct device *dev, bool begin);

    /* Memory; alloc is zeroed and 64-byte aligned (256 on a GPU). */
    titan_status (*alloc)(struct device *dev, size_t bytes, void **ret, struct titan_error *err);
    void (*release)(struct device *dev, void *ptr);
    /* Host memory the device can copy from and to at full speed. */
    titan_status (*alloc_host)(struct device *dev, size_t bytes, void **ret, struct titan_error *err);
    void (*release_host)(struct device *dev, void *ptr);
    /* The same of host memory that is there already, whole pages of it; any thread. A copy that crosses the bound of
     * what was pinned as one may fail. NULL, both: the device needs no such thing. */
    titan_status (*pin_host)(struct device *dev, void *ptr, size_t bytes, struct titan_error *err);
    void (*unpin_host)(struct device *dev, void *ptr);

    /* --- streams and events ------------------------------------------------------------------------------------ */
    /* compute: where products run; a device has one such stream. Others (communication, copies) run beside it. */
    titan_status (*stream_open)(struct device *dev, const char *name, bool compute, struct stream **ret,
                                struct titan_error *err);
    void (*stream_close)(struct stream *s);
    titan_status (*stream_sync)(struct stream *s, struct titan_error *err); /* wait until all enqueued has run */
    void (*stream_clear)(struct stream *s); /* forget a failure; the stream must be idle */
    /* Run fn on a host thread when the stream gets there; its status is the stream's. fn must not call the device. */
    titan_status (*stream_call)(struct stream *s, titan_status (*fn)(void *arg, struct titan_error *err), void *arg,
                                struct titan_error *err);
    /* What is enqueued until the next call has o's functions around it, where it runs; NULL: nothing has. The pointer
     * itself is NULL where streams are no threads of this host, and the compute stream is not observed. */
    void (*stream_observe)(struct stream *s, const struct stream_observer *o);
    /* The implementation's own handle (cudaStream_t); NULL where there is none. */
    void *(*stream_native)(struct stream *s);
    titan_status (*event_open)(struct device *dev, struct event **ret, struct titan_error *err);
    void (*event_close)(struct event *e);
    /* On another stream than before only once that one has come to its last record. */
    titan_status (*event_record)(struct event *e, struct stream *s, struct titan_error *err);
    titan_status (*event_wait)(struct event *e, struct stream *s, struct titan_error *err); /* s waits for e */
    titan_status (*event_sync)(struct event *e, struct titan_error *err);                   /* host waits */

    /* --- timestamps: when streams come to a place, without a stop of theirs --------------------------------------- */
    /* n places, by number. */
    titan_status (*timestamps_open)(struct device *dev, int n, struct timestamps **ret, struct titan_error *err);
    void (*timestamps_close)(struct timestamps *p); /* the streams are idle; NULL is fine */
    /* Forget all. What follows until the next call is within minutes of this one: a device's clock is set by it. */
    titan_status (*timestamps_begin)(struct timestamps *p, struct titan_error *err);
    /* When s comes here is the time of place i; a place has one time. Nothing where s has failed. */
    titan_status (*timestamp)(struct timestamps *p, int i, struct stream *s, struct titan_error *err);
    /* ret[n]: the times by clock_mono_ns, on a GPU to half a microsecond; 0: none. All of them have passed. */
    titan_status (*timestamps_read)(struct timestamps *p, int64_t *ret, struct titan_error *err);

    /* --- segments: NULL, all four, where what is enqueued costs the host no more than a call ---------------------- */
    /* What the calling thread enqueues on s from now on is not run but kept, with its arguments. Operations only: no
     * calls, events and waits, nothing of a communicator. TITAN_EUNSUPPORTED: the device does not do it. */
    titan_status (*segment_begin)(struct stream *s, struct titan_error *err);
    /* TITAN_EUNSUPPORTED: what was enqueued cannot be kept. Then, as with any failure, nothing of it has run and *ret
     * is not set; the stream is as it was before. */
    titan_status (*segment_end)(struct stream *s, struct segment **ret, struct titan_error *err);
    /* Enqueue all of it, as one. It may be closed when it has run. */
    titan_status (*segment_launch)(struct segment *g, struct stream *s);
    void (*segment_close)(struct segment *g); /* NULL is fine */

    /* --- movement ---------------------------------------------------------------------------------------------- */
    titan_status (*copy)(struct stream *s, void *dst, const void *src, size_t bytes); /* any of host and device */
    titan_status (*zero)(struct stream *s, void *dst, size_t bytes);
    titan_status (*cast)(struct stream *s, void *dst, enum dtype to, const void *src, enum dtype from, size_t n);

    /* Rows of cols elements, ldd and lds apart, any type: row r of dst (rows) = row r / repeat of src, so one row can
     * be laid beside several (a rotary key shared by all heads). */
    titan_status (*copy_2d)(struct stream *s, void *dst, int64_t ldd, const void *src, int64_t lds, enum dtype dt,
                            int64_t rows, int64_t cols, int64_t repeat);
    /* The way back: row r of dst (rows) += rows r*repeat .. r*repeat + repeat-1 of src, bf16 or fp32, in that order,
     * rounded once. dst and src do not overlap. */
    titan_status (*add_2d)(struct stream *s, void *dst, int64_t ldd, const void *src, int64_t lds, enum dtype dt,
                           int64_t rows, int64_t cols, int64_t repeat);

    /* --- biases of linear layers ------------------------------------------------------------------------------- */
    /* x (N,C) dt += bias (C) dt, rows of x ldx apart. */
    titan_status (*add_bias)(struct stream *s, void *x, int64_t ldx, const void *bias, enum dtype dt, int64_t n,
                             int64_t c);
    /* dbias (C) fp32 += sum over N of dout (N,C) dt, rows ldo apart, in a fixed order. */
    titan_status (*bias_wgrad)(struct stream *s, float *dbias, const void *dout, int64_t ldo, enum dtype dt, int64_t n,
                               int64_t c);
    /* The same for packed rows of several groups (matmul_grouped below), each with a bias of its own: x (N,C) += bias
     * (groups,C) of the row's group; rows beyond counts (parts,groups) int32 stay as they are. */
    titan_status (*add_bias_grouped)(struct stream *s, void *x, int64_t ldx, const void *bias, enum dtype dt,
                                     const int32_t *counts, int64_t groups, int64_t parts, int64_t n, int64_t c);
    /* dbias (groups,C) fp32 = beta*dbias + sums over the rows of each group of the last part, of EXPERT_SPLIT rows,
     * which are added one after the other; beta is 0 or 1. */
    titan_status (*bias_wgrad_grouped)(struct stream *s, float *dbias, const void *dout, int64_t ldo, enum dtype dt,
                                       const int32_t *counts, int64_t groups, int64_t parts, int64_t n, int64_t c,
                                       float beta);

    /* --- products ---------------------------------------------------------------------------------------------- */
    /* c (M,N) = beta*c + op(a) op(b), op = transpose where ta/tb. a is (M,K), or (K,M) with ta; b is (K,N), or (N,K)
     * with tb. a and b are ab_dt (bf16 or fp32), c is c_dt (ab_dt or fp32); beta is 0 or 1.
     *   forward  y (N,out) = x (N,in) W^T         ta=0 tb=1
     *   dgrad    dx (N,in) = dy (N,out) W         ta=0 tb=0
     *   wgrad    dW (out,in) += dy^T x            ta=1 tb=0 beta=1 c_dt=fp32 */
    titan_status (*matmul)(struct stream *s, void *c, enum dtype c_dt, int64_t ldc, const void *a, bool ta, int64_t lda,
                           const void *b, bool tb, int64_t ldb, enum dtype ab_dt, int64_t m, int64_t n, int64_t k,
                           float beta);
    /* The same for packed rows of several groups, each with a matrix of its own. counts (parts,groups) int32, device:
     * the rows of group e follow those of e-1, and a part follows the one before; they are m at most (k with ta), and
     * what lies beyond them is left alone. Matrices of the groups lie one after the other, their rows ldb (ldc with ta)
     * apart; every part has the same ones. A row's product does not depend on the parts there are, nor a part's on the
     * others.
     *   !ta  c (rows,N) = beta*c + a (rows,K) op(b_e), b (groups,K,N), or (groups,N,K) with tb: forward and dgrad
     *    ta  c_e (M,N) = beta*c_e + a_e^T b_e, a (rows,M), b (rows,N), c (groups,M,N) fp32, tb 0: wgrad, of the rows of
     *        one part, the last one that is given; the product of a group without rows is 0. Sums are of EXPERT_SPLIT
     *        rows, which are added one after the other */
    titan_status (*matmul_grouped)(struct stream *s, void *c, enum dtype c_dt, int64_t ldc, const void *a, bool ta,
                                   int64_t lda, const void *b, bool tb, int64_t ldb, enum dtype ab_dt,
                                   const int32_t *counts, int64_t groups, int64_t parts, int64_t m, int64_t n,
                                   int64_t k, float beta);
    /* matmul of the operands in float8. work: matmul_f8_work_bytes() of scratch. A device without it (info.float8,
     * info.mxfp8) answers TITAN_EUNSUPPORTED. */
    titan_status (*matmul_f8)(struct stream *s, void *c, enum dtype c_dt, int64_t ldc, const void *a, bool ta,
                              int64_t lda, const void *b, bool tb, int64_t ldb, enum dtype ab_dt, int64_t m, int64_t n,
                              int64_t k, float beta, const struct float8_product *how, void *work);
    /* Enough for every product that is no larger in m, n and k; blocks: of float8_product. */
    size_t (*matmul_f8_work_bytes)(struct device *dev, enum dtype ab_dt, bool blocks, int64_t m, int64_t n, int64_t k);
    /* A weight's codes of e4m3 apart from its product, in parts, to the bits that matmul_f8 makes with one scale.
     * *largest: the largest magnitude of x (n), 0 of none. */
    titan_status (*float8_largest)(struct stream *s, float *largest, const void *x, enum dtype dt, size_t n);
    /* scales (n): each from the largest of a column of largest (ranks,n), rows ld apart. */
    titan_status (*float8_scales)(struct stream *s, float *scales, const float *largest, int64_t ld, int64_t ranks,
                                  int64_t n);
    titan_status (*float8_encode)(struct stream *s, uint8_t *codes, const void *x, enum dtype dt, size_t n,
                                  const float *scale);

    /* --- embedding --------------------------------------------------------------------------------------------- */
    /* out (N,C) = table[tokens - first]; table (V,C) dt is rows [first, first+V) of the vocabulary; a token outside of
     * them gives a row of zeros (another rank has it). */
    titan_status (*embed)(struct stream *s, void *out, const int32_t *tokens, const void *table, enum dtype dt,
                          int64_t n, int64_t c, int64_t v, int64_t first);
    /* dtable (V,C) fp32 += rows of dout (N,C) dt, in token order (deterministic); tokens outside are passed over. */
    titan_status (*embed_wgrad)(struct stream *s, float *dtable, const int32_t *tokens, const void *dout, enum dtype dt,
                                int64_t n, int64_t c, int64_t v, int64_t first);

    /* --- RMSNorm (Zhang and Sennrich 2019, arXiv:1910.07467) ----------------------------------------------------- */
    /* out (N,C) = x * rstd * gain; rstd (N) fp32 = 1/sqrt(mean(x^2)+eps), kept for backward. gain (C) dt; offset:
     * stored less 1, which is added in fp32. */
    titan_status (*rmsnorm)(struct stream *s, void *out, float *rstd, const void *x, const void *gain, enum dtype dt,
                            int64_t n, int64_t c, float eps, bool offset);
    /* dx (N,C) = residual + the gradient to x; residual (N,C), which may be dx, NULL: the gradient alone. dx may not
     * alias dout. */
    titan_status (*rmsnorm_dgrad)(struct stream *s, void *dx, const void *residual, const void *dout, const void *x,
                                  const void *gain, const float *rstd, enum dtype dt, int64_t n, int64_t c,
                                  bool offset);
    /* dgain (C) fp32 += sum over N of dout * x * rstd, in a fixed order. */
    titan_status (*rmsnorm_dgain)(struct stream *s, float *dgain, const void *dout, const void *x, const float *rstd,
                                  enum dtype dt, int64_t n, int64_t c);
    /* h (N,C) = a + b, rounded to dt, then rmsnorm of h: the bits of add and rmsnorm, with one pass over memory. h may
     * alias a or b; out may alias none of them. */
    titan_status (*add_rmsnorm)(struct stream *s, void *h, void *out, float *rstd, const void *a, const void *b,
                                const void *gain, enum dtype dt, int64_t n, int64_t c, float eps, bool offset);

    /* --- attention --------------------------------------------------------------------------------------------- */
    /* Rotary embedding in place on adjacent pairs (2i,2i+1) of each head (Su et al. 2021, arXiv:2104.09864): x points
     * at head 0 of row 0, rows ldx apart, heads D apart. positions (N) int32; cos, sin (positions, D/2) fp32.
     * backward: rotate by the negative angle. */
    titan_status (*rope)(struct stream *s, void *x, int64_t ldx, const int32_t *positions, const float *cos,
                         const float *sin, enum dtype dt, int64_t n, int64_t heads, int64_t d, bool backward);
    /* start (N) = the larger of first (N) and index (N) - tokens + 1, int32: a sliding window for masks. */
    titan_status (*window)(struct stream *s, int32_t *start, const int32_t *index, const int32_t *first, int64_t n,
                           int64_t tokens);
    /* Grouped-query attention: B times Tq queries look at Tk keys of the same sequence. q (B*Tq,H,D)
     * with row stride ldq, k (B*Tk,K,D) with ldk, v (B*Tk,K,Dv) with ldv, out (B*Tq,H,Dv) with ldo. lse (B,H,Tq) fp32:
     * log-sum-exp of each row's scaled scores. The mask says which query sees which key; a row that sees nothing gets
     * out 0 and lse -inf. Blocks of the score matrix that the mask empties cost no product. */
    titan_status (*attention)(struct stream *s, void *out, int64_t ldo, float *lse, const void *q, int64_t ldq,
                              const void *k, int64_t ldk, const void *v, int64_t ldv,
                              const struct attention_shape *shape);
    /* dq, dk, dv with strides of their own, OVERWRITTEN with what these keys contribute. out, lse and dout belong to
     * the whole row, which may have seen more keys than these. work: attention_work_bytes() of scratch. Formulas: Dao
     * 2023, arXiv:2307.08691, algorithm 2. */
    titan_status (*attention_dgrad)(struct stream *s, void *dq, int64_t lddq, void *dk, int64_t lddk, void *dv,
                                    int64_t lddv, const void *dout, int64_t lddo, const void *out, int64_t ldo,
                                    const float *lse, const void *q, int64_t ldq, const void *k, int64_t ldk,
                                    const void *v, int64_t ldv, const struct attention_shape *shape, void *work);
    /* Of a shape's sizes; masks need not be there yet. */
    size_t (*attention_work_bytes)(struct device *dev, const struct attention_shape *shape);
    /* Two partial results over different keys become one: lse = log(exp(lse) + exp(other_lse)), out = the mean of out
     * and other weighted by their share, computed in fp32. out, other (B*T,H,Dv) with row stride ld; lse (B,H,T). */
    titan_status (*attention_merge)(struct stream *s, void *out, float *lse, const void *other, const float *other_lse,
                                    int64_t ld, enum dtype dt, int64_t b, int64_t t, int64_t h, int64_t dv);
    /* Attention sinks (Xiao et al. 2023, arXiv:2309.17453): the softmax of each row of x (B*T,H,Dv) had sinks (H) dt in
     * its denominator, too: lse = log(exp(x_lse) + exp(sink)), out = x exp(x_lse - lse). Rows ld apart; lse (B,H,T). */
    titan_status (*attention_sink)(struct stream *s, void *out, float *lse, const void *x, const float *x_lse,
                                   int64_t ld, const void *sinks, enum dtype dt, int64_t b, int64_t t, int64_t h,
                                   int64_t dv);
    /* dsinks (H) fp32 = - sum over rows of exp(sink - lse) (dout . out), in a fixed order. */
    titan_status (*attention_sink_dgrad)(struct stream *s, float *dsinks, const void *dout, int64_t lddo,
                                         const void *out, int64_t ldo, const float *lse, const void *sinks,
                                         enum dtype dt, int64_t b, int64_t t, int64_t h, int64_t dv);

    /* --- feed-forward and residual ------------------------------------------------------------------------------- */
    /* out (N,F) = silu(gate) * up; gate and up (N,F) with row stride ldgu (they are halves of one product). counts
     * (parts) int32: of the N rows only as many as their sum are there, the others stay as they are; NULL: all. gelu:
     * in place of silu(x), GELU in its form with tanh (Hendrycks and Gimpel 2016, arXiv:1606.08415). */
    titan_status (*swiglu)(struct stream *s, void *out, const void *gate, const void *up, int64_t ldgu, enum dtype dt,
                           int64_t n, int64_t f, const int32_t *counts, int64_t parts, bool gelu);
    titan_status (*swiglu_dgrad)(struct stream *s, void *dgate, void *dup, int64_t lddgu, const void *dout,
                                 const void *gate, const void *up, int64_t ldgu, enum dtype dt, int64_t n, int64_t f,
                                 const int32_t *counts, int64_t parts, bool gelu);
    /* out = g sigmoid(alpha g) (u + 1) of g = min(gate, limit) and u = up within +-limit; the rest as swiglu. */
    titan_status (*clamped_swiglu)(struct stream *s, void *out, const void *gate, const void *up, int64_t ldgu,
                                   enum dtype dt, int64_t n, int64_t f, const int32_t *counts, int64_t parts,
                                   float limit, float alpha);
    titan_status (*clamped_swiglu_dgrad)(struct stream *s, void *dgate, void *dup, int64_t lddgu, const void *dout,
                                         const void *gate, const void *up, int64_t ldgu, enum dtype dt, int64_t n,
                                         int64_t f, const int32_t *counts, int64_t parts, float limit, float alpha);
    /* out (n) = a + b; out may alias a or b. */
    titan_status (*add)(struct stream *s, void *out, const void *a, const void *b, enum dtype dt, size_t n);

    /* --- mixture of experts -------------------------------------------------------------------------------------- */
    /* chosen (N,top_k) int32, weights (N,top_k) fp32 of logits (N,E). bias (E) fp32, NULL = none. load (E) fp32 += how
     * often each expert was chosen; NULL = not wanted (a second forward pass). numbers (N) int32, NULL = by score: the
     * experts of token number i are i*top_k to i*top_k+top_k-1, modulo E. */
    titan_status (*router)(struct stream *s, int32_t *chosen, float *weights, float *load, const void *logits,
                           const float *bias, const int32_t *numbers, const struct router_shape *shape);
    /* dlogits (N,E) from dweights (N,top_k) fp32 for the same choice. dlogits may alias logits. */
    titan_status (*router_dgrad)(struct stream *s, void *dlogits, const float *dweights, const void *logits,
                                 const int32_t *chosen, const struct router_shape *shape);
    /* bias[e] += rate * sign(mean of load - load[e]), less the mean of these changes; load is zeroed. */
    titan_status (*router_balance)(struct stream *s, float *bias, float *load, int64_t experts, float rate);
    /* The balance loss of a router, of each sequence by itself (DeepSeek-AI 2024, arXiv:2412.19437, eq. 17-20; over a
     * batch: Fedus et al. 2021, arXiv:2101.03961, eq. 4-6): sum_e f_e P_e, f_e = E / (top_k T) * how often expert e was
     * chosen by the T tokens of the sequence, P_e = the mean over them of their scores, each token's divided by their
     * sum. 1 where all experts are chosen equally often. f_e is a constant to the gradient.
     * stats (sequences,BALANCE_STATS(E)) fp32 of these tokens; targets (sequences*length), of which those below 0 do
     * not count. Of shape: dt, n, experts, top_k, sigmoid. */
    titan_status (*balance_stats)(struct stream *s, float *stats, const void *logits, const int32_t *chosen,
                                  const int32_t *targets, const struct router_shape *shape,
                                  const struct token_rows *rows);
    /* losses (sequences) fp32 from the stats of all parts (parts,sequences,BALANCE_STATS(E)) of sequences of so many
     * tokens: each times the tokens of its sequence that count. dscores (sequences,E) fp32: factor times the gradient
     * of these to a token's scores divided by their sum, less what all experts have alike: that changes no loss, and of
     * even loads nothing is left. */
    titan_status (*balance_loss)(struct stream *s, float *losses, float *dscores, const float *stats, int64_t parts,
                                 int64_t sequences, int64_t experts, int64_t top_k, int64_t tokens, float factor);
    /* dlogits (N,E) += the gradient to the logits. */
    titan_status (*balance_dgrad)(struct stream *s, void *dlogits, const void *logits, const float *dscores,
                                  const struct router_shape *shape, const struct token_rows *rows);
    /* The order of all N*top_k choices by expert, those of one expert in token order: place (N*top_k) int32 is the row
     * where choice i*top_k+j goes, counts (E) int32 the rows of each expert, rank_counts (ranks) those of E/ranks
     * experts in a row (what all_to_all_v sends). most > 0: of an expert's rows only the first so many count, those of
     * later tokens have place -1; *dropped += how many, NULL = not wanted. */
    titan_status (*permute)(struct stream *s, int32_t *place, int32_t *counts, int32_t *rank_counts, float *dropped,
                            const int32_t *chosen, int64_t n, int64_t top_k, int64_t experts, int64_t ranks,
                            int64_t most);
    /* What arrived from all ranks, received (ranks,E) int32 rows for each expert here with row stride ld, lies by rank
     * and then by expert: place (rows) is where each goes to lie by expert and then by rank, -1 for rows beyond the
     * sum; counts (E) and rank_counts (ranks) as above. by_rank: they stay where they are, and counts (ranks,E) has the
     * rows of each rank apart. More rows arrived than rows holds: a failure of the stream. */
    titan_status (*permute_received)(struct stream *s, int32_t *place, int32_t *counts, int32_t *rank_counts,
                                     const int32_t *received, int64_t ld, int64_t ranks, int64_t experts, int64_t rows,
                                     bool by_rank);
    /* Rows that come in rounds, because there is room for `room` at a time: split (ranks,rounds,E) int32, of received
     * (ranks,E). Taken in the order by expert and then by rank; a round ends behind an expert's last row or a multiple
     * of EXPERT_SPLIT of its rows, where grouped products start a piece: their sums keep every bit. by_rank: taken by
     * rank and then by expert, and a round ends there in the rows of each rank for an expert. More rows than rounds
     * hold: a failure of the stream. seen (2) fp32, NULL = not wanted: += rounds behind the first that take rows, and
     * the most rows received so far. */
    titan_status (*split_rounds)(struct stream *s, int32_t *split, float *seen, const int32_t *received, int64_t ranks,
                                 int64_t experts, int64_t rounds, int64_t room, bool by_rank);
    /* The sender's side of a round, split (ranks,rounds,E) as the ranks that receive have it: rank_counts (ranks) rows
     * go to each; place (rows) is where each of the rows, which lie by rank and expert, lies among those of the round,
     * -1: in another one; origin (rows) the other way round, -1 beyond their sum. More rows than rows holds: a failure
     * of the stream. */
    titan_status (*place_round)(struct stream *s, int32_t *place, int32_t *origin, int32_t *rank_counts,
                                const int32_t *split, int64_t ranks, int64_t experts, int64_t rounds, int64_t round,
                                int64_t rows);
    /* Row place[i*top_k+j] of dst = weights[i*top_k+j] * row i of src (N,C), NULL = 1; -1 goes nowhere. To the experts;
     * and with weights, combine's gradient to its rows. */
    titan_status (*scatter_rows)(struct stream *s, void *dst, const void *src, const int32_t *place,
                                 const float *weights, enum dtype dt, int64_t n, int64_t top_k, int64_t c);
    /* Row i of out (N,C) = sum over j, in order and in fp32, of weights[i*top_k+j] * row place[i*top_k+j] of src; -1
     * adds nothing. Back from the experts; and without weights, the gradient of scatter_rows. keep: a row of out that
     * gets nothing stays as it is; otherwise it is 0. */
    titan_status (*combine_rows)(struct stream *s, void *out, const void *src, const int32_t *place,
                                 const float *weights, enum dtype dt, int64_t n, int64_t top_k, int64_t c, bool keep);
    /* dweights[i*top_k+j] (N,top_k) fp32 = product of row i of dout (N,C) and row place[i*top_k+j] of src; 0 at -1. */
    titan_status (*combine_dweights)(struct stream *s, float *dweights, const void *dout, const void *src,
                                     const int32_t *place, enum dtype dt, int64_t n, int64_t top_k, int64_t c);

    /* --- loss ---------------------------------------------------------------------------------------------------- */
    /* Softmax cross-entropy over a vocabulary that may be cut in parts, in two steps. targets (N) int32; negative = not
     * counted. This part's logits (N,V) dt are columns [first, first+V).
     * stats (N,3) fp32 of this part: largest logit, sum of exp(logit - largest), the target's logit (0 where the
     * target is not in this part). */
    titan_status (*loss_stats)(struct stream *s, float *stats, const void *logits, const int32_t *targets,
                               enum dtype dt, int64_t n, int64_t v, int64_t first);
    /* From the stats of all parts (parts,N,3): losses (N) fp32 nats, 0 where not counted; dlogits (N,V) dt =
     * softmax - onehot of this part, zero rows where not counted; NULL = loss only. dlogits may alias logits. */
    titan_status (*loss_finish)(struct stream *s, float *losses, void *dlogits, const void *logits,
                                const int32_t *targets, const float *stats, int64_t parts, enum dtype dt, int64_t n,
                                int64_t v, int64_t first);
    /* Both at once where the vocabulary is whole: stats (N,3), losses and dlogits with the same bits. */
    titan_status (*loss)(struct stream *s, float *losses, float *stats, void *dlogits, const void *logits,
                         const int32_t *targets, enum dtype dt, int64_t n, int64_t v, int64_t first);

    /* --- sums over buffers --------------------------------------------------------------------------------------- */
    /* dst (n) fp32 += src (n) fp32. */
    titan_status (*accumulate)(struct stream *s, float *dst, const float *src, size_t n);
    /* out (n) dt = factor * x (n) dt; out may be x. */
    titan_status (*scale)(struct stream *s, void *out, const void *x, enum dtype dt, float factor, size_t n);
    /* out (n) dt = cap * tanh(x / cap), cap > 0; out may be x. */
    titan_status (*softcap)(struct stream *s, void *out, const void *x, enum dtype dt, float cap, size_t n);
    /* dx (n) dt = dout * (1 - tanh(x / cap)^2); dx may be dout. */
    titan_status (*softcap_dgrad)(struct stream *s, void *dx, const void *dout, const void *x, enum dtype dt, float cap,
                                  size_t n);
    /* out[i] (device, fp64) = sum of x (or of x^2 where square) over elements [i*block, min((i+1)*block, n)), each
     * block summed in one fixed order in fp64, so results do not depend on how a buffer is cut at block bounds. A
     * non-finite element makes its block's sum non-finite. */
    titan_status (*block_sums)(struct stream *s, double *out, const float *x, size_t n, size_t block, bool square);
    /* *out (device, fp64) = or += the sum of x (n) fp64, in one fixed order. */
    titan_status (*sum)(struct stream *s, double *out, bool add, const double *x, size_t n);
    /* *out (device) += hash_element() (base/hash.h) of every element of x (rows, cols) bf16 or fp32, dense, modulo 2^64
     * and therefore in any order: element (r, c) has the key hash_mix(key + r), the place first + c and the bits of its
     * value in fp32. x may be memory of alloc_host. */
    titan_status (*hash)(struct stream *s, uint64_t *out, const void *x, enum dtype dt, int64_t rows, int64_t cols,
                         uint64_t key, int64_t first);

    /* --- initial values ------------------------------------------------------------------------------------------ */
    /* out (rows, cols) bf16 or fp32, dense: element (r, c) is that of rng_weights() (base/rng.h) with the index
     * first + r*width + c, to the bit. out may be memory of alloc_host. */
    titan_status (*weights)(struct stream *s, void *out, enum dtype dt, int64_t rows, int64_t cols, int64_t width,
                            int64_t first, const struct rng_weights *weights);

    /* --- optimizer ----------------------------------------------------------------------------------------------- */
    /* AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101), decoupled decay, eps outside the square root:
     *   g = grad*grad_scale; m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2
     *   w -= lr * (m/bias1 / (sqrt(v/bias2) + eps) + weight_decay * w)
     * With l2, Adam (Kingma and Ba 2015, arXiv:1412.6980): g has weight_decay * w added, and the last line has not.
     * master, m, v (n) as args says, read as fp32, computed with in fp32, and rounded to nearest even when they are
     * stored, m and v as args.rounding says; grad (n) fp32. bf16 masters: g is grad*mean rounded to bf16, then times
     * clip, rounded to bf16, as a gradient of that type is. shadow (n) bf16 = fp32 master rounded to nearest even, NULL
     * = none. */
    titan_status (*adamw)(struct stream *s, void *master, void *m, void *v, const float *grad, uint16_t *shadow,
                          size_t n, const struct adamw_args *args);
    /* adamw of each of count ranges, to the same bits, in few launches where a launch costs something. They do not
     * overlap; the array is the caller's again when the call is back. */
    titan_status (*adamw_all)(struct stream *s, const struct adamw_range *ranges, int count,
                              const struct adamw_args *args);
    /* w -= lr * (g + weight_decay * w), with g as above. */
    titan_status (*sgd)(struct stream *s, void *master, const float *grad, uint16_t *shadow, size_t n,
                        const struct adamw_args *args);

    /* --- ways of products: NULL, all four, where there is one for each ------------------------------------------- */
    /* on: matmul and matmul_f8 note the products that they are asked for, besides carrying them out; what was noted
     * before is forgotten. */
    void (*products_note)(struct device *dev, bool on);
    /* Those noted, each once, `most` of them at most; their number. */
    int (*products_noted)(struct device *dev, struct product_way *ret, int most);
    /* Carries a noted product out in each way, on the operands that it had: they are still there, what it writes to is
     * overwritten or added to. The fastest one is chosen. Nothing else is to run on the device. */
    titan_status (*product_time)(struct stream *s, struct product_way *way, struct titan_error *err);
    /* From now on that product is carried out so. TITAN_EUNSUPPORTED: this device cannot, and nothing has changed. */
    titan_status (*product_choose)(struct device *dev, const struct product_way *way, struct titan_error *err);
};

/* The slots from copy on: a device that names its operations PREFIX_copy and so on declares them and fills its table by
 * this list. */
/* clang-format off */
#define DEVICE_OPS(X) \
    X(copy) X(zero) X(cast) X(copy_2d) X(add_2d) X(add_bias) X(bias_wgrad) X(add_bias_grouped) X(bias_wgrad_grouped) X(matmul) X(matmul_grouped) X(embed) X(embed_wgrad) X(rmsnorm) \
    X(rmsnorm_dgrad) X(rmsnorm_dgain) X(add_rmsnorm) X(rope) X(window) X(attention) X(attention_dgrad) X(attention_work_bytes) \
    X(attention_merge) X(attention_sink) X(attention_sink_dgrad) X(swiglu) X(swiglu_dgrad) X(clamped_swiglu) X(clamped_swiglu_dgrad) \
    X(add) X(router) X(router_dgrad) X(router_balance) X(balance_stats) X(balance_loss) X(balance_dgrad) X(permute) \
    X(permute_received) X(split_rounds) X(place_round) X(scatter_rows) X(combine_rows) X(combine_dweights) X(loss_stats) X(loss_finish) X(loss) \
    X(accumulate) X(scale) X(softcap) X(softcap_dgrad) X(block_sums) X(sum) X(hash) X(weights) X(adamw) X(adamw_all) X(sgd) \
    X(matmul_f8) X(matmul_f8_work_bytes) X(float8_largest) X(float8_scales) X(float8_encode)
/* clang-format on */

struct comm_ops; /* worker/comm/comm.h */

struct device_plugin {
    uint32_t abi;     /* TITAN_DEVICE_ABI; first, so that a mismatch is a clear message */
    const char *name; /* "cpu", "cuda" */
    const struct device_ops *ops;
    const struct comm_ops *comm; /* the device's own communicator (NCCL); NULL = shm and tcp carry it */
    /* NULL when usable; otherwise one line why not ("no NVIDIA driver: libcuda.so.1 cannot be opened"). */
    const char *(*unusable)(void);
};

/* Exported by every plug-in. */
const struct device_plugin *titan_device_plugin(void);
typedef const struct device_plugin *(*titan_device_plugin_fn)(void);

/* --- worker side: worker/device/device.c -------------------------------------------------------------------------- */

/* An opened device with its tables. */
struct device_handle {
    const struct device_plugin *plugin;
    const struct device_ops *ops;
    struct device *dev;
    struct device_info info;
    void *library;
};
/* name "cpu", "cuda" or "auto" (cuda where usable, else cpu). Looks for libtitan-NAME.so beside the executable, in
 * ../lib/titan of it, then in TITAN_PLUGIN_DIR. TITAN_EUNSUPPORTED with the plug-in's reason when it is unusable. */
titan_status device_open(const char *name, const struct device_options *options, struct device_handle *ret,
                         struct titan_error *err) TITAN_MUST_USE;
void device_close(struct device_handle *handle);

#endif
