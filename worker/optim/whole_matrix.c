/* SPDX-License-Identifier: Apache-2.0 */
/* whole_matrix.c - the methods for whole matrices, by the run's optimizer. */
#include "worker/optim/whole_matrix.h"

#include <string.h>

#include "base/cleanup.h"
#include "worker/optim/whole_methods.h"

static const struct whole_method_calls *calls_of(const struct recipe *r)
{
    static const struct {
        const char *name;
        const struct whole_method_calls *calls;
    } methods[] = {
#define METHOD(name, calls) {name, &calls},
#include "base/optimizers.def"
    };
    const char *const name = optimizer_of_matrices(r)->name;
    const struct whole_method_calls *found = NULL;

    for (size_t i = 0; i < ARRAY_SIZE(methods); i++)
        if (strcmp(methods[i].name, name) == 0)
            found = methods[i].calls;
    titan_assert(found);
    return found;
}

bool whole_reads_weights(const struct recipe *r)
{
    return optimizer_of_matrices(r)->rule == RULE_DIRECTION && calls_of(r)->reads_weights;
}

bool whole_decays(const struct recipe *r)
{
    return optimizer_of_matrices(r)->rule == RULE_DIRECTION && calls_of(r)->decays && calls_of(r)->decays(r);
}

double whole_flops(const struct recipe *r, int64_t rows, int64_t cols, int64_t heads)
{
    return calls_of(r)->flops(r, rows, cols, heads);
}

size_t whole_work_bytes(const struct recipe *r, enum dtype dt, int64_t rows, int64_t cols, int64_t heads)
{
    return calls_of(r)->work_bytes(r, dt, rows, cols, heads);
}

titan_status whole_direction(const struct whole_step *step, const struct whole_matrix *m, void *work,
                             const struct device_ops *ops, struct stream *s)
{
    titan_assert(step->number >= 1 && m->rows > 0 && m->cols > 0 && m->heads > 0 && m->rows % m->heads == 0);
    titan_assert(m->number >= 0 && m->number < m->of);
    titan_assert(m->weights || !whole_reads_weights(step->recipe));
    return calls_of(step->recipe)->direction(step, m, work, ops, s);
}
