/* cpu.h - the CPU device's own header: what its files share.
 *
 * Reading order: cpu.c (table, open), stream.c (streams, events, where an operation runs), then one file per noun.
 * An operation is two functions: the table's entry checks shapes and packs its arguments; run_*() does the work when
 * the stream gets there. Kernels are pure functions over a range of independent items, cloned per instruction set;
 * cpu_for() shares the range out. An item's result never depends on the cut, so bits do not depend on threads. */
#ifndef TITAN_WORKER_DEVICE_CPU_CPU_H
#define TITAN_WORKER_DEVICE_CPU_CPU_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "worker/device/device.h"

/* Hot loops are compiled once per instruction set and picked at load time. Sanitizer builds compile them once. */
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define CPU_KERNEL __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define CPU_KERNEL
#endif
#define CPU_INLINE static inline __attribute__((always_inline))

struct cpu_isa {
    bool avx2, avx512, avx512_bf16, amx_bf16, amd;
};

/* peak.c: dense FLOP/s of one core that has its units to itself, measured in under 0.5 ms. */
struct cpu_peak {
    double f32, bf16;
};
struct cpu_peak cpu_peak_measure(const struct cpu_isa *isa);
/* Whether the kernel lets this process use AMX tiles; asks for them. */
bool cpu_allow_tiles(void);

struct matmul_cache;

struct device {
    int threads;
    struct cpu_isa isa;
    struct device_info info;
    struct matmul_cache *matmul;
    pthread_mutex_t scratch_lock; /* held by the operation that uses scratch */
    void *scratch;
    size_t scratch_bytes;
};

/* Where an operation runs: threads is 1 off the compute stream, so that there is one OpenMP team in the process. */
struct cpu_context {
    struct device *dev;
    int threads;
    struct titan_error *err; /* of the stream */
};

typedef titan_status (*cpu_run)(const struct cpu_context *ctx, const void *args);
#define CPU_ARGS_MAX 256
/* Run now (compute stream) or queue (other streams). args are copied. Skipped when the stream has failed. */
titan_status cpu_enqueue(struct stream *s, cpu_run run, const void *args, size_t bytes);

/* fn over [0,n) cut into at most ctx->threads contiguous ranges of at least grain items. thread: 0.. < ctx->threads. */
typedef void (*cpu_range)(const void *args, int64_t begin, int64_t end, int thread);
void cpu_for(const struct cpu_context *ctx, int64_t n, int64_t grain, cpu_range fn, const void *args);
/* Scratch of the device, 64-byte aligned, contents undefined. Taken for one operation: give back after use. */
titan_status cpu_scratch_take(const struct cpu_context *ctx, size_t bytes, void **ret);
void cpu_scratch_give(const struct cpu_context *ctx);

/* --- entries of the table, by file ------------------------------------------------------------------------------- */
/* memory.c */
titan_status cpu_alloc(struct device *dev, size_t bytes, void **ret, struct titan_error *err);
void cpu_release(struct device *dev, void *ptr);
titan_status cpu_copy(struct stream *s, void *dst, const void *src, size_t bytes);
titan_status cpu_zero(struct stream *s, void *dst, size_t bytes);
titan_status cpu_copy_2d(struct stream *s, void *dst, int64_t ldd, const void *src, int64_t lds, enum dtype dt,
                         int64_t rows, int64_t cols, int64_t repeat);
/* stream.c */
titan_status cpu_stream_open(struct device *dev, const char *name, bool compute, struct stream **ret,
                             struct titan_error *err);
void cpu_stream_close(struct stream *s);
titan_status cpu_stream_sync(struct stream *s, struct titan_error *err);
void cpu_stream_clear(struct stream *s);
titan_status cpu_stream_call(struct stream *s, titan_status (*fn)(void *arg, struct titan_error *err), void *arg,
                             struct titan_error *err);
void *cpu_stream_native(struct stream *s);
titan_status cpu_event_open(struct device *dev, struct event **ret, struct titan_error *err);
void cpu_event_close(struct event *e);
titan_status cpu_event_record(struct event *e, struct stream *s, struct titan_error *err);
titan_status cpu_event_wait(struct event *e, struct stream *s, struct titan_error *err);
titan_status cpu_event_sync(struct event *e, struct titan_error *err);
/* cast.c */
titan_status cpu_cast(struct stream *s, void *dst, enum dtype to, const void *src, enum dtype from, size_t n);
/* matmul.c */
titan_status matmul_cache_open(struct device *dev, struct titan_error *err);
void matmul_cache_close(struct device *dev);
titan_status cpu_matmul(struct stream *s, void *c, enum dtype c_dt, int64_t ldc, const void *a, bool ta, int64_t lda,
                        const void *b, bool tb, int64_t ldb, enum dtype ab_dt, int64_t m, int64_t n, int64_t k,
                        float beta);
/* matmul_grouped.c */
titan_status cpu_matmul_grouped(struct stream *s, void *c, enum dtype c_dt, int64_t ldc, const void *a, bool ta,
                                int64_t lda, const void *b, bool tb, int64_t ldb, enum dtype ab_dt,
                                const int32_t *counts, int64_t groups, int64_t m, int64_t n, int64_t k, float beta);
/* embed.c */
titan_status cpu_embed(struct stream *s, void *out, const int32_t *tokens, const void *table, enum dtype dt, int64_t n,
                       int64_t c, int64_t v, int64_t first);
