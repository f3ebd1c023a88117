/* SPDX-License-Identifier: Apache-2.0 */
/* matmul.h - products through oneDNN or matmul_packed.c, for operations made of several. */
#ifndef TITAN_WORKER_DEVICE_CPU_MATMUL_H
#define TITAN_WORKER_DEVICE_CPU_MATMUL_H

#include "worker/device/cpu/cpu.h"

/* Compared as bytes. */
struct product_shape {
    int64_t m, n, k, lda, ldb, ldc;
    uint8_t ta, tb, ab_dt, c_dt, accumulate, unused[3];
};

struct product {
    struct product_shape shape;
    const void *a, *b;
    void *c;
};

/* From an operation's arguments, which are valid. */
struct product product_of(const struct matmul_args *a);
/* Run it now, on the context's threads. Takes no scratch of the device. Each new shape costs 0.2 to 2 ms once. */
titan_status product_run(const struct cpu_context *ctx, const struct product *p);

#endif
