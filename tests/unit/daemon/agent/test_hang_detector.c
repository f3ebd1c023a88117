/* SPDX-License-Identifier: Apache-2.0 */
/* Does a worker get on? Made-up samples, 25 ms apart. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>

#include "base/cleanup.h"
#include "daemon/agent/core/hang_detector.h"

static struct watch_limits limits;
static struct watch w;
static struct agent_sample s;
static int64_t now;
static uint32_t for_ms;

static int setup(void **state)
{
    (void)state;
    limits = (struct watch_limits){300, 10000};
    w = (struct watch){0};
    s = (struct agent_sample){
        .epoch = 1, .phase = TITAN__INTERNAL__WORKER_PHASE__WORKER_TRAINING, .process_state = 'S'};
    now = 5000;
    return 0;
}

static enum watch_verdict look(void)
{
    now += AGENT_SAMPLE_MS;
    return watch_sample(&w, &s, &limits, now, &for_ms);
}

/* n steps of so many samples, moving all the time. */
static void train(unsigned n, unsigned samples)
{
    for (unsigned i = 0; i < n; i++) {
        for (unsigned k = 0; k < samples; k++) {
            s.actions++;
            s.step += k + 1 == samples;
            assert_int_equal(look(), WATCH_WELL);
        }
    }
}

/* Milliseconds of standing still until it is told. */
static int64_t until_told(void)
{
    int64_t begin = now;
    while (look() == WATCH_WELL)
        assert_true(now - begin < 60000);
    return now - begin;
}

/* The tail against all values sorted: the bucket's end is at most a quarter of an octave above. */
static void test_tail(void **state)
{
    (void)state;
    struct tail t = {0};
    static uint64_t values[4000];
    for (size_t i = 0; i < ARRAY_SIZE(values); i++) {
        values[i] = 1 + (i * 7919) % 1000 + (i % 500 == 0 ? 20000 + i : 0);
        tail_add(&t, values[i]);
        assert_int_equal(tail_p999(&t) == 0, i + 1 < TAIL_TRUSTED);
    }
    for (size_t i = 1; i < ARRAY_SIZE(values); i++) /* insertion sort */
        for (size_t k = i; k > 0 && values[k - 1] > values[k]; k--) {
            uint64_t x = values[k];
            values[k] = values[k - 1];
            values[k - 1] = x;
        }
    uint64_t exact = values[ARRAY_SIZE(values) - 1 - ARRAY_SIZE(values) / 1000];
    assert_in_range(tail_p999(&t), exact, exact + exact / 4);
    for (uint64_t ms = 0; ms < 100000; ms = ms < 64 ? ms + 1 : ms + ms / 7) {
        struct tail one = {0};
        for (int i = 0; i < TAIL_TRUSTED; i++)
            tail_add(&one, ms);
        assert_in_range(tail_p999(&one), ms, ms + ms / 4);
    }
}

static void test_floor(void **state)
{
    (void)state;
    train(30, 2); /* 50 ms: 1.5 times that is below the floor */
    assert_in_range(until_told(), 300, 300 + 2 * AGENT_SAMPLE_MS);
    assert_true(for_ms >= 300);
    assert_true(watch_hangs(&w));
    assert_in_range(until_told(), 1000, 1000 + 2 * AGENT_SAMPLE_MS); /* again */
    train(1, 1);
    assert_false(watch_hangs(&w));
}

/* What wants a processor and has none does not hang, however long; what has one and gets nowhere does. */
static void test_no_processor(void **state)
{
    (void)state;
    train(30, 2);
    s.runnable = true;
    for (int i = 0; i < 200; i++) /* 5 s, and 100 ms of a processor */
        s.cpu_ms += i % 20 == 0 ? 10 : 0, assert_int_equal(look(), WATCH_WELL);
    train(30, 2);
    for (int i = 0; i < 100; i++)
        assert_int_equal(look(), WATCH_WELL);
    assert_false(watch_hangs(&w));
    s.runnable = false; /* it has one, and waits for something that does not come */
    assert_in_range(until_told(), 300, 300 + 2 * AGENT_SAMPLE_MS);
}

static void test_no_end_of_a_loop(void **state)
{
    (void)state;
    train(30, 2);
    s.runnable = true;
    int64_t begin = now;
    do
        s.cpu_ms = (uint64_t)(now + AGENT_SAMPLE_MS) / 10 * 10; /* in ticks */
    while (look() == WATCH_WELL);
    assert_in_range(now - begin, 300, 300 + 3 * AGENT_SAMPLE_MS);
    assert_true(for_ms >= 300);
    train(30, 2);
    begin = now; /* with a tenth of a processor it is told later */
    for (int i = 0; look() == WATCH_WELL; i++)
        s.cpu_ms += i % 4 == 0 ? 10 : 0;
    assert_in_range(now - begin, 2500, 3500);
}

