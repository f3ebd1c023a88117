/* SPDX-License-Identifier: Apache-2.0 */
/* matmul_grouped.c - products of packed rows, each group with a matrix of its own.
 *
 * The number of a group's rows is known only when the product runs, and differs every step. But oneDNN makes each shape
 * anew. So a group is cut into pieces of few sizes. Pieces of 256 and 64 rows are multiplied in place. The remaining
 * rows, fewer than 64, are copied and filled up with zeros to a multiple of 16. That makes six shapes per product, and
 * at most 15 extra rows per group. */
#include <string.h>

#include "worker/device/cpu/matmul.h"
#include "worker/device/cpu/arith.h"

enum { LARGE = EXPERT_SPLIT, SMALL = 64, FILL = 16 };

struct grouped_args {
    struct product all;    /* m (k with ta) is the most rows that all groups together can have */
    const int32_t *counts; /* (parts,groups) */
    int64_t groups, parts;
};

static void copy_rows(const struct strided_args *a)
{
    titan_assert(a->ldd >= a->cols && a->lds >= a->cols);
    for (int64_t i = 0; i < a->rows; i++)
        memcpy(at_mut(a->dst, i * a->ldd, a->dt), at(a->src, i * a->lds, a->dt), (size_t)a->cols * dtype_bytes(a->dt));
}

/* Copies rows to dense rows and adds zero rows up to `padded`. */
static void fill_rows(int64_t padded, const struct strided_args *a)
{
    titan_assert(a->rows >= 0 && padded >= a->rows && a->ldd == a->cols);
    copy_rows(a);
    memset(at_mut(a->dst, a->rows * a->cols, a->dt), 0, (size_t)((padded - a->rows) * a->cols) * dtype_bytes(a->dt));
}

/* The product of a group's rows from `first` on; the caller sets m or k. */
static struct product piece_of(const struct grouped_args *g, int64_t group, int64_t first)
{
    titan_assert(group >= 0 && group < g->groups && first >= 0);
    const struct product_shape *z = &g->all.shape;
    struct product p = g->all;
    p.a = at(p.a, first * z->lda, (enum dtype)z->ab_dt);
    if (z->ta) {
        p.b = at(p.b, first * z->ldb, (enum dtype)z->ab_dt);
        p.c = at_mut(p.c, group * z->m * z->ldc, (enum dtype)z->c_dt);
    } else {
        p.b = at(p.b, group * (z->tb ? z->n : z->k) * z->ldb, (enum dtype)z->ab_dt);
        p.c = at_mut(p.c, first * z->ldc, (enum dtype)z->c_dt);
    }
    return p;
}

/* c (rows,N) = a (rows,K) b on filled-up copies of a and c. */
static titan_status run_rest(const struct cpu_context *ctx, struct product p, int64_t rows, void *scratch)
{
    titan_assert(rows > 0);
    struct product_shape *z = &p.shape;
    const enum dtype ab = (enum dtype)z->ab_dt, cd = (enum dtype)z->c_dt;
    int64_t padded = (rows + FILL - 1) / FILL * FILL, ldc = z->ldc;
    void *c = p.c, *filled_c = at_mut(scratch, padded * z->k, ab);
    fill_rows(padded, ARGS(strided, .dst = scratch, .src = p.a, .ldd = z->k, .lds = z->lda, .dt = ab, .rows = rows,
                           .cols = z->k));
    if (z->accumulate)
        fill_rows(padded, ARGS(strided, .dst = filled_c, .src = c, .ldd = z->n, .lds = ldc, .dt = cd, .rows = rows,
                               .cols = z->n));
    z->m = padded;
    z->lda = z->k;
    z->ldc = z->n;
    p.a = scratch;
    p.c = filled_c;
    TRY(product_run(ctx, &p));
    copy_rows(ARGS(strided, .dst = c, .src = filled_c, .ldd = ldc, .lds = z->n, .dt = cd, .rows = rows, .cols = z->n));
    return TITAN_OK;
}

