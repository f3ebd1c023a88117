/* SPDX-License-Identifier: Apache-2.0 */
/* owners.c - gives out the matrices of a model. */
#include "worker/tensor/owners.h"

#include <stdlib.h>

#include "base/cleanup.h"
#include "base/round.h"

#define STATE_ALIGN 1024 /* elements: a matrix's state begins at a multiple, in blocks of codes as well */

double owners_work(int64_t rows, int64_t cols)
{
    const double small = (double)MIN(rows, cols), large = (double)MAX(rows, cols);

    return 2 * small * small * (2 * large + small);
}

static int64_t heads_of(const struct model *m, const struct model_tensor *t)
{
    switch (t->role) {
    case ROLE_WQ:
    case ROLE_WQ_B:
        return m->dims.n_heads;
    case ROLE_WK:
    case ROLE_WV:
        return m->dims.n_kv_heads;
    default:
        return 1;
    }
}

/* Fills everything but owners and places. */
static void list_matrices(struct owners *o, const struct owners_options *opt)
{
    const struct optimizer *const row = optimizer_of_matrices(opt->recipe);
    const struct model *const m = opt->model;

    for (int t = 0; t < m->n_tensors; t++) {
        const struct model_tensor *const tensor = &m->tensors[t];
        const int parts = MAX(tensor->experts, 1);
        o->first[t] = o->n;
        for (int i = 0; i < parts && model_is_layer_matrix(m, t); i++) {
            struct owned_matrix *const x = &o->matrices[o->n++];
            x->tensor = t;
            x->rows = tensor->shape[0] / parts;
            x->cols = tensor->shape[1];
            x->row = i * x->rows;
            x->heads = heads_of(m, tensor);
            x->pp_rank = opt->pp_rank[tensor->unit];
            for (int k = 0; k < row->owned; k++)
                optimizer_state_shape(row, opt->recipe, k, x->rows, x->cols, &x->state[k].rows, &x->state[k].cols);
        }
    }
    o->first[m->n_tensors] = o->n;
}

static int by_work(const void *a, const void *b)
{
    const struct owned_matrix *const x = *(struct owned_matrix *const *)a, *const y = *(struct owned_matrix *const *)b;
    const double p = owners_work(x->rows, x->cols), q = owners_work(y->rows, y->cols);

    return p != q ? (p < q) - (p > q) : (x > y) - (x < y);
}

/* Gives out the matrices, the longest first. */
static titan_status give_out(struct owners *o, const struct owners_options *opt, struct titan_error *err)
{
    const int ranks = mesh_group_size(opt->mesh, GROUP_OWNERS), pp = opt->mesh->size[AXIS_PP];
    const size_t all = (size_t)ranks * (size_t)pp;
    _cleanup_free_ struct owned_matrix **order = calloc((size_t)o->n + 1, sizeof(struct owned_matrix *));
    _cleanup_free_ double *work = calloc(all, sizeof *work);
    _cleanup_free_ int64_t *values = calloc(all, sizeof *values);
    _cleanup_free_ int64_t(*kept)[OPTIMIZER_STATES] = calloc(all, sizeof *kept);

    if (!order || !work || !values || !kept)
        return titan_fail(err, TITAN_ENOMEM, "owners: out of memory");
    for (int i = 0; i < o->n; i++)
        order[i] = &o->matrices[i];
    qsort(order, (size_t)o->n, sizeof(struct owned_matrix *), by_work);
    for (int i = 0; i < o->n; i++) {
        struct owned_matrix *const x = order[i];
        const int first = x->pp_rank * ranks;
        for (int r = 1; r < ranks; r++)
            if (work[first + r] < work[first + x->owner])
                x->owner = r;
        const int at = first + x->owner;
        work[at] += owners_work(x->rows, x->cols);
        x->values = values[at];
        values[at] += round_up(x->rows * x->cols, MODEL_ALIGN);
        for (int k = 0; k < OPTIMIZER_STATES; k++) {
            int64_t *const span = &o->span[x->pp_rank][k];
            x->state[k].at = kept[at][k];
            kept[at][k] += round_up(x->state[k].rows * x->state[k].cols, STATE_ALIGN);
            *span = MAX(*span, kept[at][k]);
        }
        o->values[x->pp_rank] = MAX(o->values[x->pp_rank], values[at]);
    }
    for (int i = 0; i < o->n; i++) /* from places in a kind to places in the state */
        for (int k = 1; k < OPTIMIZER_STATES; k++)
            for (int before = 0; before < k; before++)
                o->matrices[i].state[k].at += o->span[o->matrices[i].pp_rank][before];
    for (int p = 0; p < pp; p++)
        for (int k = 0; k < OPTIMIZER_STATES; k++)
            o->kept[p] += o->span[p][k];
    return TITAN_OK;
}

titan_status owners_open(const struct owners_options *options, struct owners **ret, struct titan_error *err)
{
    const struct model *const m = options->model;
    const size_t pp = (size_t)options->mesh->size[AXIS_PP];
    struct owners *o = calloc(1, sizeof *o);
    size_t most = 1;

    for (int t = 0; t < m->n_tensors; t++)
        most += (size_t)MAX(m->tensors[t].experts, 1);
    if (o) {
        o->matrices = calloc(most, sizeof *o->matrices);
        o->first = calloc((size_t)m->n_tensors + 1, sizeof *o->first);
        o->values = calloc(pp, sizeof *o->values);
        o->span = calloc(pp, sizeof *o->span);
        o->kept = calloc(pp, sizeof *o->kept);
    }
    if (!o || !o->matrices || !o->first || !o->values || !o->span || !o->kept) {
        owners_close(o);
        return titan_fail(err, TITAN_ENOMEM, "owners: out of memory");
    }
    list_matrices(o, options);
    const titan_status status = give_out(o, options, err);
    if (status != TITAN_OK) {
        owners_close(o);
        return status;
    }
    *ret = o;
    return TITAN_OK;
}

void owners_close(struct owners *owners)
{
    if (!owners)
        return;
    free(owners->matrices);
    free(owners->first);
    free(owners->values);
    free(owners->span);
    free(owners->kept);
    free(owners);
}
