/* SPDX-License-Identifier: Apache-2.0 */
/* test_compare.c - what two jobs have in common and where they part, from curves that end, begin and go wrong anywhere.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <malloc.h>
#include <math.h>

#include "tests/unit/ctl/stand_in.h"

enum { POINTS = 20000 };

struct curve {
    const char *recipe;
    uint64_t n, steps[POINTS];
    double losses[POINTS], rate, ms;
};
static struct curve jobs[3]; /* by number, from 1 on */

static titan_status serve(const char *method, const ProtobufCMessage *request,
                          bool (*each)(const ProtobufCMessage *message, void *data), void *data, ProtobufCMessage **ret,
                          struct titan_error *err)
{
    if (ret) {
        assert_string_equal(method, "GetRecipe");
        const uint64_t id = ((const Titan__V1__GetRecipeRequest *)request)->job_id;
        if (id >= ARRAY_SIZE(jobs))
            return titan_fail(err, TITAN_ENOTFOUND, "there is no job %llu", (unsigned long long)id);
        Titan__V1__GetRecipeResponse reply = TITAN__V1__GET_RECIPE_RESPONSE__INIT;
        reply.recipe = (char *)(uintptr_t)jobs[id].recipe;
        *ret = copy_of(&reply.base);
        return TITAN_OK;
    }
    assert_string_equal(method, "Metrics");
    const struct curve *c = &jobs[((const Titan__V1__MetricsRequest *)request)->job_id];
    for (uint64_t i = 0; i < c->n; i++) {
        Titan__V1__MetricPoint p = TITAN__V1__METRIC_POINT__INIT;
        p.step = c->steps[i];
        p.loss = c->losses[i];
        p.tokens_per_second = c->rate;
        p.step_ms = c->ms;
        if (i < c->n / 2) { /* a slow start */
            p.tokens_per_second /= 10;
            p.step_ms *= 10;
        }
        assert_true(each(&p.base, data));
    }
    return TITAN_OK;
}

static void curve(int job, const char *recipe, double rate)
{
    jobs[job] = (struct curve){.recipe = recipe, .rate = rate, .ms = 20};
}

static void point(int job, uint64_t step, double loss)
{
    struct curve *c = &jobs[job];
    assert_true(c->n < POINTS);
    c->steps[c->n] = step;
    c->losses[c->n++] = loss;
}

#define SAME "[training]\nsteps = 20\n"

/* Some of many steps are printed, the first and the last among them; all, where there are few. */
static void test_same(void **state)
{
    (void)state;
    curve(1, SAME, 61234);
    curve(2, SAME, 0);
    for (uint64_t step = 1; step <= 12; step++) {
        point(1, step, 5 - (double)step / 4);
        point(2, step, 5 - (double)step / 4);
    }
    point(1, 14, 0.5);
    assert_int_equal(RUN("compare", "1", "2"), TITAN_OK);
    assert_string_equal(printed.out, "jobs 1 and 2 have the same run file\n"
                                     "\n"
                                     "      step           loss                            \n"
                                     "                 job    1       job    2   difference\n"
                                     "         1       4.750000       4.750000           +0\n"
                                     "         2       4.500000       4.500000           +0\n"
                                     "         3       4.250000       4.250000           +0\n"
                                     "         4       4.000000       4.000000           +0\n"
                                     "         5       3.750000       3.750000           +0\n"
                                     "         6       3.500000       3.500000           +0\n"
                                     "         7       3.250000       3.250000           +0\n"
                                     "         8       3.000000       3.000000           +0\n"
                                     "         9       2.750000       2.750000           +0\n"
                                     "        10       2.500000       2.500000           +0\n"
                                     "        11       2.250000       2.250000           +0\n"
                                     "        12       2.000000       2.000000           +0\n"
                                     "\n"
                                     "losses are the same, bit for bit, at all 12 steps that both have\n"
                                     "tokens/s: 61.2k and 0\n");
    point(2, 13, 0.5);
    point(2, 14, 0.5);
    assert_int_equal(RUN("diff", "1", "2"), TITAN_OK);
    assert_string_equal(printed.out, "jobs 1 and 2 have the same run file\n"
                                     "\n"
                                     "      step           loss                            \n"
                                     "                 job    1       job    2   difference\n"
                                     "         1       4.750000       4.750000           +0\n"
                                     "         2       4.500000       4.500000           +0\n"
                                     "         3       4.250000       4.250000           +0\n"
                                     "         4       4.000000       4.000000           +0\n"
                                     "         5       3.750000       3.750000           +0\n"
                                     "         6       3.500000       3.500000           +0\n"
                                     "         7       3.250000       3.250000           +0\n"
                                     "         8       3.000000       3.000000           +0\n"
                                     "         9       2.750000       2.750000           +0\n"
                                     "        10       2.500000       2.500000           +0\n"
                                     "        11       2.250000       2.250000           +0\n"
                                     "        14       0.500000       0.500000           +0\n"
                                     "\n"
                                     "losses are the same, bit for bit, at all 13 steps that both have\n"
                                     "tokens/s: 61.2k and 0\n");
    assert_int_equal(RUN("json", "compare", "2", "1"), TITAN_OK);
    assert_string_equal(printed.out,
                        "{\"jobs\":[{\"job_id\":2,\"steps\":14,\"tokens_per_second\":0.0},{\"job_id\":1,\"steps\":14,"
                        "\"tokens_per_second\":61234.0}],\"changes\":[],\"common_steps\":13,\"first_difference\":0,"
                        "\"largest_difference_step\":0,\"largest_difference\":0.0,\"first_not_finite\":0}\n");
}

