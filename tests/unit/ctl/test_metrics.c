/* SPDX-License-Identifier: Apache-2.0 */
/* test_metrics.c - the steps of jobs as tables and as a curve of as many points as it can have. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>

#include "proto/curves.h"
#include "tests/unit/ctl/stand_in.h"

static uint64_t steps[4];    /* of each job, by its number */
static uint64_t asked_after; /* by the last request */
static Titan__V1__JobState job_state;

static titan_status serve(const char *method, const ProtobufCMessage *request,
                          bool (*each)(const ProtobufCMessage *message, void *data), void *data, ProtobufCMessage **ret,
                          struct titan_error *err)
{
    (void)err;
    if (ret) {
        assert_string_equal(method, "GetJob");
        Titan__V1__Job job = TITAN__V1__JOB__INIT;
        Titan__V1__GetJobResponse reply = TITAN__V1__GET_JOB_RESPONSE__INIT;
        job.state = job_state;
        reply.job = &job;
        *ret = copy_of(&reply.base);
        return TITAN_OK;
    }
    assert_string_equal(method, "Metrics");
    const Titan__V1__MetricsRequest *r = (const Titan__V1__MetricsRequest *)request;
    asked_after = r->after_step;
    assert_false(r->follow);
    for (uint64_t step = r->after_step + 1; step <= steps[r->job_id]; step++) {
        Titan__V1__MetricPoint p = TITAN__V1__METRIC_POINT__INIT;
        Titan__V1__StepSplit split = TITAN__V1__STEP_SPLIT__INIT;
        Titan__V1__ExpertLoad experts = TITAN__V1__EXPERT_LOAD__INIT;
        Titan__V1__Evaluation validation = TITAN__V1__EVALUATION__INIT;
        p.step = step;
        p.epoch = 2;
        p.loss = 4 - (double)step / 1024;
        p.loss_max = 5;
        p.grad_norm = 1.5;
        p.learning_rate = 0.0003;
        p.tokens_per_second = 61234;
        p.tflops = 12.5;
        p.mfu = 0.25;
        p.mfu_causal = 0.125;
        p.step_ms = 20;
        p.world_size = 3;
        p.memory_bytes = UINT64_C(3) << 30;
        split.data_ms = 1;
        split.compute_ms = 11;
        split.communication_ms = 2;
        split.checkpoint_ms = 3;
        split.straggler_ms = 4;
        split.slowest_busy_ms = 12;
        split.slowest_rank = 2;
        experts.least = 12;
        experts.most = 80;
        experts.mean = 32;
        experts.dropped = (double)(step % 3);
        experts.further_rounds = (double)(step % 2);
        experts.room_needed = 1.701;
        validation.loss = 2.5;
        p.split = step % 2 ? &split : NULL;
        p.experts = step < 4 ? &experts : NULL;
        p.validation = step % 4 == 2 ? &validation : NULL;
        if (!each(&p.base, data))
            break;
    }
    return TITAN_OK;
}

static void test_tables(void **state)
{
    (void)state;
    steps[1] = 3;
    steps[2] = 4;
    assert_int_equal(RUN("metrics", "1", "2", "--after", "2"), TITAN_OK);
    assert_string_equal(
        printed.out,
        "     job    step       loss  grad norm       rate   tokens/s   mfu %   step ms  workers  epoch validation\n"
        "       1       3     3.9971     1.5000     0.0003      61.2k    25.0      20.0        3      2\n"
        "       2       3     3.9971     1.5000     0.0003      61.2k    25.0      20.0        3      2\n"
        "       2       4     3.9961     1.5000     0.0003      61.2k    25.0      20.0        3      2\n");
    assert_string_equal(printed.err, "");
    assert_int_equal(RUN("metrics", "2"), TITAN_OK);
    assert_string_equal(
        printed.out,
        "    step       loss  grad norm       rate   tokens/s   mfu %   step ms  workers  epoch validation\n"
        "       1     3.9990     1.5000     0.0003      61.2k    25.0      20.0        3      2\n"
        "       2     3.9980     1.5000     0.0003      61.2k    25.0      20.0        3      2     2.5000\n"
        "       3     3.9971     1.5000     0.0003      61.2k    25.0      20.0        3      2\n"
        "       4     3.9961     1.5000     0.0003      61.2k    25.0      20.0        3      2\n");
    assert_int_equal(asked_after, 0);
    assert_int_equal(RUN("metrics", "2", "--split", "--after", "2"), TITAN_OK);
    assert_string_equal(
        printed.out,
        "    step   max loss   step ms   data ms   compute     comm.   checkp.  straggl. slowest  its busy     memory\n"
        "       3     5.0000      20.0       1.0      11.0       2.0       3.0       4.0       2      12.0    3.0 GiB\n"
        "       4     5.0000      20.0         -         -         -         -         -       -         -    3.0 "
        "GiB\n");
    assert_int_equal(RUN("metrics", "2", "--rates"), TITAN_OK);
    assert_string_equal(
        printed.out,
        "    step   step ms   tokens/s   TFLOP/s   mfu % causal %         tokens of an expert\n"
        "       1      20.0      61.2k      12.5    25.0     12.5 12 to 80, mean 32, 1 dropped, 1 more rounds (room "
        "1.71)\n"
        "       2      20.0      61.2k      12.5    25.0     12.5 12 to 80, mean 32, 2 dropped\n"
        "       3      20.0      61.2k      12.5    25.0     12.5 12 to 80, mean 32, 1 more rounds (room 1.71)\n"
        "       4      20.0      61.2k      12.5    25.0     12.5\n");
    assert_int_equal(RUN("json", "metrics", "1", "2", "--after", "3"), TITAN_OK);
    assert_string_equal(printed.out,
                        "{\"job_id\":2,\"step\":4,\"at\":null,\"loss\":3.99609375,\"grad_norm\":1.5,\"learning_rate\":"
                        "0.0003,\"tokens_per_second\":61234.0,\"mfu\":0.25,\"step_ms\":2e+01,\"tokens\":0,\"epoch\":2,"
                        "\"world_size\":3,\"memory_bytes\":3221225472,\"skipped_steps\":0,\"validation\":null,\"loss_"
                        "max\":5.0,\"split\":null,\"tflops\":12.5,\"mfu_causal\":0.125,\"experts\":null}\n");
}

