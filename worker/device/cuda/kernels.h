/* SPDX-License-Identifier: Apache-2.0 */
/* kernels.h - launchers of the CUDA kernels, one per operation of device.h; the only header C and CUDA C++ share.
 *
 * Each enqueues on stream (a cudaStream_t) and returns a cudaError_t: 0, or why the launch failed. Shapes, formulas and
 * aliasing are device.h's; strides are in elements. bf16: the compute tensors are bfloat16, otherwise fp32. The only
 * atomics are on a hash, a sum of integers, and on magnitudes, the largest of integers, so the same call on the same
 * data gives the same bits. An empty tensor launches nothing. */
#ifndef TITAN_WORKER_DEVICE_CUDA_KERNELS_H
#define TITAN_WORKER_DEVICE_CUDA_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Element types, numbered as enum dtype. */
enum num { NUM_F32, NUM_BF16, NUM_F64, NUM_I32, NUM_U8 };

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
int cuda_cast(void *stream, void *dst, enum num to, const void *src, enum num from, size_t n);
int cuda_add(void *stream, void *out, const void *a, const void *b, bool bf16, size_t n);
int cuda_accumulate(void *stream, float *dst, const float *src, size_t n);
int cuda_scale(void *stream, void *out, const void *x, bool bf16, float factor, size_t n);
int cuda_softcap(void *stream, void *out, const void *x, bool bf16, float cap, size_t n);
int cuda_softcap_dgrad(void *stream, void *dx, const void *dout, const void *x, bool bf16, float cap, size_t n);

/* --- bias.cu ------------------------------------------------------------------------------------------------------ */
int cuda_add_bias(void *stream, void *x, int64_t ldx, const void *bias, bool bf16, int64_t n, int64_t c);
int cuda_bias_wgrad(void *stream, float *dbias, const void *dout, int64_t ldo, bool bf16, int64_t n, int64_t c);

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
int cuda_embed(void *stream, void *out, const int32_t *tokens, const void *table, bool bf16, int64_t n, int64_t c,
               int64_t v, int64_t first);
int cuda_embed_wgrad(void *stream, float *dtable, const int32_t *tokens, const void *dout, bool bf16, int64_t n,
                     int64_t c, int64_t v, int64_t first);

/* --- rmsnorm.cu --------------------------------------------------------------------------------------------------- */
int cuda_rmsnorm(void *stream, void *out, float *rstd, const void *x, const void *gain, bool bf16, int64_t n, int64_t c,
                 float eps, bool offset);
int cuda_rmsnorm_dgrad(void *stream, void *dx, const void *residual, const void *dout, const void *x, const void *gain,
                       const float *rstd, bool bf16, int64_t n, int64_t c, bool offset);
int cuda_rmsnorm_dgain(void *stream, float *dgain, const void *dout, const void *x, const float *rstd, bool bf16,
                       int64_t n, int64_t c);
int cuda_add_rmsnorm(void *stream, void *h, void *out, float *rstd, const void *a, const void *b, const void *gain,
                     bool bf16, int64_t n, int64_t c, float eps, bool offset);

/* --- window.cu ---------------------------------------------------------------------------------------------------- */
int cuda_window(void *stream, int32_t *start, const int32_t *index, const int32_t *first, int64_t n, int64_t tokens);

/* --- rope.cu ------------------------------------------------------------------------------------------------------ */
int cuda_rope(void *stream, void *x, int64_t ldx, const int32_t *positions, const float *cos, const float *sin,
              bool bf16, int64_t n, int64_t heads, int64_t d, bool backward);

/* --- attention.cu ------------------------------------------------------------------------------------------------- */
#define CUDA_ATTENTION_D_MAX 256
struct attention_problem {
    bool bf16, hopper; /* hopper: attention_hopper.cu may serve it */
    int b, tq, tk, h, kv, d, dv;
    int64_t ldq, ldk, ldv, ldo;               /* of the forward tensors */
    const int32_t *index, *start, *key_index; /* NULL = causal */
    float scale, softcap;
};
int cuda_attention(void *stream, void *out, float *lse, const void *q, const void *k, const void *v,
                   const struct attention_problem *problem);
/* Scratch: delta (B,H,Tq) fp32; sums, for gradients in any order: cuda_attention_hopper_sums() bytes at a multiple of
 * 16, or NULL: there is an order. */
int cuda_attention_dgrad(void *stream, void *dq, int64_t lddq, void *dk, int64_t lddk, void *dv, int64_t lddv,
                         const void *dout, int64_t lddo, const void *out, const float *lse, const void *q,
                         const void *k, const void *v, const struct attention_problem *problem, float *delta,
                         float *sums);
int cuda_attention_merge(void *stream, void *out, float *lse, const void *other, const float *other_lse, int64_t ld,
                         bool bf16, int64_t b, int64_t t, int64_t h, int64_t dv);

