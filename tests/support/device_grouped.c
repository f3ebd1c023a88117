/* SPDX-License-Identifier: Apache-2.0 */
/* device_grouped.c - products of packed rows, each group with a matrix of its own, against plain loops; and what must
 * be the same to the bit: parts, rounds, and a group beside others. */
#include <math.h>
#include <string.h>

#include "support/device_checker.h"
#include "support/device_ops.h"

enum grouped_form { FORWARD, DGRAD, WGRAD };
static const char *const form_names[] = {"forward", "dgrad", "wgrad"};

/* What lies between rows, and in those from `rows` on, is no part of any product. */
static void spoil(const struct tensor *t, int64_t ld, int64_t width, int64_t rows)
{
    for (int64_t i = 0; i < t->n; i++)
        if (i % ld >= width || i / ld >= rows)
            t->x[i] = (double)NAN;
}

static void grouped_case(struct checker *c, enum dtype ab, enum dtype cd, enum grouped_form form, const int *rows,
                         int64_t w, int64_t in, int64_t pad, double beta)
{
    enum { GROUPS = 6 };
    const bool ta = form == WGRAD, tb = form == FORWARD;
    struct tensor counts = empty(c, GROUPS, DTYPE_I32);
    int64_t total = 0, limit, first = 0;
    for (int e = 0; e < GROUPS; e++) {
        counts.x[e] = rows[e];
        total += rows[e];
    }
    upload(c, &counts);
    limit = total + 7;
    /* !ta: a (rows,in), b (in,w) each, c (rows,w); ta: a (rows,in), b (rows,w), c (in,w) each. */
    int64_t lda = in + pad, ldb = (tb ? in : w) + pad, ldc = w + pad, deep = tb ? w : in;
    struct tensor a = noise(c, limit * lda, ab, 1.0), b = noise(c, (ta ? limit : GROUPS * deep) * ldb, ab, 1.0);
    spoil(&a, lda, in, total), spoil(&b, ldb, tb ? in : w, ta ? total : INT64_MAX);
    upload(c, &a), upload(c, &b);
    struct tensor o = noise(c, (ta ? GROUPS * in : limit) * ldc, cd, 1.0);
    double *want = values(c, o.n);
    memcpy(want, o.x, (size_t)o.n * 8); /* rows beyond and between rows stay */
    for (int64_t e = 0; e < GROUPS; first += rows[e], e++)
        for (int64_t i = 0; i < (ta ? in : rows[e]); i++)
            for (int64_t j = 0; j < w; j++) {
                int64_t to = (ta ? e * in + i : first + i) * ldc + j;
                double sum = beta * o.x[to];
                for (int64_t p = 0; p < (ta ? rows[e] : in); p++)
                    sum += ta ? a.x[(first + p) * lda + i] * b.x[(first + p) * ldb + j]
                              : a.x[(first + i) * lda + p] * b.x[e * deep * ldb + (tb ? j * ldb + p : p * ldb + j)];
                want[to] = sum;
            }
    need(c,
         c->ops->matmul_grouped(c->s, ARGS(matmul, .c = o.p, .c_dt = cd, .ldc = ldc, .a = a.p, .ta = ta, .lda = lda,
                                           .b = b.p, .tb = tb, .ldb = ldb, .ab_dt = ab, .counts = counts.p,
                                           .groups = GROUPS, .parts = 1, .m = ta ? in : limit, .n = w,
                                           .k = ta ? limit : in, .beta = (float)beta)),
         "matmul_grouped");
    double *got = download(c, &o);
    bool ok = near(c, got, want, o.n, limit_of(cd), "product");
    ok = ok && (ta || same(c, got + total * ldc, want + total * ldc, 7 * ldc, "rows beyond"));
    for (int64_t i = 0; i < o.n / ldc && pad; i++)
        ok = ok && same(c, got + i * ldc + w, want + i * ldc + w, pad, "between rows");
    result(c, ok, "matmul_grouped %s to %s %s %d,%d,%d,%d,%d,%d rows x %lld x %lld ld+%lld beta %g", name_of(ab),
           name_of(cd), form_names[form], rows[0], rows[1], rows[2], rows[3], rows[4], rows[5], (long long)w,
           (long long)in, (long long)pad, beta);
    sweep(c);
}

