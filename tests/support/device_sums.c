/* SPDX-License-Identifier: Apache-2.0 */
/* device_sums.c - sums, scales, caps, biases, windows and hashes of arrays, and initial weights. */
#include <math.h>
#include <string.h>

#include "base/hash.h"
#include "base/rng.h"
#include "support/device_checker.h"
#include "support/device_ops.h"

static void sums_case(struct checker *c, int64_t n, int64_t block, bool square)
{
    int64_t blocks = (n + block - 1) / block;
    struct tensor x = noise(c, n, DTYPE_F32, 1.0), out = empty(c, blocks, DTYPE_F64), cut = empty(c, blocks, DTYPE_F64);
    double *want = values(c, blocks);
    for (int64_t i = 0; i < n; i++)
        want[i / block] += square ? x.x[i] * x.x[i] : x.x[i];
    need(c, c->ops->block_sums(c->s, out.p, x.p, (size_t)n, (size_t)block, square), "block_sums");
    double *got = download(c, &out);
    bool ok = near(c, got, want, blocks, 1e-24, "sums");
    for (int64_t i = 0; i < blocks; i++) {
        int64_t left = n - i * block < block ? n - i * block : block;
        need(
            c,
            c->ops->block_sums(c->s, offset_of(&cut, i), offset_of(&x, i * block), (size_t)left, (size_t)block, square),
            "block_sums");
    }
    ok = same(c, download(c, &cut), got, blocks, "cut at block bounds") && ok;
    x.x[n / 2] = INFINITY;
    upload(c, &x);
    need(c, c->ops->block_sums(c->s, out.p, x.p, (size_t)n, (size_t)block, square), "block_sums");
    double *bad = download(c, &out);
    for (int64_t i = 0; i < blocks; i++)
        ok = ok && (i == n / 2 / block ? !isfinite(bad[i]) : bad[i] == got[i]);
    result(c, ok, "block_sums%s of %lld by %lld", square ? " of squares" : "", (long long)n, (long long)block);
    sweep(c);
}

static uint64_t hashed(struct checker *c, uint64_t *out, const struct tensor *x, int64_t from, int64_t rows,
                       int64_t cols, uint64_t key, int64_t first, uint64_t sum)
{
    transfer(c, out, &sum, sizeof sum, true);
    need(c,
         c->ops->hash(c->s, ARGS(hash, .out = out, .x = offset_of(x, from), .dt = x->dt, .rows = rows, .cols = cols,
                                 .key = key, .first = first)),
         "hash");
    transfer(c, &sum, out, sizeof sum, false);
    return sum;
}

/* Against the definition, added to what is there; the same in parts, cut between rows and within one. */
static void hash_case(struct checker *c, enum dtype dt, int64_t rows, int64_t cols)
{
    const uint64_t key = UINT64_C(3) << 40 | 17, before = ~UINT64_C(0) - 5;
    const int64_t first = 1000, half = rows / 2;
    struct tensor x = noise(c, rows * cols, dt, 1.0);
    uint64_t want = before, *const out = device_memory(c, sizeof want);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < cols; i++) {
            const float value = (float)x.x[r * cols + i];
            uint32_t bits;
            memcpy(&bits, &value, sizeof bits);
            want += hash_element(hash_mix(key + (uint64_t)r), first + i, bits);
        }
    bool ok = hashed(c, out, &x, 0, rows, cols, key, first, before) == want;
    uint64_t sum = hashed(c, out, &x, half * cols, rows - half, cols, key + (uint64_t)half, first, before);
    for (int64_t r = 0; r < half; r++) {
        const uint64_t part = hashed(c, out, &x, r * cols, 1, cols / 3, key + (uint64_t)r, first, sum);
        sum = hashed(c, out, &x, r * cols + cols / 3, 1, cols - cols / 3, key + (uint64_t)r, first + cols / 3, part);
    }
    ok = sum == want && ok;
    result(c, ok, "hash of %lld by %lld %s, whole and in parts", (long long)rows, (long long)cols, name_of(dt));
    sweep(c);
}

