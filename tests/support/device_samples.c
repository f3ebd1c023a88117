/* SPDX-License-Identifier: Apache-2.0 */
/* device_samples.c - see device_samples.h. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "support/device_checker.h"
#include "support/device_samples.h"

enum { ROWS_MAX = 64, KEYS_MAX = 16, CHUNK = 64 << 20 };

struct sizes {
    int64_t t, heads, kv, d;    /* attention */
    int rows, keys;             /* queries and keys that are compared, of all heads */
    int64_t n, in, out;         /* products: tokens, widths */
    int64_t tokens, vocabulary; /* loss */
    int64_t different;          /* its rows repeat after so many, a number prime to tiles */
    int64_t packed, k, each;    /* experts: rows that there is room for, widths of an expert's matrix */
};
enum { EXPERTS = 8 };
static const struct sizes llama_8b = {.t = 8192,
                                      .heads = 32,
                                      .kv = 8,
                                      .d = 128,
                                      .rows = 64,
                                      .keys = 16,
                                      .n = 8192,
                                      .in = 4096,
                                      .out = 28672,
                                      .tokens = 8192,
                                      .vocabulary = 128256,
                                      .different = 61,
                                      .packed = 24000, /* more tiles than a GPU makes at a time, by far */
                                      .k = 1000,
                                      .each = 1416};
static const struct sizes small = {.t = 256,
                                   .heads = 4,
                                   .kv = 2,
                                   .d = 128,
                                   .rows = 12,
                                   .keys = 4,
                                   .n = 256,
                                   .in = 128,
                                   .out = 448,
                                   .tokens = 150,
                                   .vocabulary = 8016,
                                   .different = 13,
                                   .packed = 700, /* some groups have more than one tile */
                                   .k = 40,
                                   .each = 72};

/* --- bf16 numbers, on the host as the device has them ------------------------------------------------------------- */

struct halves {
    uint16_t *x; /* malloc */
    void *p;     /* the checker's */
};

/* Numbers of both signs between 1/8 and 2 in magnitude, times 2^power. */
static struct halves random_halves(struct checker *c, int64_t n, int power)
{
    struct halves h = {.x = malloc((size_t)n * 2 + 8), .p = device_memory(c, (size_t)n * 2)};
    if (!h.x)
        abort();
    for (int64_t i = 0; i < n; i += 4) {
        uint64_t bits = next_random(c);
        for (int64_t j = i; j < i + 4 && j < n; j++, bits >>= 16)
            h.x[j] = (uint16_t)((bits & 0x807fu) | ((124u + (unsigned)power + (bits >> 7 & 3u)) << 7));
    }
    need(c, c->ops->copy(c->s, h.p, h.x, (size_t)n * 2), "copy");
    sync_stream(c);
    return h;
}

static void widen(double *out, const uint16_t *x, int64_t ld, int64_t rows, int64_t width)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t e = 0; e < width; e++)
            out[r * width + e] = from_bf16(x[r * ld + e]);
}

/* Four sums side by side: one would wait for itself. */
static double dot4(const double *a, const double *b, int64_t n)
{
    double sum[4] = {0};
    int64_t i = 0;
    for (; i + 4 <= n; i += 4)
        for (int j = 0; j < 4; j++)
            sum[j] += a[i + j] * b[i + j];
    for (; i < n; i++)
        sum[0] += a[i] * b[i];
    return sum[0] + sum[1] + (sum[2] + sum[3]);
}

static void add_scaled(double *y, double factor, const double *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] += factor * x[i];
}

/* --- results on the device ---------------------------------------------------------------------------------------- */