/* --- sink.cu ------------------------------------------------------------------------------------------------------ */
int cuda_attention_sink(void *stream, void *out, float *lse, const void *x, const float *x_lse, int64_t ld,
                        const void *sinks, bool bf16, int64_t b, int64_t t, int64_t h, int64_t dv);
int cuda_attention_sink_dgrad(void *stream, float *dsinks, const void *dout, int64_t lddo, const void *out, int64_t ldo,
                              const float *lse, const void *sinks, bool bf16, int64_t b, int64_t t, int64_t h,
                              int64_t dv);

/* --- attention_hopper.cu ------------------------------------------------------------------------------------------ */
/* Attention on the tensor cores of compute capability 9.0; attention.cu asks for it. */
#define CUDA_NOT_SERVED (-1)
bool cuda_attention_hopper_works(void); /* it was built for them, and the driver knows what it needs */
bool cuda_attention_hopper_fits(bool bf16, int64_t d, int64_t dv);      /* heads that it has tiles for */
bool cuda_attention_hopper_any_order(bool bf16, int64_t d, int64_t dv); /* gradients in one pass; then with sums */
size_t cuda_attention_hopper_sums(int64_t b, int64_t tq, int64_t h);
/* CUDA_NOT_SERVED: nothing was launched, attention.cu's own kernels serve. */
int cuda_attention_hopper(void *stream, void *out, float *lse, const void *q, const void *k, const void *v,
                          const struct attention_problem *problem);
int cuda_attention_hopper_dgrad(void *stream, void *dq, int64_t lddq, void *dk, int64_t lddk, void *dv, int64_t lddv,
                                const void *dout, int64_t lddo, const void *out, const float *lse, const void *q,
                                const void *k, const void *v, const struct attention_problem *problem,
                                const float *delta, float *sums);

/* --- swiglu.cu ---------------------------------------------------------------------------------------------------- */
int cuda_swiglu(void *stream, void *out, const void *gate, const void *up, int64_t ldgu, bool bf16, int64_t n,
                int64_t f, const int32_t *counts, int64_t parts, bool gelu);
int cuda_swiglu_dgrad(void *stream, void *dgate, void *dup, int64_t lddgu, const void *dout, const void *gate,
                      const void *up, int64_t ldgu, bool bf16, int64_t n, int64_t f, const int32_t *counts,
                      int64_t parts, bool gelu);

/* --- clamped_swiglu.cu -------------------------------------------------------------------------------------------- */
int cuda_clamped_swiglu(void *stream, void *out, const void *gate, const void *up, int64_t ldgu, bool bf16, int64_t n,
                        int64_t f, const int32_t *counts, int64_t parts, float limit, float alpha);
int cuda_clamped_swiglu_dgrad(void *stream, void *dgate, void *dup, int64_t lddgu, const void *dout, const void *gate,
                              const void *up, int64_t ldgu, bool bf16, int64_t n, int64_t f, const int32_t *counts,
                              int64_t parts, float limit, float alpha);

/* --- loss.cu ------------------------------------------------------------------------------------------------------ */
int cuda_loss_stats(void *stream, float *stats, const void *logits, const int32_t *targets, bool bf16, int64_t n,
                    int64_t v, int64_t first);
int cuda_loss_finish(void *stream, float *losses, void *dlogits, const void *logits, const int32_t *targets,
                     const float *stats, int64_t parts, bool bf16, int64_t n, int64_t v, int64_t first);
int cuda_loss(void *stream, float *losses, float *stats, void *dlogits, const void *logits, const int32_t *targets,
              bool bf16, int64_t n, int64_t v, int64_t first);

/* --- strided.cu --------------------------------------------------------------------------------------------------- */
int cuda_copy_2d(void *stream, void *dst, int64_t ldd, const void *src, int64_t lds, size_t element_bytes, int64_t rows,
                 int64_t cols, int64_t repeat);
int cuda_add_2d(void *stream, void *dst, int64_t ldd, const void *src, int64_t lds, bool bf16, int64_t rows,
                int64_t cols, int64_t repeat);

/* --- sums.cu ------------------------------------------------------------------------------------------------------ */
int cuda_block_sums(void *stream, double *out, const float *x, size_t n, size_t block, bool square);
int cuda_sum(void *stream, double *out, bool add, const double *x, size_t n);
int cuda_hash(void *stream, uint64_t *out, const void *x, bool bf16, int64_t rows, int64_t cols, uint64_t key,
              int64_t first);

/* --- weights.cu --------------------------------------------------------------------------------------------------- */
#define CUDA_REDRAWS 12
struct weight_draws { /* struct rng_weights of base/rng.h */
    uint32_t key[2], again[CUDA_REDRAWS][2];
    float limit, std;
};
int cuda_weights(void *stream, void *out, bool bf16, int64_t rows, int64_t cols, int64_t width, int64_t first,
                 struct weight_draws draws);

