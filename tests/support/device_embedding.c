/* SPDX-License-Identifier: Apache-2.0 */
/* device_embedding.c - rows of the embedding and their gradient, whole and of a part of the vocabulary. */
#include <string.h>

#include "support/device_checker.h"
#include "support/device_ops.h"

/* Rows [first, first+rows) of a vocabulary of v tokens. */
static void embed_case(struct checker *c, enum dtype dt, int64_t n, int64_t w, int64_t v, int64_t first, int64_t rows)
{
    struct tensor tokens = integers(c, n, 0, v), table = noise(c, rows * w, dt, 1.0), out = noise(c, n * w, dt, 1.0);
    struct tensor dout = noise(c, n * w, dt, 1.0), dtable = noise(c, rows * w, DTYPE_F32, 1.0);
    double *want = values(c, n * w), *dwant = values(c, rows * w);
    memcpy(dwant, dtable.x, (size_t)(rows * w) * sizeof(double));
    for (int64_t r = 0; r < n; r++)
        for (int64_t j = 0; j < w; j++) {
            int64_t row = (int64_t)tokens.x[r] - first;
            if (row < 0 || row >= rows)
                continue;
            want[r * w + j] = table.x[row * w + j];
            dwant[row * w + j] += dout.x[r * w + j];
        }
    need(c,
         c->ops->embed(c->s, ARGS(embed, .out = out.p, .tokens = tokens.p, .table = table.p, .dt = dt, .n = n, .c = w,
                                  .v = rows, .first = first)),
         "embed");
    result(c, same(c, download(c, &out), want, n * w, "rows"), "embed %s %lldx%lld rows %lld+%lld", name_of(dt),
           (long long)n, (long long)w, (long long)first, (long long)rows);
    need(c,
         c->ops->embed_wgrad(c->s, ARGS(embed, .dtable = dtable.p, .tokens = tokens.p, .dout = dout.p, .dt = dt, .n = n,
                                        .c = w, .v = rows, .first = first)),
         "embed_wgrad");
    result(c, near(c, download(c, &dtable), dwant, rows * w, limit_of(DTYPE_F32), "dtable"),
           "embed_wgrad %s %lldx%lld rows %lld+%lld", name_of(dt), (long long)n, (long long)w, (long long)first,
           (long long)rows);
    sweep(c);
}

void device_embedding_check(struct checker *c)
{
    for (int i = 0; i < 2; i++) {
        embed_case(c, both[i], 4500, 33, 11, 0, 11);
        embed_case(c, both[i], 200, 40, 11, 4, 5);
        embed_case(c, both[i], 37, 8, 300, 299, 1);
        embed_case(c, both[i], 60, 40, 90, 10, 80);
    }
}
