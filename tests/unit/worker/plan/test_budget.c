/* SPDX-License-Identifier: Apache-2.0 */
/* budget.h: a budget of 0 is full checkpointing, 1 is none, and between them more memory never means more to compute
 * again. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "base/cleanup.h"
#include "tests/support/plans.h"
#include "worker/plan/budget.h"

#define LAYERS 12

static void open_plan(struct planned *p, int world, const char *budget, const char *const *more)
{
    const char *sets[16] = {"model.n_layers=12", "training.seq_len=1024", "activation_checkpoint.mode=memory_budget",
                            budget};
    struct titan_error err = {0};

    for (size_t i = 0, n = 4; more && more[i]; i++)
        sets[n++] = more[i];
    if (planned_open(p, world, "h100", sets, &err) != TITAN_OK)
        fail_msg("%s: %s", budget, err.msg);
}

static size_t activations(const struct planned *p)
{
    struct program copy = *p->programs[0];
    size_t bytes[MEMORY_COUNT];

    (void)program_peak(&copy, bytes, NULL);
    return bytes[MEMORY_ACTIVATIONS];
}

static double recomputed(const struct planned *p)
{
    double sum = 0;

    for (int i = 0; i < p->programs[0]->n_actions; i++)
        if (p->programs[0]->actions[i].phase == PHASE_RECOMPUTE)
            sum += cost_action(&p->cost, p->programs[0], &p->programs[0]->actions[i]);
    return sum;
}

static int layers_in(const struct planned *p, enum checkpointing mode, int from, int to)
{
    int n = 0;
    for (int l = from; l < to; l++)
        n += p->plan->checkpointing[l] == mode;
    return n;
}

static void ends_are_full_and_none(void **state)
{
    struct planned p;

    (void)state;
    open_plan(&p, 1, "activation_checkpoint.memory_budget=0", NULL);
    assert_int_equal(layers_in(&p, CHECKPOINT_FULL, 0, LAYERS), LAYERS);
    planned_close(&p);
    open_plan(&p, 1, "activation_checkpoint.memory_budget=1", NULL);
    assert_int_equal(layers_in(&p, CHECKPOINT_NONE, 0, LAYERS), LAYERS);
    assert_true(recomputed(&p) == 0);
    planned_close(&p);
}

static void walk_budgets(int world, const char *const *more)
{
    size_t bytes[11];
    double time[11];

    for (int i = 0; i <= 10; i++) {
        char budget[64];
        struct planned p;
        (void)snprintf(budget, sizeof budget, "activation_checkpoint.memory_budget=%.1f", 0.1 * i);
        open_plan(&p, world, budget, more);
        bytes[i] = activations(&p);
        time[i] = recomputed(&p);
        planned_close(&p);
        if (i > 0 && (bytes[i] < bytes[i - 1] || time[i] > time[i - 1] * (1 + 1e-9)))
            fail_msg("%s: %zu bytes and %.9g s, a budget less %zu and %.9g", budget, bytes[i], time[i], bytes[i - 1],
                     time[i - 1]);
    }
    for (int i = 0; i <= 10; i++) { /* within a layer's worth: layers are in one mode each */
        const double limit = (double)bytes[0] + 0.1 * i * (double)(bytes[10] - bytes[0]);
        if ((double)bytes[i] > limit + (double)(bytes[10] - bytes[0]) / LAYERS)
            fail_msg("budget %.1f: %zu bytes, allowed are %.0f", 0.1 * i, bytes[i], limit);
    }
    assert_true(time[5] > 0 && time[5] < time[0]);
}

static void more_memory_never_computes_more(void **state)
{
    static const char *const pipeline[] = {"parallelism.pipeline_parallel_degree=2", "training.global_batch_size=4",
                                           NULL};

    (void)state;
    walk_budgets(1, NULL);
    walk_budgets(4, NULL);
    walk_budgets(2, pipeline);
}

/* Every stage of a pipeline gets its part of each mode. */
static void modes_are_spread(void **state)
{
    struct planned p;

    (void)state;
    open_plan(&p, 1, "activation_checkpoint.memory_budget=0.4", NULL);
    assert_true(layers_in(&p, CHECKPOINT_PRODUCTS, 0, LAYERS) > 0); /* of a layer's memory it saves most for its time */
    for (int mode = CHECKPOINT_NONE; mode <= CHECKPOINT_FULL; mode++) {
        const int all = layers_in(&p, (enum checkpointing)mode, 0, LAYERS);
        const int half = layers_in(&p, (enum checkpointing)mode, 0, LAYERS / 2);
        assert_in_range(2 * half + 2, all, all + 4);
    }
    planned_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ends_are_full_and_none),
        cmocka_unit_test(more_memory_never_computes_more),
        cmocka_unit_test(modes_are_spread),
    };
    return cmocka_run_group_tests_name("budget", tests, NULL, NULL);
}
