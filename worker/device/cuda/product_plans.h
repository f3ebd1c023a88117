/* SPDX-License-Identifier: Apache-2.0 */
/* product_plans.h - what cuBLASLt needs to know of a product, found at its first use and kept under a key. */
#ifndef TITAN_WORKER_DEVICE_CUDA_PRODUCT_PLANS_H
#define TITAN_WORKER_DEVICE_CUDA_PRODUCT_PLANS_H

#include "worker/device/cuda/cuda.h"

#define PRODUCT_KEY_BYTES 96
#define PRODUCT_PLANS_MAX 1024 /* shapes of one run; a few dozen in practice */

struct product_plan {
    unsigned char key[PRODUCT_KEY_BYTES];
    /* For describe() to fill. */
    cublasLtMatmulDesc_t op;
    cublasLtMatrixLayout_t first, second, out;
    uint32_t align_first, align_second, align_out; /* of the pointers; cuBLASLt's fast kernels need 16 bytes */

    cublasLtMatmulAlgo_t algo;
    cublasStatus_t status; /* not success: cuBLASLt has nothing for it */
};

struct product_plans {
    pthread_mutex_t lock;
    struct product_plan *items[PRODUCT_PLANS_MAX];
    int n;
};

titan_status product_plans_open(struct product_plans **ret, struct titan_error *err) TITAN_MUST_USE;
/* NULL is fine. */
void product_plans_close(struct product_plans *plans);
/* The plan of a key, which is compared as bytes; NULL: no room for another one. With the lock held. */
struct product_plan *product_plan_of(struct product_plans *plans, cublasLtHandle_t lt, const void *key, size_t bytes,
                                     cublasStatus_t (*describe)(struct product_plan *p, const void *key));

#endif
