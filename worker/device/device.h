/* SPDX-License-Identifier: Apache-2.0 */
/* device.h - what a training step needs from a machine: memory, streams, events and operations.
 *
 * A device is a loadable plug-in (libtitan-cpu.so, libtitan-cuda.so) that exports titan_device_plugin(). The worker
 * calls a device only through these tables. operations.h defines what each operation computes. These rules hold for
 * every implementation:
 *
 * - Every operation is enqueued on a stream and runs in the stream's order. It may run during the call (the CPU's
 *   compute stream) or later. Pointers must stay valid until the stream has passed the operation.
 * - Pointers are device memory from alloc() (or host memory on a device with info.host_memory true), 64-byte aligned.
 *   Matrices are row-major; ld* are row strides in elements.
 * - Compute tensors are bf16 or fp32 (the dt argument); all of one call share it. Sums are accumulated in fp32 or
 *   better; softmax, norms and losses are computed in fp32. The same call on the same data gives the same bits, unless
 *   the call allows another order (attention_shape.order).
 * - Operations that compute gradients of parameters ADD to fp32 buffers (wgrad, *_dgain, embed_wgrad). Gradients of
 *   activations are OVERWRITTEN unless the operation's contract differs.
 * - An operation returns a status only for errors known when it is enqueued (TITAN_EINVAL for shapes, TITAN_EDEVICE for
 *   a failed launch). A later failure is sticky on its stream: the stream skips later operations, a wait on its events
 *   passes the failure on, stream_sync returns it, and stream_clear forgets it. A GPU cannot take back operations that
 *   were enqueued before the failure became known. They run on undefined data. Only host calls, update and
 *   router_balance are then skipped on every device.
 *
 * Shape letters: N tokens (= batch rows x sequence), B sequences, T tokens a sequence, C model width, H query heads, K
 * key/value heads (H % K == 0), D head width, F feed-forward width, V vocabulary. */
#ifndef TITAN_WORKER_DEVICE_DEVICE_H
#define TITAN_WORKER_DEVICE_DEVICE_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/float8.h"
#include "base/rng.h"
#include "base/moment_codes.h"
#include "base/update_rule.h"
#include "worker/device/operations.h"

#define TITAN_DEVICE_ABI 23 /* declarations e1969c9b19b4563e (tests/docs/test_abi.py) */

struct device; /* defined by each implementation */
struct stream;
struct event;
struct segment;
struct timestamps;

struct device_options {
    int index;   /* number of the device on a machine with several */
    int threads; /* CPU: threads for the compute stream; 0 = all of the process's affinity mask */
};

struct device_info {
    char name[64];          /* "NVIDIA H200", "cpu avx512 amx-bf16" */
    bool host_memory;       /* device memory is host memory */
    bool bf16_fast;         /* bf16 products are faster than fp32 ones; false: recipes with "auto" compute in fp32 */
    bool float8;            /* has matmul_f8; false: recipes with float8 compute in the compute type, with a warning */
    bool mxfp8;             /* matmul_f8 has blocks; false: recipes with MXFP8 are refused */
    uint64_t memory_bytes;  /* total */
    uint64_t memory_free;   /* free part of memory_bytes when the device was opened: what a run can use. 0 = unknown */
    double peak_flops_bf16; /* dense; 0 = unknown. CPU: measured on one core, times the cores used */
    double peak_flops_f32;
    uint64_t hardware; /* the same number for devices on the same GPU, or on the same cores that processes may use */
    double share;      /* this device's peak as a share of the hardware's; up to 1 */
};

static inline double device_peak(const struct device_info *info, enum dtype dt)
{
    return dt == DTYPE_BF16 ? info->peak_flops_bf16 : info->peak_flops_f32;
}

/* How bf16 moments are rounded when they are stored: to nearest even, or at random (base/bf16.h). A call updates
 * elements of a box, cols wide, in a parameter that is a matrix ld wide. Element i of the call is the parameter's
 * element place = origin + (first + i) / cols * ld + (first + i) % cols. It uses word `place` of the random stream
 * (key, step) (rng_words): m takes the word's lower 16 bits, v the upper 16. m and v are computed as fma(beta1, m,
 * (1-beta1) * g) and fma(beta2, v, (1-beta2) * (g*g)), with g = fma(l2, w, gradient). So the bits depend neither on the
 * device nor on how a parameter is cut. */
