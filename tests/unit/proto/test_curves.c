/* SPDX-License-Identifier: Apache-2.0 */
/* What a page that shows many jobs gets of curves and events; the rest is in tests/unit/ctl/test_report.c. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "proto/curves.h"
#include "proto/history.h"
#include "support/seeded.h"

static void add(struct curves *c, uint64_t step, double loss)
{
    Titan__V1__MetricPoint p = TITAN__V1__METRIC_POINT__INIT;
    p.step = step;
    p.at_ms = (int64_t)step * 10;
    p.tokens = step * 64;
    p.loss = loss;
    curves_add(c, &p);
}

/* Whatever the number of ranges, nothing is lost of what they have. */
static void test_shrink(void **state)
{
    (void)state;
    static const size_t most[] = {1, 2, 7, 333, 999, 1000, 1001};
    for (size_t k = 0; k < ARRAY_SIZE(most); k++) {
        struct curves c;
        assert_true(curves_init(&c));
        for (uint64_t step = 1; step <= 1000; step++)
            add(&c, step, step == 500 ? (double)NAN : (double)step);
        curves_shrink(&c, most[k]);
        assert_in_range(c.n, MIN(most[k], (size_t)1000) / 2 + 1, MIN(most[k], (size_t)1000));
        uint32_t n = 0, bad = 0;
        double sum = 0;
        for (size_t i = 0; i < c.n; i++) {
            const struct curves_range *r = &c.ranges[i];
            const struct curves_values *v = &r->values[CURVES_LOSS];
            assert_int_equal(r->step, i == 0 ? 1 : c.ranges[i - 1].last_step + 1);
            assert_int_equal(r->at_ms, r->step * 10);
            assert_int_equal(r->trained, r->last_step * 64);
            if (r->step != 500)
                assert_true(v->min == (double)r->step);
            if (r->last_step != 500)
                assert_true(v->max == (double)r->last_step && v->last == v->max);
            n += v->n;
            bad += v->bad;
            sum += v->sum;
        }
        assert_int_equal(c.ranges[c.n - 1].last_step, 1000);
        assert_int_equal(n, 999);
        assert_int_equal(bad, 1);
        assert_true(sum == 500500 - 500);
        assert_int_equal(c.stride > 1, most[k] < 1000);
        curves_free(&c);
    }
}

static void test_page(void **state)
{
    (void)state;
    struct curves c;
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    struct json_writer w = {.out = &text};
    assert_true(curves_init(&c));
    add(&c, 1, 2.5);
    add(&c, 2, (double)INFINITY);
    add(&c, 3, -1);
    add(&c, 4, (double)NAN);
    curves_put_page(&c, NULL, &w);
    assert_non_null(strstr(
        text.data, "{\"step\":[1,2,3,4],\"last_step\":[1,2,3,4],\"at\":[10,20,30,40],\"tokens\":[64,128,192,256],"
                   "\"loss\":{\"mean\":[2.5,null,-1,null],\"bad\":[0,1,0,1],\"last\":-1.0},"));
    buf_clear(&text);
    w.comma = false;
    curves_shrink(&c, 2);
    curves_put_page(&c, NULL, &w);
    assert_non_null(strstr(
        text.data, "{\"step\":[1,3],\"last_step\":[2,4],\"at\":[10,30],\"tokens\":[128,256],"
                   "\"loss\":{\"mean\":[2.5,-1],\"min\":[2.5,-1],\"max\":[2.5,-1],\"bad\":[1,1],\"last\":-1.0},"));
    curves_free(&c);
}

/* The text of a value in the page's curve. */
static double shown(double value, char text[64])
{
    struct curves c;
    _cleanup_(buf_free) struct buf out = BUF_INIT;
    struct json_writer w = {.out = &out};
    assert_true(curves_init(&c));
    add(&c, 1, value);
    curves_put_page(&c, NULL, &w);
    const char *at = strstr(out.data, "\"loss\":{\"mean\":[");
    assert_non_null(at);
    at += strlen("\"loss\":{\"mean\":[");
    (void)snprintf(text, 64, "%.*s", (int)strcspn(at, "]"), at);
    curves_free(&c);
    return strtod(text, NULL);
}

