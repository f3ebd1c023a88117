/* SPDX-License-Identifier: Apache-2.0 */
/* simulate.h: the bubble of every schedule is the formula's, transfers take their time where nothing hides them,
 * the slowest member is waited for, a program that cannot end is named, timelines are JSON. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "tests/support/plans.h"
#include "worker/plan/simulate.h"

static void must(titan_status status, const struct titan_error *err)
{
    if (status != TITAN_OK)
        fail_msg("%s: %s", titan_status_name(status), err->msg);
}

static void open_plan(struct planned *p, int world, const char *const *sets)
{
    struct titan_error err = {0};
    must(planned_open(p, world, "cpu", sets, &err), &err);
}

struct times {
    double f, i, w; /* of a stage */
};

/* One operation of a stage has the whole time of a direction; all else, and every transfer, takes none. Of a backward
 * in one cell the input gradient is sent before the last layer's weight gradient, which the formulas do not know: here
 * the stage's last layer has the time of W, its first that of I. */
static double stage_time(void *arg, const struct program *p, const struct action *a)
{
    const struct times *t = arg;
    const struct layout *l = p->layout;

    if (a->stage < 0 || a->unit < 0 || l->model->units[a->unit].kind != UNIT_LAYER)
        return 0;
    const int first = l->first_unit[a->stage] + (a->stage == 0),
              last = l->first_unit[a->stage + 1] - 1 - (a->stage == l->stages - 1);
    if (a->op == OP_SWIGLU && a->phase == PHASE_FORWARD && a->unit == first)
        return t->f;
    if (a->op == OP_SWIGLU_DGRAD && a->unit == first)
        return t->i;
    if (a->op == OP_RMSNORM_DGAIN && a->unit == last)
        return t->w / 2; /* there are two */
    return 0;
}

static void check_schedule(const char *name, int p, int per_rank, int m, const struct times *t)
{
    char degree[64], schedule[96], layers[64], batch[64];
    const int stages = p * per_rank;
    struct titan_error err = {0};
    struct planned f;
    struct simulation *s = NULL;

    (void)snprintf(degree, sizeof degree, "parallelism.pipeline_parallel_degree=%d", p);
    (void)snprintf(schedule, sizeof schedule, "parallelism.pipeline_parallel_schedule=%s", name);
    (void)snprintf(layers, sizeof layers, "model.n_layers=%d", 2 * stages);
    (void)snprintf(batch, sizeof batch, "training.global_batch_size=%d", m);
    const char *const sets[] = {degree,
                                schedule,
                                layers,
                                batch,
                                "parallelism.pipeline_parallel_microbatch_size=1",
                                "parallelism.pipeline_parallel_first_stage_less_layers=0",
                                "parallelism.pipeline_parallel_last_stage_less_layers=0",
                                NULL};
    open_plan(&f, p, sets);
    const struct simulation_options options = {
        .programs = (const struct program *const *)f.programs, .n = p, .time = stage_time, .arg = (void *)t};
    must(simulate(&options, &s, &err), &err);

    const struct schedule *order = f.plan->schedule;
    const double tf = t->f, ti = t->i, tw = t->w, work = m * per_rank * (tf + ti + tw);
    const double makespan = schedule_makespan(order, tf, ti, tw, NULL), formula = schedule_bubble(order, tf, ti, tw);
    for (int r = 0; r < p; r++)
        assert_true(fabs(s->ranks[r].compute - work) < 1e-9);
    if (fabs(s->step - makespan) > 1e-9)
        fail_msg("%s p=%d m=%d: simulated %g, schedule alone %g", name, p, m, s->step, makespan);
    if (formula >= 0 && fabs(s->step - work - formula) > 1e-9)
        fail_msg("%s p=%d m=%d: bubble %g, formula %g", name, p, m, s->step - work, formula);
    simulation_close(s);
    planned_close(&f);
}

static void bubble_is_the_formula(void **state)
{
    static const struct times equal = {1, 1, 1}, uneven = {1, 1.25, 0.75};
    static const struct {
        const char *name;
        int per_rank;
    } all[] = {{"GPipe", 1},         {"1F1B", 1},     {"Interleaved1F1B", 2},
               {"LoopedBFS", 2},     {"ZB1P", 1},     {"InterleavedZeroBubble", 2},
               {"ZBVZeroBubble", 2}, {"DualPipeV", 2}};

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(all); i++)
        for (int p = 2; p <= 4; p++)
            for (int m = p; m <= 4 * p; m += p) {
                check_schedule(all[i].name, p, all[i].per_rank, m, &equal);
                check_schedule(all[i].name, p, all[i].per_rank, m, &uneven);
            }
}

/* Every gather takes 1, every layer's forward 1: with gathers ahead only the first is seen. */
static double gather_time(void *arg, const struct program *p, const struct action *a)
{
    (void)arg;
    (void)p;
    return a->op == OP_ALL_GATHER || (a->op == OP_SWIGLU && a->phase == PHASE_FORWARD) ? 1 : 0;
}

static double exposed_gathers(const char *prefetch)
{
    const char *const sets[] = {prefetch, "parallelism.fsdp_reorder=false",
                                "parallelism.fsdp_reshard_after_forward=never", "training.global_batch_size=2", NULL};
    struct titan_error err = {0};
    struct planned f;
    struct simulation *s = NULL;

    open_plan(&f, 2, sets);
    const struct simulation_options options = {
        .programs = (const struct program *const *)f.programs, .n = 1, .time = gather_time};
    must(simulate(&options, &s, &err), &err);
    const double exposed = s->ranks[0].exposed[CHANNEL_GATHER];
    simulation_close(s);
    planned_close(&f);
    return exposed;
}