titan_status cpu_embed_wgrad(struct stream *s, float *dtable, const int32_t *tokens, const void *dout, enum dtype dt,
                             int64_t n, int64_t c, int64_t v, int64_t first);
/* norm.c */
titan_status cpu_rmsnorm(struct stream *s, void *out, float *rstd, const void *x, const void *gain, enum dtype dt,
                         int64_t n, int64_t c, float eps);
titan_status cpu_rmsnorm_dgrad(struct stream *s, void *dx, bool accumulate, const void *dout, const void *x,
                               const void *gain, const float *rstd, enum dtype dt, int64_t n, int64_t c);
titan_status cpu_rmsnorm_dgain(struct stream *s, float *dgain, const void *dout, const void *x, const float *rstd,
                               enum dtype dt, int64_t n, int64_t c);
/* rope.c */
titan_status cpu_rope(struct stream *s, void *x, int64_t ldx, const int32_t *positions, const float *cos,
                      const float *sin, enum dtype dt, int64_t n, int64_t heads, int64_t d, bool backward);
/* attention.c */
titan_status cpu_attention(struct stream *s, void *out, int64_t ldo, float *lse, const void *q, int64_t ldq,
                           const void *k, int64_t ldk, const void *v, int64_t ldv, const struct attention_shape *shape);
titan_status cpu_attention_dgrad(struct stream *s, void *dq, int64_t lddq, void *dk, int64_t lddk, void *dv,
                                 int64_t lddv, const void *dout, int64_t lddo, const void *out, int64_t ldo,
                                 const float *lse, const void *q, int64_t ldq, const void *k, int64_t ldk,
                                 const void *v, int64_t ldv, const struct attention_shape *shape, void *work);
size_t cpu_attention_work_bytes(struct device *dev, const struct attention_shape *shape);
titan_status cpu_attention_merge(struct stream *s, void *out, float *lse, const void *other, const float *other_lse,
                                 int64_t ld, enum dtype dt, int64_t n, int64_t h, int64_t dv);
/* swiglu.c */
titan_status cpu_swiglu(struct stream *s, void *out, const void *gate, const void *up, int64_t ldgu, enum dtype dt,
                        int64_t n, int64_t f);
titan_status cpu_swiglu_dgrad(struct stream *s, void *dgate, void *dup, int64_t lddgu, const void *dout,
                              const void *gate, const void *up, int64_t ldgu, enum dtype dt, int64_t n, int64_t f);
/* router.c */
titan_status cpu_router(struct stream *s, int32_t *chosen, float *weights, float *load, const void *logits,
                        const float *bias, const struct router_shape *shape);
titan_status cpu_router_dgrad(struct stream *s, void *dlogits, const float *dweights, const void *logits,
                              const int32_t *chosen, const struct router_shape *shape);
titan_status cpu_router_balance(struct stream *s, float *bias, float *load, int64_t experts, float rate);
/* permute.c */
titan_status cpu_permute(struct stream *s, int32_t *place, int32_t *counts, int32_t *rank_counts, const int32_t *chosen,
                         int64_t n, int64_t top_k, int64_t experts, int64_t ranks);
titan_status cpu_permute_received(struct stream *s, int32_t *place, int32_t *counts, int32_t *rank_counts,
                                  const int32_t *received, int64_t ranks, int64_t experts, int64_t rows);
titan_status cpu_scatter_rows(struct stream *s, void *dst, const void *src, const int32_t *place, const float *weights,
                              enum dtype dt, int64_t n, int64_t top_k, int64_t c);
titan_status cpu_combine_rows(struct stream *s, void *out, const void *src, const int32_t *place, const float *weights,
                              enum dtype dt, int64_t n, int64_t top_k, int64_t c);
titan_status cpu_combine_dweights(struct stream *s, float *dweights, const void *dout, const void *src,
                                  const int32_t *place, enum dtype dt, int64_t n, int64_t top_k, int64_t c);
/* loss.c */
titan_status cpu_loss_stats(struct stream *s, float *stats, const void *logits, const int32_t *targets, enum dtype dt,
                            int64_t n, int64_t v, int64_t first);
titan_status cpu_loss_finish(struct stream *s, float *losses, void *dlogits, const void *logits, const int32_t *targets,
                             const float *stats, int64_t parts, enum dtype dt, int64_t n, int64_t v, int64_t first);
/* sums.c */
titan_status cpu_add(struct stream *s, void *out, const void *a, const void *b, enum dtype dt, size_t n);
titan_status cpu_add_2d(struct stream *s, void *dst, int64_t ldd, const void *src, int64_t lds, enum dtype dt,
                        int64_t rows, int64_t cols, int64_t repeat);
titan_status cpu_accumulate(struct stream *s, float *dst, const float *src, size_t n);
titan_status cpu_scale(struct stream *s, float *x, float factor, size_t n);
titan_status cpu_block_sums(struct stream *s, double *out, const float *x, size_t n, size_t block, bool square);
titan_status cpu_sum(struct stream *s, double *out, bool add, const double *x, size_t n);
/* optim.c */
titan_status cpu_adamw(struct stream *s, float *master, float *m, float *v, const float *grad, uint16_t *shadow,
                       size_t n, const struct adamw_args *args);
titan_status cpu_sgd(struct stream *s, float *master, const float *grad, uint16_t *shadow, size_t n,
                     const struct adamw_args *args);

#endif
