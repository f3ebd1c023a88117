/* SPDX-License-Identifier: Apache-2.0 */
/* matmul_f8.c - products in float8 and int8: operands become codes, dense along k (float8.cu), and cuBLASLt multiplies
 * them. Where cuBLASLt can, it undoes the scales itself. Otherwise the sums are fp32, or int32 of int8, a few rows at a
 * time, and a kernel undoes the scales. cuBLASLt always undoes MXFP8's scales (mxfp8.cu), on GPUs from Blackwell on. */
#include <string.h>

#include "base/cleanup.h"
#include "worker/device/cuda/cuda.h"
#include "worker/device/cuda/enqueue.h"
#include "worker/device/cuda/kernels.h"
#include "worker/device/cuda/mx_scales.h"
#include "worker/device/cuda/product_plans.h"

#define STEP 16                           /* codes, rows and columns of a product must be multiples of this */
#define SUMS_BYTES_MAX ((size_t)64 << 20) /* most bytes of sums whose scales a kernel undoes */

/* Who undoes the scales, and which scales. */
enum scaling { SCALE_ONE, SCALE_LINES, SCALE_BY_KERNEL, SCALE_BLOCKS, SCALE_INTEGERS, SCALINGS };

/* A product's key. Keys are compared as bytes, so a key is zeroed before it is filled. */
struct plan_key {
    int64_t m, n, k, ldc;
    uint32_t a_e5m2, b_e5m2, c_dt, accumulate, scaling, fast;
};

/* --- plans -------------------------------------------------------------------------------------------------------- */

static cudaDataType_t code_type(const struct plan_key *key, bool e5m2)
{
    return key->scaling == SCALE_INTEGERS ? CUDA_R_8I : e5m2 ? CUDA_R_8F_E5M2 : CUDA_R_8F_E4M3;
}

#define STEP_OK(st, call) ((st) == CUBLAS_STATUS_SUCCESS ? (call) : (st))

/* Describes c^T = b^T a^T, column-major. b's codes come first, transposed. Both operands have k as leading
 * dimension. */
static cublasStatus_t describe(struct product_plan *p, const void *with)
{
    const struct plan_key *const key = with;
    const cublasOperation_t transposed = CUBLAS_OP_T, plain = CUBLAS_OP_N;
    const int32_t mode = key->scaling == SCALE_LINES ? CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F
                                                     : CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0;
    const int8_t fast = (int8_t)key->fast;
    p->align_first = p->align_second = p->align_out = STEP;
    p->integers = key->scaling == SCALE_INTEGERS;
    cublasStatus_t st = p->integers ? cublasLtMatmulDescCreate(&p->op, CUBLAS_COMPUTE_32I, CUDA_R_32I)
                                    : cublasLtMatmulDescCreate(&p->op, CUBLAS_COMPUTE_32F, CUDA_R_32F);

    st =
        STEP_OK(st, cublasLtMatmulDescSetAttribute(p->op, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed));
    st = STEP_OK(st, cublasLtMatmulDescSetAttribute(p->op, CUBLASLT_MATMUL_DESC_TRANSB, &plain, sizeof plain));
    if (!p->integers)
        st = STEP_OK(st, cublasLtMatmulDescSetAttribute(p->op, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof fast));
    if (key->scaling == SCALE_LINES || key->scaling == SCALE_BLOCKS) {
        st = STEP_OK(st, cublasLtMatmulDescSetAttribute(p->op, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &mode, sizeof mode));
        st = STEP_OK(st, cublasLtMatmulDescSetAttribute(p->op, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &mode, sizeof mode));
    }
    st = STEP_OK(st, cublasLtMatrixLayoutCreate(&p->first, code_type(key, key->b_e5m2), (uint64_t)key->k,
                                                (uint64_t)key->n, key->k));
    st = STEP_OK(st, cublasLtMatrixLayoutCreate(&p->second, code_type(key, key->a_e5m2), (uint64_t)key->k,
                                                (uint64_t)key->m, key->k));
    return STEP_OK(st, cublasLtMatrixLayoutCreate(&p->out,
                                                  p->integers               ? CUDA_R_32I
                                                  : key->c_dt == DTYPE_BF16 ? CUDA_R_16BF
                                                                            : CUDA_R_32F,
                                                  (uint64_t)key->n, (uint64_t)key->m, key->ldc));
}

/* --- a product ---------------------------------------------------------------------------------------------------- */

struct product {
    struct float8_operand a, b;
    void *c;
    void *sums;
    size_t sums_bytes;
    int64_t m, n, ldc; /* sizes of c, without padding */
    enum dtype c_dt;
    bool accumulate, fast, blocks, int8;
};