/* Where they part, where they are furthest apart, and where a loss is no number, which is not counted as a distance. */
static void test_apart(void **state)
{
    (void)state;
    static const double ours[] = {5, 4, 3, 2.5, 2, NAN, 1, NAN}, theirs[] = {5, 4, 3.25, 2, 1.5, NAN, INFINITY, 1};
    curve(1, SAME "[optimizer]\nlr = 0.003\n", 1000);
    curve(2, "[training]\nsteps = 30\n[optimizer]\nlr = 0.001\n", 2000);
    for (uint64_t i = 0; i < ARRAY_SIZE(ours); i++) {
        point(1, i + 1, ours[i]);
        point(2, i + 1, theirs[i]);
    }
    assert_int_equal(RUN("compare", "1", "2"), TITAN_OK);
    assert_string_equal(printed.out, "keys of job 1 that are others in job 2 (there):\n"
                                     "optimizer.lr = 0.003, there 0.001\n"
                                     "lr_scheduler.warmup_steps = 20, there 30\n"
                                     "training.steps = 20, there 30\n"
                                     "\n"
                                     "      step           loss                            \n"
                                     "                 job    1       job    2   difference\n"
                                     "         1       5.000000       5.000000           +0\n"
                                     "         2       4.000000       4.000000           +0\n"
                                     "         3       3.000000       3.250000        +0.25\n"
                                     "         4       2.500000       2.000000         -0.5\n"
                                     "         5       2.000000       1.500000         -0.5\n"
                                     "         6            nan            nan            -\n"
                                     "         7       1.000000            inf            -\n"
                                     "         8            nan       1.000000            -\n"
                                     "\n"
                                     "losses are the same up to step 2; they differ most at step 4: by 0.5; at step 7 "
                                     "the loss of job 2 is not a number\n"
                                     "tokens/s: 1.00k and 2.00k\n");
    assert_int_equal(RUN("compare", "2", "1"), TITAN_OK);
    assert_non_null(strstr(printed.out, "; at step 7 the loss of job 2 is not a number\n"));
    assert_int_equal(RUN("json", "compare", "1", "2"), TITAN_OK);
    assert_string_equal(printed.out,
                        "{\"jobs\":[{\"job_id\":1,\"steps\":8,\"tokens_per_second\":1e+03},{\"job_id\":2,\"steps\":8,"
                        "\"tokens_per_second\":2e+03}],\"changes\":[\"optimizer.lr = 0.003, there "
                        "0.001\",\"lr_scheduler.warmup_steps = 20, there 30\",\"training.steps = 20, there "
                        "30\"],\"common_steps\":8,\"first_difference\":3,\"largest_difference_step\":4,\"largest_"
                        "difference\":0.5,\"first_not_finite\":7}\n");
    jobs[1].losses[6] = INFINITY; /* now the last one is the first that differs so */
    assert_int_equal(RUN("compare", "1", "2"), TITAN_OK);
    assert_non_null(strstr(printed.out, "; at step 8 the loss of job 1 is not a number\n"));
    jobs[1].losses[0] = NAN;
    assert_int_equal(RUN("compare", "1", "2"), TITAN_OK);
    assert_non_null(strstr(printed.out, "\nlosses are the same up to step 0; they differ most at step 4: by 0.5; at "
                                        "step 1 the loss of job 1 is not a number\n"));
    jobs[1].n = jobs[2].n = 1; /* no distance at all */
    assert_int_equal(RUN("compare", "1", "2"), TITAN_OK);
    assert_non_null(strstr(printed.out, "\nlosses are the same up to step 0; at step 1 the loss of job 1 is not a "
                                        "number\n"));
}

