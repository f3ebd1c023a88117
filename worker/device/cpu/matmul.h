/* SPDX-License-Identifier: Apache-2.0 */
/* matmul.h - products through oneDNN or matmul_packed.c, for operations made of several. */
#ifndef TITAN_WORKER_DEVICE_CPU_MATMUL_H
#define TITAN_WORKER_DEVICE_CPU_MATMUL_H

#include "worker/device/cpu/cpu.h"

struct matmul_shape {
    int64_t m, n, k, lda, ldb, ldc;
    uint8_t ta, tb, ab_dt, c_dt, accumulate, unused[3];
};

struct matmul_args {
    struct matmul_shape shape;
    const void *a, *b;
    void *c;
};

/* From an operation's arguments. False: they are none of a product. */
bool matmul_fill(struct matmul_args *ret, void *c, enum dtype c_dt, int64_t ldc, const void *a, bool ta, int64_t lda,
                 const void *b, bool tb, int64_t ldb, enum dtype ab_dt, int64_t m, int64_t n, int64_t k, float beta);
/* Run it now, on the context's threads. Takes no scratch of the device. Each new shape costs 0.2 to 2 ms once. */
titan_status matmul_run(const struct cpu_context *ctx, const struct matmul_args *args);

#endif
