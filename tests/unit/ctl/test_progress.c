/* SPDX-License-Identifier: Apache-2.0 */
/* test_progress.c - the progress line and the curve. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/recipe.h"
#include "ctl/plot.h"
#include "ctl/progress.h"

static void text_is(const struct progress *p, int width, const char *expected)
{
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    progress_text(p, width, &text);
    assert_string_equal(text.data, expected);
}

static struct progress running(void)
{
    struct progress p = {.loss = NAN, .state = TITAN__V1__JOB_STATE__RUNNING, .steps = 300};
    Titan__V1__MetricPoint point = TITAN__V1__METRIC_POINT__INIT;
    point.step = 1;
    point.loss = 5.5;
    point.step_ms = 9000; /* the first one: not typical */
    point.tokens_per_second = 100;
    point.world_size = 1;
    progress_point(&p, &point);
    point.step = 100;
    point.loss = 2.34567;
    point.step_ms = 500;
    point.tokens_per_second = 61234;
    point.mfu = 0.123;
    point.world_size = 4;
    progress_point(&p, &point);
    return p;
}

static void test_line(void **state)
{
    (void)state;
    struct progress p = {.loss = NAN, .state = TITAN__V1__JOB_STATE__PENDING, .steps = 300};
    text_is(&p, 0, "pending  step 0/300");
    p = running();
    text_is(&p, 0, "running  step 100/300  loss 2.3457  61.2k tok/s  mfu 12.3%  4 workers  eta 1m 40s");
    text_is(&p, 50, "running  step 100/300  loss 2.3457  61.2k tok/s");
    text_is(&p, 10, "running  ");
    p.state = TITAN__V1__JOB_STATE__COMPLETED;
    p.workers = 1;
    text_is(&p, 0, "completed  step 100/300  loss 2.3457  61.2k tok/s  mfu 12.3%  1 worker");
}

/* The newest validation loss stands beside the loss. */
static void test_validation(void **state)
{
    (void)state;
    struct progress p = running();
    Titan__V1__Job job = TITAN__V1__JOB__INIT;
    Titan__V1__MetricPoint point = TITAN__V1__METRIC_POINT__INIT;
    Titan__V1__Evaluation at_90 = TITAN__V1__EVALUATION__INIT, at_60 = at_90;
    at_90.step = 90;
    at_90.loss = 2.5;
    at_60.step = 60;
    at_60.loss = 3;
    point.step = 101;
    point.loss = 2.25;
    point.validation = &at_90;
    progress_point(&p, &point);
    text_is(&p, 60, "running  step 101/300  loss 2.2500  validation 2.5000");
    job.state = TITAN__V1__JOB_STATE__RUNNING;
    job.step = 101;
    job.steps = 300;
    job.loss = 2.25;
    job.validation = &at_60; /* an older answer */
    progress_job(&p, &job);
    text_is(&p, 60, "running  step 101/300  loss 2.2500  validation 2.5000");
}

static void test_live_line(void **state)
{
    (void)state;
    struct progress p = running();
    p.live = true;
    text_is(&p, 120,
            "running  ######..............  step 100/300  loss 2.3457  61.2k tok/s  mfu 12.3%  4 workers  eta 1m 40s");
    p.color = true;
    text_is(&p, 30, "\033[32mrunning\033[0m  step 100/300");
}

/* An old answer does not set the line back. */
static void test_merge(void **state)
{
    (void)state;
    struct progress p = running();
    Titan__V1__Job job = TITAN__V1__JOB__INIT;
    job.state = TITAN__V1__JOB_STATE__RECOVERING;
    job.step = 90;
    job.steps = 300;
    job.loss = 3;
    job.world_size = 3;
    progress_job(&p, &job);
    assert_int_equal(p.step, 100);
    assert_true(p.loss < 2.4);
    assert_int_equal(p.workers, 3);
    assert_int_equal(p.state, TITAN__V1__JOB_STATE__RECOVERING);
}

/* After a recovery from a checkpoint the line goes back with the job: no point comes of a step that is trained again.
 */