static void test_no_steps(void **state)
{
    (void)state;
    steps[1] = 0;
    job_state = TITAN__V1__JOB_STATE__PENDING;
    assert_int_equal(RUN("metrics", "1", "--plot"), TITAN_OK);
    assert_string_equal(printed.out, "");
    assert_string_equal(printed.err, "titanctl: job 1 has no steps yet: it is PENDING\n");
    job_state = TITAN__V1__JOB_STATE__FAILED;
    assert_int_equal(RUN("metrics", "1", "--after", "1"), TITAN_OK);
    assert_string_equal(printed.err, "titanctl: job 1 has no steps after step 1: it is FAILED\n");
}

static void check_line(int number, const char *text)
{
    const char *at = printed.out;
    for (; number > 0; number--)
        at = strchr(at, '\n') + 1;
    assert_int_equal(strcspn(at, "\n"), strlen(text));
    assert_memory_equal(at, text, strlen(text));
}

/* The last line ends so. */
static void check_end(const char *text)
{
    const size_t len = strlen(printed.out), n = strlen(text);
    assert_true(len > n && printed.out[len - 1] == '\n');
    assert_memory_equal(printed.out + len - 1 - n, text, n);
}

/* A picture as the title and the axes have it: the first and the last loss, the newest validation loss, and the last
 * step; of as many ranges as there can be, and one more. */
static void test_plot(void **state)
{
    (void)state;
    static const struct {
        uint64_t steps;
        const char *title, *axis;
    } rows[] = {{1, "loss 3.9990 -> 3.9990, 61.2k tokens/s", " step 1"},
                {2, "loss 3.9990 -> 3.9980, 61.2k tokens/s, validation (+) 2.5000", " step 2"},
                {CURVES_RANGES - 1, "loss 3.9990 -> 2.0010, 61.2k tokens/s, validation (+) 2.5000", " step 2047"},
                {CURVES_RANGES, "loss 3.9990 -> 2.0000, 61.2k tokens/s, validation (+) 2.5000", " step 2048"},
                {CURVES_RANGES + 1, "loss 3.9990 -> 1.9990, 61.2k tokens/s, validation (+) 2.5000", " step 2049"}};
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        steps[1] = rows[i].steps;
        assert_int_equal(RUN("metrics", "1", "--plot"), TITAN_OK);
        check_line(0, rows[i].title);
        check_end(rows[i].axis);
    }
    steps[2] = 3;
    assert_int_equal(RUN("metrics", "1", "2", "--plot"), TITAN_OK);
    check_line(0, "loss");
    assert_non_null(strstr(printed.out, "job 1: loss 3.9990 -> 1.9990, 61.2k tokens/s, validation (+) 2.5000\n"));
    assert_non_null(strstr(printed.out, "job 2: loss 3.9990 -> 3.9971, 61.2k tokens/s, validation (+) 2.5000\n"));
}

static void test_refused(void **state)
{
    (void)state;
    static const char *const rows[][4] = {
        {"1", "2", "--follow", "metrics: --follow follows one job, and these are 2"},
        {"1", "--split", "--rates", "metrics: --split and --rates are two tables; one at a time"},
        {"1", "--plot", "--split", "metrics: --plot draws the loss; --split is a table"},
        {"1", "--rates", "--plot", "metrics: --plot draws the loss; --rates is a table"}};
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        assert_int_equal(RUN("metrics", rows[i][0], rows[i][1], rows[i][2]), TITAN_EINVAL);
        assert_string_equal(printed.why.msg, rows[i][3]);
    }
    assert_int_equal(RUN("metrics", "1", "--after", "-1"), TITAN_EINVAL);
    assert_int_equal(RUN("metrics", "1", "--server-gone", "soon"), TITAN_EINVAL);
}

int main(void)
{
    (void)setenv("COLUMNS", "300", 1);
    (void)setenv("LC_ALL", "C", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tables),
        cmocka_unit_test(test_no_steps),
        cmocka_unit_test(test_plot),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests_name("metrics", tests, NULL, NULL);
}