/* Whether two results are the same to the bit. */
static bool twice_same(struct checker *c, const void *a, const void *b, size_t bytes, const char *what)
{
    char *host[2] = {malloc(CHUNK), malloc(CHUNK)};
    bool ok = host[0] && host[1];
    for (size_t at = 0; ok && at < bytes; at += CHUNK) {
        const size_t part = bytes - at < CHUNK ? bytes - at : CHUNK;
        need(c, c->ops->copy(c->s, host[0], (const char *)a + at, part), "copy");
        need(c, c->ops->copy(c->s, host[1], (const char *)b + at, part), "copy");
        sync_stream(c);
        ok = memcmp(host[0], host[1], part) == 0;
    }
    free(host[0]);
    free(host[1]);
    if (!ok)
        fprintf(c->report, "# %s: the second time gave other bits\n", what);
    return ok;
}

/* count elements from `first` on, of a result of dt. */
static void read_back(struct checker *c, double *out, const void *p, enum dtype dt, int64_t first, int64_t count)
{
    void *host = malloc((size_t)count * dtype_bytes(dt));
    if (!host)
        abort();
    need(c,
         c->ops->copy(c->s, host, (const char *)p + (size_t)first * dtype_bytes(dt), (size_t)count * dtype_bytes(dt)),
         "copy");
    sync_stream(c);
    for (int64_t i = 0; i < count; i++)
        out[i] = get(host, i, dt);
    free(host);
}

/* Different numbers below n, the first and the last among them. */
static void draw(struct checker *c, int64_t *out, int count, int64_t n)
{
    titan_assert(count >= 2 && count <= n);
    out[0] = 0;
    out[1] = n - 1;
    for (int i = 2; i < count; i++) {
        bool known = true;
        while (known) {
            out[i] = (int64_t)(next_random(c) % (uint64_t)n);
            known = false;
            for (int j = 0; j < i; j++)
                known = known || out[j] == out[i];
        }
    }
}

/* --- attention ---------------------------------------------------------------------------------------------------- */

static const char *const order_names[] = {[ATTENTION_FIXED] = "", [ATTENTION_REPEATABLE] = ", repeatable"};

struct attention_run {
    const struct sizes *z;
    enum attention_order order;
    int64_t width, value; /* of a row of q|k|v, of out */
    double scale;
    struct halves qkv, dout;
    uint16_t *host_out; /* of the first run */
    void *out[2], *dqkv[2];
    float *lse[2];
    /* Of the head under comparison, in fp64; out and lse are what the device gave. */
    double *q, *k, *v, *grad, *output, *logsum, *delta;
};

static void run_attention(struct checker *c, struct attention_run *a)
{
    const struct sizes *z = a->z;
    const struct attention_shape shape = {.dt = DTYPE_BF16,
                                          .b = 1,
                                          .tq = z->t,
                                          .tk = z->t,
                                          .h = z->heads,
                                          .kv = z->kv,
                                          .d = z->d,
                                          .dv = z->d,
                                          .order = a->order};
    void *work = device_memory(c, c->ops->attention_work_bytes(c->h->dev, &shape));
    uint16_t *q = a->qkv.p, *k = q + z->heads * z->d, *v = k + z->kv * z->d;
    for (int i = 0; i < 2; i++) {
        a->out[i] = device_memory(c, (size_t)(z->t * a->value) * 2);
        a->lse[i] = device_memory(c, (size_t)(z->t * z->heads) * 4);
        a->dqkv[i] = device_memory(c, (size_t)(z->t * a->width) * 2);
        uint16_t *dq = a->dqkv[i], *dk = dq + z->heads * z->d, *dv = dk + z->kv * z->d;
        need(c,
             c->ops->attention(c->s,
                               ARGS(attention, .out = a->out[i], .ldo = a->value, .lse = a->lse[i], .q = q,
                                    .ldq = a->width, .k = k, .ldk = a->width, .v = v, .ldv = a->width, .shape = shape)),
             "attention");
        need(c,
             c->ops->attention_dgrad(c->s,
                                     ARGS(attention, .dq = dq, .lddq = a->width, .dk = dk, .lddk = a->width, .dv = dv,
                                          .lddv = a->width, .dout = a->dout.p, .lddo = a->value, .out = a->out[i],
                                          .ldo = a->value, .lse = a->lse[i], .q = q, .ldq = a->width, .k = k,
                                          .ldk = a->width, .v = v, .ldv = a->width, .shape = shape, .work = work)),
             "attention_dgrad");
    }
    need(c, c->ops->copy(c->s, a->host_out, a->out[0], (size_t)(z->t * a->value) * 2), "copy");
    sync_stream(c);
}

