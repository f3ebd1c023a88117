/* SPDX-License-Identifier: Apache-2.0 */
/* kernels.h - launchers of the CUDA kernels, one per operation of device.h; with operations.h the only header C and
 * CUDA C++ share.
 *
 * Each enqueues on stream (a cudaStream_t) and returns a cudaError_t: 0, or why the launch failed. Shapes, formulas and
 * aliasing are operations.h's; strides are in elements. bf16: the compute tensors are bfloat16, otherwise fp32. The
 * only atomics are on a hash, a sum of integers, and on magnitudes, the largest of integers, so the same call on the
 * same data gives the same bits. An empty tensor launches nothing. */
#ifndef TITAN_WORKER_DEVICE_CUDA_KERNELS_H
#define TITAN_WORKER_DEVICE_CUDA_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "worker/device/operations.h"

#ifdef __cplusplus
extern "C" {
#endif

/* --- modules.c ---------------------------------------------------------------------------------------------------- */
/* CUDA loads a kernel when it is first launched, and that launch waits for all that runs on the GPU. Behind a
 * collective with a peer that waits for this rank in turn it would wait for ever, so all kernels are loaded when the
 * device is opened. Each kernel file lists its module by one of its kernels, before main, in any order. */
int cuda_list_module(const void *kernel);
void cuda_load_kernels(void); /* with the device entered; what the driver refuses is said in the log */

/* --- failure.cu: see struct stream in cuda.h ---------------------------------------------------------------------- */
/* In stream order: take on what was raised on this stream by now, and what `from` (may be NULL) had taken on. */
int cuda_latch(void *stream, int *seen, int *told, const int *raised, const int *from);

/* What a kernel can find wrong with its data. */
enum fault {
    FAULT_NONE,
    FAULT_CHOICE, /* a token's choice names no expert */
    FAULT_ROWS,   /* more rows arrived than the buffer holds */
    FAULT_COUNTS, /* groups have more rows than there are */
    FAULT_COUNT
};
/* Where such a kernel makes its stream fail, as a latch would: struct stream in cuda.h. */
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

/* --- float8.cu: see float8_product in device.h -------------------------------------------------------------------- */
/* An operand of a product: lines of k elements, element (i, x) at src[i * line + x * along], line or along 1. */
struct float8_operand {
    const void *src;
    bool bf16, e5m2, by_line, power_of_two; /* by_line: a scale for each line, else one of all */
    int64_t lines, k, line, along;
    int64_t kp;        /* k up to a multiple of 16 */
    uint8_t *codes;    /* out, (lines, kp); at a multiple of 16 */
    float *inverse;    /* out, (lines): the inverse scales, the one of all as often */
    unsigned *largest; /* scratch, (lines) */
    uint8_t *scales;   /* of MXFP8, in place of both: out, mx_scales_bytes() of them, kp then is a multiple of 32 */
};
int cuda_float8(void *stream, const struct float8_operand *operand);
/* The same of an operand with a src of codes already, made with *scale. Where src is codes, they stay as they are. */
int cuda_float8_take(void *stream, const struct float8_operand *operand, const float *scale);
/* c (rows, n) = or += sums (rows, ld) fp32, times a of the row and b of the column; NULL, both: as they are. */
int cuda_float8_unscale(void *stream, void *c, bool bf16, int64_t ldc, const float *sums, int64_t ld, const float *a,
                        const float *b, int64_t rows, int64_t n, bool accumulate);
int cuda_float8_largest(void *stream, float *largest, const void *x, bool bf16, size_t n);
int cuda_float8_scales(void *stream, float *scales, const float *largest, int64_t ld, int64_t ranks, int64_t n);
/* mxfp8.cu: codes of e4m3 and their blocks' scales; where cuBLASLt looks for them: mx_scales.h. */
int cuda_mxfp8(void *stream, const struct float8_operand *operand);
int cuda_float8_encode(void *stream, uint8_t *codes, const void *x, bool bf16, size_t n, const float *scale);

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
    bool bf16, hopper; /* hopper: attention_hopper.cu may serve it */
    int b, tq, tk, h, kv, d, dv;
    int64_t ldq, ldk, ldv, ldo;               /* of the forward tensors */
    const int32_t *index, *start, *key_index; /* NULL = causal */
    float scale, softcap;
};
int cuda_attention(void *stream, const struct attention_args *a, const struct attention_problem *problem);
/* work: delta (B,H,Tq) fp32. sums: for gradients in any order, cuda_attention_hopper_sums() bytes at a multiple of 16;
 * NULL: there is an order. */
