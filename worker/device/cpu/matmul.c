/* SPDX-License-Identifier: Apache-2.0 */
/* matmul.c - matrix products through oneDNN (C API of 2.6): AMX or AVX-512 kernels made for each shape.
 *
 * A primitive costs 0.2 to 2 ms to make, and every step needs it again. So a table keeps each shape's primitive and its
 * memory objects. Transposes are strides. The table's lock is held while a product runs. So one OpenMP team runs at a
 * time, and all shapes use one piece of scratch; by default each primitive would keep its own. If oneDNN has no bf16
 * product, operands are widened and the product is fp32.
 *
 * The bits of a product do not depend on the number of threads. Without AVX-512, the bits of oneDNN's products would
 * depend on it. So on processors with AVX2 only, matmul_packed.c computes the product. */
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include <oneapi/dnnl/dnnl.h>

#include "worker/device/cpu/matmul.h"

#include "base/hash.h"
#include "worker/device/cpu/arith.h"
#include "worker/device/cpu/matmul_packed.h"

struct entry {
    bool used, widen; /* widen: no bf16 implementation for this shape */
    struct product_shape shape;
    dnnl_primitive_t primitive;
    dnnl_memory_t a, b, c, scratch;
    size_t scratch_bytes;
};

enum { TABLE = 1024, TABLE_FULL = 512 }; /* open addressing; the whole table is emptied when half full */

struct matmul_cache {
    pthread_mutex_t lock;
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    void *widened; /* fp32 copies of the running product's operands */
    void *scratch; /* scratch of the running primitive */
    size_t widened_bytes, scratch_bytes, count;
    struct entry table[TABLE];
};

static const char *dnnl_text(dnnl_status_t status)
{
    switch (status) {
    case dnnl_out_of_memory:
        return "out of memory";
    case dnnl_invalid_arguments:
        return "invalid arguments";
    case dnnl_unimplemented:
        return "not supported for this shape and type";
    case dnnl_runtime_error:
        return "runtime error";
    default:
        return "unexpected status";
    }
}

#define DNNL_TRY(err, call)                                                                                            \
    do {                                                                                                               \
        dnnl_status_t dnnl_status_ = (call);                                                                           \
        if (dnnl_status_ != dnnl_success)                                                                              \
            return titan_fail((err), dnnl_status_ == dnnl_out_of_memory ? TITAN_ENOMEM : TITAN_EDEVICE,                \
                              "oneDNN matmul: %s (%d)", dnnl_text(dnnl_status_), (int)dnnl_status_);                   \
    } while (0)

titan_status matmul_cache_open(struct device *dev, struct titan_error *err)
{
    struct matmul_cache *cache = calloc(1, sizeof(*cache));
    if (!cache)
        return titan_fail(err, TITAN_ENOMEM, "matmul: out of memory");
    pthread_mutex_init(&cache->lock, NULL);
    dev->matmul = cache;
    DNNL_TRY(err, dnnl_engine_create(&cache->engine, dnnl_cpu, 0));
    DNNL_TRY(err, dnnl_stream_create(&cache->stream, cache->engine, dnnl_stream_default_flags));
    return TITAN_OK;
}

static void entry_release(struct entry *e)
{
    if (e->a)
        dnnl_memory_destroy(e->a);
    if (e->b)
        dnnl_memory_destroy(e->b);
    if (e->c)
        dnnl_memory_destroy(e->c);
    if (e->scratch)
        dnnl_memory_destroy(e->scratch);
    if (e->primitive)
        dnnl_primitive_destroy(e->primitive);
    memset(e, 0, sizeof(*e));
}

static void table_empty(struct matmul_cache *cache)
{
    for (size_t i = 0; i < TABLE; i++) {
        if (cache->table[i].used)
            entry_release(&cache->table[i]);
    }
    cache->count = 0;
}

void matmul_cache_close(struct device *dev)
{
    struct matmul_cache *cache = dev->matmul;
    if (!cache)
        return;
    table_empty(cache);
    if (cache->stream)
        dnnl_stream_destroy(cache->stream);
    if (cache->engine)
        dnnl_engine_destroy(cache->engine);
    pthread_mutex_destroy(&cache->lock);
    free(cache->widened);
    free(cache->scratch);
    free(cache);
    dev->matmul = NULL;
}

