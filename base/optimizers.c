/* SPDX-License-Identifier: Apache-2.0 */
#include "base/optimizers.h"

#include <math.h>
#include <string.h>

#include "base/cleanup.h"

static int sgd_kept(const struct recipe *r)
{
    return r->optimizer.sgd.momentum > 0;
}

static void sgd_numbers(const struct recipe *r, uint64_t number, float ret[UPDATE_OWN])
{
    (void)number;
    ret[0] = (float)r->optimizer.sgd.momentum;
    ret[1] = r->optimizer.sgd.nesterov;
}

/* AdEMAMix's alpha and beta3 grow during its warm-up: alpha linearly, beta3 so that its half-life grows linearly
 * (arXiv:2409.03137, section 3.1). */
static void ademamix_numbers(const struct recipe *r, uint64_t number, float ret[UPDATE_OWN])
{
    const int64_t all = r->lr_scheduler.total_steps > 0 ? r->lr_scheduler.total_steps : r->training.steps;
    const int64_t warmup = r->optimizer.ademamix.warmup_steps;
    const double until = (double)(warmup >= 0 ? warmup : all), x = until > 0 ? (double)number / until : 1;
    const double beta3 = r->optimizer.ademamix.beta3, from = log(r->optimizer.beta1), to = log(beta3);

    ret[0] = (float)(x >= 1 || to == 0 ? beta3 : fmin(exp(from * to / ((1 - x) * to + x * from)), beta3));
    ret[1] = (float)(r->optimizer.ademamix.alpha * fmin(x, 1));
}

/* The basis has a vector in each row, the moments are those of the gradient's products with these vectors. */
static void galore_shape(const struct recipe *r, int state, int64_t rows, int64_t cols, int64_t *ret_rows,
                         int64_t *ret_cols)
{
    enum { BASIS = 2 };
    const int64_t side = MIN(rows, cols), rank = r->optimizer.galore.rank > 0 ? r->optimizer.galore.rank : side / 4;
    const int64_t kept = MAX(1, MIN(rank, side));

    if (state == BASIS) {
        *ret_rows = kept;
        *ret_cols = side;
    } else
        *(rows >= cols ? ret_cols : ret_rows) = kept;
}

static int ranger21_kept(const struct recipe *r)
{
    return r->optimizer.ranger21.lookahead ? 5 : r->optimizer.ranger21.momentum ? 4 : 2;
}

static struct optimizer_schedule ranger21_schedule(const struct recipe *r, int64_t step, int64_t total)
{
    const double at = (double)MIN(step, total), all = (double)total;
    struct optimizer_schedule s = {
        .warms = r->optimizer.ranger21.warmup, .decays = r->optimizer.ranger21.explore_exploit, .most = INFINITY};

    if (s.warms)
        s.most = fmax((1 - r->optimizer.beta2) / 2 * at, at / (0.22 * all));
    if (s.decays)
        s.most = fmin(s.most, (all - at + 1) / (0.28 * all));
    return s;
}

#define STATES(...) .states = {__VA_ARGS__}
#define OPTIMIZERS(X)                                                                                                  \
    X("AdamW", .rule = RULE_ADAMW, STATES("m", "v"))                                                                   \
    X("Adam", .rule = RULE_ADAMW, .l2 = true, STATES("m", "v"))                                                        \
    X("SGD", .rule = RULE_SGD, .l2 = true, STATES("momentum"), .kept = sgd_kept, .numbers = sgd_numbers)               \
    X("Lion", .rule = RULE_LION, STATES("m"))                                                                          \
    X("AdEMAMix", .rule = RULE_ADEMAMIX, STATES("m", "v", "slow"), .numbers = ademamix_numbers)                        \
    X("StableAdamW", .rule = RULE_ADAMW, .sums = true, STATES("m", "v"))                                               \
    X("Muon", .rule = RULE_DIRECTION, .owned = 1, STATES("momentum"))                                                  \
    X("GaLore2", .rule = RULE_DIRECTION, .owned = 3, STATES("m", "v", "basis"), .shape = galore_shape)                 \
    X("Ranger21", .rule = RULE_DIRECTION, .owned = 5, STATES("m", "v", "previous", "largest", "slow"),                 \
      .kept = ranger21_kept, .schedule = ranger21_schedule)

