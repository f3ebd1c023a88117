/* SPDX-License-Identifier: Apache-2.0 */
/* search.h: what is proposed is legal, fits where it says so, is sorted, and is what a plan of the same keys gives. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "tests/support/plans.h"
#include "worker/plan/forecast.h"
#include "worker/plan/search.h"

static const char *const debug[] = {"training.global_batch_size=16", "training.seq_len=256", NULL};

static titan_status search_with(const struct planned *p, int world, const struct machine *m, bool json, struct buf *out,
                                struct titan_error *err)
{
    const struct cost cost = {.machine = m};
    const struct plan_options options = {
        .recipe = &p->recipe, .model = p->model, .world = world, .dt = DTYPE_BF16, .machine = m};
    return search_layouts(&options, &cost, json, out, err);
}

static struct json *search(const struct planned *p, int world, const struct machine *m)
{
    _cleanup_(buf_free) struct buf out = {0};
    struct titan_error err = {0};
    struct json *doc = NULL;

    titan_status status = search_with(p, world, m, true, &out, &err);
    if (status == TITAN_OK)
        status = json_parse(out.data, out.len, &doc, &err);
    if (status != TITAN_OK)
        fail_msg("%s", err.msg);
    return doc;
}

static void open_plan(struct planned *p, int world, const char *const *sets)
{
    struct titan_error err = {0};
    if (planned_open(p, world, "h100", sets, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
}

static int64_t degree(const struct json *layout, const char *axis)
{
    char key[64];
    (void)snprintf(key, sizeof key, "%s_parallel_degree", axis);
    return json_int(layout, key, -1);
}

static bool truth(const struct json *layout, const char *key)
{
    const struct json *v = json_get(layout, key);
    assert_true(v && v->type == JSON_BOOL);
    return v->boolean;
}

/* The layout's keys, planned on their own, give the numbers that are listed. */
static void check_layout(const struct json *layout, int world, const struct machine *m)
{
    char keys[7][96];
    const char *sets[ARRAY_SIZE(keys) + 4];
    struct forecast f = {0};
    struct titan_error err = {0};
    struct planned p;

    (void)snprintf(keys[0], sizeof keys[0], "parallelism.pipeline_parallel_degree=%d", (int)degree(layout, "pipeline"));
    (void)snprintf(keys[1], sizeof keys[1], "parallelism.context_parallel_degree=%d", (int)degree(layout, "context"));
    (void)snprintf(keys[2], sizeof keys[2], "parallelism.tensor_parallel_degree=%d", (int)degree(layout, "tensor"));
    (void)snprintf(keys[3], sizeof keys[3], "parallelism.data_parallel_shard_degree=%d",
                   (int)json_int(layout, "data_parallel_shard_degree", -1));
    (void)snprintf(keys[4], sizeof keys[4], "parallelism.pipeline_parallel_schedule=%s",
                   json_string(layout, "pipeline_parallel_schedule", ""));
    (void)snprintf(keys[5], sizeof keys[5], "activation_checkpoint.mode=%s",
                   json_string(layout, "activation_checkpoint", ""));
    (void)snprintf(keys[6], sizeof keys[6], "activation_checkpoint.selective_ac_option=%s",
                   json_string(layout, "selective_ac_option", ""));
    size_t n = 0;
    for (; debug[n]; n++)
        sets[n] = debug[n];
    for (size_t i = 0; i < ARRAY_SIZE(keys); i++)
        sets[n++] = keys[i];
    sets[n] = NULL;
    open_plan(&p, world, sets); /* the checker has nothing against it */
    if (forecast_make(p.plan, p.programs, &p.cost, &f, NULL, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    assert_true(fabs(json_real(layout, "step_seconds", -1) - f.step) < 1e-6);
    const double memory = json_real(layout, "memory_bytes", -1);
    assert_true(fabs(memory - f.memory[f.fullest].predicted) < 1);
    assert_int_equal(truth(layout, "fits"), memory <= (double)m->memory_bytes);
    forecast_clear(&f);
    planned_close(&p);
}

static void layouts_are_what_they_say(void **state)
{
    const struct machine *m = cost_machine_find("h100");
    struct planned p;

    (void)state;
    open_plan(&p, 8, debug);
    struct json *doc = search(&p, 8, m);
    assert_int_equal(json_int(doc, "world", 0), 8);
    int n = 0, cheap = 0;
    double before = 0;
    for (const struct json *l = json_get(doc, "layouts")->first; l; l = l->next, n++) {
        cheap += strcmp(json_string(l, "activation_checkpoint", ""), "selective") == 0 &&
                 strcmp(json_string(l, "selective_ac_option", ""), "op:1") == 0;
        assert_int_equal(degree(l, "pipeline") * degree(l, "context") * degree(l, "tensor") *
                             json_int(l, "data_parallel_shard_degree", 0),
                         8);
        assert_true(truth(l, "fits")); /* a small model on 80 GB */
        assert_true(json_real(l, "step_seconds", 0) >= before);
        before = json_real(l, "step_seconds", 0);
        check_layout(l, 8, m);
    }
    assert_true(n > 3 && cheap > 0);
    assert_int_equal(json_int(doc, "simulated", 0), n);
    assert_true(json_int(doc, "legal", 0) >= n);
    json_free(doc);
    planned_close(&p);
}

/* A limit between the smallest and the largest: those within it come first, fastest first, then the others. */
static void what_does_not_fit_comes_last(void **state)
{
    struct machine m = *cost_machine_find("h100");
    double least = INFINITY, most = 0;
    struct planned p;

    (void)state;
    open_plan(&p, 8, debug);
    struct json *doc = search(&p, 8, &m);
    for (const struct json *l = json_get(doc, "layouts")->first; l; l = l->next) {
        least = MIN(least, json_real(l, "memory_bytes", 0));
        most = MAX(most, json_real(l, "memory_bytes", 0));
    }
    json_free(doc);
    assert_true(least < most);
    m.memory_bytes = (uint64_t)((least + most) / 2);
    doc = search(&p, 8, &m);
    bool fitting = true, any[2] = {false, false};
    double before = 0;
    for (const struct json *l = json_get(doc, "layouts")->first; l; l = l->next) {
        const bool fits = truth(l, "fits");
        assert_int_equal(fits, json_real(l, "memory_bytes", 0) <= (double)m.memory_bytes);
        assert_false(fits && !fitting);
        const double key = json_real(l, fits ? "step_seconds" : "memory_bytes", 0);
        assert_true(fits != fitting || key >= before);
        before = key;
        fitting = fits;
        any[fits] = true;
    }
    assert_true(any[true] && any[false]);
    json_free(doc);
    planned_close(&p);
}

static void text_ends_with_keys(void **state)
{
    _cleanup_(buf_free) struct buf out = {0}, none = {0};
    struct machine tiny = *cost_machine_find("h100");
    struct titan_error err = {0};
    struct recipe again;
    struct planned p;

    (void)state;
    open_plan(&p, 8, debug);
    assert_int_equal(search_with(&p, 8, p.cost.machine, false, &out, &err), TITAN_OK);
    assert_int_equal(buf_append(&out, "", 1), TITAN_OK); /* a string */
    const char *keys = strstr(out.data, "\n[parallelism]\n");
    assert_non_null(keys);
    recipe_init(&again);
    if (recipe_parse(&again, keys, "keys", &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    tiny.memory_bytes = 1 << 20;
    assert_int_equal(search_with(&p, 8, &tiny, false, &none, &err), TITAN_OK);
    assert_int_equal(buf_append(&none, "", 1), TITAN_OK);
    assert_non_null(strstr(none.data, "none of them fits"));
    assert_null(strstr(none.data, "[parallelism]"));
    planned_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layouts_are_what_they_say),
        cmocka_unit_test(what_does_not_fit_comes_last),
        cmocka_unit_test(text_ends_with_keys),
    };
    return cmocka_run_group_tests_name("search", tests, NULL, NULL);
}