/* c (M,N) = a^T b on filled-up copies of a and b. */
static titan_status run_rest_wgrad(const struct cpu_context *ctx, struct product p, int64_t rows, void *scratch)
{
    titan_assert(rows > 0);
    struct product_shape *z = &p.shape;
    const enum dtype ab = (enum dtype)z->ab_dt;
    int64_t padded = (rows + FILL - 1) / FILL * FILL;
    void *filled_b = at_mut(scratch, padded * z->m, ab);
    fill_rows(padded, ARGS(strided, .dst = scratch, .src = p.a, .ldd = z->m, .lds = z->lda, .dt = ab, .rows = rows,
                           .cols = z->m));
    fill_rows(padded, ARGS(strided, .dst = filled_b, .src = p.b, .ldd = z->n, .lds = z->ldb, .dt = ab, .rows = rows,
                           .cols = z->n));
    z->k = padded;
    z->lda = z->m;
    z->ldb = z->n;
    p.a = scratch;
    p.b = filled_b;
    return product_run(ctx, &p);
}

static titan_status run_grouped(const struct cpu_context *ctx, const void *args)
{
    const struct grouped_args *g = args;
    titan_assert(g->groups > 0 && g->parts > 0 && g->counts);
    const struct product_shape *z = &g->all.shape;
    const bool ta = z->ta;
    const int64_t width = ta ? z->m + z->n : z->k + z->n, limit = ta ? z->k : z->m;
    int64_t first = 0;
    titan_status status = TITAN_OK;
    void *scratch;
    for (int64_t i = 0; i < g->parts * g->groups; i++) {
        if (g->counts[i] < 0 || first + g->counts[i] > limit)
            return titan_fail(ctx->err, TITAN_EINVAL,
                              "grouped product: group %lld has %d rows, after %lld others of %lld at most",
                              (long long)i, g->counts[i], (long long)first, (long long)limit);
        first += g->counts[i];
    }
    TRY(cpu_scratch_take(ctx, SMALL * (size_t)width * sizeof(float), &scratch)); /* room for fp32, the widest type */

    first = 0;
    for (int64_t i = 0; i < g->parts * g->groups && status == TITAN_OK; first += g->counts[i++]) {
        const int64_t group = i % g->groups, rows = g->counts[i];
        bool accumulate = z->accumulate;
        if (ta && i / g->groups != g->parts - 1)
            continue;
        if (rows == 0 && ta && !accumulate) { /* a group without rows gives a product of 0 */
            struct product p = piece_of(g, group, first);
            p.shape.k = 0;
            status = product_run(ctx, &p);
        }
        for (int64_t done = 0, step; done < rows && status == TITAN_OK; done += step) {
            struct product p = piece_of(g, group, first + done);
            step = rows - done >= LARGE ? LARGE : rows - done >= SMALL ? SMALL : rows - done;
            *(ta ? &p.shape.k : &p.shape.m) = step;
            p.shape.accumulate = accumulate;
            accumulate = accumulate || ta; /* later pieces of a weight gradient are added to the first piece */
            if (step % FILL == 0)
                status = product_run(ctx, &p);
            else
                status = (ta ? run_rest_wgrad : run_rest)(ctx, p, step, scratch);
        }
    }
    cpu_scratch_give(ctx);
    return status;
}

titan_status cpu_matmul_grouped(struct stream *s, const struct matmul_args *a)
{
    if (!matmul_args_valid(a) || a->groups < 0 || a->parts < 1)
        return TITAN_EINVAL;
    if (a->ta && (a->tb || a->c_dt != DTYPE_F32)) /* pieces are summed in c, which must be fp32 */
        return TITAN_EINVAL;
    if (a->n == 0 || (a->ta && a->m == 0))
        return TITAN_OK;
    const struct grouped_args g = {.all = product_of(a), .counts = a->counts, .groups = a->groups, .parts = a->parts};
    return cpu_enqueue(s, run_grouped, &g, sizeof(g));
}