/* A step that was trained again counts as it was trained last, and steps are matched by their numbers. */
static void test_trained_again(void **state)
{
    (void)state;
    curve(1, SAME, 1000);
    curve(2, SAME, 1000);
    for (uint64_t step = 1; step <= 6; step++)
        point(1, step, 9);
    for (uint64_t step = 4; step <= 5; step++)
        point(1, step, 2);
    for (uint64_t step = 3; step <= 9; step += 2)
        point(2, step, 2);
    assert_int_equal(RUN("json", "compare", "1", "2"), TITAN_OK);
    assert_string_equal(printed.out,
                        "{\"jobs\":[{\"job_id\":1,\"steps\":5,\"tokens_per_second\":2.5e+02},{\"job_id\":2,\"steps\":9,"
                        "\"tokens_per_second\":1e+03}],\"changes\":[],\"common_steps\":2,\"first_difference\":3,"
                        "\"largest_difference_step\":3,\"largest_difference\":7.0,\"first_not_finite\":0}\n");
    jobs[2].steps[0] = 6;
    jobs[2].n = 1;
    assert_int_equal(RUN("compare", "1", "2"), TITAN_OK);
    assert_string_equal(printed.out, "jobs 1 and 2 have the same run file\n"
                                     "\n"
                                     "there is no step that both have trained\n"
                                     "tokens/s: 250 and 1.00k\n");
    jobs[1].n = jobs[2].n = 0;
    assert_int_equal(RUN("json", "compare", "1", "2"), TITAN_OK);
    assert_string_equal(printed.out,
                        "{\"jobs\":[{\"job_id\":1,\"steps\":0,\"tokens_per_second\":0.0},{\"job_id\":2,\"steps\":0,"
                        "\"tokens_per_second\":0.0}],\"changes\":[],\"common_steps\":0,\"first_difference\":0,"
                        "\"largest_difference_step\":0,\"largest_difference\":0.0,\"first_not_finite\":0}\n");
}

static void test_refused(void **state)
{
    (void)state;
    curve(1, SAME, 1000);
    curve(2, "[training]\nsteps = 0\n", 1000);
    assert_int_equal(RUN("compare", "1", "9"), TITAN_ENOTFOUND);
    assert_string_equal(printed.why.msg, "there is no job 9");
    assert_int_equal(RUN("compare", "1", "x"), TITAN_EINVAL);
    assert_int_equal(RUN("compare", "1", "2"), TITAN_EINVAL);
    assert_non_null(strstr(printed.why.msg, "job 2"));
    assert_string_equal(printed.out, "");
}

static size_t taken(void)
{
    const struct mallinfo2 now = mallinfo2();
    return now.uordblks + now.hblkhd;
}

/* What it takes it gives back; of a build with sanitizers they notice that, too. */
static void test_memory(void **state)
{
    (void)state;
    curve(1, SAME, 1000);
    curve(2, SAME, 1000);
    for (uint64_t step = 1; step <= POINTS; step++) {
        point(1, step, 1);
        point(2, step, 1);
    }
    size_t before = 0;
    for (int i = 0; i < 8; i++) {
        before = i == 2 ? taken() : before; /* what stays after the first is kept for the next */
        assert_int_equal(RUN("compare", "1", "2"), TITAN_OK);
    }
    assert_true(taken() < before + POINTS * sizeof(double));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same),    cmocka_unit_test(test_apart),  cmocka_unit_test(test_trained_again),
        cmocka_unit_test(test_refused), cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests_name("compare", tests, NULL, NULL);
}
