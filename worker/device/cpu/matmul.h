/* SPDX-License-Identifier: Apache-2.0 */
/* matmul.h - products through oneDNN or matmul_packed.c, for operations that consist of several products. */
#ifndef TITAN_WORKER_DEVICE_CPU_MATMUL_H
#define TITAN_WORKER_DEVICE_CPU_MATMUL_H

#include "worker/device/cpu/cpu.h"

/* The key of a product. Keys are compared as bytes. */
struct product_shape {
    int64_t m, n, k, lda, ldb, ldc;
    uint8_t ta, tb, ab_dt, c_dt, accumulate, unused[3];
};

struct product {
    struct product_shape shape;
    const void *a, *b;
    void *c;
};

/* The product of an operation's valid arguments. */
struct product product_of(const struct matmul_args *a);
/* Runs the product now, on the context's threads, without the device's scratch. Each new shape costs 0.2 to 2 ms
 * once. */
titan_status product_run(const struct cpu_context *ctx, const struct product *p);

#endif