/* One head's tensors in fp64. */
static void load_head(struct checker *c, struct attention_run *a, int64_t h)
{
    const struct sizes *z = a->z;
    const int64_t group = h / (z->heads / z->kv);
    if (h % (z->heads / z->kv) == 0) {
        widen(a->k, a->qkv.x + (z->heads + group) * z->d, a->width, z->t, z->d);
        widen(a->v, a->qkv.x + (z->heads + z->kv + group) * z->d, a->width, z->t, z->d);
    }
    widen(a->q, a->qkv.x + h * z->d, a->width, z->t, z->d);
    widen(a->grad, a->dout.x + h * z->d, a->value, z->t, z->d);
    widen(a->output, a->host_out + h * z->d, a->value, z->t, z->d);
    read_back(c, a->logsum, a->lse[0], DTYPE_F32, h * z->t, z->t);
    for (int64_t i = 0; i < z->t; i++)
        a->delta[i] = dot4(a->grad + i * z->d, a->output + i * z->d, z->d);
}

/* Query i: its output, log-sum-exp and gradient (Dao 2023, arXiv:2307.08691). p: scratch of T. */
static void reference_query(const struct attention_run *a, int64_t i, double *p, double *out, double *logsum,
                            double *dq)
{
    const int64_t d = a->z->d;
    double most = -INFINITY, sum = 0, delta;
    for (int64_t j = 0; j <= i; j++) {
        p[j] = a->scale * dot4(a->q + i * d, a->k + j * d, d);
        most = fmax(most, p[j]);
    }
    for (int64_t j = 0; j <= i; j++)
        sum += p[j] = exp(p[j] - most);
    *logsum = most + log(sum);
    for (int64_t j = 0; j <= i; j++)
        add_scaled(out, p[j] / sum, a->v + j * d, d);
    delta = dot4(a->grad + i * d, out, d);
    for (int64_t j = 0; j <= i; j++)
        add_scaled(dq, a->scale * p[j] / sum * (dot4(a->grad + i * d, a->v + j * d, d) - delta), a->k + j * d, d);
}

/* What one query head gives to key j: added to dk and dv. */
static void reference_key(const struct attention_run *a, int64_t j, double *dk, double *dv)
{
    const int64_t d = a->z->d;
    for (int64_t i = j; i < a->z->t; i++) {
        const double p = exp(a->scale * dot4(a->q + i * d, a->k + j * d, d) - a->logsum[i]);
        add_scaled(dv, p, a->grad + i * d, d);
        add_scaled(dk, a->scale * p * (dot4(a->grad + i * d, a->v + j * d, d) - a->delta[i]), a->q + i * d, d);
    }
}