struct moment_rounding {
    bool random;
    struct rng_key key;
    uint64_t step;
    int64_t first, cols, ld, origin; /* elements */
};

/* The arithmetic of one update, the same for all its pieces. */
struct update_args {
    enum update_rule rule;
    float lr, beta1, beta2, eps, weight_decay;
    float own[UPDATE_OWN]; /* the rule's own numbers (base/optimizers.def) */
    float grad_scale;      /* multiplies the gradient first: clip factor and mean over tokens */
    float bias1, bias2;    /* 1 - beta1^t, 1 - beta2^t */
    bool l2;               /* RULE_ADAMW: weight decay goes into the gradient, as in Adam; otherwise it is decoupled */
    /* Types of the master, and of the rule's state: both fp32 or bf16, but not a bf16 master with fp32 state. State of
     * DTYPE_U8 consists of blocks (struct moment_block): fp32 values are made of the codes, and codes of the values
     * behind the update. A state that is a mean of squares has the codes of squares. */
    enum dtype master, moment;
    float mean, clip; /* bf16 masters: the two factors of grad_scale */
    struct moment_rounding rounding;
};

/* The buffers of one of a call's updates. */
struct update_piece {
    void *master, *state[UPDATE_STATES];
    const float *grad;
    uint16_t *shadow;
    size_t n;                        /* the last of the state's blocks may have fewer elements */
    struct moment_rounding rounding; /* replaces the call's rounding */
    float excess;                    /* the rate is divided by it where it is above 1 */
};

/* SGD without momentum keeps no state. */
static inline bool update_keeps_state(const struct update_args *a)
{
    return a->rule != RULE_SGD || a->own[0] != 0.0f;
}

/* Whether a device updates this piece with these arguments: types, rounding, and the rule's state. */
static inline bool update_valid(const struct update_args *a, const struct update_piece *p)
{
    const struct moment_rounding *const r = &a->rounding;
    const int states = update_keeps_state(a) ? update_rule_states(a->rule) : 0;

    if (a->rule >= RULE_COUNT || (p->n > 0 && states > 0 && !p->state[states - 1]))
        return false;
    if (r->random && (a->rule != RULE_ADAMW || a->moment != DTYPE_BF16 || r->first < 0 || r->cols <= 0 ||
                      r->ld < r->cols || r->origin < 0))
        return false;
    const bool narrow = a->moment == DTYPE_BF16 || a->moment == DTYPE_U8;
    return a->master == DTYPE_BF16 ? narrow && !p->shadow
                                   : a->master == DTYPE_F32 && (a->moment == DTYPE_F32 || narrow);
}

/* Bytes of n elements of state; for blocks of codes n is a multiple of MOMENT_BLOCK. */
static inline size_t moment_bytes(enum dtype type, int64_t n)
{
    return type == DTYPE_U8 ? (size_t)moment_codes_bytes(n) : (size_t)n * dtype_bytes(type);
}

/* How the operands of a product become float8. Each operand is multiplied by a scale in fp32 and rounded to its type.
 * The products of these values are summed in fp32, and the sums are divided by both scales.
 * A scale is the type's largest value / the largest magnitude. The magnitude is at least 1e-12. The quotient is
 * computed in fp64 and rounded to fp32, and with power_of_two rounded down to a power of two. The whole operand has one
 * scale, or with `lines` each line along k has its own (a row of op(a), a column of op(b)). This is torchao's dynamic
 * scaling. A given scale replaces the one from the largest magnitude: no pass looks for it, and what is beyond the
 * type's largest value becomes that value.
 * A line or operand with an element that is not finite makes its part of the product not finite. With one scale, a CPU
 * keeps a NaN to its line. A GPU's sums of such products keep some 14 bits. */
