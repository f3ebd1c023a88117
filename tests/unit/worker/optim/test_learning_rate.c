/* SPDX-License-Identifier: Apache-2.0 */
/* learning_rate.h against factors computed by make_learning_rate_reference.py; optim_clip_factor. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/json.h"
#include "worker/optim/update.h"
#include "worker/optim/outcome.h"
#include "worker/optim/learning_rate.h"

static double number(const struct json *v)
{
    return v->type == JSON_INT ? (double)v->integer : v->real;
}

static void test_factors(void **state)
{
    (void)state;
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    struct json *cases = NULL;
    struct titan_error err = {0};
    int checked = 0;

    assert_int_equal(
        file_read(TITAN_SOURCE_DIR "/tests/unit/worker/optim/learning_rate_reference.json", 1 << 20, &text, &err),
        TITAN_OK);
    assert_int_equal(json_parse(text.data, text.len, &cases, &err), TITAN_OK);
    for (const struct json *c = cases->first; c; c = c->next) {
        struct recipe r;
        int64_t step = 1;
        recipe_init(&r);
        r.optimizer.lr = 2;
        r.training.steps = json_int(c, "steps", 0);
        r.lr_scheduler.warmup_steps = json_int(c, "warmup", 0);
        r.lr_scheduler.decay_ratio = number(json_get(c, "ratio"));
        r.lr_scheduler.min_lr_factor = number(json_get(c, "floor"));
        (void)snprintf(r.lr_scheduler.decay_type, sizeof r.lr_scheduler.decay_type, "%s", json_string(c, "kind", ""));
        struct recipe cut = r; /* a shorter run on the same schedule, and a longer one */
        cut.lr_scheduler.total_steps = r.training.steps;
        for (const struct json *f = json_get(c, "factors")->first; f; f = f->next, step++, checked++) {
            cut.training.steps = step;
            assert_true(optim_factor(&cut, step) == optim_factor(&r, step));
            if (fabs(optim_factor(&r, step) - number(f)) > 1e-12)
                fail_msg("%ld steps, step %ld: %.17g, expected %.17g", (long)r.training.steps, (long)step,
                         optim_factor(&r, step), number(f));
            assert_true(optim_rate(&r, step) == 2 * optim_factor(&r, step));
        }
        assert_int_equal(step, r.training.steps + 1);
        cut.training.steps = 2 * step;
        assert_true(optim_factor(&cut, 2 * step) == optim_factor(&r, r.training.steps));
    }
    assert_true(checked > 400);
    json_free(cases);
}

static void test_clip(void **state)
{
    (void)state;
    assert_true(optim_clip_factor(100, 0) == 1);
    assert_true(optim_clip_factor(0.5, 1) == 1);
    assert_true(fabs(optim_clip_factor(4, 1) - 1 / (4 + 1e-6)) < 1e-15);
}

static void test_adamw_arguments(void **state)
{
    (void)state;
    struct recipe r;
    recipe_init(&r);
    const struct adamw_args a = update_of_recipe(&r, 1e-3, 3, 2, 0.5).args;
    assert_true(fabsf(a.bias1 - (1 - 0.9f * 0.9f * 0.9f)) < 1e-6f);
    assert_true(fabsf(a.bias2 - (1 - 0.95f * 0.95f * 0.95f)) < 1e-6f);
    assert_true(a.clip == 0.5f && a.master == DTYPE_F32 && a.moment == DTYPE_F32);
    assert_true(a.grad_scale == 0.25f && a.lr == 1e-3f && a.weight_decay == 0.1f && !a.l2);
    assert_int_equal(recipe_set(&r, "optimizer.name=Adam", NULL), TITAN_OK);
    assert_true(update_of_recipe(&r, 1e-3, 3, 2, 0.5).args.l2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_factors),
        cmocka_unit_test(test_clip),
        cmocka_unit_test(test_adamw_arguments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