/* --- router.cu ---------------------------------------------------------------------------------------------------- */
#define CUDA_EXPERTS_MAX 1024
struct router_problem {
    bool bf16, sigmoid, normalize;
    int experts, top_k;
    int64_t n;
    float scale;
    int groups, top_groups, group_top_k; /* groups 0: none */
};
int cuda_router(void *stream, int32_t *chosen, float *weights, float *load, const void *logits, const float *bias,
                const int32_t *numbers, const struct router_problem *problem);
int cuda_router_dgrad(void *stream, void *dlogits, const float *dweights, const void *logits, const int32_t *chosen,
                      const struct router_problem *problem, struct fault_words fault);
/* Changes nothing when *failed is not 0. */
int cuda_router_balance(void *stream, float *bias, float *load, int64_t experts, float rate, const int *failed);

/* Where tokens lie among those of the sequences (struct token_rows). */
struct token_places {
    int64_t sequences, length, first, pieces;
};
int cuda_balance_stats(void *stream, float *stats, const void *logits, const int32_t *chosen, const int32_t *targets,
                       const struct router_problem *problem, const struct token_places *places);
int cuda_balance_loss(void *stream, float *losses, float *dscores, const float *stats, int64_t parts, int64_t sequences,
                      int64_t experts, int64_t top_k, int64_t tokens, float factor);
int cuda_balance_dgrad(void *stream, void *dlogits, const void *logits, const float *dscores,
                       const struct router_problem *problem, const struct token_places *places);

/* --- permute.cu --------------------------------------------------------------------------------------------------- */
int cuda_permute(void *stream, int32_t *place, int32_t *counts, int32_t *rank_counts, float *dropped,
                 const int32_t *chosen, int64_t choices, int64_t experts, int64_t ranks, int64_t most,
                 struct fault_words fault);
int cuda_permute_received(void *stream, int32_t *place, int32_t *counts, int32_t *rank_counts, const int32_t *received,
                          int64_t ld, int64_t ranks, int64_t experts, int64_t rows, bool by_rank,
                          struct fault_words fault);
/* piece: rows of one expert that a round may end behind, and multiples. */
int cuda_split_rounds(void *stream, int32_t *split, float *seen, const int32_t *received, int64_t ranks,
                      int64_t experts, int64_t rounds, int64_t room, int64_t piece, bool by_rank,
                      struct fault_words fault);
int cuda_place_round(void *stream, int32_t *place, int32_t *origin, int32_t *rank_counts, const int32_t *split,
                     int64_t ranks, int64_t experts, int64_t rounds, int64_t round, int64_t rows,
                     struct fault_words fault);
int cuda_scatter_rows(void *stream, void *dst, const void *src, const int32_t *place, const float *weights, bool bf16,
                      int64_t n, int64_t top_k, int64_t c);
int cuda_combine_rows(void *stream, void *out, const void *src, const int32_t *place, const float *weights, bool bf16,
                      int64_t n, int64_t top_k, int64_t c, bool keep);
int cuda_combine_dweights(void *stream, float *dweights, const void *dout, const void *src, const int32_t *place,
                          bool bf16, int64_t n, int64_t top_k, int64_t c);

/* --- matmul_grouped.cu -------------------------------------------------------------------------------------------- */
struct grouped_problem {
    bool ta, tb, add;      /* add: to what c holds */
    bool hopper;           /* matmul_grouped_hopper.cu may serve it */
    const int32_t *counts; /* (parts,groups) */
    int64_t groups, parts, m, n, k, lda, ldb, ldc;
    int64_t split; /* rows that a weight gradient sums before it adds them */
    struct fault_words fault;
};
int cuda_matmul_grouped(void *stream, void *c, bool c_bf16, const void *a, const void *b, bool ab_bf16,
                        const struct grouped_problem *problem);

/* bias.cu: a bias (groups,n) for rows x (m,n), ldc apart, and its gradient from rows c (m,n). */
int cuda_add_bias_grouped(void *stream, void *x, const void *bias, bool bf16, const struct grouped_problem *problem);
int cuda_bias_wgrad_grouped(void *stream, float *dbias, const void *dout, bool bf16,
                            const struct grouped_problem *problem);

/* --- matmul_grouped_hopper.cu ------------------------------------------------------------------------------------- */
/* Operands in bf16, on the tensor cores of compute capability 9.0; matmul_grouped.cu asks for it. CUDA_NOT_SERVED:
 * nothing was launched, its own kernel serves. */
int cuda_matmul_grouped_hopper(void *stream, void *c, bool c_bf16, const void *a, const void *b,
                               const struct grouped_problem *problem);

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
