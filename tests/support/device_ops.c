/* SPDX-License-Identifier: Apache-2.0 */
/* device_ops.c - see device_ops.h. */
#include <stdlib.h>
#include <string.h>

#include "support/device_checker.h"
#include "support/device_ops.h"

static void check_repeat(struct checker *c)
{
    int64_t n = 300, w = 200, v = 40;
    struct tensor tokens = integers(c, n, 0, v), x = noise(c, n * w, DTYPE_BF16, 1.0);
    struct tensor dy = noise(c, n * w, DTYPE_BF16, 1.0), rstd = noise(c, n, DTYPE_F32, 1.0);
    struct tensor table[2], gain[2], weight[2];
    for (int i = 0; i < 2; i++) {
        table[i] = empty(c, v * w, DTYPE_F32);
        gain[i] = empty(c, w, DTYPE_F32);
        weight[i] = empty(c, w * w, DTYPE_F32);
        need(c,
             c->ops->embed_wgrad(c->s, ARGS(embed, .dtable = table[i].p, .tokens = tokens.p, .dout = dy.p,
                                            .dt = DTYPE_BF16, .n = n, .c = w, .v = v)),
             "embed_wgrad");
        need(c,
             c->ops->rmsnorm_dgain(c->s, ARGS(norm, .dgain = gain[i].p, .dout = dy.p, .x = x.p, .rstd = rstd.p,
                                              .dt = DTYPE_BF16, .n = n, .c = w)),
             "rmsnorm_dgain");
        need(c,
             c->ops->matmul(c->s,
                            ARGS(matmul, .c = weight[i].p, .c_dt = DTYPE_F32, .ldc = w, .a = dy.p, .ta = true, .lda = w,
                                 .b = x.p, .ldb = w, .ab_dt = DTYPE_BF16, .m = w, .n = w, .k = n, .beta = 1.0f)),
             "matmul");
    }
    bool ok = same(c, download(c, &table[1]), download(c, &table[0]), v * w, "embed_wgrad");
    ok = same(c, download(c, &gain[1]), download(c, &gain[0]), w, "rmsnorm_dgain") && ok;
    ok = same(c, download(c, &weight[1]), download(c, &weight[0]), w * w, "matmul") && ok;
    result(c, ok, "the same call on the same data gives the same bits");
    sweep(c);
}

int device_ops_check(const struct device_handle *handle, FILE *report)
{
    const char *seed = getenv("TITAN_SEED"), *only = getenv("TITAN_TEST_ONLY");
    struct checker c = {.h = handle, .ops = handle->ops, .report = report};
    struct titan_error err = {0};
    c.random = seed ? strtoull(seed, NULL, 0) : 20261120;
    fprintf(report, "# device '%s', seed %llu\n", handle->info.name, (unsigned long long)c.random);
    if (c.ops->stream_open(handle->dev, "compute", true, &c.s, &err) != TITAN_OK ||
        c.ops->stream_open(handle->dev, "side", false, &c.side, &err) != TITAN_OK) {
        fprintf(report, "not ok 1 - streams: %s\n", err.msg);
        c.failed = 1;
        goto out;
    }
    if (only && strcmp(only, "attention_tiles") == 0) {
        device_attention_tiles_check(&c);
        goto out;
    }
    if (only && strcmp(only, "orthogonal") == 0) {
        device_orthogonal_check(&c);
        goto out;
    }
    if (only && strcmp(only, "grouped_tiles") == 0) {
        device_grouped_tiles_check(&c);
        goto out;
    }
    if (only && strcmp(only, "codecs") == 0) {
        device_codecs_check(&c);
        goto out;
    }
    device_attention_orders_check(&c);
    if (only && strcmp(only, "attention_orders") == 0)
        goto out;
    device_reference_check(&c);
    device_memory_check(&c);
    device_streams_check(&c);
    device_products_check(&c);
    device_embedding_check(&c);
    device_norms_check(&c);
    device_attention_check(&c);
    device_layers_check(&c);
    device_sums_check(&c);
    device_optimizer_check(&c);
    device_weights_check(&c);
    device_experts_check(&c);
    check_repeat(&c);
    device_float8_check(&c);
    device_int8_check(&c);
    device_attention_tiles_check(&c);
    device_grouped_tiles_check(&c);
    device_orthogonal_check(&c);
    device_codecs_check(&c);
out:
    if (c.side)
        c.ops->stream_close(c.side);
    if (c.s)
        c.ops->stream_close(c.s);
    return c.failed;
}
