/* SPDX-License-Identifier: Apache-2.0 */
/* Lengths and points in time as people write them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <time.h>

#include "ctl/when.h"

static void test_durations(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t ms;
    } good[] = {{"90", 90000},   {"90s", 90000},   {"0.5s", 500},   {"30m", 1800000},
                {"2h", 7200000}, {"1d", 86400000}, {"5min", 300000}};
    static const char *const bad[] = {"", "s", "-5", "5x", "5 m", "1e400", "nan", "inf", "4000d", "0x10", "5mm"};
    int64_t ms;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        assert_int_equal(when_duration(good[i].text, &ms, NULL), TITAN_OK);
        assert_int_equal(ms, good[i].ms);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(when_duration(bad[i], &ms, NULL), TITAN_EINVAL);
}

/* Expected values from GNU date: date -d '2026-11-22 03:00 CET' +%s and so on. */
static void test_times(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t s;
    } good[] = {{"2026-11-22T03:00:00Z", 1795316400},
                {"2026-11-22T03:00", 1795312800},
                {"2026-11-22 03:00:30", 1795312830},
                {"2026-11-22", 1795302000},
                {"now", 1795300000},
                {"+2h", 1795307200},
                {"23:55", 1795301700},
                {"23:00", 1795384800},
                {"23:26", 1795386360}};
    static const char *const bad[] = {"", "tomorrow", "25:00", "2026-13-01", "+", "+x", "12:00Z", "03:00 pm"};
    int64_t ms, now = INT64_C(1795300000000); /* 2026-11-21 23:26:40 in this zone */
    (void)setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3", 1);
    tzset();
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        assert_int_equal(when_time(good[i].text, now, &ms, NULL), TITAN_OK);
        assert_int_equal(ms, good[i].s * 1000);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(when_time(bad[i], now, &ms, NULL), TITAN_EINVAL);
}

static void test_local(void **state)
{
    (void)state;
    char text[32];
    (void)setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3", 1);
    tzset();
    assert_string_equal(when_local(INT64_C(1795312800000), text), "2026-11-22T03:00:00+01:00");
    assert_string_equal(when_local(INT64_C(1782000000000), text), "2026-06-21T02:00:00+02:00");
    (void)setenv("TZ", "UTC", 1);
    tzset();
    assert_string_equal(when_local(INT64_C(1795312800000), text), "2026-11-22T02:00:00+00:00");
}

/* A time of day is the last one: a record of what was is asked for. */
static void test_past(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t s;
    } good[] = {{"2h", 1795292800},         {"2026-11-21T23:00", 1795298400},
                {"2026-11-21", 1795215600}, {"23:00", 1795298400},
                {"23:26", 1795299960},      {"23:55", 1795215300},
                {"00:00", 1795215600}};
    static const char *const bad[] = {"", "yesterday", "25:00", "+2h", "2026-11-22", "2026-11-21T23:27"};
    int64_t ms, now = INT64_C(1795300000000); /* 2026-11-21 23:26:40 in this zone */
    (void)setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3", 1);
    tzset();
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        assert_int_equal(when_past(good[i].text, now, &ms, NULL), TITAN_OK);
        assert_int_equal(ms, good[i].s * 1000);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(when_past(bad[i], now, &ms, NULL), TITAN_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_durations), cmocka_unit_test(test_times),
                                       cmocka_unit_test(test_local), cmocka_unit_test(test_past)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