static const void *scales_of(const struct float8_operand *o, enum scaling scaling, int64_t first)
{
    if (scaling == SCALE_BLOCKS) {
        titan_assert(first % MX_TILE_LINES == 0);
        return o->scales + mx_scales_bytes(first, o->kp / MX_BLOCK);
    }
    return o->inverse + (scaling == SCALE_LINES ? first : 0);
}

/* Rows of a from `first` on, and where their products with all of b go. */
struct part {
    int64_t first, rows, ldc, n;
    void *c;
    enum dtype c_dt;
    bool accumulate;
};

/* Multiplies a part. If the status is NOT_SUPPORTED, the caller tries another scaling. */
static cublasStatus_t multiply(struct stream *s, const struct product *x, enum scaling scaling, const struct part *of)
{
    struct product_plans *const plans = s->dev->code_plans;
    const bool scaled = scaling != SCALE_BY_KERNEL && scaling != SCALE_INTEGERS;
    const struct product_call call = {
        .first = x->b.codes,
        .second = x->a.codes + of->first * x->a.kp,
        .out = of->c,
        .keep = of->accumulate ? 1.0f : 0.0f,
        .scale_first = scaled ? scales_of(&x->b, scaling, 0) : NULL,
        .scale_second = scaled ? scales_of(&x->a, scaling, of->first) : NULL,
    };
    struct plan_key key;
    cublasStatus_t st = CUBLAS_STATUS_SUCCESS;

    titan_assert(scaling < SCALINGS && of->rows > 0 && of->n >= x->n);
    memset(&key, 0, sizeof key);
    key.m = of->rows, key.n = of->n, key.k = x->a.kp, key.ldc = of->ldc;
    key.a_e5m2 = x->a.e5m2, key.b_e5m2 = x->b.e5m2, key.c_dt = of->c_dt, key.accumulate = of->accumulate;
    key.scaling = scaling, key.fast = x->fast;
    (void)pthread_mutex_lock(&plans->lock);
    struct product_plan *const p = product_plan_of(plans, s->dev->lt, &key, sizeof key, describe);
    if (!p || p->status != CUBLAS_STATUS_SUCCESS)
        st = CUBLAS_STATUS_NOT_SUPPORTED;
    st = STEP_OK(st, product_run(s, plans, p, &call));
    (void)pthread_mutex_unlock(&plans->lock);
    return st;
}

static int64_t up_to_step(int64_t n)
{
    return (n + STEP - 1) / STEP * STEP;
}

/* A part's rows are a multiple of this; with blocks it is a whole tile of scales. */
static int64_t rows_step(bool blocks)
{
    return blocks ? MX_TILE_LINES : STEP;
}

static cublasStatus_t multiply_in_parts(struct stream *s, const struct product *x, int *ret_error)
{
    const int64_t ld = up_to_step(x->n), step = rows_step(x->blocks);
    const enum scaling scaling = x->int8 ? SCALE_INTEGERS : x->blocks ? SCALE_BLOCKS : SCALE_BY_KERNEL;
    const int64_t most = (int64_t)(x->sums_bytes / sizeof(float)) / ld / step * step;
    titan_assert(most >= step);

    for (int64_t i = 0; i < x->m; i += most) {
        const int64_t rows = MIN(most, x->m - i);
        const struct part part = {
            .first = i, .rows = up_to_step(rows), .c = x->sums, .ldc = ld, .n = ld, .c_dt = DTYPE_F32};
        const cublasStatus_t st = multiply(s, x, scaling, &part);
        if (st != CUBLAS_STATUS_SUCCESS)
            return st;
        const struct float8_sums sums = {.c = (char *)x->c + (size_t)(i * x->ldc) * dtype_bytes(x->c_dt),
                                         .bf16 = x->c_dt == DTYPE_BF16,
                                         .ldc = x->ldc,
                                         .sums = x->sums,
                                         .ld = ld,
                                         .a = x->blocks ? NULL : x->a.inverse + i,
                                         .b = x->blocks ? NULL : x->b.inverse,
                                         .rows = rows,
                                         .n = x->n,
                                         .accumulate = x->accumulate,
                                         .int8 = x->int8};
        *ret_error = cuda_float8_unscale(s->native, &sums);
        if (*ret_error)
            return CUBLAS_STATUS_SUCCESS;
    }
    return CUBLAS_STATUS_SUCCESS;
}

/* --- memory ------------------------------------------------------------------------------------------------------- */