enum { PARTS = 3, PART_GROUPS = 2 };

/* A product of several parts' rows, and of each part's alone. */
struct parts {
    struct tensor a, b, wide, counts; /* rows (all,in), matrices (GROUPS,in,w), rows (all,w) */
    int64_t in, w, rows[PARTS], first[PARTS], all;
    enum dtype dt;
};

static titan_status run_parts(struct checker *c, const struct parts *p, struct tensor *out, bool ta, int64_t first,
                              int from, int n, int64_t rows, float beta)
{
    const struct tensor *b = ta ? &p->wide : &p->b;
    return c->ops->matmul_grouped(
        c->s,
        ARGS(matmul, .c = ta ? out->p : offset_of(out, first * p->w), .c_dt = ta ? DTYPE_F32 : p->dt, .ldc = p->w,
             .a = offset_of(&p->a, first * p->in), .ta = ta, .lda = p->in, .b = ta ? offset_of(b, first * p->w) : b->p,
             .ldb = p->w, .ab_dt = p->dt, .counts = offset_of(&p->counts, from * PART_GROUPS), .groups = PART_GROUPS,
             .parts = n, .m = ta ? p->in : rows, .n = p->w, .k = ta ? rows : p->in, .beta = beta));
}

/* Bit for bit: rows of several parts at once are those of each part alone, and a weight gradient of one part is that of
 * its rows alone. */
static void grouped_parts_case(struct checker *c, enum dtype dt, int64_t in, int64_t w)
{
    static const int counts[PARTS * PART_GROUPS] = {70, 3, 0, 300, 21, 64};
    const int64_t matrix = PART_GROUPS * in * w;
    struct parts p = {.counts = empty(c, PARTS * PART_GROUPS, DTYPE_I32), .in = in, .w = w, .dt = dt};
    for (int i = 0; i < PARTS * PART_GROUPS; i++) {
        p.counts.x[i] = counts[i];
        p.rows[i / PART_GROUPS] += counts[i];
        p.all += counts[i];
    }
    for (int i = 1; i < PARTS; i++)
        p.first[i] = p.first[i - 1] + p.rows[i - 1];
    upload(c, &p.counts);
    p.a = noise(c, p.all * in, dt, 1.0), p.b = noise(c, matrix, dt, 1.0);
    p.wide = noise(c, p.all * w, dt, 1.0);
    struct tensor together = empty(c, p.all * w, dt), alone = empty(c, p.all * w, dt);
    struct tensor grads = empty(c, matrix, DTYPE_F32), grads_alone = empty(c, matrix, DTYPE_F32);
    bool ok = true;
    need(c, run_parts(c, &p, &together, false, 0, 0, PARTS, p.all, 0.0f), "matmul_grouped");
    for (int i = 0; i < PARTS; i++) {
        need(c, run_parts(c, &p, &alone, false, p.first[i], i, 1, p.rows[i], 0.0f), "matmul_grouped");
        need(c, run_parts(c, &p, &grads, true, 0, 0, i + 1, p.first[i] + p.rows[i], 0.0f), "matmul_grouped");
        need(c, run_parts(c, &p, &grads_alone, true, p.first[i], i, 1, p.rows[i], 0.0f), "matmul_grouped");
        ok = same(c, download(c, &grads), download(c, &grads_alone), matrix, "weight gradient") && ok;
    }
    ok = same(c, download(c, &together), download(c, &alone), together.n, "rows") && ok;
    result(c, ok, "matmul_grouped %s of %d parts, %lld x %lld: the bits of each part alone", name_of(dt), PARTS,
           (long long)in, (long long)w);
    sweep(c);
}