/* The host's, to the bit. */
static void weights_case(struct checker *c, enum dtype dt, int64_t rows, int64_t cols, int64_t width, int64_t first,
                         float limit)
{
    struct tensor x = empty(c, rows * cols, dt);
    struct rng_weights w = {.key = rng_key(1, "w"), .limit = limit, .std = 0.02f};
    for (int i = 0; i < RNG_REDRAWS; i++)
        w.again[i] = rng_key((uint64_t)i, "again");
    double *want = values(c, rows * cols);
    for (int64_t i = 0; i < rows * cols; i++) {
        float value;
        rng_weights(&w, (uint64_t)(first + i / cols * width + i % cols), 1, &value);
        want[i] = dt == DTYPE_BF16 ? from_bf16(to_bf16(value)) : value;
    }
    need(c,
         c->ops->weights(c->s, ARGS(weights, .out = x.p, .dt = dt, .rows = rows, .cols = cols, .width = width,
                                    .first = first, .weights = &w)),
         "weights");
    result(c, same(c, download(c, &x), want, rows * cols, "weights"), "weights %lld by %lld of %lld from %lld %s%s",
           (long long)rows, (long long)cols, (long long)width, (long long)first, name_of(dt), limit > 0 ? ", cut" : "");
    sweep(c);
}

static void sum_case(struct checker *c, int64_t n)
{
    struct tensor x = noise(c, n, DTYPE_F64, 1.0), out = noise(c, 1, DTYPE_F64, 1.0);
    double want[2] = {0.0, out.x[0]};
    for (int64_t i = 0; i < n; i++)
        want[0] += x.x[i];
    want[1] += want[0];
    need(c, c->ops->sum(c->s, out.p, true, x.p, (size_t)n), "sum");
    bool ok = fabs(download(c, &out)[0] - want[1]) <= 1e-12 * (1.0 + fabs(want[1]));
    need(c, c->ops->sum(c->s, out.p, false, x.p, (size_t)n), "sum");
    double *got = download(c, &out);
    ok = ok && fabs(got[0] - want[0]) <= 1e-12 * (1.0 + fabs(want[0]));
    need(c, c->ops->sum(c->s, out.p, false, x.p, (size_t)n), "sum");
    ok = same(c, download(c, &out), got, 1, "repeated") && ok;
    result(c, ok, "sum of %lld fp64", (long long)n);
    sweep(c);
}

static void scale_case(struct checker *c, enum dtype dt, int64_t n)
{
    struct tensor x = noise(c, n, dt, 1.0), out = empty(c, n, dt);
    double *want = values(c, n);
    for (int64_t i = 0; i < n; i++)
        want[i] = x.x[i] * 0.22;
    need(c, c->ops->scale(c->s, out.p, x.p, dt, 0.22f, (size_t)n), "scale");
    result(c, near(c, download(c, &out), want, n, limit_of(dt), "products"), "scale %s %lld", name_of(dt),
           (long long)n);
    sweep(c);
}

static void softcap_case(struct checker *c, enum dtype dt, int64_t n)
{
    const uint64_t random = c->random; /* what comes behind draws what it always has */
    struct tensor x = noise(c, n, dt, 4.0), dout = noise(c, n, dt, 1.0), out = empty(c, n, dt), dx = empty(c, n, dt);
    double *want = values(c, n), *dwant = values(c, n);
    for (int64_t i = 0; i < n; i++) {
        want[i] = 1.5 * tanh(x.x[i] / 1.5);
        dwant[i] = dout.x[i] * (1 - tanh(x.x[i] / 1.5) * tanh(x.x[i] / 1.5));
    }
    need(c, c->ops->softcap(c->s, ARGS(softcap, .out = out.p, .x = x.p, .dt = dt, .cap = 1.5f, .n = (size_t)n)),
         "softcap");
    need(c,
         c->ops->softcap_dgrad(
             c->s, ARGS(softcap, .out = dx.p, .dout = dout.p, .x = x.p, .dt = dt, .cap = 1.5f, .n = (size_t)n)),
         "softcap_dgrad");
    need(c,
         c->ops->softcap_dgrad(
             c->s, ARGS(softcap, .out = dout.p, .dout = dout.p, .x = x.p, .dt = dt, .cap = 1.5f, .n = (size_t)n)),
         "softcap_dgrad");
    bool ok = near(c, download(c, &out), want, n, limit_of(dt), "capped");
    ok = near(c, download(c, &dx), dwant, n, limit_of(dt), "gradient") && ok;
    ok = same(c, download(c, &dout), download(c, &dx), n, "gradient in place") && ok;
    result(c, ok, "softcap and its gradient %s %lld", name_of(dt), (long long)n);
    c->random = random;
    sweep(c);
}

