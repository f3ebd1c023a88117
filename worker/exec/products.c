/* SPDX-License-Identifier: Apache-2.0 */
/* products.c - chooses the implementation of each of a program's products, the same on all ranks
 * (exec_choose_products). */
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/progress.h"
#include "worker/exec/executor.h"

#define PRODUCTS_MOST 1024
#define PART_BITS 32 /* bits per double; a double could carry more bits exactly */
#define PARTS ((8 + PRODUCT_WAY_BYTES) / 4)
#define ROW (PARTS + 1) /* `chosen`, then the product and its way in parts */
#define STRETCH 16      /* rows gathered in one call */

struct products {
    struct exec *e;
    exec_gather_fn gather;
    void *arg;
    int world;
    struct product_way *ways; /* [n] this rank's ways */
    int n;
};

/* --- what there is ------------------------------------------------------------------------------------------------ */

static uintptr_t low_bits(const struct exec *e, const struct action *a)
{
    uintptr_t bits = 0;
    for (int i = 0; i < a->n_operands; i++) {
        const struct operand *o = &action_operands(e->p, a)[i];
        bits = bits << 8 | (((uintptr_t)e->address[o->buffer] + (uintptr_t)o->offset) & 255);
    }
    return bits;
}

/* Are the products the same for a library? Shapes, strides, types and the alignment of the operands must be the
 * same. */
static bool same_product(const struct exec *e, const struct action *a, const struct action *b)
{
    return low_bits(e, a) == low_bits(e, b) &&
           op_params_same((enum op)a->op, action_params(e->p, a), action_params(e->p, b));
}

static bool is_product(const struct action *a, const struct op_params *p)
{
    (void)p;
    return a->op == OP_MATMUL;
}

/* --- what others have --------------------------------------------------------------------------------------------- */

/* Reads a row of gather_rows(). False: the row is empty or invalid. */
static bool take_row(const double *row, struct product_way *ret)
{
    uint32_t parts[PARTS];

    for (int i = 0; i < PARTS; i++) {
        if (!(row[1 + i] >= 0 && row[1 + i] < (double)(UINT64_C(1) << PART_BITS)))
            return false;
        parts[i] = (uint32_t)row[1 + i];
    }
    *ret = (struct product_way){.chosen = row[0] == 1};
    memcpy(&ret->product, parts, 8);
    memcpy(ret->how, parts + 2, PRODUCT_WAY_BYTES);
    return row[0] == 0 || row[0] == 1;
}

/* Gathers every rank's rows into *ret, [rank][*ret_most][ROW]. A rank's unused rows begin with -1. It gathers only
 * STRETCH rows at a time, because the gathered rows need device memory besides all buffers of the plan. */
static titan_status gather_rows(const struct products *p, double **ret, int *ret_most, struct titan_error *err)
{
    const double mine = p->n;
    _cleanup_free_ double *counts = calloc((size_t)p->world, sizeof *counts), *rows = NULL, *part = NULL;
    int most = 1;

    if (!counts)
        return titan_fail(err, TITAN_ENOMEM, "choosing products: out of memory");
    TRY(p->gather(p->arg, &mine, 1, counts, err));
    for (int r = 0; r < p->world; r++) {
        if (!(counts[r] >= 0 && counts[r] <= PRODUCTS_MOST))
            return titan_fail(err, TITAN_ECORRUPT, "choosing products: rank %d names %g of them", r, counts[r]);
        most = MAX(most, (int)counts[r]);
    }
    rows = calloc((size_t)most * ROW, sizeof *rows);
    part = calloc((size_t)p->world * STRETCH * ROW, sizeof *part);
    *ret = calloc((size_t)p->world * (size_t)most * ROW, sizeof **ret);
    if (!rows || !part || !*ret)
        return titan_fail(err, TITAN_ENOMEM, "choosing products: out of memory");
    titan_assert(p->n <= most);
    for (int i = 0; i < most; i++) {
        double *const row = rows + (size_t)i * ROW;
        uint32_t parts[PARTS];
        _Static_assert(PARTS * 4 == 8 + PRODUCT_WAY_BYTES, "whole words");
        row[0] = -1;
        if (i >= p->n)
            continue;
        memcpy(parts, &p->ways[i].product, 8);
        memcpy(parts + 2, p->ways[i].how, PRODUCT_WAY_BYTES);
        row[0] = p->ways[i].chosen;
        for (int k = 0; k < PARTS; k++)
            row[1 + k] = parts[k];
    }
    for (int from = 0; from < most; from += STRETCH) {
        const size_t n = (size_t)MIN(most - from, STRETCH) * ROW;
        TRY(p->gather(p->arg, rows + (size_t)from * ROW, (int)n, part, err));
        for (int r = 0; r < p->world; r++)
            memcpy(*ret + ((size_t)r * (size_t)most + (size_t)from) * ROW, part + (size_t)r * n, n * sizeof *part);
    }
    *ret_most = most;
    return TITAN_OK;
}

