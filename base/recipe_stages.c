/* SPDX-License-Identifier: Apache-2.0 */
/* Layers and stages of the pipeline. The even split follows TorchTitan: the embedding and the head count as a number of
 * layers, and every stage gets the same total; with a remainder the first stages get one more. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/recipe.h"
#include "base/recipe_keys.h"
#include "base/schedule.h"

int recipe_split_points(const char *text, int64_t *ret, int max)
{
    titan_assert(max > 0);
    int n = 0;
    for (const char *p = text; *p;) {
        char *end = NULL;
        if (strncmp(p, "layers.", 7) != 0 || p[7] < '0' || p[7] > '9' || n == max)
            return -1;
        ret[n] = strtoll(p + 7, &end, 10);
        if ((n > 0 && ret[n] <= ret[n - 1]) || (*end != '\0' && (*end != ',' || end[1] == '\0')))
            return -1;
        n++;
        p = end + (*end == ',');
    }
    return n;
}

/* Default stages per rank. The three names with "Schedule" stand for a CSV file. */
static int stages_per_rank(const struct recipe *r)
{
    const char *name = r->parallelism.pipeline_parallel_schedule;
    if (strcmp(name, "PipelineScheduleSingle") == 0)
        return 1;
    if (strcmp(name, "PipelineScheduleMulti") == 0 || strcmp(name, "_PipelineScheduleRuntime") == 0)
        return 2;
    return schedule_stages_per_rank(name);
}

/* The number of layers, plus the embedding and the head: a stage at either end may have nothing else. */
static int64_t most_stages(const struct recipe *r)
{
    const char *split = r->parallelism.pipeline_parallel_split_points;
    int64_t ends = *split ? 2
                          : r->parallelism.pipeline_parallel_first_stage_less_layers +
                                r->parallelism.pipeline_parallel_last_stage_less_layers;
    return r->model.dims.n_layers + ends;
}

titan_status recipe_stages(const struct recipe *r, int *ret, struct titan_error *err)
{
    int64_t pp = r->parallelism.pipeline_parallel_degree, points[RECIPE_STAGES_MAX], stages;
    int64_t per_stage = r->parallelism.pipeline_parallel_layers_per_stage;
    const char *split = r->parallelism.pipeline_parallel_split_points, *key;
    if (pp <= 1) {
        *ret = 1;
        return TITAN_OK;
    }
    if (*split) {
        stages = recipe_split_points(split, points, RECIPE_STAGES_MAX) + 1;
        key = "parallelism.pipeline_parallel_split_points";
    } else if (per_stage > 0) {
        stages = r->model.dims.n_layers + r->parallelism.pipeline_parallel_first_stage_less_layers +
                 r->parallelism.pipeline_parallel_last_stage_less_layers;
        stages = (stages + per_stage - 1) / per_stage;
        key = "parallelism.pipeline_parallel_layers_per_stage";
    } else {
        stages = pp * stages_per_rank(r);
        key = "parallelism.pipeline_parallel_degree";
    }
    const char *name = r->parallelism.pipeline_parallel_schedule;
    const int64_t most = most_stages(r);
    const int each = stages_per_rank(r);
    if (stages > most || stages > RECIPE_STAGES_MAX)
        return titan_fail(err, TITAN_EINVAL,
                          "parallelism.pipeline_parallel_degree = %lld with %s makes %lld stages of %lld layers "
                          "(model.n_layers = %lld, embedding and head); nearest: %lld",
                          (long long)pp, name, (long long)stages, (long long)most, (long long)r->model.dims.n_layers,
                          (long long)MAX(1, MIN(most, RECIPE_STAGES_MAX) / MAX(stages / pp, 1)));
    if (stages % pp != 0 || (each == 1 && stages != pp))
        return titan_fail(
            err, TITAN_EINVAL,
            "%s makes %lld stages, but pipeline_parallel_schedule = \"%s\" on %lld ranks has %s%lld; nearest: "
            "%lld stages",
            key, (long long)stages, name, (long long)pp, each == 1 ? "" : "a multiple of ", (long long)pp,
            (long long)(each == 1 || stages < pp ? pp : stages - stages % pp));
    *ret = (int)stages;
    return TITAN_OK;
}

static titan_status split_at_points(const struct recipe *r, int stages, int *first_layer, struct titan_error *err)
{
    int64_t points[RECIPE_STAGES_MAX], layers = r->model.dims.n_layers;
    const char *split = r->parallelism.pipeline_parallel_split_points;
    int n = recipe_split_points(split, points, RECIPE_STAGES_MAX);
    if (n + 1 != stages)
        return titan_fail(err, TITAN_EINVAL,
                          "parallelism.pipeline_parallel_split_points = \"%.64s\" makes %d stages, not %d", split,
                          n + 1, stages);
    titan_assert(n >= 1);
    if (points[n - 1] > layers)
        return titan_fail(
            err, TITAN_EINVAL,
            "parallelism.pipeline_parallel_split_points: layers.%lld is none of the %lld layers; nearest: "
            "layers.%lld",
            (long long)points[n - 1], (long long)layers, (long long)layers - 1);
    first_layer[0] = 0;
    for (int s = 0; s < n; s++)
        first_layer[s + 1] = (int)points[s];
    first_layer[stages] = (int)layers;
    return TITAN_OK;
}

titan_status recipe_split_layers(const struct recipe *r, int stages, int *first_layer, struct titan_error *err)
{
    int64_t layers = r->model.dims.n_layers, first = r->parallelism.pipeline_parallel_first_stage_less_layers;
    int64_t last = r->parallelism.pipeline_parallel_last_stage_less_layers, next = 0;
    if (stages > 1 && r->parallelism.pipeline_parallel_split_points[0])
        return split_at_points(r, stages, first_layer, err);
    if (stages < 1 || stages > most_stages(r))
        return titan_fail(err, TITAN_EINVAL, "%d stages do not fit model.n_layers = %lld; nearest: %lld", stages,
                          (long long)layers, (long long)(stages < 1 ? 1 : most_stages(r)));
    int64_t each = (layers + first + last) / stages, more = (layers + first + last) % stages;
    if (stages > 1 && MAX(first, last) > each) {
        int64_t nearest = each; /* fewer layers per stage make the stages smaller */
        while (nearest > 0 && nearest > (layers + nearest + MIN(first, last)) / stages)
            nearest--;
        return titan_fail(err, TITAN_EINVAL,
                          "parallelism.pipeline_parallel_%s_stage_less_layers = %lld is more than the %lld layers of a "
                          "stage; nearest: %lld",
                          first > last ? "first" : "last", (long long)MAX(first, last), (long long)each,
                          (long long)nearest);
    }
    for (int s = 0; s < stages; s++) {
        first_layer[s] = (int)next;
        int64_t count = each + (s < more) - (s == 0 ? first : 0) - (s == stages - 1 ? last : 0);
        next = MIN(next + count, layers);
    }
    first_layer[stages] = (int)layers;
    return TITAN_OK;
}