/* A bias of n rows of w columns, ld apart, and its gradient, twice: it is added to what is there. */
static void bias_case(struct checker *c, enum dtype dt, int64_t n, int64_t w, int64_t ld)
{
    struct tensor x = noise(c, n * ld, dt, 1.0), bias = noise(c, w, dt, 1.0), dbias = noise(c, w, DTYPE_F32, 1.0);
    double *want = values(c, n * ld), *sums = values(c, w);
    memcpy(want, x.x, (size_t)(n * ld) * sizeof *want);
    memcpy(sums, dbias.x, (size_t)w * sizeof *sums);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < w; j++) {
            sums[j] += 2 * x.x[i * ld + j];
            want[i * ld + j] += bias.x[j];
        }
    for (int i = 0; i < 2; i++)
        need(c, c->ops->bias_wgrad(c->s, ARGS(bias, .dbias = dbias.p, .dout = x.p, .ld = ld, .dt = dt, .n = n, .c = w)),
             "bias_wgrad");
    bool ok = near(c, download(c, &dbias), sums, w, limit_of(DTYPE_F32), "sums");
    need(c, c->ops->add_bias(c->s, ARGS(bias, .x = x.p, .ld = ld, .bias = bias.p, .dt = dt, .n = n, .c = w)),
         "add_bias");
    double *got = download(c, &x);
    ok = ok && near(c, got, want, n * ld, limit_of(dt), "rows");
    for (int64_t i = 0; i < n; i++)
        ok = ok && same(c, got + i * ld + w, want + i * ld + w, ld - w, "between rows");
    result(c, ok, "add_bias, bias_wgrad %s %lldx%lld", name_of(dt), (long long)n, (long long)w);
    sweep(c);
}

/* Biases of the groups of packed rows, and their gradients from one part of them: as bias_case of each group alone. */
static void grouped_bias_case(struct checker *c, enum dtype dt, int64_t groups, int64_t parts, int64_t n, int64_t w,
                              int64_t ld, bool add)
{
    struct tensor x = noise(c, n * ld, dt, 1.0), bias = noise(c, groups * w, dt, 1.0);
    struct tensor dbias = noise(c, groups * w, DTYPE_F32, 1.0), counts = empty(c, parts * groups, DTYPE_I32);
    double *want = values(c, n * ld), *sums = values(c, groups * w);
    memcpy(want, x.x, (size_t)(n * ld) * sizeof *want);
    for (int64_t i = 0; add && i < groups * w; i++)
        sums[i] = dbias.x[i];
    int64_t row = 0;
    for (int64_t e = 0; e < parts * groups; e++) { /* uneven, some empty, some rows beyond all */
        const int64_t even = n / (parts * groups) + e % 5 * 7, left = n - n / 8 - row;
        const int64_t rows = e % 3 == 1 ? 0 : even < left ? even : left;
        counts.x[e] = (double)rows;
        for (const int64_t end = row + rows; row < end; row++)
            for (int64_t j = 0; j < w; j++) {
                want[row * ld + j] += bias.x[e % groups * w + j];
                sums[e % groups * w + j] += e / groups == parts - 1 ? x.x[row * ld + j] : 0;
            }
    }
    upload(c, &counts);
    need(c,
         c->ops->bias_wgrad_grouped(c->s,
                                    ARGS(bias, .dbias = dbias.p, .dout = x.p, .ld = ld, .dt = dt, .counts = counts.p,
                                         .groups = groups, .parts = parts, .n = n, .c = w, .beta = add ? 1 : 0)),
         "bias_wgrad_grouped");
    bool ok = near(c, download(c, &dbias), sums, groups * w, limit_of(DTYPE_F32), "sums");
    need(c,
         c->ops->add_bias_grouped(c->s, ARGS(bias, .x = x.p, .ld = ld, .bias = bias.p, .dt = dt, .counts = counts.p,
                                             .groups = groups, .parts = parts, .n = n, .c = w)),
         "add_bias_grouped");
    double *got = download(c, &x);
    ok = near(c, got, want, row * ld, limit_of(dt), "rows") && ok;
    ok = same(c, got + row * ld, want + row * ld, (n - row) * ld, "behind the rows") && ok;
    for (int64_t i = 0; i < row; i++)
        ok = ok && same(c, got + i * ld + w, want + i * ld + w, ld - w, "between rows");
    result(c, ok, "biases %s of %lld groups in %lld parts, %lldx%lld", name_of(dt), (long long)groups, (long long)parts,
           (long long)n, (long long)w);
    sweep(c);
}