static size_t aligned(size_t bytes)
{
    return (bytes + 255) & ~(size_t)255;
}
static int64_t padded(int64_t k, bool blocks)
{
    return blocks ? (k + MX_BLOCK - 1) / MX_BLOCK * MX_BLOCK : up_to_step(k);
}
static size_t codes_bytes(int64_t lines, int64_t k, bool blocks)
{
    return aligned((size_t)(up_to_step(lines) * padded(k, blocks)));
}
static size_t block_bytes(int64_t lines, int64_t k)
{
    return aligned(mx_scales_bytes(lines, padded(k, true) / MX_BLOCK));
}
static size_t line_bytes(int64_t lines)
{
    return aligned((size_t)up_to_step(lines) * sizeof(float));
}
static size_t sums_bytes(int64_t m, int64_t n, bool blocks)
{
    const size_t all = (size_t)up_to_step(m) * (size_t)up_to_step(n) * sizeof(float);
    const size_t least = (size_t)rows_step(blocks) * (size_t)up_to_step(n) * sizeof(float);
    return aligned(MAX(least, MIN(all, SUMS_BYTES_MAX)));
}

size_t cuda_ops_matmul_f8_work_bytes(struct device *dev, enum dtype ab_dt, bool blocks, int64_t m, int64_t n, int64_t k)
{
    const size_t scales = blocks ? block_bytes(m, k) + block_bytes(n, k) : 2 * line_bytes(m) + 2 * line_bytes(n);
    (void)dev, (void)ab_dt;
    return codes_bytes(m, k, blocks) + codes_bytes(n, k, blocks) + scales + sums_bytes(m, n, blocks) + 256;
}

static void *cut(char **from, size_t bytes)
{
    void *const piece = *from;
    *from += bytes;
    return piece;
}

static void place(struct float8_operand *o, bool blocks, char **from)
{
    o->kp = padded(o->k, blocks);
    o->codes = cut(from, codes_bytes(o->lines, o->k, blocks));
    if (blocks) {
        o->scales = cut(from, block_bytes(o->lines, o->k));
        return;
    }
    o->inverse = cut(from, line_bytes(o->lines));
    o->largest = cut(from, line_bytes(o->lines));
}

titan_status cuda_ops_matmul_f8(struct stream *s, const struct matmul_args *a)
{
    const struct float8_product *const how = a->how;
    if (!s->dev->float8 || (how->blocks && !s->dev->mxfp8))
        return TITAN_EUNSUPPORTED;
    if (!matmul_args_valid(a) || !float8_product_valid(how) || !rows_fit(a->m, a->k) || !rows_fit(a->n, a->k))
        return TITAN_EINVAL;
    if (a->m == 0 || a->n == 0 || a->k == 0)
        return cuda_ops_matmul(s, a);
    if (stream_skips(s))
        return TITAN_OK;
    titan_assert(s->work && a->work);
    char *at = (char *)(((uintptr_t)a->work + 255) & ~(uintptr_t)255);
    struct product x = {.c = a->c, .m = a->m, .n = a->n, .ldc = a->ldc, .c_dt = a->c_dt, .accumulate = a->beta == 1.0f};
    x.blocks = how->blocks;
    x.a = (struct float8_operand){
        .src = a->a, .e5m2 = how->a == FLOAT8_E5M2, .by_line = how->a_lines, .lines = a->m, .k = a->k};
    x.b = (struct float8_operand){
        .src = a->b, .e5m2 = how->b == FLOAT8_E5M2, .by_line = how->b_lines, .lines = a->n, .k = a->k};
    x.a.line = a->ta ? 1 : a->lda, x.a.along = a->ta ? a->lda : 1;
    x.b.line = a->tb ? a->ldb : 1, x.b.along = a->tb ? 1 : a->ldb;
    x.a.bf16 = x.b.bf16 = a->ab_dt == DTYPE_BF16;
    x.a.power_of_two = x.b.power_of_two = how->power_of_two;
    x.a.given = how->a_given, x.b.given = how->b_given;
    x.fast = !a->ta && a->tb && !x.a.e5m2 && !x.blocks; /* only for the forward product, as in torchao */
    place(&x.a, x.blocks, &at);
    place(&x.b, x.blocks, &at);
    if (how->b_scale && a->tb && a->ldb == x.b.kp && a->k == x.b.kp && ((uintptr_t)a->b & (STEP - 1)) == 0 &&
        a->n % STEP == 0)
        x.b.codes = (uint8_t *)(uintptr_t)a->b; /* these codes are already in the final form */
    x.sums_bytes = sums_bytes(a->m, a->n, x.blocks);
    x.sums = cut(&at, x.sums_bytes);

    int (*const make)(void *, const struct float8_operand *) = x.blocks ? cuda_mxfp8 : cuda_float8;
    int e = make(s->native, &x.a);
    if (!e)
        e = how->b_scale ? cuda_float8_take(s->native, &x.b, how->b_scale) : make(s->native, &x.b);
    const enum scaling direct = x.blocks ? SCALE_BLOCKS : how->a_lines || how->b_lines ? SCALE_LINES : SCALE_ONE;
    cublasStatus_t st = CUBLAS_STATUS_NOT_SUPPORTED;
    const struct part whole = {
        .rows = x.m, .c = x.c, .ldc = x.ldc, .n = x.n, .c_dt = x.c_dt, .accumulate = x.accumulate};
    /* the product can go straight into c if c's rows and columns meet cuBLASLt's limits */
    if (!e && x.m % STEP == 0 && x.n % STEP == 0 && ((uintptr_t)x.c & 15) == 0 &&
        (size_t)x.ldc * dtype_bytes(x.c_dt) % 16 == 0)
        st = multiply(s, &x, direct, &whole);
    if (!e && st == CUBLAS_STATUS_NOT_SUPPORTED)
        st = multiply_in_parts(s, &x, &e);
    if (e)
        return stream_enqueued(s, "a float8 product", e);
    if (st == CUBLAS_STATUS_SUCCESS)
        return TITAN_OK;
    struct titan_error err;
    (void)titan_fail(&err, TITAN_EDEVICE, "float8 product: %s", cublasLtGetStatusString(st));
    return stream_fail_now(s, TITAN_EDEVICE, err.msg);
}