#define ROW(row_name, ...) {.name = (row_name), __VA_ARGS__},
static const struct optimizer optimizers[] = {OPTIMIZERS(ROW)};
#define NAME(name, ...) "|" name
static const char names[] = OPTIMIZERS(NAME);

const char *optimizer_names(void)
{
    return names + 1;
}

const struct optimizer *optimizer_find(const char *name)
{
    for (size_t i = 0; i < ARRAY_SIZE(optimizers); i++)
        if (strcmp(optimizers[i].name, name) == 0)
            return &optimizers[i];
    return NULL;
}

const struct optimizer *optimizer_of_matrices(const struct recipe *r)
{
    const struct optimizer *const o = optimizer_find(r->optimizer.name);
    titan_assert(o);
    return o;
}

const struct optimizer *optimizer_of_rest(const struct recipe *r)
{
    const struct optimizer *const o = optimizer_find(r->optimizer.rest), *const matrices = optimizer_of_matrices(r);

    if (o)
        return o;
    return matrices->rule != RULE_DIRECTION ? matrices : optimizer_find("AdamW");
}

int optimizer_states(const struct optimizer *o, const struct recipe *r)
{
    int n = 0;

    if (o->kept)
        return o->kept(r);
    while (n < OPTIMIZER_STATES && o->states[n])
        n++;
    return n;
}

/* Is a state a mean of squares? Owners' states have the names of their kind. */
static bool state_is_square(const struct optimizer *o, int i)
{
    return i < o->owned ? strcmp(o->states[i], "v") == 0 || strcmp(o->states[i], "largest") == 0
                        : update_state_is_square(o->rule, i - o->owned);
}

/* Adds an optimizer's tensors of state to the kinds. Returns their bits. */
static unsigned add_kinds(struct state_kinds *k, const struct optimizer *o, const struct recipe *r)
{
    unsigned bits = 0;

    for (int i = 0; i < optimizer_states(o, r); i++) {
        int at = 0;
        while (at < k->n && (k->owned >> at & 1 || strcmp(k->name[at], o->states[i]) != 0))
            at++;
        k->name[at] = o->states[i];
        k->n = MAX(k->n, at + 1);
        bits |= 1u << at;
        k->owned |= i < o->owned ? 1u << at : 0;
        k->squares |= state_is_square(o, i) ? 1u << at : 0;
    }
    return bits;
}

struct state_kinds optimizer_kinds(const struct recipe *r)
{
    struct state_kinds k = {0};

    k.matrices = add_kinds(&k, optimizer_of_matrices(r), r);
    k.rest = add_kinds(&k, optimizer_of_rest(r), r);
    if (!optimizer_keeps_residual(r))
        return k;
    k.each = 1u << k.n;
    k.matrices |= k.each;
    k.rest |= k.each;
    k.name[k.n++] = "residual";
    titan_assert(k.n <= STATE_KINDS);
    return k;
}

bool optimizer_keeps_residual(const struct recipe *r)
{
    const char *const method = r->parallelism.replicate_method;

    return method[0] && strcmp(method, "all_reduce") != 0;
}

bool optimizer_needs_sums(const struct recipe *r)
{
    return r->optimizer.stable_adamw.threshold > 0 && (optimizer_of_matrices(r)->sums || optimizer_of_rest(r)->sums);
}

bool optimizer_directs(const struct recipe *r)
{
    return optimizer_needs_sums(r) || optimizer_of_matrices(r)->rule == RULE_DIRECTION || optimizer_keeps_residual(r);
}

void optimizer_state_shape(const struct optimizer *o, const struct recipe *r, int state, int64_t rows, int64_t cols,
                           int64_t *ret_rows, int64_t *ret_cols)
{
    titan_assert(o->rule == RULE_DIRECTION && state < OPTIMIZER_STATES && o->states[state]);
    *ret_rows = rows;
    *ret_cols = cols;
    if (o->shape)
        o->shape(r, state, rows, cols, ret_rows, ret_cols);
}