/* Describes a row-major (rows, cols) matrix, optionally transposed. */
static dnnl_status_t describe(dnnl_memory_desc_t *md, int64_t rows, int64_t cols, int64_t ld, bool transposed,
                              uint8_t dt)
{
    titan_assert(rows > 0 && cols > 0 && ld >= (transposed ? rows : cols));
    dnnl_dims_t dims = {rows, cols};
    dnnl_dims_t strides = {transposed ? 1 : ld, transposed ? ld : 1};
    return dnnl_memory_desc_init_by_strides(md, 2, dims, dt == DTYPE_BF16 ? dnnl_bf16 : dnnl_f32, strides);
}

/* Makes the primitive of e->shape. An unimplemented bf16 product is marked to be widened. */
static titan_status entry_make(struct matmul_cache *cache, struct entry *e, struct titan_error *err)
{
    const struct product_shape *s = &e->shape;
    dnnl_memory_desc_t a, b, c;
    DNNL_TRY(err, describe(&a, s->m, s->k, s->lda, s->ta, s->ab_dt));
    DNNL_TRY(err, describe(&b, s->k, s->n, s->ldb, s->tb, s->ab_dt));
    DNNL_TRY(err, describe(&c, s->m, s->n, s->ldc, false, s->c_dt));
    dnnl_matmul_desc_t desc;
    DNNL_TRY(err, dnnl_matmul_desc_init(&desc, &a, &b, NULL, &c));
    dnnl_primitive_attr_t attr = NULL;
    dnnl_post_ops_t ops = NULL;
    dnnl_primitive_desc_t pd = NULL;
    dnnl_status_t st = dnnl_primitive_attr_create(&attr);
    if (st == dnnl_success)
        st = dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user);
    if (st == dnnl_success && s->accumulate) {
        st = dnnl_post_ops_create(&ops);
        if (st == dnnl_success)
            st = dnnl_post_ops_append_sum(ops, 1.0f);
        if (st == dnnl_success)
            st = dnnl_primitive_attr_set_post_ops(attr, ops);
    }
    if (st == dnnl_success)
        st = dnnl_primitive_desc_create(&pd, &desc, attr, cache->engine, NULL);
    if (st == dnnl_success)
        st = dnnl_primitive_create(&e->primitive, pd);
    if (st == dnnl_success) {
        const dnnl_memory_desc_t *md = dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
        titan_assert(!e->scratch);
        e->scratch_bytes = md ? dnnl_memory_desc_get_size(md) : 0;
        if (e->scratch_bytes > 0)
            st = dnnl_memory_create(&e->scratch, md, cache->engine, DNNL_MEMORY_NONE);
    }
    if (pd)
        dnnl_primitive_desc_destroy(pd);
    if (ops)
        dnnl_post_ops_destroy(ops);
    if (attr)
        dnnl_primitive_attr_destroy(attr);
    if (st == dnnl_unimplemented && s->ab_dt == DTYPE_BF16) {
        e->widen = true;
        return TITAN_OK;
    }
    DNNL_TRY(err, st);
    DNNL_TRY(err, dnnl_memory_create(&e->a, &a, cache->engine, DNNL_MEMORY_NONE));
    DNNL_TRY(err, dnnl_memory_create(&e->b, &b, cache->engine, DNNL_MEMORY_NONE));
    DNNL_TRY(err, dnnl_memory_create(&e->c, &c, cache->engine, DNNL_MEMORY_NONE));
    return TITAN_OK;
}

static titan_status entry_find(struct matmul_cache *cache, const struct product_shape *s, struct entry **ret,
                               struct titan_error *err)
{
    titan_assert(cache->count <= TABLE_FULL);
    if (cache->count >= TABLE_FULL)
        table_empty(cache);
    uint64_t words[sizeof *s / 8], hash = HASH_INIT;
    memcpy(words, s, sizeof words);
    for (size_t w = 0; w < ARRAY_SIZE(words); w++)
        hash = hash_mix(hash ^ words[w]);
    size_t i = hash % TABLE;
    while (cache->table[i].used && memcmp(&cache->table[i].shape, s, sizeof(*s)) != 0)
        i = (i + 1) % TABLE;
    struct entry *e = &cache->table[i];
    if (!e->used) {
        e->shape = *s;
        titan_status status = entry_make(cache, e, err);
        if (status != TITAN_OK) {
            entry_release(e);
            return status;
        }
        e->used = true;
        cache->count++;
    }
    *ret = e;
    return TITAN_OK;
}

