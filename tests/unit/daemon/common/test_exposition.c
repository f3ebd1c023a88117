/* SPDX-License-Identifier: Apache-2.0 */
/* Metrics as text: both formats, labels with any characters, numbers, histograms. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/common/exposition.h"

static void assert_has(const struct buf *text, const char *part)
{
    if (!strstr(text->data, part))
        fail_msg("'%s' is not in:\n%s", part, text->data);
}

static void test_text(void **state)
{
    (void)state;
    struct buf out = BUF_INIT;
    struct exposition e = {.out = &out, .format = EXPOSITION_TEXT};
    PUT(&e, titan_coordinator_term, 3);
    PUT(&e, titan_jobs, 2, "running");
    PUT(&e, titan_jobs, 100000, "pending");
    PUT(&e, titan_nodes_lost_total, 7);
    PUT(&e, titan_job_info, 1, "4", "a\"b\\c\nd<img onerror=x>}{,=", "eva", "");
    PUT(&e, titan_job_info, 1, "5", "\xff\xc3\xa9\xe2\x82", "\xc3\"", "\xf0\x9f\x98\x80");
    PUT(&e, titan_job_loss, NAN, "4");
    PUT(&e, titan_job_loss, INFINITY, "5");
    PUT(&e, titan_job_loss, -INFINITY, "6");
    PUT(&e, titan_job_loss, 2.34375, "7");
    PUT(&e, titan_job_loss, 1e-9, "8");
    PUT(&e, titan_job_loss, 1e18, "9");
    exposition_end(&e);
    assert_has(&out, "# HELP titan_coordinator_term ");
    assert_has(&out, "# TYPE titan_coordinator_term gauge\ntitan_coordinator_term 3\n");
    assert_has(&out,
               "# TYPE titan_jobs gauge\ntitan_jobs{state=\"running\"} 2\ntitan_jobs{state=\"pending\"} 100000\n");
    assert_has(&out, "# TYPE titan_nodes_lost_total counter\ntitan_nodes_lost_total 7\n");
    assert_has(&out,
               "titan_job_info{job_id=\"4\",name=\"a\\\"b\\\\c\\nd<img onerror=x>}{,=\",user=\"eva\",mesh=\"\"} 1\n");
    assert_has(&out, "{job_id=\"5\",name=\"?\xc3\xa9??\",user=\"?\\\"\",mesh=\"\xf0\x9f\x98\x80\"} 1\n");
    assert_has(&out, "titan_job_loss{job_id=\"4\"} NaN\n");
    assert_has(&out, "titan_job_loss{job_id=\"5\"} +Inf\n");
    assert_has(&out, "titan_job_loss{job_id=\"6\"} -Inf\n");
    assert_has(&out, "titan_job_loss{job_id=\"7\"} 2.34375\n");
    assert_has(&out, "titan_job_loss{job_id=\"8\"} 1e-09\n");
    assert_has(&out, "titan_job_loss{job_id=\"9\"} 1e+18\n");
    assert_null(strstr(out.data, "# EOF"));
    buf_free(&out);
}

static void test_openmetrics(void **state)
{
    (void)state;
    struct buf out = BUF_INIT;
    struct exposition e = {.out = &out, .format = EXPOSITION_OPENMETRICS};
    PUT(&e, titan_nodes_lost_total, 7);
    exposition_end(&e);
    assert_has(&out, "# TYPE titan_nodes_lost counter\ntitan_nodes_lost_total 7\n# EOF\n");
    assert_int_equal(exposition_format(NULL), EXPOSITION_TEXT);
    assert_int_equal(exposition_format("text/plain;version=0.0.4;q=0.5,*/*;q=0.1"), EXPOSITION_TEXT);
    assert_int_equal(exposition_format("application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"),
                     EXPOSITION_OPENMETRICS);
    assert_non_null(strstr(exposition_type(EXPOSITION_TEXT), "version=0.0.4"));
    assert_non_null(strstr(exposition_type(EXPOSITION_OPENMETRICS), "version=1.0.0"));
    buf_free(&out);
}

static void test_histogram(void **state)
{
    (void)state;
    struct buf out = BUF_INIT;
    struct exposition e = {.out = &out};
    struct histogram h = {.sum = 0};
    histogram_add(&h, 0.001); /* a bound belongs to its bucket */
    histogram_add(&h, 0.0011);
    histogram_add(&h, 2);
    histogram_add(&h, 3600);
    assert_int_equal(histogram_total(&h), 4);
    assert_int_equal(h.counts[0], 1);
    assert_int_equal(h.counts[1], 1);
    assert_int_equal(h.counts[HISTOGRAM_BOUNDS], 1);
    for (size_t i = 1; i < HISTOGRAM_BOUNDS; i++)
        assert_true(histogram_bounds[i - 1] < histogram_bounds[i]);
    PUT_HISTOGRAM(&e, titan_recovery_phase_seconds, &h, "quiet");
    PUT_HISTOGRAM(&e, titan_store_commit_seconds, &h);
    assert_has(&out, "titan_recovery_phase_seconds_bucket{phase=\"quiet\",le=\"0.001\"} 1\n");
    assert_has(&out, "titan_recovery_phase_seconds_bucket{phase=\"quiet\",le=\"0.0025\"} 2\n");
    assert_has(&out, "titan_recovery_phase_seconds_bucket{phase=\"quiet\",le=\"1.0\"} 2\n");
    assert_has(&out, "titan_recovery_phase_seconds_bucket{phase=\"quiet\",le=\"2.5\"} 3\n");
    assert_has(&out, "titan_recovery_phase_seconds_bucket{phase=\"quiet\",le=\"60.0\"} 3\n");
    assert_has(&out, "titan_recovery_phase_seconds_bucket{phase=\"quiet\",le=\"+Inf\"} 4\n");
    assert_has(&out, "titan_recovery_phase_seconds_sum{phase=\"quiet\"} 3602.0021\n");
    assert_has(&out, "titan_recovery_phase_seconds_count{phase=\"quiet\"} 4\n");
    assert_has(&out, "titan_store_commit_seconds_bucket{le=\"0.001\"} 1\n");
    assert_has(&out, "titan_store_commit_seconds_count 4\n");
    buf_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_openmetrics),
        cmocka_unit_test(test_histogram),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