struct float8_product {
    enum float8 a, b;
    bool a_lines, b_lines, power_of_two;
    /* device; if set, b is already codes of e4m3 (float8_encode) made with this scale, rows ldb bytes apart */
    const float *b_scale;
    /* MXFP8 (base/float8.h) replaces all fields above: both operands are e4m3. Each MX_BLOCK elements of a line share a
     * scale, counted from the line's start; the last block may be shorter. Needs info.mxfp8. */
    bool blocks;
    /* device; if set, the scale of a whole operand: not with lines, codes (b) or blocks */
    const float *a_given, *b_given;
};
/* Are the given scales, codes and blocks of a kind that goes together? */
static inline bool float8_product_valid(const struct float8_product *how)
{
    const bool plain = how->a == FLOAT8_E4M3 && how->b == FLOAT8_E4M3 && !how->a_lines && !how->b_lines &&
                       !how->b_scale && !how->a_given && !how->b_given;
    return (!how->blocks || plain) && (!how->b_scale || (how->b == FLOAT8_E4M3 && !how->b_lines && !how->b_given)) &&
           !(how->a_given && how->a_lines) && !(how->b_given && how->b_lines);
}

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

/* A call that repeats (ATTENTION_REPEATABLE) lets a library keep scores' gradients as bf16. The library then works on
 * parts of the heads or sequences. A part has at most ATTENTION_PART_BYTES of these gradients, or one key head's query
 * heads if they need more. If they need more than ATTENTION_GROUP_PARTS times these bytes, the library is not used. */
#define ATTENTION_PART_BYTES ((int64_t)512 << 20)
#define ATTENTION_GROUP_PARTS 4

static inline float attention_scale(const struct attention_shape *z)
{
    return z->scale > 0 ? z->scale : 1.0f / sqrtf((float)z->d);
}

/* Groups have equal sizes, and the allowed groups have enough experts for top_k. */
static inline bool router_groups_valid(const struct router_shape *z)
{
    if (z->groups == 0)
        return true;
    const int64_t width = z->groups > 0 ? z->experts / z->groups : 0;
    return width > 0 && z->experts % z->groups == 0 && z->top_groups > 0 && z->top_groups <= z->groups &&
           z->group_top_k > 0 && z->group_top_k <= width && z->top_k <= z->top_groups * width;
}

static inline bool encode_valid(const struct encode_args *a)
{
    return a->codec > CODEC_NONE && a->codec < CODECS && a->pieces >= 0 && a->n >= 0 &&
           (a->error != NULL) == (a->codec == CODEC_LOCO) && ((uintptr_t)a->codes | (uintptr_t)a->error) % 16 == 0 &&
           a->decay >= 0.0f && a->decay < 1.0f && (!a->stochastic || a->codec == CODEC_INT8 || a->codec == CODEC_INT4);
}
static inline bool decode_sum_valid(const struct decode_sum_args *a)
{
    return a->codec > CODEC_NONE && a->codec < CODECS && a->pieces > 0 && a->n >= 0 && (uintptr_t)a->codes % 16 == 0;
}
/* Tensors follow each other within x. */
static inline bool bucket_largest_valid(const struct bucket_largest_args *a)
{
    if (a->pieces < 0 || a->n < 0 || a->tensors < 0 || (uintptr_t)a->error % 16 != 0)
        return false;
    for (int64_t t = 0; t < a->tensors; t++)
        if (a->begins[t] < 0 || a->begins[t] > a->begins[t + 1] || a->begins[t + 1] > a->pieces * a->n)
            return false;
    return true;
}

/* How a device carries out a product of one shape, type and alignment. Where a device knows several ways, they differ
 * in time and in the order of their sums. */
#define PRODUCT_WAY_BYTES 72
struct product_way {
    uint64_t product; /* identifies the product; the same number in every process of this version */
    bool chosen;      /* false: this is the way the device takes by default, without a comparison */
    /* the device's own encoding; valid for devices of one kind and one version of libraries */
    uint8_t how[PRODUCT_WAY_BYTES];
};