static titan_status reserve(void **memory, size_t *have, size_t bytes, struct titan_error *err)
{
    const size_t align = 4096;

    titan_assert(bytes > 0);
    if (*have >= bytes)
        return TITAN_OK;
    free(*memory);
    *have = 0;
    *memory = aligned_alloc(align, (bytes + align - 1) / align * align);
    if (!*memory)
        return titan_fail(err, TITAN_ENOMEM, "matmul: %zu bytes of scratch cannot be had", bytes);
    cpu_huge_pages(*memory, bytes);
    *have = bytes;
    return TITAN_OK;
}

static titan_status entry_run(struct matmul_cache *cache, struct entry *e, const void *a, const void *b, void *c,
                              struct titan_error *err)
{
    DNNL_TRY(err, dnnl_memory_set_data_handle(e->a, (void *)a));
    DNNL_TRY(err, dnnl_memory_set_data_handle(e->b, (void *)b));
    DNNL_TRY(err, dnnl_memory_set_data_handle(e->c, c));
    if (e->scratch) {
        TRY(reserve(&cache->scratch, &cache->scratch_bytes, e->scratch_bytes, err));
        DNNL_TRY(err, dnnl_memory_set_data_handle(e->scratch, cache->scratch));
    }
    dnnl_exec_arg_t args[] = {
        {DNNL_ARG_SRC, e->a}, {DNNL_ARG_WEIGHTS, e->b}, {DNNL_ARG_DST, e->c}, {DNNL_ARG_SCRATCHPAD, e->scratch}};
    DNNL_TRY(err, dnnl_primitive_execute(e->primitive, cache->stream, e->scratch ? 4 : 3, args));
    DNNL_TRY(err, dnnl_stream_wait(cache->stream));
    return TITAN_OK;
}

struct widen_args {
    void *dst;
    const void *src;
    int64_t lds, cols;
    bool narrow;
};

/* Copies strided bf16 rows to dense fp32 rows, or back. */
static void widen_range(const void *p, int64_t begin, int64_t end, int thread)
{
    const struct widen_args *a = p;
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        if (a->narrow)
            cpu_cast_f32_bf16((uint16_t *)a->dst + i * a->lds, (const float *)a->src + i * a->cols, a->cols);
        else
            cpu_cast_bf16_f32((float *)a->dst + i * a->cols, (const uint16_t *)a->src + i * a->lds, a->cols);
    }
}

/* Runs a bf16 product in fp32 on widened copies. */
static titan_status run_widened(const struct cpu_context *ctx, struct matmul_cache *cache, const struct product *a)
{
    struct product_shape s = a->shape;
    titan_assert(s.ab_dt == DTYPE_BF16);
    int64_t a_rows = s.ta ? s.k : s.m, a_cols = s.ta ? s.m : s.k;
    int64_t b_rows = s.tb ? s.n : s.k, b_cols = s.tb ? s.k : s.n;
    bool narrow = s.c_dt == DTYPE_BF16;
    size_t words = (size_t)(a_rows * a_cols + b_rows * b_cols + (narrow ? s.m * s.n : 0));
    TRY(reserve(&cache->widened, &cache->widened_bytes, words * sizeof(float), ctx->err));
    float *wa = cache->widened, *wb = wa + a_rows * a_cols, *wc = wb + b_rows * b_cols;
    struct widen_args in_a = {wa, a->a, s.lda, a_cols, false}, in_b = {wb, a->b, s.ldb, b_cols, false};
    cpu_for(ctx, a_rows, 1 + (1 << 14) / a_cols, widen_range, &in_a);
    cpu_for(ctx, b_rows, 1 + (1 << 14) / b_cols, widen_range, &in_b);
    s.lda = a_cols;
    s.ldb = b_cols;
    s.ab_dt = DTYPE_F32;
    if (narrow) {
        s.c_dt = DTYPE_F32;
        s.ldc = s.n;
        if (s.accumulate) {
            struct widen_args in_c = {wc, a->c, a->shape.ldc, s.n, false};
            cpu_for(ctx, s.m, 1 + (1 << 14) / s.n, widen_range, &in_c);
        }
    }
    const struct product wide = {s, wa, wb, narrow ? wc : a->c};
    struct entry *e;
    titan_status status = entry_find(cache, &s, &e, ctx->err);
    if (status == TITAN_OK)
        status = entry_run(cache, e, wide.a, wide.b, wide.c, ctx->err);
    if (status == TITAN_OK && narrow) {
        struct widen_args out = {a->c, wc, a->shape.ldc, s.n, true};
        cpu_for(ctx, s.m, 1 + (1 << 14) / s.n, widen_range, &out);
    }
    return status;
}

