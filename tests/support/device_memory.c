/* SPDX-License-Identifier: Apache-2.0 */
/* device_memory.c - fresh memory, copies, zeros, and casts between all types. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support/device_checker.h"
#include "support/device_ops.h"

static void check_memory(struct checker *c)
{
    struct tensor a = empty(c, 1000, DTYPE_F32), b = empty(c, 1000, DTYPE_F32);
    double *zero = values(c, 1000);
    result(c, same(c, download(c, &a), zero, 1000, "fresh memory") && (uintptr_t)a.p % 64 == 0,
           "alloc: zeroed and 64-byte aligned");
    fill(c, a.x, 1000, 1.0);
    upload(c, &a);
    need(c, c->ops->copy(c->s, b.p, a.p, 4000), "copy");
    result(c, same(c, download(c, &b), a.x, 1000, "copy"), "copy: host to device to device to host");
    need(c, c->ops->zero(c->s, (char *)b.p + 400, 2000), "zero");
    for (int i = 100; i < 600; i++)
        a.x[i] = 0.0;
    result(c, same(c, download(c, &b), a.x, 1000, "zero"), "zero: the bytes named and no others");
    need(c, c->ops->copy(c->s, b.p, a.p, 0), "copy of nothing");
    need(c, c->ops->zero(c->s, b.p, 0), "zero of nothing");
    result(c, true, "copy and zero of 0 bytes");
    sweep(c);
}

static void check_cast(struct checker *c)
{
    enum { N = 65536 };
    /* fp32 -> bf16: random bits (all magnitudes, NaN, infinities, subnormals) and exact ties. */
    struct tensor f = empty(c, N, DTYPE_F32), h = empty(c, N, DTYPE_BF16);
    float *host = malloc(N * sizeof(float));
    uint16_t *bits = malloc(N * sizeof(uint16_t));
    if (!host || !bits)
        abort();
    for (uint32_t i = 0; i < N; i++) {
        uint32_t u = i % 2 ? (uint32_t)next_random(c) : (i << 16 | 0x8000u);
        memcpy(&host[i], &u, 4);
    }
    transfer(c, f.p, host, N * sizeof(float), true);
    need(c, c->ops->cast(c->s, h.p, DTYPE_BF16, f.p, DTYPE_F32, N), "cast");
    transfer(c, bits, h.p, N * sizeof(uint16_t), false);
    int wrong = 0;
    for (int i = 0; i < N; i++)
        wrong += isnan(host[i]) ? !isnan(from_bf16(bits[i])) : bits[i] != to_bf16(host[i]);
    result(c, wrong == 0, "cast fp32 to bf16: nearest even, %d of %d differ", wrong, N);
    for (uint32_t i = 0; i < N; i++)
        bits[i] = (uint16_t)i;
    transfer(c, h.p, bits, N * sizeof(uint16_t), true);
    need(c, c->ops->cast(c->s, f.p, DTYPE_F32, h.p, DTYPE_BF16, N), "cast");
    transfer(c, host, f.p, N * sizeof(float), false);
    wrong = 0;
    for (uint32_t i = 0; i < N; i++)
        wrong += isnan(from_bf16(bits[i])) ? !isnan(host[i]) : host[i] != from_bf16(bits[i]);
    result(c, wrong == 0, "cast bf16 to fp32: exact for all values, %d differ", wrong);
    free(host);
    free(bits);
    sweep(c);
    static const enum dtype types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F64, DTYPE_I32, DTYPE_U8};
    bool ok = true;
    for (int from = 0; from < 5; from++)
        for (int to = 0; to < 5; to++) {
            struct tensor a = empty(c, 129, types[from]), b = empty(c, 129, types[to]);
            for (int i = 0; i < 129; i++)
                a.x[i] = i; /* every type holds these exactly */
            upload(c, &a);
            need(c, c->ops->cast(c->s, b.p, types[to], a.p, types[from], 129), "cast");
            ok = same(c, download(c, &b), a.x, 129, "cast") && ok;
            sweep(c);
        }
    result(c, ok, "cast between all pairs of types");
}
void device_memory_check(struct checker *c)
{
    check_memory(c);
    check_cast(c);
}