/* Six digits of a number, of whatever size: those of printf, but for ties. */
static void test_numbers(void **state)
{
    (void)state;
    static const double values[] = {
        0,      1,        -1,       0.5,     9.999994, 9.999996,      99999.94, 99999.96,
        999999, 999999.4, 999999.6, 1000000, 1234567,  75161927680.0, 0.0001,   0.00012345678,
        0.001,  0.1,      -0.0625,  1e14,    1e15,     1e-5,          1e300};
    char text[64], wanted[64];
    for (size_t i = 0; i < ARRAY_SIZE(values); i++) {
        (void)snprintf(wanted, sizeof(wanted), "%.6g", values[i]);
        if (shown(values[i], text) != strtod(wanted, NULL))
            fail_msg("%.17g: %s, not %s", values[i], text, wanted);
        assert_true(strlen(text) <= 17);
    }
    assert_string_equal((shown(0.0625, text), text), "0.0625");
    assert_string_equal((shown(-12.5, text), text), "-12.5");
    assert_string_equal((shown(75161927680.0, text), text), "75161900000");
    seeded_open("numbers", 1);
    for (int i = 0; i < 2000; i++) {
        const double value = ldexp((double)seeded_draw(1u << 30) / (1u << 30) - 0.5, (int)seeded_draw(80) - 30);
        (void)snprintf(wanted, sizeof(wanted), "%.6g", value);
        const double there = shown(value, text);
        if (fabs(there - strtod(wanted, NULL)) > 1.01e-5 * fabs(value))
            fail_msg("%.17g: %s, not %s", value, text, wanted);
    }
}

static void happen(struct history *t, const char *type, int64_t at_ms, const char *detail)
{
    Titan__V1__Event e = TITAN__V1__EVENT__INIT;
    e.type = (char *)(uintptr_t)type;
    e.at_ms = at_ms;
    e.epoch = 3;
    e.step = 7;
    e.rank = 2;
    e.message = (char *)(uintptr_t) "it \"happened\"";
    e.detail = (char *)(uintptr_t)detail;
    e.node = (char *)(uintptr_t) "";
    assert_true(history_add(t, &e));
}

static void test_marks(void **state)
{
    (void)state;
    struct history t = {0};
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    struct json_writer w = {.out = &text};
    happen(&t, "epoch.formed", 5, "{\"world\":4}");
    happen(&t, "checkpoint.committed", 6, "{\"step\":10}");
    for (int i = 1; i <= HISTORY_PAGE_MOST + 1; i++)
        happen(&t, "worker.lost", i * 1000, "{}");
    happen(&t, "recovery.finished", 900000,
           "{\"from_step\":7,\"resume_step\":8,\"world\":3,\"rung\":\"memory\",\"recovery_ms\":250.5}");
    history_end(&t);
    json_begin_object(&w, NULL);
    history_put_page(&t, &w);
    json_end_object(&w);
    struct json *root = NULL;
    assert_int_equal(json_parse(text.data, text.len, &root, NULL), TITAN_OK);
    assert_non_null(strstr(text.data, "\"worlds\":[{\"at\":5,\"world\":4,\"epoch\":3,\"step\":7}]"));
    assert_non_null(strstr(text.data, "\"checkpoints\":[{\"at\":6,\"step\":10}]"));
    assert_non_null(strstr(
        text.data, "\"changes\":[{\"at\":900000,\"kind\":\"recovery\",\"from_step\":7,\"resume_step\":8,\"world\":3,"
                   "\"source\":\"memory\",\"ms\":250.5,\"detect_ms\":null,"));
    size_t n = 0;
    const struct json *events = json_get(root, "events");
    for (const struct json *e = events->first; e; e = e->next)
        n++;
    assert_int_equal(n, HISTORY_PAGE_MOST);
    assert_int_equal(json_int(events->first, "at", 0), 3000); /* the first ones are left out */
    assert_string_equal(json_string(events->first, "kind", ""), "loss");
    assert_string_equal(json_string(events->first, "message", ""), "it \"happened\"");
    assert_int_equal(json_int(events->first, "rank", 0), 2);
    json_free(root);
    history_free(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shrink),
        cmocka_unit_test(test_page),
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_marks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
