/* SPDX-License-Identifier: Apache-2.0 */
/* plans.c - plans of recipes for tests. */
#include "tests/support/plans.h"

#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"

static titan_status read_keys(struct recipe *r, int world, const char *const *sets, struct titan_error *err)
{
    static const char *const defaults[] = {"model.flavor=debugmodel", "training.seq_len=64",
                                           "training.local_batch_size=1"};
    char bound[64];

    recipe_init(r);
    for (size_t i = 0; i < ARRAY_SIZE(defaults); i++)
        TRY(recipe_set(r, defaults[i], err));
    (void)snprintf(bound, sizeof bound, "elastic.max_workers=%d", world);
    TRY(recipe_set(r, bound, err));
    for (; *sets; sets++)
        TRY(recipe_set(r, *sets, err));
    return recipe_resolve(r, err);
}

static titan_status open_parts(struct planned *p, int world, const char *machine, const char *const *sets,
                               struct titan_error *err)
{
    const bool cpu = strcmp(machine, "cpu") == 0;

    TRY(read_keys(&p->recipe, world, sets, err));
    TRY(model_open(&p->recipe.model.dims, &p->model, err));
    p->cost = (struct cost){.machine = cost_machine_find(machine)};
    const struct plan_options options = {.recipe = &p->recipe,
                                         .model = p->model,
                                         .world = world,
                                         .dt = cpu ? DTYPE_F32 : DTYPE_BF16,
                                         .machine = p->cost.machine};
    TRY(plan_open(&options, &p->plan, err));
    return plan_programs(p->plan, &p->programs, err);
}

titan_status planned_open(struct planned *ret, int world, const char *machine, const char *const *sets,
                          struct titan_error *err)
{
    *ret = (struct planned){0};
    const titan_status status = open_parts(ret, world, machine, sets, err);
    if (status != TITAN_OK)
        planned_close(ret);
    return status;
}

void planned_close(struct planned *p)
{
    if (p->plan)
        plan_free_programs(p->plan, p->programs);
    plan_close(p->plan);
    model_close(p->model);
    p->programs = NULL;
    p->plan = NULL;
    p->model = NULL;
}

titan_status planned_draft(const struct planned *p, int class, struct program **ret, struct titan_error *err)
{
    struct build_options draft = p->plan->build;

    draft.draft = true;
    return program_build(&draft, program_class_rank(&p->plan->build, class), ret, err);
}