static void test_own_pace(void **state)
{
    (void)state;
    train(30, 40); /* a second */
    assert_in_range(until_told(), 1500, 2000);
}

static void test_agent_that_stood_still(void **state)
{
    (void)state;
    train(30, 2);
    for (unsigned i = 0; i < 3; i++) {
        now += 5000; /* no sample, and the worker did not run either */
        assert_int_equal(look(), WATCH_WELL);
        train(5, 2);
    }
    now += 5000;
    assert_in_range(until_told(), 300 - WATCH_GAP_MS, 300 + 2 * AGENT_SAMPLE_MS);
    assert_true(for_ms < 1000);
}

static void test_unknown_pace(void **state)
{
    (void)state;
    train(10, 2);
    assert_in_range(until_told(), 10000, 10000 + 2 * AGENT_SAMPLE_MS);
}

/* The floor holds before the step time is known, too. */
static void test_unknown_pace_above_the_floor(void **state)
{
    (void)state;
    limits.floor_ms = 30000;
    train(10, 2);
    assert_in_range(until_told(), 30000, 30000 + 2 * AGENT_SAMPLE_MS);
    s.epoch = 2;
    s.phase = TITAN__INTERNAL__WORKER_PHASE__WORKER_FORMING;
    assert_int_equal(look(), WATCH_WELL);
    assert_in_range(until_told(), 30000 - 50, 30000 + 50);
}

static void test_first_step_of_an_epoch(void **state)
{
    (void)state;
    train(30, 2);
    s.epoch = 2; /* forming takes its time, and so does a first step */
    s.phase = TITAN__INTERNAL__WORKER_PHASE__WORKER_FORMING;
    assert_int_equal(look(), WATCH_WELL);
    assert_in_range(until_told(), 10000 - 50, 10000 + 50);
}

static void test_waiting_is_no_hang(void **state)
{
    (void)state;
    train(30, 2);
    s.waiting = 1;
    for (int i = 0; i < 4000; i++)
        assert_int_equal(look(), WATCH_WELL);
    s.waiting = 0; /* its turn */
    assert_in_range(until_told(), 300, 300 + 2 * AGENT_SAMPLE_MS);
}

/* Time spent waiting for others is not its own step time. */
static void test_slow_peers_do_not_hide_it(void **state)
{
    (void)state;
    for (int i = 0; i < 40; i++) {
        train(1, 2);
        s.waiting = 1;
        for (int k = 0; k < 100; k++)
            (void)look();
        s.waiting = 0;
    }
    train(2, 2);
    assert_in_range(until_told(), 300, 300 + 2 * AGENT_SAMPLE_MS);
}

static void test_a_hang_is_no_pace(void **state)
{
    (void)state;
    train(30, 2);
    for (int i = 0; i < 200; i++) /* 5 s */
        (void)look();
    train(30, 2);
    assert_in_range(until_told(), 300, 300 + 2 * AGENT_SAMPLE_MS);
}

static void test_stopped(void **state)
{
    (void)state;
    train(30, 2);
    s.waiting = 1; /* or not: a stopped process is one */
    s.process_state = 'T';
    assert_int_equal(look(), WATCH_WELL);
    assert_int_equal(look(), WATCH_STOPPED);
    assert_int_equal(look(), WATCH_WELL); /* said */
    for (int i = 0; i < 38; i++)
        assert_int_equal(look(), WATCH_WELL);
    assert_int_equal(look(), WATCH_STOPPED); /* a second later */
    assert_true(watch_hangs(&w));
    s.process_state = 'S';
    train(1, 1);
    assert_false(watch_hangs(&w));
}

static void test_idle_does_not_hang(void **state)
{
    (void)state;
    s.phase = TITAN__INTERNAL__WORKER_PHASE__WORKER_QUIESCED;
    for (int i = 0; i < 2000; i++)
        assert_int_equal(look(), WATCH_WELL);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup(name, setup)
    const struct CMUnitTest tests[] = {
        TEST(test_tail),
        TEST(test_floor),
        TEST(test_no_processor),
        TEST(test_no_end_of_a_loop),
        TEST(test_own_pace),
        TEST(test_agent_that_stood_still),
        TEST(test_unknown_pace),
        TEST(test_unknown_pace_above_the_floor),
        TEST(test_first_step_of_an_epoch),
        TEST(test_waiting_is_no_hang),
        TEST(test_slow_peers_do_not_hide_it),
        TEST(test_a_hang_is_no_pace),
        TEST(test_stopped),
        TEST(test_idle_does_not_hang),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