/* Returns the first rank with the product; with `chosen`, the first rank with a choice for the product. -1 = none. */
static int first_rank(const double *rows, int world, int most, uint64_t product, bool chosen, struct product_way *ret)
{
    for (int r = 0; r < world; r++)
        for (int i = 0; i < most; i++)
            if (take_row(rows + ((size_t)r * (size_t)most + (size_t)i) * ROW, ret) && ret->product == product &&
                (ret->chosen || !chosen))
                return r;
    return -1;
}

/* --- choosing ----------------------------------------------------------------------------------------------------- */

/* Takes for each product the choice of the first rank with a choice. In left[] it marks each product for which no rank
 * has a choice, if this rank is the first with the product. */
static titan_status take_choices(struct products *p, bool *left, struct exec_products *ret, struct titan_error *err)
{
    const struct device_handle *const d = p->e->opt.device;
    _cleanup_free_ double *rows = NULL;
    struct product_way way;
    struct titan_error why;
    int most = 0;

    if (p->world > 1)
        TRY(gather_rows(p, &rows, &most, err));
    for (int i = 0; i < p->n; i++) {
        struct product_way *const mine = &p->ways[i];
        if (p->world == 1) {
            left[i] = !mine->chosen;
            continue;
        }
        if (first_rank(rows, p->world, most, mine->product, true, &way) < 0) {
            left[i] = first_rank(rows, p->world, most, mine->product, false, &way) == p->e->opt.rank;
            continue;
        }
        left[i] = false;
        if (mine->chosen && memcmp(mine->how, way.how, sizeof way.how) == 0)
            continue;
        if (d->ops->product_choose(d->dev, &way, &why) == TITAN_OK)
            *mine = way;
        else
            ret->refused++;
    }
    return TITAN_OK;
}

titan_status exec_choose_products(struct exec *e, exec_gather_fn gather, void *arg, struct exec_products *ret,
                                  struct titan_error *err)
{
    const struct device_handle *const d = e->opt.device;
    const struct device_ops *const ops = e->ops;
    struct products p = {.e = e, .gather = gather, .arg = arg, .world = gather ? e->p->mesh.world : 1};

    titan_assert(e->stage == EXEC_IDLE);
    *ret = (struct exec_products){0};
    if (!ops->products_note)
        return TITAN_OK;
    _cleanup_free_ struct product_way *ways = calloc(PRODUCTS_MOST, sizeof *ways);
    if (!ways)
        return titan_fail(err, TITAN_ENOMEM, "choosing products: out of memory");
    p.ways = ways;
    ops->products_note(d->dev, true);
    const titan_status status = exec_run_distinct(e, is_product, same_product, err);
    ops->products_note(d->dev, false);
    p.n = ops->products_noted(d->dev, ways, PRODUCTS_MOST);
    titan_assert(p.n >= 0 && p.n <= PRODUCTS_MOST);
    TRY(status);

    _cleanup_free_ bool *left = calloc((size_t)p.n + 1, sizeof *left);
    if (!left)
        return titan_fail(err, TITAN_ENOMEM, "choosing products: out of memory");
    TRY(take_choices(&p, left, ret, err));
    ret->all = p.n;
    for (int i = 0; i < p.n; i++) {
        progress_action();
        if (!left[i])
            continue;
        TRY(ops->product_time(e->opt.streams[STREAM_COMPUTE], &ways[i], err));
        ret->timed++;
    }
    if (p.world == 1)
        return TITAN_OK;
    ret->refused = 0; /* take_choices() counts again */
    TRY(take_choices(&p, left, ret, err));
    return exec_warm_up(e, err); /* warms up other ranks' choices, too */
}