/* Called before and after each enqueued operation, on the thread that runs it. */
struct stream_observer {
    void (*begin)(void *arg), (*end)(void *arg);
    void *arg;
};

struct device_ops {
    /* --- device ------------------------------------------------------------------------------------------------ */
    titan_status (*open)(const struct device_options *options, struct device **ret, struct titan_error *err);
    void (*close)(struct device *dev); /* NULL is fine */
    void (*info)(struct device *dev, struct device_info *ret);
    /* The most memory seen in use, in bytes, since the last call with `begin`; each call looks too. 0: not known. A CPU
     * counts the resident memory of this process. A GPU counts the memory in use by all processes, at calls of this
     * function only. */
    uint64_t (*memory_peak)(struct device *dev, bool begin);

    /* Memory; alloc is zeroed and 64-byte aligned (256 on a GPU). */
    titan_status (*alloc)(struct device *dev, size_t bytes, void **ret, struct titan_error *err);
    void (*release)(struct device *dev, void *ptr);
    /* Host memory the device can copy from and to at full speed. */
    titan_status (*alloc_host)(struct device *dev, size_t bytes, void **ret, struct titan_error *err);
    void (*release_host)(struct device *dev, void *ptr);
    /* Pins existing host memory for the same purpose: whole pages, from any thread. A copy that crosses the bound of
     * one pinned range may fail. Both are NULL if the device needs no pinning. */
    titan_status (*pin_host)(struct device *dev, void *ptr, size_t bytes, struct titan_error *err);
    void (*unpin_host)(struct device *dev, void *ptr);

    /* --- streams and events ------------------------------------------------------------------------------------ */
    /* compute: where products run; a device has one such stream. Others (communication, copies) run beside it. */
    titan_status (*stream_open)(struct device *dev, const char *name, bool compute, struct stream **ret,
                                struct titan_error *err);
    void (*stream_close)(struct stream *s);
    titan_status (*stream_sync)(struct stream *s, struct titan_error *err); /* wait until all enqueued has run */
    void (*stream_clear)(struct stream *s); /* forget a failure; the stream must be idle */
    /* Runs fn on a host thread when the stream reaches this place. fn's status becomes the stream's. fn must not call
     * the device. */
    titan_status (*stream_call)(struct stream *s, titan_status (*fn)(void *arg, struct titan_error *err), void *arg,
                                struct titan_error *err);
    /* From now until the next call, enqueued operations run between o->begin and o->end, on the thread that runs them.
     * o NULL: no observer. The pointer stream_observe itself is NULL where streams are no threads of this host. The
     * compute stream is not observed. */
    void (*stream_observe)(struct stream *s, const struct stream_observer *o);
    /* The implementation's own handle (cudaStream_t); NULL where there is none. */
    void *(*stream_native)(struct stream *s);
    titan_status (*event_open)(struct device *dev, struct event **ret, struct titan_error *err);
    void (*event_close)(struct event *e);
    /* An event may move to another stream only after the old stream has reached the event's last record. */
    titan_status (*event_record)(struct event *e, struct stream *s, struct titan_error *err);
    titan_status (*event_wait)(struct event *e, struct stream *s, struct titan_error *err); /* s waits for e */
    titan_status (*event_sync)(struct event *e, struct titan_error *err);                   /* host waits */

    /* --- timestamps: when streams come to a place, without a stop of theirs --------------------------------------- */
    /* Opens n places, numbered from 0. */
    titan_status (*timestamps_open)(struct device *dev, int n, struct timestamps **ret, struct titan_error *err);
    void (*timestamps_close)(struct timestamps *p); /* the streams are idle; NULL is fine */
    /* Forgets all timestamps and sets the reference of the device's clock. The timestamps must follow within minutes of
     * this call. The next call sets a new reference. */
    titan_status (*timestamps_begin)(struct timestamps *p, struct titan_error *err);
    /* Takes the time of place i when s gets here. A place has one time. If s has failed, it gets none. */
    titan_status (*timestamp)(struct timestamps *p, int i, struct stream *s, struct titan_error *err);
    /* Writes the times to ret[n], by clock_mono_ns; a GPU's are exact to half a microsecond. 0: no time was taken. All
     * places with a time must have been passed. */
    titan_status (*timestamps_read)(struct timestamps *p, int64_t *ret, struct titan_error *err);