size_t cuda_ops_matmul_i8_work_bytes(struct device *dev, enum dtype ab_dt, int64_t m, int64_t n, int64_t k)
{
    return cuda_ops_matmul_f8_work_bytes(dev, ab_dt, false, m, n, k);
}

titan_status cuda_ops_matmul_i8(struct stream *s, const struct matmul_args *a)
{
    if (!matmul_args_valid(a) || a->ta || a->k > INT8_DEPTH_MAX || !rows_fit(a->m, a->k) || !rows_fit(a->n, a->k))
        return TITAN_EINVAL;
    if (a->m == 0 || a->n == 0 || a->k == 0)
        return cuda_ops_matmul(s, a);
    if (stream_skips(s))
        return TITAN_OK;
    titan_assert(s->work && a->work);
    char *at = (char *)(((uintptr_t)a->work + 255) & ~(uintptr_t)255);
    struct product x = {
        .c = a->c, .m = a->m, .n = a->n, .ldc = a->ldc, .c_dt = a->c_dt, .accumulate = a->beta == 1.0f, .int8 = true};
    x.a = (struct float8_operand){.src = a->a, .by_line = true, .lines = a->m, .k = a->k, .line = a->lda, .along = 1};
    x.b = (struct float8_operand){.src = a->b, .by_line = a->int8->b_lines, .lines = a->n, .k = a->k};
    x.b.line = a->tb ? a->ldb : 1, x.b.along = a->tb ? 1 : a->ldb;
    x.a.bf16 = x.b.bf16 = a->ab_dt == DTYPE_BF16;
    x.a.int8 = x.b.int8 = true;
    place(&x.a, false, &at);
    place(&x.b, false, &at);
    x.sums_bytes = sums_bytes(a->m, a->n, false);
    x.sums = cut(&at, x.sums_bytes);

    int e = cuda_float8(s->native, &x.a);
    if (!e)
        e = cuda_float8(s->native, &x.b);
    const cublasStatus_t st = e ? CUBLAS_STATUS_SUCCESS : multiply_in_parts(s, &x, &e);
    if (e)
        return stream_enqueued(s, "an int8 product", e);
    if (st == CUBLAS_STATUS_SUCCESS)
        return TITAN_OK;
    struct titan_error err;
    (void)titan_fail(&err, TITAN_EDEVICE, "int8 product: %s", cublasLtGetStatusString(st));
    return stream_fail_now(s, TITAN_EDEVICE, err.msg);
}

/* --- rows that are kept ------------------------------------------------------------------------------------------- */

titan_status cuda_ops_rows_encode(struct stream *s, const struct rows_encode_args *a)
{
    if (!compute_type(a->dt) || !rows_fit(a->n, a->c))
        return TITAN_EINVAL;
    if (a->n == 0 || a->c == 0)
        return TITAN_OK;
    const struct float8_operand rows = {.src = a->x,
                                        .bf16 = a->dt == DTYPE_BF16,
                                        .int8 = true,
                                        .by_line = true,
                                        .lines = a->n,
                                        .k = a->c,
                                        .line = a->c,
                                        .along = 1,
                                        .kp = int8_row_codes(a->c),
                                        .codes = a->codes,
                                        .inverse = (float *)(void *)(a->codes + a->n * int8_row_codes(a->c))};
    return ENQUEUE(s, "codes of rows", cuda_float8(s->native, &rows));
}

titan_status cuda_ops_rows_decode(struct stream *s, const struct rows_decode_args *a)
{
    if (!compute_type(a->dt) || !rows_fit(a->n, a->c))
        return TITAN_EINVAL;
    return ENQUEUE(s, "rows of codes", cuda_rows_decode(s->native, a));
}
