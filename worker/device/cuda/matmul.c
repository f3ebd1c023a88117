/* SPDX-License-Identifier: Apache-2.0 */
/* matmul.c - products by cuBLASLt: fp32 accumulation, no TF32. */
#include <string.h>

#include "worker/device/cuda/cuda.h"
#include "worker/device/cuda/matmul_map.h"
#include "worker/device/cuda/product_plans.h"

/* The properties that decide which algorithm is used. Keys are compared as bytes, so a key is zeroed before it is
 * filled. */
struct plan_key {
    int64_t m, n, k, lda, ldb, ldc;
    uint32_t ta, tb, ab_dt, c_dt;
    uint32_t align_a, align_b, align_c;
    uint32_t beta;
};

static cudaDataType_t cuda_type(enum dtype dt)
{
    return dt == DTYPE_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

/* The largest power of two up to 256 that divides the address. */
static uint32_t alignment(const void *ptr)
{
    uintptr_t bits = (uintptr_t)ptr | 256;
    titan_assert(bits >= 256);
    return (uint32_t)(bits & (~bits + 1));
}

static cublasStatus_t layout_create(cublasLtMatrixLayout_t *ret, cudaDataType_t type, const struct matmul_layout *l)
{
    return cublasLtMatrixLayoutCreate(ret, type, l->rows, l->columns, l->ld);
}

/* Describes the operation and layouts of a key to cuBLASLt. */
static cublasStatus_t describe(struct product_plan *p, const void *with)
{
    const struct plan_key *const key = with;
    const struct matmul_map map =
        matmul_map(ARGS(matmul, .ta = key->ta, .lda = key->lda, .tb = key->tb, .ldb = key->ldb, .ldc = key->ldc,
                        .m = key->m, .n = key->n, .k = key->k));
    const cublasOperation_t first = map.transpose_first ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t second = map.transpose_second ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cudaDataType_t ab = cuda_type((enum dtype)key->ab_dt);
    p->align_first = key->align_b, p->align_second = key->align_a, p->align_out = key->align_c;
    cublasStatus_t st = cublasLtMatmulDescCreate(&p->op, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (st == CUBLAS_STATUS_SUCCESS)
        st = cublasLtMatmulDescSetAttribute(p->op, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first);
    if (st == CUBLAS_STATUS_SUCCESS)
        st = cublasLtMatmulDescSetAttribute(p->op, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second);
    if (st == CUBLAS_STATUS_SUCCESS)
        st = layout_create(&p->first, ab, &map.first);
    if (st == CUBLAS_STATUS_SUCCESS)
        st = layout_create(&p->second, ab, &map.second);
    if (st == CUBLAS_STATUS_SUCCESS)
        st = layout_create(&p->out, cuda_type((enum dtype)key->c_dt), &map.out);
    return st;
}

static titan_status matmul_failed(struct stream *s, cublasStatus_t st)
{
    if (st == CUBLAS_STATUS_SUCCESS)
        return TITAN_OK;
    struct titan_error err;
    (void)titan_fail(&err, TITAN_EDEVICE, "matrix product: %s", cublasLtGetStatusString(st));
    return stream_fail_now(s, TITAN_EDEVICE, err.msg);
}

titan_status cuda_ops_matmul(struct stream *s, const struct matmul_args *a)
{
    if (!matmul_args_valid(a))
        return TITAN_EINVAL;
    if (a->m == 0 || a->n == 0 || stream_skips(s))
        return TITAN_OK;
    if (a->k == 0 && a->beta == 1.0f)
        return TITAN_OK;
    if (a->k == 0)
        return stream_enqueued(s, "clearing a product",
                               (int)cudaMemset2DAsync(a->c, (size_t)a->ldc * dtype_bytes(a->c_dt), 0,
                                                      (size_t)a->n * dtype_bytes(a->c_dt), (size_t)a->m, s->native));
    if (!s->work) {
        cudaError_t e = cudaMalloc(&s->work, CUDA_MATMUL_WORK_BYTES);
        if (e != cudaSuccess)
            return stream_enqueued(s, "cuBLASLt workspace", (int)e);
    }
    struct plan_key key;
    memset(&key, 0, sizeof key);
    key.m = a->m, key.n = a->n, key.k = a->k, key.lda = a->lda, key.ldb = a->ldb, key.ldc = a->ldc;
    key.ta = a->ta, key.tb = a->tb, key.ab_dt = a->ab_dt, key.c_dt = a->c_dt, key.beta = a->beta == 1.0f;
    key.align_a = alignment(a->a), key.align_b = alignment(a->b), key.align_c = alignment(a->c);
    struct product_plans *const plans = s->dev->plans;
    (void)pthread_mutex_lock(&plans->lock);
    struct product_plan *const p = product_plan_of(plans, s->dev->lt, &key, sizeof key, describe);
    (void)pthread_mutex_unlock(&plans->lock);
    if (!p || p->status != CUBLAS_STATUS_SUCCESS)
        return matmul_failed(s, p ? p->status : CUBLAS_STATUS_ALLOC_FAILED);
    const struct product_call call = {.first = a->b, .second = a->a, .out = a->c, .keep = a->beta};
    return matmul_failed(s, product_run(s, plans, p, &call));
}