    /* --- segments: NULL, all four, where what is enqueued costs the host no more than a call ---------------------- */
    /* From now on, operations that the calling thread enqueues on s are recorded with their arguments and do not run.
     * Only operations are allowed: no calls, no events or waits, nothing of a communicator. TITAN_EUNSUPPORTED: the
     * device records no segments. */
    titan_status (*segment_begin)(struct stream *s, struct titan_error *err);
    /* TITAN_EUNSUPPORTED: the enqueued operations cannot be recorded. After this or any other failure, none of them has
     * run, *ret is not set, and the stream is as before segment_begin. */
    titan_status (*segment_end)(struct stream *s, struct segment **ret, struct titan_error *err);
    /* Enqueues all operations of g as one. g may be closed when they have run. */
    titan_status (*segment_launch)(struct segment *g, struct stream *s);
    void (*segment_close)(struct segment *g); /* NULL is fine */

    /* --- movement ---------------------------------------------------------------------------------------------- */
    titan_status (*copy)(struct stream *s, void *dst, const void *src, size_t bytes); /* any of host and device */
    titan_status (*zero)(struct stream *s, void *dst, size_t bytes);
    titan_status (*cast)(struct stream *s, void *dst, enum dtype to, const void *src, enum dtype from, size_t n);

    titan_status (*copy_2d)(struct stream *s, const struct strided_args *a);
    titan_status (*add_2d)(struct stream *s, const struct strided_args *a);

    /* --- biases of linear layers ------------------------------------------------------------------------------- */
    titan_status (*add_bias)(struct stream *s, const struct bias_args *a);
    titan_status (*bias_wgrad)(struct stream *s, const struct bias_args *a);
    titan_status (*add_bias_grouped)(struct stream *s, const struct bias_args *a);
    titan_status (*bias_wgrad_grouped)(struct stream *s, const struct bias_args *a);

    /* --- products ---------------------------------------------------------------------------------------------- */
    titan_status (*matmul)(struct stream *s, const struct matmul_args *a);
    titan_status (*matmul_grouped)(struct stream *s, const struct matmul_args *a);
    titan_status (*matmul_f8)(struct stream *s, const struct matmul_args *a);
    /* Bytes that suffice for every product no larger in m, n and k. `blocks` is float8_product's. */
    size_t (*matmul_f8_work_bytes)(struct device *dev, enum dtype ab_dt, bool blocks, int64_t m, int64_t n, int64_t k);
    /* These three make a weight's e4m3 codes in parts, separately from its product. The bits are those that matmul_f8
     * makes with one scale. *largest: the largest magnitude of x (n); 0 if n is 0. */
    titan_status (*float8_largest)(struct stream *s, float *largest, const void *x, enum dtype dt, size_t n);
    /* scales (n): each scale comes from the largest value in its column of largest (ranks,n), rows ld apart. */
    titan_status (*float8_scales)(struct stream *s, float *scales, const float *largest, int64_t ld, int64_t ranks,
                                  int64_t n, bool power_of_two);
    titan_status (*float8_encode)(struct stream *s, uint8_t *codes, const void *x, enum dtype dt, size_t n,
                                  const float *scale);
    titan_status (*matmul_i8)(struct stream *s, const struct matmul_args *a);
    /* Bytes that suffice for every product no larger in m, n and k. */
    size_t (*matmul_i8_work_bytes)(struct device *dev, enum dtype ab_dt, int64_t m, int64_t n, int64_t k);

    /* --- embedding --------------------------------------------------------------------------------------------- */
    titan_status (*embed)(struct stream *s, const struct embed_args *a);
    titan_status (*embed_wgrad)(struct stream *s, const struct embed_args *a);