int cuda_attention_dgrad(void *stream, const struct attention_args *a, const struct attention_problem *problem,
                         float *sums);
int cuda_attention_merge(void *stream, const struct merge_args *a);

/* --- sink.cu ------------------------------------------------------------------------------------------------------ */
int cuda_attention_sink(void *stream, const struct sink_args *a);
int cuda_attention_sink_dgrad(void *stream, const struct sink_args *a);

/* --- attention_hopper.cu ------------------------------------------------------------------------------------------ */
/* Attention on the tensor cores of compute capability 9.0; attention.cu asks for it. */
#define CUDA_NOT_SERVED (-1)
bool cuda_attention_hopper_works(void); /* it was built for them, and the driver knows what it needs */
bool cuda_attention_hopper_fits(bool bf16, int64_t d, int64_t dv);      /* heads that it has tiles for */
bool cuda_attention_hopper_any_order(bool bf16, int64_t d, int64_t dv); /* gradients in one pass; then with sums */
size_t cuda_attention_hopper_sums(int64_t b, int64_t tq, int64_t h);
/* CUDA_NOT_SERVED: nothing was launched, attention.cu's own kernels serve. */
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
    bool ta, tb, add;      /* add: to what c holds */
    const int32_t *counts; /* (parts,groups) */
    int64_t groups, parts, m, n, k, lda, ldb, ldc;
    int64_t split; /* rows that a weight gradient sums before it adds them */
    struct fault_words fault;
};
/* hopper: matmul_grouped_hopper.cu may serve it. */
int cuda_matmul_grouped(void *stream, const struct matmul_args *a, bool hopper, struct fault_words fault);

/* --- matmul_grouped_hopper.cu ------------------------------------------------------------------------------------- */
/* Operands in bf16, on the tensor cores of compute capability 9.0; matmul_grouped.cu asks for it. CUDA_NOT_SERVED:
 * nothing was launched, its own kernel serves. */
int cuda_matmul_grouped_hopper(void *stream, const struct matmul_args *a, const struct grouped_problem *problem);

/* --- optim.cu ----------------------------------------------------------------------------------------------------- */
struct adamw_factors {
    float lr, beta1, beta2, eps, weight_decay, l2, grad_scale, unbias1, unbias2; /* one of the decays is 0 */
    float mean, clip;                                                            /* grad_scale is their product */
    bool bf16_master, bf16_moment;                                               /* otherwise fp32 */
    bool random_moments; /* how bf16 moments are rounded, device.h: struct moment_rounding */
    uint64_t step;
};
#define CUDA_ADAMW_RANGES 32 /* in a launch: all are among its arguments, of which there may be 4 KiB */
struct adamw_piece {
    void *master, *m, *v;
    const float *grad;
    uint16_t *shadow; /* may be NULL */
    size_t n;
    uint32_t key[2];
    int64_t first, cols, ld, origin;
    unsigned first_block; /* the launch finds it */
};
struct adamw_pieces {
    int count;
    struct adamw_piece of[CUDA_ADAMW_RANGES];
};
/* Changes nothing when *failed (device memory, read once per block) is not 0. */
int cuda_adamw(void *stream, struct adamw_pieces *pieces, struct adamw_factors factors, const int *failed);
int cuda_sgd(void *stream, void *master, const float *grad, uint16_t *shadow, size_t n, struct adamw_factors factors,
             const int *failed);

#ifdef __cplusplus
}
#endif

#endif