static void test_steps_trained_again(void **state)
{
    (void)state;
    struct progress p = running();
    Titan__V1__Job job = TITAN__V1__JOB__INIT;
    Titan__V1__MetricPoint point = TITAN__V1__METRIC_POINT__INIT;
    p.point_epoch = 1;
    job.state = TITAN__V1__JOB_STATE__RUNNING;
    job.steps = 300;
    job.epoch = 2;
    job.step = 90;
    job.loss = 3;
    progress_job(&p, &job);
    text_is(&p, 35, "running  step 90/300  loss 3.0000");
    point.epoch = 1; /* what is stored behind it was lost with its epoch */
    point.step = 101;
    point.loss = 2.25;
    progress_point(&p, &point);
    job.step = 91;
    job.loss = 2.75;
    progress_job(&p, &job);
    text_is(&p, 35, "running  step 91/300  loss 2.7500");
    point.epoch = 2;
    progress_point(&p, &point);
    progress_job(&p, &job); /* an old answer */
    text_is(&p, 35, "running  step 101/300  loss 2.2500");
}

/* Off a terminal: a line when there is news, not too often, and one at the end. */
/* A step with an evaluation comes late: the line says why, and the estimate has the evaluations to come. */
static void test_evaluations(void **state)
{
    (void)state;
    char *out = NULL;
    size_t len = 0;
    static struct recipe r = {.validation = {.enable = true, .freq = 101}};
    struct progress p = running();
    p.recipe = &r;
    p.out = open_memstream(&out, &len);
    assert_non_null(p.out);
    progress_show(&p, 10000, false);
    progress_show(&p, 12000, false);
    assert_false(p.evaluates);
    progress_show(&p, 12001, false); /* three steps and half a second late */
    text_is(&p, 46, "running  step 100/300  loss 2.3457  evaluates");
    progress_show(&p, 14500, false);
    p.step = 101;
    progress_show(&p, 15000, false);
    (void)fclose(p.out);
    assert_int_equal(p.evaluation_ms, 4500);
    text_is(&p, 0, "running  step 101/300  loss 2.3457  61.2k tok/s  mfu 12.3%  4 workers  eta 1m 44s");
    assert_non_null(strstr(out, "eta 1m 40s\nrunning  step 100/300  loss 2.3457  evaluates"));
    free(out);
}

static void test_plain(void **state)
{
    (void)state;
    char *out = NULL;
    size_t len = 0;
    struct progress p = running();
    p.out = open_memstream(&out, &len);
    assert_non_null(p.out);
    progress_show(&p, 10000, false);
    progress_show(&p, 10001, false); /* nothing new */
    p.step = 101;
    progress_show(&p, 10500, false); /* too soon */
    progress_print(&p, "worker lost");
    progress_show(&p, 13000, false);
    p.state = TITAN__V1__JOB_STATE__COMPLETED;
    progress_show(&p, 13001, true);
    (void)fclose(p.out);
    int lines = 0;
    for (const char *c = out; *c; c++) {
        lines += *c == '\n';
        assert_true(*c != '\033' && *c != '\r');
    }
    assert_int_equal(lines, 4);
    assert_non_null(strstr(out, "worker lost\nrunning  step 101/300"));
    assert_non_null(strstr(out, "completed  step 101/300"));
    free(out);
}

static void plot_is(const struct plot *p, const char *expected)
{
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    plot_draw(p, &text);
    assert_string_equal(text.data, expected);
}

static void test_plot_ascii(void **state)
{
    (void)state;
    const double x[] = {0, 1, 2, 3, 4}, y[] = {4, 3, NAN, 1, 0};
    struct plot_curve c = {.x = x, .y = y, .n = 5};
    struct plot p = {.curves = &c, .n = 1, .width = 24, .height = 8, .title = "loss", .x_name = "step"};
    plot_is(&p, "loss\n"
                "      4 +**\n"
                "        |  ***\n"
                "      2 +\n"
                "        |           *\n"
                "      0 +            ***\n"
                "        +---------------\n"
                "         0        step 4\n");
    c.n = 1;
    plot_is(&p, "loss\n"
                "      4 +\n"
                "        |\n"
                "      4 +       *\n"
                "        |\n"
                "      4 +\n"
                "        +---------------\n"
                "         0        step 0\n");
    c.n = 0;
    plot_is(&p, "loss\n(no points yet)\n");
    const double nothing[] = {NAN, INFINITY};
    c = (struct plot_curve){.x = x, .y = nothing, .n = 2};
    p.title = NULL;
    plot_is(&p, "(no points yet)\n");
}