/* EXPERT_SPLIT rows, and then the others added to them, are one sum. */
static void grouped_bias_rounds_case(struct checker *c, enum dtype dt)
{
    enum { W = 40, N = EXPERT_SPLIT + 100 };
    struct tensor x = noise(c, N * W, dt, 1.0), whole = empty(c, W, DTYPE_F32), parts = empty(c, W, DTYPE_F32);
    struct tensor counts = empty(c, 3, DTYPE_I32);
    counts.x[0] = N, counts.x[1] = EXPERT_SPLIT, counts.x[2] = N - EXPERT_SPLIT;
    upload(c, &counts);
    need(c,
         c->ops->bias_wgrad_grouped(c->s, ARGS(bias, .dbias = whole.p, .dout = x.p, .ld = W, .dt = dt,
                                               .counts = counts.p, .groups = 1, .parts = 1, .n = N, .c = W)),
         "bias_wgrad_grouped");
    need(c,
         c->ops->bias_wgrad_grouped(c->s,
                                    ARGS(bias, .dbias = parts.p, .dout = x.p, .ld = W, .dt = dt,
                                         .counts = offset_of(&counts, 1), .groups = 1, .parts = 1, .n = N, .c = W)),
         "first");
    need(c,
         c->ops->bias_wgrad_grouped(c->s, ARGS(bias, .dbias = parts.p, .dout = offset_of(&x, EXPERT_SPLIT * W), .ld = W,
                                               .dt = dt, .counts = offset_of(&counts, 2), .groups = 1, .parts = 1,
                                               .n = N - EXPERT_SPLIT, .c = W, .beta = 1)),
         "second");
    result(c, same(c, download(c, &parts), download(c, &whole), W, "sums"), "gradient of a bias %s in rounds",
           name_of(dt));
    sweep(c);
}

static void window_case(struct checker *c, int64_t n, int64_t tokens)
{
    struct tensor index = empty(c, n, DTYPE_I32), first = empty(c, n, DTYPE_I32), start = empty(c, n, DTYPE_I32);
    double *want = values(c, n);
    for (int64_t i = 0; i < n; i++) {
        index.x[i] = (double)(i * 7 % n);
        first.x[i] = (double)(i * 7 % n / 50 * 50);
        want[i] = fmax(first.x[i], index.x[i] - (double)tokens + 1);
    }
    upload(c, &index), upload(c, &first);
    need(c, c->ops->window(c->s, start.p, index.p, first.p, n, tokens), "window");
    result(c, same(c, download(c, &start), want, n, "starts"), "window of %lld", (long long)tokens);
    sweep(c);
}

void device_sums_check(struct checker *c)
{
    struct tensor a = noise(c, 3333, DTYPE_F32, 1.0), b = noise(c, 3333, DTYPE_F32, 1.0);
    double *want = values(c, 3333);
    for (int i = 0; i < 3333; i++)
        want[i] = (double)((float)a.x[i] + (float)b.x[i]);
    need(c, c->ops->accumulate(c->s, a.p, b.p, 3333), "accumulate");
    result(c, same(c, download(c, &a), want, 3333, "sum"), "accumulate");
    for (int i = 0; i < 3333; i++)
        want[i] = (double)((float)b.x[i] * 0.3f);
    need(c, c->ops->scale(c->s, b.p, b.p, DTYPE_F32, 0.3f, 3333), "scale");
    result(c, same(c, download(c, &b), want, 3333, "product"), "scale");
    sweep(c);
    window_case(c, 300, 17);
    window_case(c, 1000, 1);
    for (int i = 0; i < 2; i++) {
        scale_case(c, both[i], 4096);
        scale_case(c, both[i], 4097);
        softcap_case(c, both[i], 4097);
        bias_case(c, both[i], 37, 64, 64);
        bias_case(c, both[i], 300, 200, 208);
        bias_case(c, both[i], 70, 19, 24);
        const uint64_t random = c->random; /* what comes behind draws what it always has */
        grouped_bias_case(c, both[i], 5, 1, 200, 64, 64, false);
        grouped_bias_case(c, both[i], 4, 3, 700, 40, 48, true);
        grouped_bias_case(c, both[i], 1, 2, 90, 19, 24, false);
        grouped_bias_case(c, both[i], 3, 1, 2400, 200, 208, true);
        grouped_bias_rounds_case(c, both[i]);
        c->random = random;
    }
    sums_case(c, 1, 4096, false);
    sums_case(c, 10000, 4096, true);
    sums_case(c, 1000, 33, false);
    sums_case(c, 8192, 1024, true);
    for (int i = 0; i < 2; i++) {
        hash_case(c, both[i], 1, 1);
        hash_case(c, both[i], 7, 1003);
        hash_case(c, both[i], 1, 70001);
        hash_case(c, both[i], 40, 3);
        weights_case(c, both[i], 1, 1, 1, 7, 0);
        weights_case(c, both[i], 5, 4099, 5000, 3, 0);
        weights_case(c, both[i], 3, 700, 700, INT64_C(5) << 31, 1.0f);
        weights_case(c, both[i], 300, 2, 9, 0, 3.0f);
    }
    sum_case(c, 1);
    sum_case(c, 1003);
    sum_case(c, 100000);
}