/* Each row by itself: the first ones are means over few keys and far larger than the others. */
static void compare_attention(struct checker *c, struct attention_run *a)
{
    enum { OUT, DQ, DK, DV, TENSORS };
    const struct sizes *z = a->z;
    const int64_t per = z->heads / z->kv, row = z->heads * z->d, key = z->kv * z->d;
    const int64_t counts[TENSORS] = {z->rows * row, z->rows * row, z->keys * key, z->keys * key};
    int64_t rows[ROWS_MAX], keys[KEYS_MAX];
    double *got[TENSORS], *want[TENSORS], *p = values(c, z->t);
    double *got_lse = values(c, z->rows * z->heads), *want_lse = values(c, z->rows * z->heads);
    draw(c, rows, z->rows, z->t);
    draw(c, keys, z->keys, z->t);
    for (int i = 0; i < TENSORS; i++)
        got[i] = values(c, counts[i]), want[i] = values(c, counts[i]);
    for (int64_t h = 0; h < z->heads; h++) {
        load_head(c, a, h);
        for (int r = 0; r < z->rows; r++) {
            const int64_t at = r * z->heads + h;
            reference_query(a, rows[r], p, want[OUT] + at * z->d, want_lse + at, want[DQ] + at * z->d);
            memcpy(got[OUT] + at * z->d, a->output + rows[r] * z->d, (size_t)z->d * sizeof(double));
            got_lse[at] = a->logsum[rows[r]];
            read_back(c, got[DQ] + at * z->d, a->dqkv[0], DTYPE_BF16, rows[r] * a->width + h * z->d, z->d);
        }
        for (int r = 0; r < z->keys; r++) {
            const int64_t at = (r * z->kv + h / per) * z->d, column = (z->heads + h / per) * z->d;
            reference_key(a, keys[r], want[DK] + at, want[DV] + at);
            read_back(c, got[DK] + at, a->dqkv[0], DTYPE_BF16, keys[r] * a->width + column, z->d);
            read_back(c, got[DV] + at, a->dqkv[0], DTYPE_BF16, keys[r] * a->width + column + z->kv * z->d, z->d);
        }
    }
    bool ok = near(c, got_lse, want_lse, z->rows * z->heads, limit_of(DTYPE_F32), "lse");
    for (int r = 0; r < z->rows; r++) {
        ok = near(c, got[OUT] + r * row, want[OUT] + r * row, row, limit_of(DTYPE_BF16), "out") && ok;
        if (rows[r] > 0) /* the first query sees itself only: its gradient is 0 but for rounding */
            ok = near(c, got[DQ] + r * row, want[DQ] + r * row, row, 5.0 * limit_of(DTYPE_BF16), "dq") && ok;
    }
    for (int r = 0; r < z->keys; r++) {
        ok = near(c, got[DK] + r * key, want[DK] + r * key, key, 5.0 * limit_of(DTYPE_BF16), "dk") && ok;
        ok = near(c, got[DV] + r * key, want[DV] + r * key, key, 5.0 * limit_of(DTYPE_BF16), "dv") && ok;
    }
    result(c, ok, "attention of %lld tokens, %lld heads%s: %d rows and %d keys of all heads, forward and backward",
           (long long)z->t, (long long)z->heads, order_names[a->order], z->rows, z->keys);
}

static void check_attention(struct checker *c, const struct sizes *z, enum attention_order order)
{
    struct attention_run a = {.z = z, .order = order, .width = (z->heads + 2 * z->kv) * z->d, .value = z->heads * z->d};
    a.scale = 1.0 / sqrt((double)z->d);
    a.qkv = random_halves(c, z->t * a.width, 0);
    a.dout = random_halves(c, z->t * a.value, 0);
    a.host_out = malloc((size_t)(z->t * a.value) * 2);
    if (!a.host_out)
        abort();
    run_attention(c, &a);
    double **const heads[] = {&a.q, &a.k, &a.v, &a.grad, &a.output};
    for (int i = 0; i < 5; i++)
        *heads[i] = values(c, z->t * z->d);
    a.logsum = values(c, z->t);
    a.delta = values(c, z->t);
    compare_attention(c, &a);
    bool ok = twice_same(c, a.out[0], a.out[1], (size_t)(z->t * a.value) * 2, "out");
    ok = twice_same(c, a.lse[0], a.lse[1], (size_t)(z->t * z->heads) * 4, "lse") && ok;
    ok = twice_same(c, a.dqkv[0], a.dqkv[1], (size_t)(z->t * a.width) * 2, "dq, dk, dv") && ok;
    result(c, ok, "attention of %lld tokens%s: twice the same bits", (long long)z->t, order_names[a.order]);
    free(a.qkv.x);
    free(a.dout.x);
    free(a.host_out);
    sweep(c);
}

/* --- products ----------------------------------------------------------------------------------------------------- */

/* op(a) (M,K) times op(b) (K,N), as the device's matmul has them. */
struct product {
    const char *name;
    const struct halves *a, *b;
    bool ta, tb;
    int64_t m, n, k;
    enum dtype to;
};

