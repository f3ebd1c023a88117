/* SPDX-License-Identifier: Apache-2.0 */
/* matmul_grouped.c - products of packed rows, each group with a matrix of its own.
 *
 * The number of a group's rows is known only now and differs every step, while oneDNN makes each shape anew. So a group
 * is cut into pieces of few sizes. Pieces of 256 and 64 rows are multiplied in place. The remaining rows, fewer than
 * 64, are copied and filled up with zeros to a multiple of 16. That makes six shapes per product, and at most 15 extra
 * rows per group. */
#include <string.h>

#include "worker/device/cpu/matmul.h"
#include "worker/device/cpu/arith.h"

enum { LARGE = EXPERT_SPLIT, SMALL = 64, FILL = 16 };

struct grouped_args {
    struct product all;    /* m (k with ta) is the most rows that all groups can have */
    const int32_t *counts; /* (parts,groups) */
    int64_t groups, parts;
};

/* A group: its index in counts, the number of its rows and its first row. */
struct group {
    int64_t index, rows, first;
};

static void copy_rows(void *dst, int64_t ldd, const void *src, int64_t lds, int64_t rows, int64_t cols, enum dtype dt)
{
    titan_assert(ldd >= cols && lds >= cols);
    for (int64_t i = 0; i < rows; i++)
        memcpy(at_mut(dst, i * ldd, dt), at(src, i * lds, dt), (size_t)cols * dtype_bytes(dt));
}

/* Copies `rows` rows of src to dense rows and adds zero rows up to `padded`. */
static void fill_rows(void *dst, const void *src, int64_t lds, int64_t rows, int64_t padded, int64_t cols,
                      enum dtype dt)
{
    titan_assert(rows >= 0 && padded >= rows);
    copy_rows(dst, cols, src, lds, rows, cols, dt);
    memset(at_mut(dst, rows * cols, dt), 0, (size_t)((padded - rows) * cols) * dtype_bytes(dt));
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
    fill_rows(scratch, p.a, z->lda, rows, padded, z->k, ab);
    if (z->accumulate)
        fill_rows(filled_c, c, ldc, rows, padded, z->n, cd);
    z->m = padded;
    z->lda = z->k;
    z->ldc = z->n;
    p.a = scratch;
    p.c = filled_c;
    TRY(product_run(ctx, &p));
    copy_rows(c, ldc, filled_c, z->n, rows, z->n, cd);
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
    fill_rows(scratch, p.a, z->lda, rows, padded, z->m, ab);
    fill_rows(filled_b, p.b, z->ldb, rows, padded, z->n, ab);
    z->k = padded;
    z->lda = z->m;
    z->ldb = z->n;
    p.a = scratch;
    p.b = filled_b;
    return product_run(ctx, &p);
}

static titan_status run_group(const struct cpu_context *ctx, const struct grouped_args *g, const struct group *group,
                              void *scratch)
{
    titan_assert(group->rows >= 0 && group->index < g->groups);
    const bool ta = g->all.shape.ta;
    bool accumulate = g->all.shape.accumulate;
    if (group->rows == 0 && ta && !accumulate) { /* a group without rows gives a product of 0 */
        struct product p = piece_of(g, group->index, group->first);
        p.shape.k = 0;
        return product_run(ctx, &p);
    }
    for (int64_t done = 0, step; done < group->rows; done += step) {
        struct product p = piece_of(g, group->index, group->first + done);
        int64_t left = group->rows - done;
        step = left >= LARGE ? LARGE : left >= SMALL ? SMALL : left;
        *(ta ? &p.shape.k : &p.shape.m) = step;
        p.shape.accumulate = accumulate;
        accumulate = accumulate || ta; /* later pieces of a weight gradient add to the first */
        if (step % FILL == 0)
            TRY(product_run(ctx, &p));
        else
            TRY((ta ? run_rest_wgrad : run_rest)(ctx, p, step, scratch));
    }
    return TITAN_OK;
}

static titan_status counts_check(const struct cpu_context *ctx, const struct grouped_args *g)
{
    int64_t total = 0, limit = g->all.shape.ta ? g->all.shape.k : g->all.shape.m;
    for (int64_t e = 0; e < g->parts * g->groups; e++) {
        if (g->counts[e] < 0 || total + g->counts[e] > limit)
            return titan_fail(ctx->err, TITAN_EINVAL,
                              "grouped product: group %lld has %d rows, after %lld others of %lld at most",
                              (long long)e, g->counts[e], (long long)total, (long long)limit);
        total += g->counts[e];
    }
    return TITAN_OK;
}

static titan_status run_grouped(const struct cpu_context *ctx, const void *p)
{
    const struct grouped_args *g = p;
    titan_assert(g->groups > 0 && g->parts > 0 && g->counts);
    const struct product_shape *z = &g->all.shape;
    const int64_t width = z->ta ? z->m + z->n : z->k + z->n;
    struct group group = {0};
    titan_status status = TITAN_OK;
    void *scratch;
    TRY(counts_check(ctx, g));
    TRY(cpu_scratch_take(ctx, SMALL * (size_t)width * sizeof(float), &scratch)); /* room for fp32, the widest type */
    for (int64_t i = 0; i < g->parts * g->groups && status == TITAN_OK; i++) {
        group.index = i % g->groups;
        group.rows = g->counts[i];
        if (!z->ta || i / g->groups == g->parts - 1)
            status = run_group(ctx, g, &group, scratch);
        group.first += group.rows;
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
