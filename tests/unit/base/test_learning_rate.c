/* SPDX-License-Identifier: Apache-2.0 */
/* learning_rate.h against factors computed by make_learning_rate_reference.py, and what a changed one is said to do. */
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
#include "base/learning_rate.h"

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

    assert_int_equal(file_read(TITAN_SOURCE_DIR "/tests/unit/base/learning_rate_reference.json", 1 << 20, &text, &err),
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
            assert_true(learning_rate_factor(&cut, step) == learning_rate_factor(&r, step));
            if (fabs(learning_rate_factor(&r, step) - number(f)) > 1e-12)
                fail_msg("%ld steps, step %ld: %.17g, expected %.17g", (long)r.training.steps, (long)step,
                         learning_rate_factor(&r, step), number(f));
            assert_true(learning_rate_at(&r, step) == 2 * learning_rate_factor(&r, step));
        }
        assert_int_equal(step, r.training.steps + 1);
        cut.training.steps = 2 * step;
        assert_true(learning_rate_factor(&cut, 2 * step) == learning_rate_factor(&r, r.training.steps));
    }
    assert_true(checked > 400);
    json_free(cases);
}

/* Behind step 20 of 20 with other steps, rate or length. */
static void test_comparison(void **state)
{
    (void)state;
    static const struct {
        const char *before, *now, *expected;
    } cases[] = {
        {"training.steps=20", "training.steps=20", ""},
        {"training.steps=20", "training.steps=40",
         "learning rate 5.00e-02 at step 20, 5.00e-01 from step 21 on: it follows from training.steps, 20 before and "
         "40 "
         "now; lr_scheduler.total_steps = 20 keeps what it was"},
        {"lr_scheduler.total_steps=80", "training.steps=60",
         "learning rate 7.62e-01 at step 20, 6.67e-01 from step 21 "
         "on: other keys of [optimizer] or [lr_scheduler]"},
        {"optimizer.lr=2", "optimizer.lr=1",
         "learning rate 1.52e+00 at step 20, 7.50e-01 from step 21 on: other keys of [optimizer] or [lr_scheduler]"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        _cleanup_(buf_free) struct buf text = BUF_INIT;
        struct recipe before, now;
        recipe_init(&before);
        before.optimizer.lr = 1;
        before.training.steps = 80;
        before.lr_scheduler.warmup_steps = 0;
        now = before;
        if (i == 1 || i == 2)
            now.training.steps = 40;
        assert_int_equal(recipe_set(&before, cases[i].before, NULL), TITAN_OK);
        assert_int_equal(recipe_set(&now, cases[i].now, NULL), TITAN_OK);
        learning_rate_compare(&now, &before, 20, &text);
        assert_string_equal(text.len ? text.data : "", cases[i].expected);
    }
}

/* Ranger21's own warm-up and decay, and each with the other one of the run's schedule. */
static void test_ranger21(void **state)
{
    struct recipe r;

    (void)state;
    recipe_init(&r);
    assert_int_equal(recipe_set(&r, "optimizer.name=Ranger21", NULL), TITAN_OK);
    r.training.steps = 1000;
    r.optimizer.beta2 = 0.999; /* 2 / (1 - beta2) = 2000 steps: 22 % of all are less */
    assert_true(fabs(learning_rate_factor(&r, 1) - 1 / 220.0) < 1e-12);
    assert_true(fabs(learning_rate_factor(&r, 110) - 0.5) < 1e-12);
    assert_true(learning_rate_factor(&r, 220) == 1 && learning_rate_factor(&r, 720) == 1);
    assert_true(fabs(learning_rate_factor(&r, 861) - 0.5) < 1e-12);
    assert_true(fabs(learning_rate_factor(&r, 1000) - 1 / 280.0) < 1e-12);
    r.optimizer.beta2 = 0.95;
    assert_true(fabs(learning_rate_factor(&r, 20) - 0.5) < 1e-12 && learning_rate_factor(&r, 40) == 1);

    r.optimizer.ranger21.warmup = false;
    r.lr_scheduler.warmup_steps = 100;
    assert_true(fabs(learning_rate_factor(&r, 50) - 0.5) < 1e-12 && learning_rate_factor(&r, 700) == 1);
    assert_true(fabs(learning_rate_factor(&r, 861) - 0.5) < 1e-12);
    r.optimizer.ranger21.explore_exploit = false;
    struct recipe other = r;
    assert_int_equal(recipe_set(&other, "optimizer.name=AdamW", NULL), TITAN_OK);
    for (int step = 1; step <= 1000; step += 37)
        assert_true(learning_rate_factor(&r, step) == learning_rate_factor(&other, step));
    r.optimizer.ranger21.warmup = true;
    assert_true(fabs(learning_rate_factor(&r, 20) - 0.5) < 1e-12);
    assert_true(fabs(learning_rate_factor(&r, 501) - 0.5) < 2e-3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_factors), cmocka_unit_test(test_ranger21),
                                       cmocka_unit_test(test_comparison)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
