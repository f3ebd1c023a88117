/* SPDX-License-Identifier: Apache-2.0 */
/* matmul.c - products by cuBLASLt: fp32 accumulation, no TF32, one heuristic search for each shape. */
#include <stdlib.h>
#include <string.h>

#include "worker/device/cuda/cuda.h"
#include "worker/device/cuda/matmul_map.h"

#define PLANS_MAX 1024 /* shapes of one run; a few dozen in practice */

/* What decides which algorithm is used. Compared as bytes, so it is zeroed before it is filled. */
struct plan_key {
    int64_t m, n, k, lda, ldb, ldc;
    uint32_t ta, tb, ab_dt, c_dt;
    uint32_t align_a, align_b, align_c; /* of the pointers: cuBLASLt's fast kernels need 16 bytes */
    uint32_t beta;
};

struct plan {
    struct plan_key key;
    cublasLtMatmulDesc_t op;
    cublasLtMatrixLayout_t first, second, out;
    cublasLtMatmulAlgo_t algo;
};

struct matmul_plans {
    pthread_mutex_t lock;
    struct plan *items[PLANS_MAX];
    int n;
};

titan_status matmul_plans_open(struct matmul_plans **ret, struct titan_error *err)
{
    struct matmul_plans *plans = calloc(1, sizeof *plans);
    if (!plans)
        return titan_fail(err, TITAN_ENOMEM, "no memory for product plans");
    (void)pthread_mutex_init(&plans->lock, NULL);
    *ret = plans;
    return TITAN_OK;
}

static void plan_free(struct plan *p)
{
    if (p->op)
        (void)cublasLtMatmulDescDestroy(p->op);
    if (p->first)
        (void)cublasLtMatrixLayoutDestroy(p->first);
    if (p->second)
        (void)cublasLtMatrixLayoutDestroy(p->second);
    if (p->out)
        (void)cublasLtMatrixLayoutDestroy(p->out);
    free(p);
}

void matmul_plans_close(struct matmul_plans *plans)
{
    if (!plans)
        return;
    for (int i = 0; i < plans->n; i++)
        plan_free(plans->items[i]);
    (void)pthread_mutex_destroy(&plans->lock);
    free(plans);
}

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

/* Operation and layouts of a key. */
static cublasStatus_t plan_describe(struct plan *p)
{
    const struct plan_key *key = &p->key;
    const struct matmul_map map = matmul_map(key->ta, key->lda, key->tb, key->ldb, key->ldc, key->m, key->n, key->k);
    const cublasOperation_t first = map.transpose_first ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t second = map.transpose_second ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cudaDataType_t ab = cuda_type((enum dtype)key->ab_dt);
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

static cublasStatus_t plan_search(struct plan *p, cublasLtHandle_t lt)
{
    cublasLtMatmulPreference_t pref = NULL;
    const size_t work = CUDA_MATMUL_WORK_BYTES;
    const struct plan_key *key = &p->key;
    cublasLtMatmulHeuristicResult_t found;
    int count = 0;
    cublasStatus_t st = cublasLtMatmulPreferenceCreate(&pref);
    if (st != CUBLAS_STATUS_SUCCESS)
        return st;
    const struct {
        cublasLtMatmulPreferenceAttributes_t attribute;
        const void *value;
        size_t bytes;
    } settings[] = {
        {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &work, sizeof work},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &key->align_b, sizeof key->align_b},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &key->align_a, sizeof key->align_a},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &key->align_c, sizeof key->align_c},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &key->align_c, sizeof key->align_c},
    };
    for (size_t i = 0; i < sizeof settings / sizeof settings[0] && st == CUBLAS_STATUS_SUCCESS; i++)
        st = cublasLtMatmulPreferenceSetAttribute(pref, settings[i].attribute, settings[i].value, settings[i].bytes);
    if (st == CUBLAS_STATUS_SUCCESS)
        st = cublasLtMatmulAlgoGetHeuristic(lt, p->op, p->first, p->second, p->out, p->out, pref, 1, &found, &count);
    if (st == CUBLAS_STATUS_SUCCESS && (count == 0 || found.state != CUBLAS_STATUS_SUCCESS))
        st = CUBLAS_STATUS_NOT_SUPPORTED;
    if (st == CUBLAS_STATUS_SUCCESS)
        p->algo = found.algo;
    (void)cublasLtMatmulPreferenceDestroy(pref);
    return st;
}