    /* --- RMSNorm (Zhang and Sennrich 2019, arXiv:1910.07467) ----------------------------------------------------- */
    titan_status (*rmsnorm)(struct stream *s, const struct norm_args *a);
    titan_status (*rmsnorm_dgrad)(struct stream *s, const struct norm_args *a);
    titan_status (*rmsnorm_dgain)(struct stream *s, const struct norm_args *a);
    titan_status (*add_rmsnorm)(struct stream *s, const struct norm_args *a);

    /* --- attention --------------------------------------------------------------------------------------------- */
    titan_status (*rope)(struct stream *s, const struct rope_args *a);
    /* start (N) = the larger of first (N) and index (N) - tokens + 1, int32: limits masks to a sliding window of
     * `tokens`. */
    titan_status (*window)(struct stream *s, int32_t *start, const int32_t *index, const int32_t *first, int64_t n,
                           int64_t tokens);
    titan_status (*attention)(struct stream *s, const struct attention_args *a);
    titan_status (*attention_dgrad)(struct stream *s, const struct attention_args *a);
    /* Depends on the shape's sizes only; its masks may still be NULL. */
    size_t (*attention_work_bytes)(struct device *dev, const struct attention_shape *shape);
    titan_status (*attention_merge)(struct stream *s, const struct merge_args *a);
    titan_status (*attention_sink)(struct stream *s, const struct sink_args *a);
    titan_status (*attention_sink_dgrad)(struct stream *s, const struct sink_args *a);

    /* --- feed-forward and residual ------------------------------------------------------------------------------- */
    titan_status (*swiglu)(struct stream *s, const struct swiglu_args *a);
    titan_status (*swiglu_dgrad)(struct stream *s, const struct swiglu_args *a);
    /* out (n) = a + b; out may alias a or b. */
    titan_status (*add)(struct stream *s, void *out, const void *a, const void *b, enum dtype dt, size_t n);

    /* --- mixture of experts -------------------------------------------------------------------------------------- */
    titan_status (*router)(struct stream *s, const struct router_args *a);
    titan_status (*router_dgrad)(struct stream *s, const struct router_args *a);
    /* bias[e] += rate * sign(mean of load - load[e]), less the mean of these changes; load is zeroed. */
    titan_status (*router_balance)(struct stream *s, float *bias, float *load, int64_t experts, float rate);
    titan_status (*balance_stats)(struct stream *s, const struct balance_args *a);
    titan_status (*balance_loss)(struct stream *s, const struct balance_loss_args *a);
    titan_status (*balance_dgrad)(struct stream *s, const struct balance_args *a);
    titan_status (*permute)(struct stream *s, const struct permute_args *a);
    titan_status (*permute_received)(struct stream *s, const struct received_args *a);
    titan_status (*split_rounds)(struct stream *s, const struct split_args *a);
    titan_status (*place_round)(struct stream *s, const struct round_args *a);
    titan_status (*scatter_rows)(struct stream *s, const struct placed_args *a);
    titan_status (*combine_rows)(struct stream *s, const struct placed_args *a);
    titan_status (*combine_dweights)(struct stream *s, const struct placed_args *a);

    /* --- loss ---------------------------------------------------------------------------------------------------- */
    titan_status (*loss_stats)(struct stream *s, const struct loss_args *a);
    titan_status (*loss_finish)(struct stream *s, const struct loss_args *a);
    titan_status (*loss)(struct stream *s, const struct loss_args *a);

    /* --- sums over buffers --------------------------------------------------------------------------------------- */
    /* dst (n) fp32 += src (n) fp32. */
    titan_status (*accumulate)(struct stream *s, float *dst, const float *src, size_t n);
    /* out (n) dt = factor * x (n) dt; out may be x. */
    titan_status (*scale)(struct stream *s, void *out, const void *x, enum dtype dt, float factor, size_t n);
    titan_status (*softcap)(struct stream *s, const struct softcap_args *a);
    titan_status (*softcap_dgrad)(struct stream *s, const struct softcap_args *a);
    /* out[i] (device, fp64) = sum of x (or of x^2 where square) over elements [i*block, min((i+1)*block, n)), each
     * block summed in one fixed order in fp64, so results do not depend on how a buffer is cut at block bounds. A
     * non-finite element makes its block's sum non-finite. */
    titan_status (*block_sums)(struct stream *s, double *out, const float *x, size_t n, size_t block, bool square);
    /* *out (device, fp64) = or += the sum of x (n) fp64, in one fixed order. */
    titan_status (*sum)(struct stream *s, double *out, bool add, const double *x, size_t n);
    titan_status (*hash)(struct stream *s, const struct hash_args *a);

