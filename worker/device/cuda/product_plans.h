/* SPDX-License-Identifier: Apache-2.0 */
/* product_plans.h - cuBLASLt's plan of a product, found at its first use and kept under a key. */
#ifndef TITAN_WORKER_DEVICE_CUDA_PRODUCT_PLANS_H
#define TITAN_WORKER_DEVICE_CUDA_PRODUCT_PLANS_H

#include "worker/device/cuda/cuda.h"

#define PRODUCT_KEY_BYTES 96
#define PRODUCT_PLANS_MAX 1024 /* shapes of one run; a few dozen in practice */

/* Operands of a product, in cuBLASLt's order. */
struct product_call {
    const void *first, *second;
    void *out;
    float keep;                             /* factor of the old contents of out */
    const void *scale_first, *scale_second; /* both NULL: no scales */
};

struct product_plan {
    unsigned char key[PRODUCT_KEY_BYTES];
    uint64_t product; /* struct product_way */
    /* Set by describe(). */
    cublasLtMatmulDesc_t op;
    cublasLtMatrixLayout_t first, second, out;
    /* alignment of the pointers; cuBLASLt's fast kernels need 16 bytes */
    uint32_t align_first, align_second, align_out;
    bool integers; /* the factors of the product are int32 */

    cublasLtMatmulAlgo_t algo;
    cublasStatus_t status; /* not success: cuBLASLt has no algorithm for the product */
    bool chosen;           /* product_time() or product_choose() chose algo */
    bool noted;
    struct product_call call; /* the last noted call */
};

struct product_plans {
    pthread_mutex_t lock;
    struct product_plan *items[PRODUCT_PLANS_MAX];
    int n;
    bool notes;
};

titan_status product_plans_open(struct product_plans **ret, struct titan_error *err) TITAN_MUST_USE;
/* NULL is fine. */
void product_plans_close(struct product_plans *plans);
/* Returns the plan of a key, which is compared as bytes; NULL: no room for another plan. Call it with the lock held. */
struct product_plan *product_plan_of(struct product_plans *plans, cublasLtHandle_t lt, const void *key, size_t bytes,
                                     cublasStatus_t (*describe)(struct product_plan *p, const void *key));
/* Enqueues the product, with the stream's workspace. Scales change the plan: a call with scales needs the lock. */
cublasStatus_t product_run(struct stream *s, struct product_plans *plans, struct product_plan *p,
                           const struct product_call *call);

/* product_ways.c: device_ops of these names. */
void cuda_products_note(struct device *dev, bool on);
int cuda_products_noted(struct device *dev, struct product_way *ret, int most);
titan_status cuda_product_time(struct stream *s, struct product_way *way, struct titan_error *err);
titan_status cuda_product_choose(struct device *dev, const struct product_way *way, struct titan_error *err);
/* product_plans.c: asks cuBLASLt for algorithms for p, best first by its own estimate. *ret_n is at least 1 on
 * success. */
cublasStatus_t product_search(const struct product_plan *p, cublasLtHandle_t lt, int most,
                              cublasLtMatmulHeuristicResult_t *ret, int *ret_n);

#endif