/* Row (of op(a)) or column (of op(b)) i in fp64; across: its elements lie a row apart. */
static void load_line(double *out, const uint16_t *x, int64_t i, int64_t lines, int64_t k, bool across)
{
    for (int64_t j = 0; j < k; j++)
        out[j] = from_bf16(across ? x[j * lines + i] : x[i * k + j]);
}

static void check_product(struct checker *c, const struct product *p, int lines)
{
    const float beta = p->to == DTYPE_F32 ? 1.0f : 0.0f; /* gradients of weights are added; the memory is zeroed */
    const size_t bytes = (size_t)(p->m * p->n) * dtype_bytes(p->to);
    void *to[2];
    for (int i = 0; i < 2; i++) {
        to[i] = device_memory(c, bytes);
        need(
            c,
            c->ops->matmul(c->s, ARGS(matmul, .c = to[i], .c_dt = p->to, .ldc = p->n, .a = p->a->p, .ta = p->ta,
                                      .lda = p->ta ? p->m : p->k, .b = p->b->p, .tb = p->tb, .ldb = p->tb ? p->k : p->n,
                                      .ab_dt = DTYPE_BF16, .m = p->m, .n = p->n, .k = p->k, .beta = beta)),
            p->name);
    }
    sync_stream(c);
    int64_t rows[ROWS_MAX], columns[ROWS_MAX];
    double *a = values(c, lines * p->k), *b = values(c, p->k), *want = values(c, lines * lines),
           *got = values(c, lines * lines);
    draw(c, rows, lines, p->m);
    draw(c, columns, lines, p->n);
    for (int i = 0; i < lines; i++)
        load_line(a + i * p->k, p->a->x, rows[i], p->m, p->k, p->ta);
    for (int j = 0; j < lines; j++) {
        load_line(b, p->b->x, columns[j], p->n, p->k, !p->tb);
        for (int i = 0; i < lines; i++) {
            want[i * lines + j] = dot4(a + i * p->k, b, p->k);
            read_back(c, &got[i * lines + j], to[0], p->to, rows[i] * p->n + columns[j], 1);
        }
    }
    /* fp32 results have the rounding of k sums in fp32, which a tensor core cuts off instead. */
    const double limit = p->to == DTYPE_F32 ? 1e-12 * (double)p->k : limit_of(p->to);
    bool ok = near(c, got, want, lines * lines, limit, p->name);
    ok = twice_same(c, to[0], to[1], bytes, p->name) && ok;
    result(c, ok, "%s %lldx%lldx%lld: %d elements, twice the same bits", p->name, (long long)p->m, (long long)p->n,
           (long long)p->k, lines * lines);
    for (int i = 0; i < 2; i++) { /* the next product needs the room */
        titan_assert(c->tracked[c->tracked_count - 1] == to[1 - i]);
        c->ops->release(c->h->dev, c->tracked[--c->tracked_count]);
    }
}

/* The widest layer, forward and both gradients: 64 rows by 64 columns of each. */
static void check_products(struct checker *c, const struct sizes *z)
{
    const int lines = z->rows;
    struct halves x = random_halves(c, z->n * z->in, 0), w = random_halves(c, z->out * z->in, -4);
    struct halves dy = random_halves(c, z->n * z->out, 0);
    const struct product products[] = {
        {"matmul forward", &x, &w, false, true, z->n, z->out, z->in, DTYPE_BF16},
        {"matmul dgrad", &dy, &w, false, false, z->n, z->in, z->out, DTYPE_BF16},
        {"matmul wgrad", &dy, &x, true, false, z->out, z->in, z->n, DTYPE_F32},
    };
    for (int i = 0; i < 3; i++)
        check_product(c, &products[i], lines);
    free(x.x);
    free(w.x);
    free(dy.x);
    sweep(c);
}

/* --- experts' products -------------------------------------------------------------------------------------------- */