    /* --- whole matrices ------------------------------------------------------------------------------------------ */
    titan_status (*unit)(struct stream *s, const struct unit_args *a);
    titan_status (*polynomial)(struct stream *s, const struct polynomial_args *a);
    titan_status (*orthonormal)(struct stream *s, const struct orthonormal_args *a);
    titan_status (*jacobi)(struct stream *s, const struct jacobi_args *a);
    titan_status (*row_gradient)(struct stream *s, const struct row_gradient_args *a);
    titan_status (*moments)(struct stream *s, const struct moments_args *a);
    titan_status (*row_decay)(struct stream *s, const struct row_decay_args *a);

    /* --- gradients that travel ----------------------------------------------------------------------------------- */
    titan_status (*encode)(struct stream *s, const struct encode_args *a);
    titan_status (*decode_sum)(struct stream *s, const struct decode_sum_args *a);
    titan_status (*bucket_largest)(struct stream *s, const struct bucket_largest_args *a);

    /* --- initial values ------------------------------------------------------------------------------------------ */
    titan_status (*weights)(struct stream *s, const struct weights_args *a);

    /* --- optimizer ----------------------------------------------------------------------------------------------- */
    /* Updates elements w of masters, with gradient g = grad*grad_scale, by the rule. u is what is subtracted:
     *   w -= lr * (u + weight_decay * w)
     * Rules and their formulas: base/optimizers.def.
     *
     * Master and state (n) have the types in args. They are read as fp32, computed in fp32, and rounded to nearest even
     * when stored; args.rounding may round m and v of RULE_ADAMW at random. Codes: base/moment_codes.h. grad (n) is
     * fp32. With bf16 masters, g is grad*mean rounded to bf16, then times clip and rounded to bf16, like a gradient of
     * that type. shadow (n) bf16 = the fp32 master rounded to nearest even; NULL = none. The call updates each of
     * `count` pieces, with few launches where a launch costs time. Pieces do not overlap. The caller may reuse the
     * array when the call returns. */
    titan_status (*update)(struct stream *s, const struct update_piece *pieces, int count,
                           const struct update_args *args);
    /* Blocks of codes (base/moment_codes.h) from values (n) fp32, or values from blocks. n is a multiple of
     * MOMENT_BLOCK. square: the codes have no sign. */
    titan_status (*encode_moments)(struct stream *s, void *blocks, const float *values, size_t n, bool square);
    titan_status (*decode_moments)(struct stream *s, float *values, const void *blocks, size_t n, bool square);
    /* Adds to *sum (device, fp64) over n elements g^2 / max(v', eps^2, 2^-126), with g as above and v' = (b2 v + (1-b2)
     * g^2) / bias2 (StableAdamW's bound, Wortsman et al. 2023, arXiv:2304.13013). Each term is rounded to a multiple of
     * 2^-16. So sums below 2^37 are exact, and do not depend on their order. v (n) has the state's type. */
    titan_status (*update_sum)(struct stream *s, double *sum, const void *v, const float *grad, size_t n,
                               const struct update_args *args);

    /* --- parts of directions that replicas send each other ------------------------------------------------------- */
    titan_status (*parts_extract)(struct stream *s, const struct parts_extract_args *a);
    titan_status (*parts_combine)(struct stream *s, const struct parts_combine_args *a);