static void gathers_hide_under_compute(void **state)
{
    (void)state;
    const double none = exposed_gathers("parallelism.fsdp_prefetch=0");
    const double one = exposed_gathers("parallelism.fsdp_prefetch=1");
    assert_true(one <= none); /* streams run ahead by themselves; asking ahead never costs */
    assert_true(one >= 1);    /* nothing hides the first */
}

/* Every layer's forward takes 1, sometimes more or less. */
static double layer_time(void *arg, const struct program *p, const struct action *a)
{
    (void)arg;
    (void)p;
    return a->op == OP_SWIGLU && a->phase == PHASE_FORWARD ? 1 : 0;
}

static double layer_spread(void *arg, const struct program *p, const struct action *a)
{
    return *(double *)arg * layer_time(NULL, p, a);
}

static double step_with(int world, const char *degree, double spread, double *ret_exposed)
{
    const char *const sets[] = {degree,
                                "model.n_layers=4",
                                "model.n_heads=8",
                                "model.n_kv_heads=8",
                                "activation_checkpoint.mode=none",
                                "parallelism.data_parallel_shard_degree=1",
                                "training.global_batch_size=8",
                                NULL};
    struct titan_error err = {0};
    struct planned f;
    struct simulation *s = NULL;

    open_plan(&f, world, sets);
    const struct simulation_options options = {.programs = (const struct program *const *)f.programs,
                                               .n = 1,
                                               .time = layer_time,
                                               .spread = spread > 0 ? layer_spread : NULL,
                                               .arg = &spread};
    must(simulate(&options, &s, &err), &err);
    const double step = s->step;
    *ret_exposed = 0;
    for (int c = 0; c < CHANNEL_COUNT; c++)
        *ret_exposed += s->ranks[0].exposed[c];
    simulation_close(s);
    planned_close(&f);
    return step;
}

/* Whether members meet after every layer or once at the end, they wait for E(n) deviations of all layers; one rank for
 * none. E(2) = 1 / sqrt(pi); the others as tables of order statistics have them. */
static void the_slowest_member_is_waited_for(void **state)
{
    static const struct {
        int world;
        const char *degree;
        double most;
    } cases[] = {{1, "parallelism.tensor_parallel_degree=1", 0},
                 {2, "parallelism.tensor_parallel_degree=2", 0.56419},
                 {4, "parallelism.tensor_parallel_degree=4", 1.02938},
                 {8, "parallelism.tensor_parallel_degree=8", 1.42360},
                 {2, "parallelism.data_parallel_replicate_degree=2", 0.56419},
                 {8, "parallelism.data_parallel_replicate_degree=8", 1.42360}};

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        double waited = 0, none = 0;
        const double without = step_with(cases[i].world, cases[i].degree, 0, &none);
        const double step = step_with(cases[i].world, cases[i].degree, 0.1, &waited), expected = 0.1 * cases[i].most;
        if (fabs(step / without - 1 - expected) > 1e-4 || fabs(waited - none - expected * without) > 1e-3)
            fail_msg("%s: a step of %g takes %g, %g of it waits: not %g more", cases[i].degree, without, step, waited,
                     expected * without);
    }
}

static void a_missing_partner_is_named(void **state)
{
    static const struct times equal = {1, 1, 1};
    const char *const sets[] = {"parallelism.pipeline_parallel_degree=2", "parallelism.pipeline_parallel_schedule=1F1B",
                                "parallelism.pipeline_parallel_microbatch_size=1", "training.global_batch_size=4",
                                NULL};
    struct titan_error err = {0};
    struct planned f;
    struct simulation *s = NULL;

    (void)state;
    open_plan(&f, 2, sets);
    for (int i = 0; i < f.programs[1]->n_actions; i++)
        if (f.programs[1]->actions[i].op == OP_RECV) {
            f.programs[1]->actions[i].op = OP_RELEASE;
            break;
        }
    const struct simulation_options options = {
        .programs = (const struct program *const *)f.programs, .n = 2, .time = stage_time, .arg = (void *)&equal};
    assert_int_equal(simulate(&options, &s, &err), TITAN_EINVAL);
    assert_non_null(strstr(err.msg, "deadlock"));
    planned_close(&f);
}

static void timeline_is_json(void **state)
{
    static const struct times equal = {1, 1, 1};
    const char *const sets[] = {"training.global_batch_size=2", NULL};
    struct titan_error err = {0};
    struct planned f;
    struct simulation *s = NULL;
    _cleanup_(buf_free) struct buf text = {0};

    (void)state;
    open_plan(&f, 2, sets);
    const struct simulation_options options = {
        .programs = (const struct program *const *)f.programs, .n = 1, .time = stage_time, .arg = (void *)&equal};
    must(simulate(&options, &s, &err), &err);
    simulation_timeline(s, 0, &text);
    struct json *doc = NULL;
    must(json_parse(text.data, text.len, &doc, &err), &err);
    assert_non_null(json_get(doc, "traceEvents"));
    json_free(doc);
    simulation_close(s);
    planned_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bubble_is_the_formula),
        cmocka_unit_test(gathers_hide_under_compute),
        cmocka_unit_test(the_slowest_member_is_waited_for),
        cmocka_unit_test(a_missing_partner_is_named),
        cmocka_unit_test(timeline_is_json),
    };
    return cmocka_run_group_tests_name("simulate", tests, NULL, NULL);
}
