/* kernels.h - launchers of the CUDA kernels, one per operation of device.h; the only header C and CUDA C++ share.
 *
 * Each enqueues on stream (a cudaStream_t) and returns a cudaError_t: 0, or why the launch failed. Shapes, formulas and
 * aliasing are device.h's; strides are in elements. bf16: the compute tensors are bfloat16, otherwise fp32. Nothing
 * here uses atomics on data, so the same call on the same data gives the same bits. An empty tensor launches nothing.
 */
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

/* --- failure.cu: see struct stream in cuda.h ---- */
/* In stream order: take on what was raised on this stream by now, and what `from` (may be NULL) had taken on. */
int cuda_latch(void *stream, int *seen, int *told, const int *raised, const int *from);

/* --- elementwise.cu --- */
int cuda_cast(void *stream, void *dst, enum num to, const void *src, enum num from, size_t n);
int cuda_add(void *stream, void *out, const void *a, const void *b, bool bf16, size_t n);
int cuda_accumulate(void *stream, float *dst, const float *src, size_t n);
int cuda_scale(void *stream, float *x, float factor, size_t n);

/* --- embed.cu --- */
int cuda_embed(void *stream, void *out, const int32_t *tokens, const void *table, bool bf16, int64_t n, int64_t c,
               int64_t v);
int cuda_embed_wgrad(void *stream, float *dtable, const int32_t *tokens, const void *dout, bool bf16, int64_t n,
                     int64_t c, int64_t v);

/* --- rmsnorm.cu --- */
int cuda_rmsnorm(void *stream, void *out, float *rstd, const void *x, const void *gain, bool bf16, int64_t n, int64_t c,
                 float eps);
int cuda_rmsnorm_dgrad(void *stream, void *dx, bool accumulate, const void *dout, const void *x, const void *gain,
                       const float *rstd, bool bf16, int64_t n, int64_t c);
int cuda_rmsnorm_dgain(void *stream, float *dgain, const void *dout, const void *x, const float *rstd, bool bf16,
                       int64_t n, int64_t c);

/* --- rope.cu --- */
int cuda_rope(void *stream, void *x, int64_t ldx, const int32_t *positions, const float *cos, const float *sin,
              bool bf16, int64_t n, int64_t heads, int64_t d, bool backward);

/* --- attention.cu --- */
#define CUDA_ATTENTION_D_MAX 256
struct attention_shape {
    bool bf16;
    int b, t, h, kv, d;
    int64_t ldq, ldkv, ldo; /* of the forward tensors */
};
int cuda_attention(void *stream, void *out, float *lse, const void *q, const void *k, const void *v,
                   const struct attention_shape *shape);
/* delta (H,N) fp32: scratch. */
int cuda_attention_dgrad(void *stream, void *dq, int64_t lddq, void *dk, void *dv, int64_t lddkv, const void *dout,
                         int64_t lddo, const void *out, const float *lse, const void *q, const void *k, const void *v,
                         const struct attention_shape *shape, float *delta);

/* --- swiglu.cu --- */
int cuda_swiglu(void *stream, void *out, const void *gate, const void *up, int64_t ldgu, bool bf16, int64_t n,
                int64_t f);
int cuda_swiglu_dgrad(void *stream, void *dgate, void *dup, int64_t lddgu, const void *dout, const void *gate,
                      const void *up, int64_t ldgu, bool bf16, int64_t n, int64_t f);

/* --- loss.cu --- */
int cuda_cross_entropy(void *stream, float *losses, void *dlogits, const void *logits, const int32_t *targets,
                       bool bf16, int64_t n, int64_t v, float grad_scale);

/* --- sums.cu --- */
int cuda_block_sums(void *stream, double *out, const float *x, size_t n, size_t block, bool square);

/* --- adamw.cu --- */
struct adamw_factors {
    float lr, beta1, beta2, eps, weight_decay, grad_scale, bias1, bias2;
};
/* Changes nothing when *failed (device memory, read once per block) is not 0. shadow may be NULL. */
int cuda_adamw(void *stream, float *master, float *m, float *v, const float *grad, uint16_t *shadow, size_t n,
               struct adamw_factors factors, const int *failed);

#ifdef __cplusplus
}
#endif

#endif