titan_status product_run(const struct cpu_context *ctx, const struct product *a)
{
    const struct product_shape *s = &a->shape;
    titan_assert(s->m > 0 && s->n > 0 && s->k >= 0);
    struct matmul_cache *cache = ctx->dev->matmul;
    if (s->k == 0) { /* the product is 0 */
        for (int64_t i = 0; i < s->m && !s->accumulate; i++)
            memset(at_mut(a->c, i * s->ldc, s->c_dt), 0, (size_t)s->n * dtype_bytes(s->c_dt));
        return TITAN_OK;
    }
    pthread_mutex_lock(&cache->lock);
    omp_set_num_threads(ctx->threads); /* for the calling thread; oneDNN reads it */
    struct entry *e;
    titan_status status = TITAN_OK;
    if (ctx->dev->isa.avx2 && !ctx->dev->isa.avx512) {
        const struct matmul_packed z = {.m = s->m,
                                        .n = s->n,
                                        .k = s->k,
                                        .a_row = s->ta ? 1 : s->lda,
                                        .a_col = s->ta ? s->lda : 1,
                                        .b_row = s->tb ? 1 : s->ldb,
                                        .b_col = s->tb ? s->ldb : 1,
                                        .ldc = s->ldc,
                                        .a = a->a,
                                        .b = a->b,
                                        .c = a->c,
                                        .ab_dt = (enum dtype)s->ab_dt,
                                        .c_dt = (enum dtype)s->c_dt,
                                        .accumulate = s->accumulate};
        status =
            reserve(&cache->scratch, &cache->scratch_bytes, matmul_packed_scratch_bytes(&z, ctx->threads), ctx->err);
        if (status == TITAN_OK)
            matmul_packed_run(&z, ctx->threads, cache->scratch);
    } else {
        status = entry_find(cache, s, &e, ctx->err);
        if (status == TITAN_OK)
            status = e->widen ? run_widened(ctx, cache, a) : entry_run(cache, e, a->a, a->b, a->c, ctx->err);
    }
    pthread_mutex_unlock(&cache->lock);
    return status;
}

static titan_status run_matmul(const struct cpu_context *ctx, const void *p)
{
    return product_run(ctx, p);
}

struct product product_of(const struct matmul_args *a)
{
    titan_assert(matmul_args_valid(a));
    return (struct product){.shape = {.m = a->m,
                                      .n = a->n,
                                      .k = a->k,
                                      .lda = a->lda,
                                      .ldb = a->ldb,
                                      .ldc = a->ldc,
                                      .ta = a->ta,
                                      .tb = a->tb,
                                      .ab_dt = (uint8_t)a->ab_dt,
                                      .c_dt = (uint8_t)a->c_dt,
                                      .accumulate = a->beta == 1.0f},
                            .a = a->a,
                            .b = a->b,
                            .c = a->c};
}

titan_status cpu_matmul(struct stream *s, const struct matmul_args *a)
{
    if (!matmul_args_valid(a))
        return TITAN_EINVAL;
    if (a->m == 0 || a->n == 0)
        return TITAN_OK;
    const struct product product = product_of(a);
    return cpu_enqueue(s, run_matmul, &product, sizeof product);
}