struct experts_run {
    const struct sizes *z;
    struct halves x, w, dy; /* (packed,k), (EXPERTS,each,k), (packed,each) */
    int32_t rows[EXPERTS];
    int64_t first[EXPERTS];
    void *counts;
};

/* Element (row, column) of a product in fp64, without what lies beyond the experts' rows. */
static double forward_element(const struct experts_run *e, int expert, int64_t row, int64_t column)
{
    double sum = 0;
    const uint16_t *const w = e->w.x + ((int64_t)expert * e->z->each + column) * e->z->k;
    for (int64_t i = 0; i < e->z->k; i++)
        sum += (double)from_bf16(e->x.x[row * e->z->k + i]) * from_bf16(w[i]);
    return sum;
}
static double dgrad_element(const struct experts_run *e, int expert, int64_t row, int64_t column)
{
    double sum = 0;
    const uint16_t *const w = e->w.x + (int64_t)expert * e->z->each * e->z->k + column;
    for (int64_t i = 0; i < e->z->each; i++)
        sum += (double)from_bf16(e->dy.x[row * e->z->each + i]) * from_bf16(w[i * e->z->k]);
    return sum;
}
static double wgrad_element(const struct experts_run *e, int expert, int64_t row, int64_t column)
{
    double sum = 0;
    for (int64_t i = e->first[expert]; i < e->first[expert] + e->rows[expert]; i++)
        sum += (double)from_bf16(e->dy.x[i * e->z->each + row]) * from_bf16(e->x.x[i * e->z->k + column]);
    return sum;
}

static void check_grouped(struct checker *c, struct experts_run *e, const char *name, bool ta, bool tb)
{
    const struct sizes *const z = e->z;
    const enum dtype to = ta ? DTYPE_F32 : DTYPE_BF16;
    const int64_t rows = ta ? EXPERTS * z->each : z->packed, width = tb ? z->each : z->k;
    const size_t bytes = (size_t)(rows * width) * dtype_bytes(to);
    void *out[2];
    for (int i = 0; i < 2; i++) {
        out[i] = device_memory(c, bytes);
        need(c,
             ta   ? c->ops->matmul_grouped(c->s, ARGS(matmul, .c = out[i], .c_dt = to, .ldc = width, .a = e->dy.p,
                                                      .ta = true, .lda = z->each, .b = e->x.p, .ldb = z->k,
                                                      .ab_dt = DTYPE_BF16, .counts = e->counts, .groups = EXPERTS,
                                                      .parts = 1, .m = z->each, .n = z->k, .k = z->packed, .beta = 1.0f))
             : tb ? c->ops->matmul_grouped(c->s, ARGS(matmul, .c = out[i], .c_dt = to, .ldc = width, .a = e->x.p,
                                                      .lda = z->k, .b = e->w.p, .tb = true, .ldb = z->k,
                                                      .ab_dt = DTYPE_BF16, .counts = e->counts, .groups = EXPERTS,
                                                      .parts = 1, .m = z->packed, .n = z->each, .k = z->k))
                  : c->ops->matmul_grouped(c->s, ARGS(matmul, .c = out[i], .c_dt = to, .ldc = width, .a = e->dy.p,
                                                      .lda = z->each, .b = e->w.p, .ldb = z->k, .ab_dt = DTYPE_BF16,
                                                      .counts = e->counts, .groups = EXPERTS, .parts = 1,
                                                      .m = z->packed, .n = z->k, .k = z->each)),
             name);
    }
    sync_stream(c);
    enum { EACH = 24 };
    double want[EXPERTS * EACH], got[EXPERTS * EACH];
    int n = 0;
    for (int x = 0; x < EXPERTS; x++)
        for (int i = 0; i < EACH && e->rows[x] > 0; i++, n++) {
            /* the first and the last row among them */
            const int64_t most = ta ? z->each : e->rows[x];
            const int64_t within = i == 0 ? 0 : i == 1 ? most - 1 : (int64_t)(next_random(c) % (uint64_t)most);
            const int64_t row = (ta ? x * z->each : e->first[x]) + within;
            const int64_t column = i == 2 ? width - 1 : (int64_t)(next_random(c) % (uint64_t)width);
            want[n] = ta   ? wgrad_element(e, x, within, column)
                      : tb ? forward_element(e, x, row, column)
                           : dgrad_element(e, x, row, column);
            read_back(c, &got[n], out[0], to, row * width + column, 1);
        }
    const double limit = ta ? 1e-12 * (double)z->packed : limit_of(to);
    bool ok = near(c, got, want, n, limit, name);
    ok = twice_same(c, out[0], out[1], bytes, name) && ok;
    result(c, ok, "%s of %d experts, %lld rows, %lldx%lld: %d elements, twice the same bits", name, EXPERTS,
           (long long)z->packed, (long long)z->each, (long long)z->k, n);
}

