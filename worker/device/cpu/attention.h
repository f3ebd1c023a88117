/* attention.h - what the two ways to compute attention share: in fp32 (attention.c) and on bf16 pairs
 * (attention_bf16.c). */
#ifndef TITAN_WORKER_DEVICE_CPU_ATTENTION_H
#define TITAN_WORKER_DEVICE_CPU_ATTENTION_H

#include <assert.h>

#include "worker/device/cpu/cpu.h"

struct attention_args {
    void *out, *dq, *dk, *dv;
    const void *q, *k, *v, *dout, *fwd;
    float *lse, *scratch;
    int64_t ldq, ldkv, ldo, lddq, lddkv, lddo;
    int32_t b, t, h, kv, d, dt;
    size_t thread_floats;
};
static_assert(sizeof(struct attention_args) <= CPU_ARGS_MAX, "attention arguments fit a queue slot");

/* bf16 tensors whose rows start at whole pairs. */
bool attention_bf16_fits(const struct device *dev, const struct attention_args *a);
/* Floats of scratch one thread needs. */
size_t attention_bf16_forward_floats(int64_t t, int64_t d);
size_t attention_bf16_backward_floats(int64_t t, int64_t d);
/* One task after the other: sequence task / kv, key head task % kv. For cpu_for. */
void attention_bf16_forward(const void *args, int64_t begin, int64_t end, int thread);
void attention_bf16_backward(const void *args, int64_t begin, int64_t end, int thread);

#endif