static void test_plot_braille(void **state)
{
    (void)state;
    const double x[] = {0, 1}, y[] = {0, 1};
    const struct plot_curve c = {.x = x, .y = y, .n = 2};
    const struct plot p = {.curves = &c, .n = 1, .width = 24, .height = 5, .unicode = true};
    plot_is(&p, "      1 ┤       ⢀⣀⡠⠤⠔⠒⠊⠉\n"
                "      0 ┤⣀⡠⠤⠔⠒⠊⠉⠉\n"
                "        └───────────────\n"
                "         0             1\n");
}

/* Where the values are long, the axis stays straight. */
static void test_plot_long_labels(void **state)
{
    (void)state;
    const double x[] = {0, 1}, y[] = {-111394.7, 111394.7};
    const struct plot_curve c = {.x = x, .y = y, .n = 2};
    const struct plot p = {.curves = &c, .n = 1, .width = 24, .height = 8};
    plot_is(&p, " 1.114e+05 +          **\n"
                "           |       ***\n"
                "         0 +     **\n"
                "           |  ***\n"
                "-1.114e+05 +**\n"
                "           +------------\n"
                "            0          1\n");
}

/* Several are told apart by colours, or by letters, and the legend says which is which. */
static void test_plot_several(void **state)
{
    (void)state;
    const double x[] = {0, 1}, up[] = {0, 1}, down[] = {1, 0};
    const struct plot_curve c[] = {{.x = x, .y = up, .n = 2, .legend = "one"},
                                   {.x = x, .y = down, .n = 2, .legend = "two"}};
    struct plot p = {.curves = c, .n = 2, .width = 24, .height = 6};
    plot_is(&p, "      1 +bbbb       aaaa\n"
                "    0.5 +    bbbbbbb\n"
                "      0 +aaaa       bbbb\n"
                "        +---------------\n"
                "         0             1\n"
                "a one\n"
                "b two\n");
    p.color = true;
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    plot_draw(&p, &text);
    assert_non_null(strstr(text.data, "\033[34m*\033[0m"));
    assert_non_null(strstr(text.data, "\033[33m--\033[0m two\n"));
}

static void test_spark(void **state)
{
    (void)state;
    const double values[] = {8, 7, NAN, INFINITY, 2, 1};
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    plot_spark(values, 6, 6, true, &text);
    assert_string_equal(text.data, "█▇  ▂▁");
    buf_clear(&text);
    plot_spark(values, 6, 3, false, &text);
    assert_string_equal(text.data, "^ _");
    buf_clear(&text);
    plot_spark(values, 0, 3, false, &text);
    assert_int_equal(text.len, 0);
}

/* Any size and any number of points stays inside the canvas (the sanitizers watch). */
static void test_plot_sizes(void **state)
{
    (void)state;
    double x[500], y[500];
    for (int i = 0; i < 500; i++) {
        x[i] = i;
        y[i] = sin(i * 0.1) * 1e300;
    }
    for (int width = -5; width < 200; width += 7) {
        for (int height = -5; height < 60; height += 5) {
            _cleanup_(buf_free) struct buf text = BUF_INIT;
            const struct plot_curve c[] = {{.x = x, .y = y, .n = 500}, {.x = x, .y = x, .n = 9, .marks = y}};
            const struct plot p = {.curves = c, .n = 2, .width = width, .height = height, .unicode = width % 2};
            plot_draw(&p, &text);
            assert_true(text.len > 0);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_line),
        cmocka_unit_test(test_validation),
        cmocka_unit_test(test_live_line),
        cmocka_unit_test(test_merge),
        cmocka_unit_test(test_steps_trained_again),
        cmocka_unit_test(test_evaluations),
        cmocka_unit_test(test_plain),
        cmocka_unit_test(test_plot_ascii),
        cmocka_unit_test(test_plot_braille),
        cmocka_unit_test(test_plot_sizes),
        cmocka_unit_test(test_plot_several),
        cmocka_unit_test(test_plot_long_labels),
        cmocka_unit_test(test_spark),
    };
    return cmocka_run_group_tests_name("progress", tests, NULL, NULL);
}