/* Experts with few rows, with many, and one without. */
static void check_experts(struct checker *c, const struct sizes *z)
{
    static const int parts[EXPERTS] = {5, 0, 40, 1, 17, 9, 15, 3};
    struct experts_run e = {.z = z};
    int64_t at = 0;
    e.x = random_halves(c, z->packed * z->k, 0);
    e.w = random_halves(c, EXPERTS * z->each * z->k, -4);
    e.dy = random_halves(c, z->packed * z->each, 0);
    for (int i = 0; i < EXPERTS; i++) {
        e.rows[i] = (int32_t)(z->packed * parts[i] / 100 + (parts[i] > 0));
        e.first[i] = at;
        at += e.rows[i];
    }
    titan_assert(at <= z->packed);
    e.counts = device_memory(c, sizeof e.rows);
    need(c, c->ops->copy(c->s, e.counts, e.rows, sizeof e.rows), "copy");
    check_grouped(c, &e, "grouped forward", false, true);
    check_grouped(c, &e, "grouped dgrad", false, false);
    check_grouped(c, &e, "grouped wgrad", true, false);
    free(e.x.x);
    free(e.w.x);
    free(e.dy.x);
    sweep(c);
}

/* --- loss --------------------------------------------------------------------------------------------------------- */

struct loss_run {
    struct halves logits; /* on the host `different` rows, on the device one after the other, again and again */
    int32_t *targets;
    void *dlogits[2];
    float *losses[2];
};

static void run_loss(struct checker *c, const struct sizes *z, struct loss_run *l)
{
    const size_t row = (size_t)z->vocabulary * 2;
    char *all = device_memory(c, (size_t)z->tokens * row);
    float *stats = device_memory(c, (size_t)z->tokens * 12);
    int32_t *targets = device_memory(c, (size_t)z->tokens * 4);
    for (int64_t at = 0; at < z->tokens; at += z->different) {
        const int64_t rows = z->tokens - at < z->different ? z->tokens - at : z->different;
        need(c, c->ops->copy(c->s, all + (size_t)at * row, l->logits.p, (size_t)rows * row), "copy");
    }
    need(c, c->ops->copy(c->s, targets, l->targets, (size_t)z->tokens * 4), "copy");
    for (int i = 0; i < 2; i++) {
        l->dlogits[i] = device_memory(c, (size_t)z->tokens * row);
        l->losses[i] = device_memory(c, (size_t)z->tokens * 4);
        need(c,
             c->ops->loss_stats(c->s, ARGS(loss, .stats = stats, .logits = all, .targets = targets, .dt = DTYPE_BF16,
                                           .n = z->tokens, .v = z->vocabulary)),
             "loss_stats");
        need(c,
             c->ops->loss_finish(c->s, ARGS(loss, .losses = l->losses[i], .dlogits = l->dlogits[i], .logits = all,
                                            .targets = targets, .stats = stats, .parts = 1, .dt = DTYPE_BF16,
                                            .n = z->tokens, .v = z->vocabulary)),
             "loss_finish");
    }
    sync_stream(c);
}

