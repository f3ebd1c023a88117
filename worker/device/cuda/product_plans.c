/* SPDX-License-Identifier: Apache-2.0 */
/* product_plans.c - see product_plans.h: one heuristic search for each product. */
#include "worker/device/cuda/product_plans.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/hash.h"

titan_status product_plans_open(struct product_plans **ret, struct titan_error *err)
{
    struct product_plans *const plans = calloc(1, sizeof *plans);
    if (!plans)
        return titan_fail(err, TITAN_ENOMEM, "no memory for product plans");
    (void)pthread_mutex_init(&plans->lock, NULL);
    *ret = plans;
    return TITAN_OK;
}

void product_plans_close(struct product_plans *plans)
{
    if (!plans)
        return;
    for (int i = 0; i < plans->n; i++) {
        struct product_plan *const p = plans->items[i];
        const cublasLtMatrixLayout_t layouts[] = {p->first, p->second, p->out};
        if (p->op)
            (void)cublasLtMatmulDescDestroy(p->op);
        for (size_t j = 0; j < ARRAY_SIZE(layouts); j++)
            if (layouts[j])
                (void)cublasLtMatrixLayoutDestroy(layouts[j]);
        free(p);
    }
    (void)pthread_mutex_destroy(&plans->lock);
    free(plans);
}

cublasStatus_t product_search(const struct product_plan *p, cublasLtHandle_t lt, int most,
                              cublasLtMatmulHeuristicResult_t *ret, int *ret_n)
{
    cublasLtMatmulPreference_t preference = NULL;
    const size_t work = CUDA_MATMUL_WORK_BYTES;
    int count = 0;
    const struct {
        cublasLtMatmulPreferenceAttributes_t attribute;
        const void *value;
        size_t bytes;
    } settings[] = {
        {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &work, sizeof work},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &p->align_first, sizeof p->align_first},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &p->align_second, sizeof p->align_second},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &p->align_out, sizeof p->align_out},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &p->align_out, sizeof p->align_out},
    };
    titan_assert(p->align_first > 0 && p->align_second > 0 && p->align_out > 0 && most > 0);
    cublasStatus_t st = cublasLtMatmulPreferenceCreate(&preference);
    if (st != CUBLAS_STATUS_SUCCESS)
        return st;
    for (size_t i = 0; i < ARRAY_SIZE(settings) && st == CUBLAS_STATUS_SUCCESS; i++)
        st = cublasLtMatmulPreferenceSetAttribute(preference, settings[i].attribute, settings[i].value,
                                                  settings[i].bytes);
    if (st == CUBLAS_STATUS_SUCCESS)
        st = cublasLtMatmulAlgoGetHeuristic(lt, p->op, p->first, p->second, p->out, p->out, preference, most, ret,
                                            &count);
    (void)cublasLtMatmulPreferenceDestroy(preference);
    if (st == CUBLAS_STATUS_SUCCESS && (count <= 0 || ret[0].state != CUBLAS_STATUS_SUCCESS))
        st = CUBLAS_STATUS_NOT_SUPPORTED;
    *ret_n = MIN(count, most);
    return st;
}

struct product_plan *product_plan_of(struct product_plans *plans, cublasLtHandle_t lt, const void *key, size_t bytes,
                                     cublasStatus_t (*describe)(struct product_plan *p, const void *key))
{
    titan_assert(bytes > 0 && bytes <= PRODUCT_KEY_BYTES);
    for (int i = 0; i < plans->n; i++)
        if (memcmp(plans->items[i]->key, key, bytes) == 0)
            return plans->items[i];
    struct product_plan *const p = plans->n < PRODUCT_PLANS_MAX ? calloc(1, sizeof *p) : NULL;
    if (!p)
        return NULL;
    memcpy(p->key, key, bytes);
    p->product = hash_bytes(hash_word(HASH_INIT, bytes), key, bytes); /* the two kinds of keys differ in length */
    p->status = describe(p, key);
    cublasLtMatmulHeuristicResult_t found;
    int n;
    if (p->status == CUBLAS_STATUS_SUCCESS)
        p->status = product_search(p, lt, 1, &found, &n);
    if (p->status == CUBLAS_STATUS_SUCCESS)
        p->algo = found.algo;
    titan_assert(plans->n < PRODUCT_PLANS_MAX);
    plans->items[plans->n++] = p;
    return p;
}

cublasStatus_t product_run(struct stream *s, struct product_plans *plans, struct product_plan *p,
                           const struct product_call *call)
{
    const float one = 1.0f;
    const int32_t whole_one = 1, whole_keep = (int32_t)call->keep;
    cublasStatus_t st = CUBLAS_STATUS_SUCCESS;

    titan_assert(p->status == CUBLAS_STATUS_SUCCESS && !call->scale_first == !call->scale_second);
    if (plans->notes) {
        p->noted = true;
        p->call = *call;
    }
    if (call->scale_first)
        st = cublasLtMatmulDescSetAttribute(p->op, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &call->scale_first,
                                            sizeof call->scale_first);
    if (call->scale_first && st == CUBLAS_STATUS_SUCCESS)
        st = cublasLtMatmulDescSetAttribute(p->op, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &call->scale_second,
                                            sizeof call->scale_second);
    if (st != CUBLAS_STATUS_SUCCESS)
        return st;
    return cublasLtMatmul(s->dev->lt, p->op, p->integers ? (const void *)&whole_one : &one, call->first, p->first,
                          call->second, p->second, p->integers ? (const void *)&whole_keep : &call->keep, call->out,
                          p->out, call->out, p->out, &p->algo, s->work, CUDA_MATMUL_WORK_BYTES, s->native);
}