/* The plan of a key, made at its first use. */
static cublasStatus_t plan_get(struct device *dev, const struct plan_key *key, struct plan **ret)
{
    struct matmul_plans *plans = dev->plans;
    cublasStatus_t st = CUBLAS_STATUS_SUCCESS;
    struct plan *p = NULL;
    (void)pthread_mutex_lock(&plans->lock);
    for (int i = 0; i < plans->n; i++) {
        if (memcmp(&plans->items[i]->key, key, sizeof *key) == 0) {
            *ret = plans->items[i];
            goto out;
        }
    }
    p = plans->n < PLANS_MAX ? calloc(1, sizeof *p) : NULL;
    if (!p) {
        st = CUBLAS_STATUS_ALLOC_FAILED;
        goto out;
    }
    p->key = *key;
    st = plan_describe(p);
    if (st == CUBLAS_STATUS_SUCCESS)
        st = plan_search(p, dev->lt);
    if (st != CUBLAS_STATUS_SUCCESS) {
        plan_free(p);
        goto out;
    }
    titan_assert(plans->n < PLANS_MAX);
    plans->items[plans->n++] = p;
    *ret = p;
out:
    (void)pthread_mutex_unlock(&plans->lock);
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

titan_status cuda_matmul(struct stream *s, void *c, enum dtype c_dt, int64_t ldc, const void *a, bool ta, int64_t lda,
                         const void *b, bool tb, int64_t ldb, enum dtype ab_dt, int64_t m, int64_t n, int64_t k,
                         float beta)
{
    const bool types = (ab_dt == DTYPE_BF16 || ab_dt == DTYPE_F32) && (c_dt == ab_dt || c_dt == DTYPE_F32);
    const bool shapes = m >= 0 && n >= 0 && k >= 0 && lda >= (ta ? m : k) && ldb >= (tb ? k : n) && ldc >= n;
    if (!types || !shapes || (beta != 0.0f && beta != 1.0f))
        return TITAN_EINVAL;
    if (m == 0 || n == 0 || stream_skips(s))
        return TITAN_OK;
    if (k == 0 && beta == 1.0f)
        return TITAN_OK;
    if (k == 0)
        return stream_enqueued(s, "clearing a product",
                               (int)cudaMemset2DAsync(c, (size_t)ldc * dtype_bytes(c_dt), 0,
                                                      (size_t)n * dtype_bytes(c_dt), (size_t)m, s->native));
    if (!s->work) {
        cudaError_t e = cudaMalloc(&s->work, CUDA_MATMUL_WORK_BYTES);
        if (e != cudaSuccess)
            return stream_enqueued(s, "cuBLASLt workspace", (int)e);
    }
    struct plan_key key;
    memset(&key, 0, sizeof key);
    key.m = m, key.n = n, key.k = k, key.lda = lda, key.ldb = ldb, key.ldc = ldc;
    key.ta = ta, key.tb = tb, key.ab_dt = ab_dt, key.c_dt = c_dt, key.beta = beta == 1.0f;
    key.align_a = alignment(a), key.align_b = alignment(b), key.align_c = alignment(c);
    struct plan *p = NULL;
    cublasStatus_t st = plan_get(s->dev, &key, &p);
    if (st != CUBLAS_STATUS_SUCCESS)
        return matmul_failed(s, st);
    const float one = 1.0f;
    return matmul_failed(s, cublasLtMatmul(s->dev->lt, p->op, &one, b, p->first, a, p->second, &beta, c, p->out, c,
                                           p->out, &p->algo, s->work, CUDA_MATMUL_WORK_BYTES, s->native));
}