/* One row; the target's gradient apart, which would hide the others'. */
static void reference_loss(const uint16_t *logits, int64_t v, int64_t target, double *loss, double *grads)
{
    double most = -INFINITY, sum = 0;
    for (int64_t j = 0; j < v; j++)
        most = fmax(most, from_bf16(logits[j]));
    for (int64_t j = 0; j < v; j++)
        sum += grads[j] = exp(from_bf16(logits[j]) - most);
    *loss = target < 0 ? 0 : log(sum) + most - from_bf16(logits[target]);
    for (int64_t j = 0; j < v; j++)
        grads[j] = target < 0 ? 0 : grads[j] / sum - (j == target);
}

static void check_loss(struct checker *c, const struct sizes *z)
{
    struct loss_run l = {.logits = random_halves(c, z->different * z->vocabulary, 1)};
    const int64_t v = z->vocabulary;
    int64_t rows[ROWS_MAX];
    double *got = values(c, v), *want = values(c, v), got_loss[ROWS_MAX], want_loss[ROWS_MAX], got_own[ROWS_MAX],
           want_own[ROWS_MAX];
    l.targets = malloc((size_t)z->tokens * 4);
    if (!l.targets)
        abort();
    for (int64_t i = 0; i < z->tokens; i++)
        l.targets[i] = next_random(c) % 16 == 0 ? -1 : (int32_t)(next_random(c) % (uint64_t)v);
    run_loss(c, z, &l);
    draw(c, rows, z->rows, z->tokens);
    bool ok = true;
    for (int r = 0; r < z->rows; r++) {
        const int64_t target = l.targets[rows[r]];
        reference_loss(l.logits.x + rows[r] % z->different * v, v, target, &want_loss[r], want);
        read_back(c, &got_loss[r], l.losses[0], DTYPE_F32, rows[r], 1);
        read_back(c, got, l.dlogits[0], DTYPE_BF16, rows[r] * v, v);
        got_own[r] = want_own[r] = 0;
        if (target >= 0) {
            got_own[r] = got[target], want_own[r] = want[target];
            got[target] = want[target] = 0;
            ok = near(c, got, want, v, limit_of(DTYPE_BF16), "dlogits") && ok;
        } else {
            ok = same(c, got, want, v, "dlogits of a token that does not count") && ok;
        }
    }
    ok = near(c, got_loss, want_loss, z->rows, limit_of(DTYPE_F32), "loss") && ok;
    ok = near(c, got_own, want_own, z->rows, limit_of(DTYPE_BF16), "the targets' dlogits") && ok;
    ok = twice_same(c, l.dlogits[0], l.dlogits[1], (size_t)(z->tokens * v) * 2, "dlogits") && ok;
    ok = twice_same(c, l.losses[0], l.losses[1], (size_t)z->tokens * 4, "losses") && ok;
    result(c, ok, "loss of %lld tokens, vocabulary %lld: %d rows, twice the same bits", (long long)z->tokens,
           (long long)v, z->rows);
    free(l.logits.x);
    free(l.targets);
    sweep(c);
}

int device_samples_check(const struct device_handle *handle, bool reduced, FILE *report)
{
    const char *seed = getenv("TITAN_SEED");
    const struct sizes *z = reduced ? &small : &llama_8b;
    struct checker c = {.h = handle, .ops = handle->ops, .report = report};
    struct titan_error err = {0};
    c.random = seed ? strtoull(seed, NULL, 0) : 20261124;
    fprintf(report, "# device '%s', seed %llu\n", handle->info.name, (unsigned long long)c.random);
    if (c.ops->stream_open(handle->dev, "compute", true, &c.s, &err) != TITAN_OK) {
        fprintf(report, "not ok 1 - stream: %s\n", err.msg);
        return 1;
    }
    check_attention(&c, z, ATTENTION_FIXED);
    check_attention(&c, z, ATTENTION_REPEATABLE);
    check_products(&c, z);
    check_experts(&c, z);
    check_loss(&c, z);
    c.ops->stream_close(c.s);
    return c.failed;
}