    /* --- ways of products: NULL, all four, where there is one for each ------------------------------------------- */
    /* on: matmul and matmul_f8 also note each product that they carry out. The call forgets earlier notes. */
    void (*products_note)(struct device *dev, bool on);
    /* Writes the noted products to ret, each once, at most `most` of them. Returns their number. */
    int (*products_noted)(struct device *dev, struct product_way *ret, int most);
    /* Carries out a noted product in each way, on its noted operands, and chooses the fastest way. The operands must
     * still exist. The output is overwritten or added to. Nothing else may run on the device. */
    titan_status (*product_time)(struct stream *s, struct product_way *way, struct titan_error *err);
    /* From now on the product way->product is carried out in this way. TITAN_EUNSUPPORTED: this device cannot, and
     * nothing has changed. */
    titan_status (*product_choose)(struct device *dev, const struct product_way *way, struct titan_error *err);

    /* --- weights in few bits ------------------------------------------------------------------------------------- */
    titan_status (*weight_encode)(struct stream *s, const struct weight_encode_args *a);
    titan_status (*weight_decode)(struct stream *s, const struct weight_decode_args *a);

    /* --- rows as int8 -------------------------------------------------------------------------------------------- */
    titan_status (*rows_encode)(struct stream *s, const struct rows_encode_args *a);
    titan_status (*rows_decode)(struct stream *s, const struct rows_decode_args *a);
    titan_status (*weight_count)(struct stream *s, int32_t *counts, const struct weight_encode_args *a);
    titan_status (*weight_learn)(struct stream *s, const struct weight_learn_args *a);
};

/* The slots from copy on. A device whose operations are named PREFIX_copy and so on uses this list to declare them and
 * to fill its table. */
/* clang-format off */
#define DEVICE_OPS(X) \
    X(copy) X(zero) X(cast) X(copy_2d) X(add_2d) X(add_bias) X(bias_wgrad) X(add_bias_grouped) X(bias_wgrad_grouped) X(matmul) X(matmul_grouped) X(embed) X(embed_wgrad) X(rmsnorm) \
    X(rmsnorm_dgrad) X(rmsnorm_dgain) X(add_rmsnorm) X(rope) X(window) X(attention) X(attention_dgrad) X(attention_work_bytes) \
    X(attention_merge) X(attention_sink) X(attention_sink_dgrad) X(swiglu) X(swiglu_dgrad) \
    X(add) X(router) X(router_dgrad) X(router_balance) X(balance_stats) X(balance_loss) X(balance_dgrad) X(permute) \
    X(permute_received) X(split_rounds) X(place_round) X(scatter_rows) X(combine_rows) X(combine_dweights) X(loss_stats) X(loss_finish) X(loss) \
    X(accumulate) X(scale) X(softcap) X(softcap_dgrad) X(block_sums) X(sum) X(hash) X(unit) X(polynomial) X(orthonormal) X(jacobi) X(row_gradient) X(moments) X(row_decay) X(weights) X(update) X(encode_moments) X(decode_moments) X(update_sum) \
    X(matmul_f8) X(matmul_f8_work_bytes) X(float8_largest) X(float8_scales) X(float8_encode) X(weight_encode) X(weight_decode) X(matmul_i8) X(matmul_i8_work_bytes) X(parts_extract) X(parts_combine) X(encode) X(decode_sum) X(bucket_largest) X(rows_encode) X(rows_decode) X(weight_count) X(weight_learn)
/* clang-format on */

struct comm_ops; /* worker/comm/comm.h */

struct device_plugin {
    uint32_t abi;     /* TITAN_DEVICE_ABI; first, so that a mismatch is a clear message */
    const char *name; /* "cpu", "cuda" */
    const struct device_ops *ops;
    const struct comm_ops *comm; /* the device's own communicator (NCCL); NULL = shm and tcp are used */
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
/* Opens device `name`: "cpu", "cuda" or "auto" (cuda where usable, else cpu). Looks for libtitan-NAME.so beside the
 * executable, in ../lib/titan from there, then in TITAN_PLUGIN_DIR. TITAN_EUNSUPPORTED with the plug-in's reason: the
 * device is unusable. */
titan_status device_open(const char *name, const struct device_options *options, struct device_handle *ret,
                         struct titan_error *err) TITAN_MUST_USE;
void device_close(struct device_handle *handle);

#endif
