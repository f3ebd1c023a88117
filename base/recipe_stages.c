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

/* Converts a list of every stage's modules to split points: the first layer of each stage but the first. Layers must be
 * consecutive across stages, the embedding first, the final norm and the head last. */
static bool stages_to_points(const struct toml_value *stages, struct buf *out)
{
    titan_assert(stages->type == TOML_ARRAY);
    int64_t next = 0;
    bool head = false;
    for (const struct toml_value *stage = stages->first; stage; stage = stage->next) {
        const struct toml_value *m = stage->type == TOML_ARRAY ? stage->first : NULL;
        if (!m || head)
            return false;
        if (stage == stages->first) {
            if (m->type != TOML_STRING || strcmp(m->string, "tok_embeddings") != 0)
                return false;
            m = m->next;
        } else {
            buf_printf(out, "%slayers.%lld", out->len ? "," : "", (long long)next);
        }
        for (; m && m->type == TOML_STRING; m = m->next, next++) {
            char layer[32];
            (void)snprintf(layer, sizeof(layer), "layers.%lld", (long long)next);
            if (strcmp(m->string, layer) != 0)
                break;
        }
        head = m && m->next && !m->next->next && m->type == TOML_STRING && m->next->type == TOML_STRING &&
               strcmp(m->string, "norm") == 0 && strcmp(m->next->string, "output") == 0;
        if (m && !head)
            return false;
    }
    return head;
}

bool recipe_points_read(const struct toml_value *v, char *ret, size_t size, char why[RECIPE_WHY])
{
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    int64_t points[RECIPE_STAGES_MAX];
    const bool stages = v->type == TOML_ARRAY && v->first && v->first->type == TOML_ARRAY;
    why[0] = '\0';
    if (v->type == TOML_STRING)
        buf_puts(&text, v->string);
    else if (stages && !stages_to_points(v, &text))
        (void)snprintf(why, RECIPE_WHY,
                       ": expected every stage's modules in order: \"tok_embeddings\" first, each of "
                       "\"layers.0\", \"layers.1\", ... once, \"norm\" and \"output\" last");
    for (const struct toml_value *e = v->type == TOML_ARRAY && !stages ? v->first : NULL; e && !why[0]; e = e->next)
        if (e->type == TOML_STRING)
            buf_printf(&text, "%s%s", text.len ? "," : "", e->string);
        else
            (void)snprintf(why, RECIPE_WHY, ": expected names such as \"layers.2\", got %s", toml_type_name(e->type));
    const char *names = text.len ? text.data : "";
    if (!why[0] && buf_failed(&text))
        (void)snprintf(why, RECIPE_WHY, ": no memory");
    if (!why[0] && recipe_split_points(names, points, RECIPE_STAGES_MAX) < 0)
        (void)snprintf(why, RECIPE_WHY,
                       " = \"%.48s\": expected layers in ascending order, such as \"layers.2\", \"layers.4\"", names);
    if (!why[0] && text.len >= size)
        (void)snprintf(why, RECIPE_WHY, ": text of %zu bytes is too long (at most %zu)", text.len, size - 1);
    if (why[0])
        return false;
    memset(ret, 0, size);
    memcpy(ret, names, text.len);
    return true;
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

/* The number of layers, plus as many as the embedding and the head count for, because the first and the last stage may
 * have no layer. */
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

titan_status recipe_split_layers(const struct recipe *r, int stages, int *first_layer, struct titan_error *err)
{
    int64_t layers = r->model.dims.n_layers, first = r->parallelism.pipeline_parallel_first_stage_less_layers;
    int64_t last = r->parallelism.pipeline_parallel_last_stage_less_layers, next = 0;
    if (stages > 1 && r->parallelism.pipeline_parallel_split_points[0]) {
        int64_t points[RECIPE_STAGES_MAX];
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
