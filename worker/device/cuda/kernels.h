/* SPDX-License-Identifier: Apache-2.0 */
/* kernels.h - launchers of the CUDA kernels, one per operation of device.h. C and CUDA C++ share only this header and
 * operations.h.
 *
 * Each launcher enqueues on stream (a cudaStream_t) and returns a cudaError_t: 0, or why the launch failed.
 * operations.h defines shapes, formulas and aliasing; strides are in elements. bf16: the compute tensors are bfloat16,
 * otherwise fp32. Atomics are used only for a hash (a sum of integers) and for magnitudes (a maximum of integers). So
 * the same call on the same data gives the same bits. An empty tensor launches nothing. */
#ifndef TITAN_WORKER_DEVICE_CUDA_KERNELS_H
#define TITAN_WORKER_DEVICE_CUDA_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/update_rule.h"
#include "worker/device/operations.h"

#ifdef __cplusplus
extern "C" {
#endif

/* --- modules.c ---------------------------------------------------------------------------------------------------- */
/* All kernels are loaded when the device is opened. Otherwise CUDA loads a kernel at its first launch, and that launch
 * waits for everything that runs on the GPU. A launch after a collective would then wait forever: the collective's peer
 * waits for this rank in turn. Each kernel file lists its module by one of its kernels, before main, in any order. */
int cuda_list_module(const void *kernel);
void cuda_load_kernels(void); /* call it with the device entered; modules that the driver refuses are logged */

/* --- failure.cu: see struct stream in cuda.h ---------------------------------------------------------------------- */
/* In stream order: takes over a failure raised on this stream so far, and a failure that `from` (may be NULL) has taken
 * over. */
int cuda_latch(void *stream, int *seen, int *told, const int *raised, const int *from);

/* Errors that a kernel can find in its data. */
enum fault {
    FAULT_NONE,
    FAULT_CHOICE, /* a token's choice names no expert */
    FAULT_ROWS,   /* more rows arrived than the buffer holds */
    FAULT_COUNTS, /* groups have more rows than there are */
    FAULT_COUNT
};
/* The words through which a kernel makes its stream fail, as a latch would: struct stream in cuda.h. */
struct fault_words {
    int *seen, *told, *fault;
    int status;
};

/* --- elementwise.cu ----------------------------------------------------------------------------------------------- */
int cuda_cast(void *stream, void *dst, enum dtype to, const void *src, enum dtype from, size_t n);
int cuda_add(void *stream, void *out, const void *a, const void *b, bool bf16, size_t n);
int cuda_accumulate(void *stream, float *dst, const float *src, size_t n);
int cuda_scale(void *stream, void *out, const void *x, bool bf16, float factor, size_t n);
int cuda_softcap(void *stream, const struct softcap_args *a);
int cuda_softcap_dgrad(void *stream, const struct softcap_args *a);

/* --- bias.cu ------------------------------------------------------------------------------------------------------ */
int cuda_add_bias(void *stream, const struct bias_args *a);
int cuda_bias_wgrad(void *stream, const struct bias_args *a);
int cuda_add_bias_grouped(void *stream, const struct bias_args *a, struct fault_words fault);
int cuda_bias_wgrad_grouped(void *stream, const struct bias_args *a, struct fault_words fault);

/* --- float8.cu: see float8_product and int8_product in device.h --------------------------------------------------- */
/* An operand of a product: lines of k elements. Element (i, x) is at src[i * line + x * along]; line or along is 1. */
struct float8_operand {
    const void *src;
    bool bf16, e5m2, int8, by_line, power_of_two; /* by_line: each line has a scale; otherwise all lines share one */
    int64_t lines, k, line, along;
    int64_t kp;         /* k up to a multiple of 16 */
    uint8_t *codes;     /* out, (lines, kp); at a multiple of 16 */
    float *inverse;     /* out, (lines): the inverse scale of each line; a shared scale is repeated */
    unsigned *largest;  /* scratch, (lines) */
    const float *given; /* the scale of all lines; NULL: it comes from the largest magnitude */
    /* out, MXFP8 only: mx_scales_bytes() bytes of scales, used instead of inverse and largest; kp is then a multiple of
     * 32 */
    uint8_t *scales;
};
int cuda_float8(void *stream, const struct float8_operand *operand);
/* The same for an operand whose src is codes already, made with *scale. If src and `codes` are the same memory, the
 * codes stay unchanged. */
int cuda_float8_take(void *stream, const struct float8_operand *operand, const float *scale);
/* Rows of a product's sums, and where they go. */
struct float8_sums {
    void *c; /* (rows, n) bf16 or fp32, rows ldc apart */
    bool bf16, accumulate, int8;
    int64_t ldc, ld, rows, n;
    const void *sums;   /* (rows, ld) fp32; with int8 int32 */
    const float *a, *b; /* inverse scales of rows and of columns; both may be NULL */
};
/* Writes the sums to c. With `accumulate` it adds them to c. First it multiplies each sum by a[row] and b[column]. If a
 * and b are NULL, the sums are not multiplied. */
int cuda_float8_unscale(void *stream, const struct float8_sums *sums);
int cuda_float8_largest(void *stream, float *largest, const void *x, bool bf16, size_t n);
int cuda_float8_scales(void *stream, float *scales, const float *largest, int64_t ld, int64_t ranks, int64_t n,
                       bool power_of_two);
/* mxfp8.cu: codes of e4m3 and the scales of their blocks. mx_scales.h defines where cuBLASLt reads the scales. */
int cuda_mxfp8(void *stream, const struct float8_operand *operand);
int cuda_float8_encode(void *stream, uint8_t *codes, const void *x, bool bf16, size_t n, const float *scale);
int cuda_rows_decode(void *stream, const struct rows_decode_args *a);

/* --- buckets.cu --------------------------------------------------------------------------------------------------- */
int cuda_weight_encode(void *stream, const struct weight_encode_args *a);
int cuda_weight_decode(void *stream, const struct weight_decode_args *a);
int cuda_weight_count(void *stream, int32_t *counts, const struct weight_encode_args *a);
int cuda_weight_learn(void *stream, const struct weight_learn_args *a);

/* --- embed.cu ----------------------------------------------------------------------------------------------------- */
int cuda_embed(void *stream, const struct embed_args *a);
int cuda_embed_wgrad(void *stream, const struct embed_args *a);

/* --- rmsnorm.cu --------------------------------------------------------------------------------------------------- */
int cuda_rmsnorm(void *stream, const struct norm_args *a);
int cuda_rmsnorm_dgrad(void *stream, const struct norm_args *a);
int cuda_rmsnorm_dgain(void *stream, const struct norm_args *a);
int cuda_add_rmsnorm(void *stream, const struct norm_args *a);

/* --- window.cu ---------------------------------------------------------------------------------------------------- */
int cuda_window(void *stream, int32_t *start, const int32_t *index, const int32_t *first, int64_t n, int64_t tokens);

/* --- rope.cu ------------------------------------------------------------------------------------------------------ */
int cuda_rope(void *stream, const struct rope_args *a);

/* --- attention.cu ------------------------------------------------------------------------------------------------- */
#define CUDA_ATTENTION_D_MAX 256
struct attention_problem {
    bool bf16, hopper; /* hopper: attention_hopper.cu may be used */
    int b, tq, tk, h, kv, d, dv;
    int64_t ldq, ldk, ldv, ldo;               /* strides of the forward tensors */
    const int32_t *index, *start, *key_index; /* NULL = causal */
    float scale, softcap;
};
int cuda_attention(void *stream, const struct attention_args *a, const struct attention_problem *problem);
/* work: delta (B,H,Tq) fp32. sums: cuda_attention_hopper_sums() bytes at a multiple of 16, for gradients in any order;
 * NULL: the order is fixed. */
int cuda_attention_dgrad(void *stream, const struct attention_args *a, const struct attention_problem *problem,
                         float *sums);
int cuda_attention_merge(void *stream, const struct merge_args *a);

/* --- sink.cu ------------------------------------------------------------------------------------------------------ */
int cuda_attention_sink(void *stream, const struct sink_args *a);
int cuda_attention_sink_dgrad(void *stream, const struct sink_args *a);

/* --- attention_hopper.cu ------------------------------------------------------------------------------------------ */
/* Attention on the tensor cores of compute capability 9.0, called by attention.cu. */
#define CUDA_NOT_SERVED (-1)
/* the code was built for these tensor cores, and the driver has the needed functions */
bool cuda_attention_hopper_works(void);
bool cuda_attention_hopper_fits(bool bf16, int64_t d, int64_t dv); /* there are tiles for heads of these widths */
/* gradients in one pass are possible; they need sums */
bool cuda_attention_hopper_any_order(bool bf16, int64_t d, int64_t dv);
size_t cuda_attention_hopper_sums(int64_t b, int64_t tq, int64_t h);
/* CUDA_NOT_SERVED: nothing was launched; attention.cu then uses its own kernels. */
int cuda_attention_hopper(void *stream, const struct attention_args *a, const struct attention_problem *problem);
int cuda_attention_hopper_dgrad(void *stream, const struct attention_args *a, const struct attention_problem *problem,
                                float *sums);

/* --- swiglu.cu ---------------------------------------------------------------------------------------------------- */
int cuda_swiglu(void *stream, const struct swiglu_args *a);
int cuda_swiglu_dgrad(void *stream, const struct swiglu_args *a);

/* --- loss.cu ------------------------------------------------------------------------------------------------------ */
int cuda_loss_stats(void *stream, const struct loss_args *a);
int cuda_loss_finish(void *stream, const struct loss_args *a);
int cuda_loss(void *stream, const struct loss_args *a);

/* --- strided.cu --------------------------------------------------------------------------------------------------- */
int cuda_copy_2d(void *stream, const struct strided_args *a);
int cuda_add_2d(void *stream, const struct strided_args *a);

/* --- sums.cu ------------------------------------------------------------------------------------------------------ */
int cuda_block_sums(void *stream, double *out, const float *x, size_t n, size_t block, bool square);
int cuda_sum(void *stream, double *out, bool add, const double *x, size_t n);
int cuda_hash(void *stream, const struct hash_args *a);

/* --- orthogonal.cu ------------------------------------------------------------------------------------------------ */
int cuda_unit(void *stream, const struct unit_args *a);
int cuda_polynomial(void *stream, const struct polynomial_args *a);
int cuda_orthonormal(void *stream, const struct orthonormal_args *a);
int cuda_row_gradient(void *stream, const struct row_gradient_args *a);
int cuda_moments(void *stream, const struct moments_args *a);
int cuda_row_decay(void *stream, const struct row_decay_args *a);
int cuda_jacobi(void *stream, const struct jacobi_args *a); /* a->work is zero */

/* --- parts.cu ----------------------------------------------------------------------------------------------------- */
int cuda_parts_extract(void *stream, const struct parts_extract_args *a);
int cuda_parts_combine(void *stream, const struct parts_combine_args *a);

/* --- weights.cu --------------------------------------------------------------------------------------------------- */
int cuda_weights(void *stream, const struct weights_args *a);

/* --- router.cu ---------------------------------------------------------------------------------------------------- */
#define CUDA_EXPERTS_MAX 1024
int cuda_router(void *stream, const struct router_args *a);
int cuda_router_dgrad(void *stream, const struct router_args *a, struct fault_words fault);
/* Changes nothing when *failed is not 0. */
int cuda_router_balance(void *stream, float *bias, float *load, int64_t experts, float rate, const int *failed);

int cuda_balance_stats(void *stream, const struct balance_args *a);
int cuda_balance_loss(void *stream, const struct balance_loss_args *a);
int cuda_balance_dgrad(void *stream, const struct balance_args *a);

/* --- permute.cu --------------------------------------------------------------------------------------------------- */
int cuda_permute(void *stream, const struct permute_args *a, struct fault_words fault);
int cuda_permute_received(void *stream, const struct received_args *a, struct fault_words fault);
int cuda_split_rounds(void *stream, const struct split_args *a, struct fault_words fault);
int cuda_place_round(void *stream, const struct round_args *a, struct fault_words fault);
int cuda_scatter_rows(void *stream, const struct placed_args *a);
int cuda_combine_rows(void *stream, const struct placed_args *a);
int cuda_combine_dweights(void *stream, const struct placed_args *a);

/* --- matmul_grouped.cu -------------------------------------------------------------------------------------------- */
struct grouped_problem {
    bool ta, tb, add;      /* add: adds the product to c */
    const int32_t *counts; /* (parts,groups) */
    int64_t groups, parts, m, n, k, lda, ldb, ldc;
    int64_t split; /* packed rows that a weight gradient sums at a time; these sums are added in order */
    struct fault_words fault;
};
/* hopper: matmul_grouped_hopper.cu may be used. */
int cuda_matmul_grouped(void *stream, const struct matmul_args *a, bool hopper, struct fault_words fault);

/* --- matmul_grouped_hopper.cu ------------------------------------------------------------------------------------- */
/* The same with bf16 operands on the tensor cores of compute capability 9.0, called by matmul_grouped.cu.
 * CUDA_NOT_SERVED: nothing was launched; matmul_grouped.cu then uses its own kernel. */
int cuda_matmul_grouped_hopper(void *stream, const struct matmul_args *a, const struct grouped_problem *problem);

/* --- optim.cu ----------------------------------------------------------------------------------------------------- */
struct update_factors {
    enum update_rule rule;
    float beta1, beta2, eps, unbias1, unbias2;
    float own[UPDATE_OWN];        /* the rule's own numbers */
    float weight_decay, l2;       /* one of them is 0 */
    float grad_scale, mean, clip; /* grad_scale is the product of the other two */
    bool keeps_state;
    bool bf16_master, bf16_moment; /* otherwise fp32 */
    bool coded_moment;             /* state in blocks of codes */
    bool random_moments;           /* bf16 moments are rounded at random, device.h: struct moment_rounding */
    uint64_t step;
};
#define CUDA_UPDATE_PIECES 32 /* pieces per launch: they are kernel arguments, which are limited to 4 KiB */
struct update_part {
    void *master, *state[UPDATE_STATES];
    const float *grad;
    uint16_t *shadow; /* may be NULL */
    size_t n;
    uint32_t key[2];
    int64_t first, cols, ld, origin;
    float rate;
    unsigned first_block; /* set by the launch */
};
struct update_parts {
    int count;
    struct update_part of[CUDA_UPDATE_PIECES];
};
/* Changes nothing when *failed (device memory, read once per block) is not 0. */
int cuda_update(void *stream, struct update_parts *parts, const struct update_factors *factors, const int *failed);
/* What a sum reads: second moments and gradients (n). */
struct update_terms {
    const void *v;
    const float *grad;
    size_t n;
};
/* Blocks of codes from or to values (blocks * MOMENT_BLOCK). */
int cuda_moment_codes(void *stream, struct moment_block *blocks, float *values, size_t count, bool square, bool encode);
int cuda_update_sum(void *stream, double *sum, struct update_terms terms, const struct update_factors *factors);

/* --- codecs.cu ---------------------------------------------------------------------------------------------------- */
int cuda_encode(void *stream, const struct encode_args *a, struct codec_places at);
int cuda_decode_sum(void *stream, const struct decode_sum_args *a, struct codec_places at);
/* Some of the tensors of bucket_largest, and buckets [first_bucket, end_bucket): those in which they lie, and those
 * around. */
#define CUDA_CODEC_TENSORS 128
struct tensor_places {
    int64_t first_bucket, end_bucket;
    int count;
    int64_t begins[CUDA_CODEC_TENSORS + 1];
};
/* of_tensor: the first of these tensors'; zero. */
int cuda_bucket_largest(void *stream, const struct bucket_largest_args *a, struct codec_places at, float *of_tensor,
                        const struct tensor_places *tensors);

#ifdef __cplusplus
}
#endif

#endif