/* Bit for bit: a weight gradient of rows that come in two rounds, the first a multiple of EXPERT_SPLIT. */
static void grouped_rounds_case(struct checker *c, enum dtype dt, int64_t w)
{
    enum { N = 2 * EXPERT_SPLIT + 77 };
    struct tensor counts = empty(c, 3, DTYPE_I32);
    struct tensor a = noise(c, N * w, dt, 1.0), b = noise(c, N * w, dt, 1.0);
    struct tensor once = empty(c, w * w, DTYPE_F32), twice = empty(c, w * w, DTYPE_F32);
    counts.x[0] = N, counts.x[1] = 2 * EXPERT_SPLIT, counts.x[2] = 77;
    upload(c, &counts);
    need(c,
         c->ops->matmul_grouped(c->s, ARGS(matmul, .c = once.p, .c_dt = DTYPE_F32, .ldc = w, .a = a.p, .ta = true,
                                           .lda = w, .b = b.p, .ldb = w, .ab_dt = dt, .counts = counts.p, .groups = 1,
                                           .parts = 1, .m = w, .n = w, .k = N)),
         "matmul_grouped");
    for (int i = 0; i < 2; i++) {
        const int64_t first = (int64_t)i * 2 * EXPERT_SPLIT * w;
        need(c,
             c->ops->matmul_grouped(c->s,
                                    ARGS(matmul, .c = twice.p, .c_dt = DTYPE_F32, .ldc = w, .a = offset_of(&a, first),
                                         .ta = true, .lda = w, .b = offset_of(&b, first), .ldb = w, .ab_dt = dt,
                                         .counts = offset_of(&counts, 1 + i), .groups = 1, .parts = 1, .m = w, .n = w,
                                         .k = N - first / w, .beta = (float)i)),
             "matmul_grouped");
    }
    result(c, same(c, download(c, &twice), download(c, &once), once.n, "weight gradient"),
           "matmul_grouped %s, %lld x %lld: a weight gradient in two rounds has the bits of one", name_of(dt),
           (long long)w, (long long)w);
    sweep(c);
}

void device_grouped_check(struct checker *c)
{
    static const int rows[][6] = {{0, 5, 1, 64, 17, 0}, {400, 0, 0, 3, 130, 16}, {0, 0, 0, 0, 0, 0}};
    for (int r = 0; r < 3; r++)
        for (int form = FORWARD; form <= WGRAD; form++)
            for (int kind = 0; kind < 3; kind++) {
                enum dtype ab = kind == 0 ? DTYPE_F32 : DTYPE_BF16;
                enum dtype cd = kind == 2 && form != WGRAD ? DTYPE_BF16 : DTYPE_F32;
                grouped_case(c, ab, cd, (enum grouped_form)form, rows[r], 24 + 9 * kind, 31 + 17 * form, r == 1 ? 8 : 0,
                             (kind + r) % 2);
            }
    for (int i = 0; i < 2; i++) {
        grouped_parts_case(c, both[i], 24, 40);
        grouped_rounds_case(c, both[i], 20);
    }
    struct tensor x = empty(c, 64, DTYPE_F32);
    result(c,
           c->ops->matmul_grouped(c->s, ARGS(matmul, .c = x.p, .c_dt = DTYPE_F32, .ldc = 4, .a = x.p, .ta = true,
                                             .lda = 4, .b = x.p, .tb = true, .ldb = 4, .ab_dt = DTYPE_F32,
                                             .counts = x.p, .groups = 1, .parts = 1, .m = 4, .n = 4, .k = 4)) ==
                   TITAN_EINVAL &&
               c->ops->matmul_grouped(c->s, ARGS(matmul, .c = x.p, .c_dt = DTYPE_F32, .ldc = 3, .a = x.p, .lda = 4,
                                                 .b = x.p, .ldb = 4, .ab_dt = DTYPE_F32, .counts = x.p, .groups = 1,
                                                 .parts = 1, .m = 4, .n = 4, .k = 4)) == TITAN_EINVAL,
           "matmul_grouped refuses both transposed and a row stride below the width");
    sweep(c);
}

