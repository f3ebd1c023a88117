/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/plan/fitting.h"

#include <stdlib.h>

#include "base/cleanup.h"

static bool fitting(const struct plan_options *options,
                    bool (*fits)(const struct plan *plan, struct program *const *programs, void *with), void *with)
{
    struct program **programs = NULL;
    struct plan *plan = NULL;

    titan_assert(options->world > 0 && options->model);
    bool ok = plan_open(options, &plan, NULL) == TITAN_OK && plan_programs(plan, &programs, NULL) == TITAN_OK &&
              (!fits || fits(plan, programs, with));
    if (programs)
        plan_free_programs(plan, programs);
    plan_close(plan);
    return ok;
}

const char *plan_batch_key(const struct recipe *r)
{
    return r->parallelism.pipeline_parallel_degree > 1 ? "parallelism.pipeline_parallel_microbatch_size"
                                                       : "training.local_batch_size";
}

int64_t plan_fitting_batch(const struct plan_options *options,
                           bool (*fits)(const struct plan *plan, struct program *const *programs, void *with),
                           void *with)
{
    const int64_t global = options->recipe->training.global_batch_size;
    _cleanup_free_ struct recipe *smaller = malloc(sizeof *smaller);
    struct plan_options o = *options;

    titan_assert(global > 0);
    /* An evaluation has its own batch, which these keys do not change. */
    if (!smaller || o.evaluation)
        return 0;
    *smaller = *options->recipe;
    o.recipe = smaller;
    int64_t *rows = smaller->parallelism.pipeline_parallel_degree > 1
                        ? &smaller->parallelism.pipeline_parallel_microbatch_size
                        : &smaller->training.local_batch_size;
    while (--*rows >= 1)
        if (global % *rows == 0 && recipe_check_world(smaller, o.world, NULL) == TITAN_OK && fitting(&o, fits, with))
            return *rows;
    return 0;
}

int plan_fitting_room(const struct plan_options *options,
                      bool (*fits)(const struct plan *plan, struct program *const *programs, void *with), void *with)
{
    const double room = options->recipe->parallelism.expert_parallel_room;
    _cleanup_free_ struct recipe *rounds = malloc(sizeof *rounds);
    struct plan_options o = *options;

    if (!rounds || options->model->dims.n_experts == 0 || options->recipe->parallelism.expert_parallel_degree == 1)
        return 0;
    *rounds = *options->recipe;
    o.recipe = rounds;
    for (int shares = 4; shares >= 1; shares /= 2) {
        rounds->parallelism.expert_parallel_room = shares;
        if ((room <= 0 || shares < room) && fitting(&o, fits, with))
            return shares;
    }
    return 0;
}