/* Bit for bit: a group's product, whatever others' rows and matrices hold. */
static void grouped_neighbours_case(struct checker *c, enum dtype dt, enum grouped_form form, int64_t in, int64_t w)
{
    enum { GROUPS = 4, ROWS = 70 + 190 + 5 };
    static const int rows[GROUPS] = {70, 190, 0, 5};
    const bool ta = form == WGRAD, tb = form == FORWARD;
    const int64_t matrix = in * w;
    struct tensor counts = empty(c, GROUPS, DTYPE_I32);
    struct tensor a = noise(c, ROWS * in, dt, 1.0), b = noise(c, ta ? ROWS * w : GROUPS * matrix, dt, 1.0);
    struct tensor o = empty(c, ta ? GROUPS * matrix : ROWS * w, ta ? DTYPE_F32 : dt);
    bool ok = true;
    for (int e = 0; e < GROUPS; e++)
        counts.x[e] = rows[e];
    upload(c, &counts);
    double *want = NULL, *clean_a = values(c, a.n), *clean_b = values(c, b.n);
    memcpy(clean_a, a.x, (size_t)a.n * 8), memcpy(clean_b, b.x, (size_t)b.n * 8);
    for (int e = -1, first = 0; e < GROUPS; first += e < 0 ? 0 : rows[e], e++) {
        for (int64_t i = 0; i < a.n && e >= 0; i++)
            a.x[i] = i / in < first || i / in >= first + rows[e] ? (double)NAN : clean_a[i];
        for (int64_t i = 0; i < b.n && e >= 0; i++)
            b.x[i] = (ta ? i / w < first || i / w >= first + rows[e] : i / matrix != e) ? (double)NAN : clean_b[i];
        upload(c, &a), upload(c, &b);
        need(c,
             c->ops->matmul_grouped(c->s, ARGS(matmul, .c = o.p, .c_dt = o.dt, .ldc = w, .a = a.p, .ta = ta, .lda = in,
                                               .b = b.p, .tb = tb, .ldb = tb ? in : w, .ab_dt = dt, .counts = counts.p,
                                               .groups = GROUPS, .parts = 1, .m = ta ? in : ROWS, .n = w,
                                               .k = ta ? ROWS : in)),
             "matmul_grouped");
        double *got = download(c, &o);
        if (e < 0)
            want = got;
        else if (ta)
            ok = same(c, got + e * matrix, want + e * matrix, matrix, "gradient") && ok;
        else
            ok = same(c, got + first * w, want + first * w, rows[e] * w, "rows") && ok;
    }
    result(c, ok, "matmul_grouped %s %s %lld x %lld: a group's bits, whatever its neighbours hold", name_of(dt),
           form_names[form], (long long)w, (long long)in);
    sweep(c);
}

/* More rows and columns than a tile of any device has, to and across its bounds. */
void device_grouped_tiles_check(struct checker *c)
{
    static const int rows[][6] = {{130, 0, 1, 310, 63, 0}, {128, 257, 0, 64, 16, 256}};
    static const int64_t shapes[][3] = {{264, 200, 0}, {184, 72, 8}, {128, 328, 8}, {576, 64, 0}}; /* w, in, pad */
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        for (int form = FORWARD; form <= WGRAD; form++)
            for (int kind = 0; kind < 2; kind++) {
                const bool bf16 = form != WGRAD && (kind + i) % 2;
                grouped_case(c, DTYPE_BF16, bf16 ? DTYPE_BF16 : DTYPE_F32, (enum grouped_form)form, rows[kind],
                             shapes[i][0], shapes[i][1], shapes[i][2], (double)((kind + (int)i / 2) % 2));
            }
    static const int many[6] = {0, 2100, 3, 0, 140, 5}; /* a band of tiles, and more */
    for (int form = FORWARD; form <= WGRAD; form++) {
        grouped_case(c, DTYPE_BF16, form == WGRAD ? DTYPE_F32 : DTYPE_BF16, (enum grouped_form)form, many, 264, 40, 0,
                     0.0);
        grouped_neighbours_case(c, DTYPE_BF16, (enum grouped_form)form, 136, 136);
        grouped_neighbours_case(c, DTYPE_BF16, (enum grouped_form)form, 64, 264);
    }
    grouped_parts_case(c, DTYPE_BF16, 136, 200);
    grouped_parts_case(c, DTYPE_BF16, 72, 584);
    grouped_rounds_case(c, DTYPE_BF16, 136);
    grouped_rounds_case(c, DTYPE_BF16, 184);
}
