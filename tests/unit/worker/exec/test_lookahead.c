/* SPDX-License-Identifier: Apache-2.0 */
/* lookahead.c on a device that runs nothing before the host waits for it: the host is never further ahead than two
 * marks, waits for the older one, and adapts how far they are apart within bounds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>
#include <cmocka.h>

#include "base/cleanup.h"
#include "worker/exec/executor.h"

struct event {
    int64_t at; /* actions enqueued before it */
};

#define MOST 64 /* actions from mark to mark */

static int64_t enqueued, reached, furthest;
static int recorded, waited;
static long device_ns; /* what the device needs from mark to mark */
static int64_t now_ns = 1000;

/* In place of libc's: time is what the device needs. */
int clock_gettime(clockid_t id, struct timespec *t)
{
    (void)id;
    *t = (struct timespec){now_ns / 1000000000, now_ns % 1000000000};
    return 0;
}

static titan_status event_open(struct device *dev, struct event **ret, struct titan_error *err)
{
    (void)dev;
    (void)err;
    *ret = calloc(1, sizeof **ret);
    return TITAN_OK;
}

static void event_close(struct event *e)
{
    free(e);
}

static titan_status event_record(struct event *e, struct stream *s, struct titan_error *err)
{
    (void)s;
    (void)err;
    e->at = enqueued;
    recorded++;
    return TITAN_OK;
}

static titan_status event_sync(struct event *e, struct titan_error *err)
{
    (void)err;
    assert_true(e->at > reached && e->at < enqueued); /* older than the last, and none twice */
    reached = e->at;
    waited++;
    now_ns += device_ns;
    return TITAN_OK;
}

static const struct device_ops ops = {
    .event_open = event_open, .event_close = event_close, .event_record = event_record, .event_sync = event_sync};

static void run(struct exec *e, int actions)
{
    lookahead_begin(&e->lookahead);
    enqueued = reached = furthest = 0;
    recorded = waited = 0;
    for (int i = 0; i < actions; i++) {
        enqueued++;
        furthest = MAX(furthest, enqueued - reached);
        assert_int_equal(lookahead_bound(e, 1, NULL), TITAN_OK);
    }
}

static void test_bound(void **state)
{
    (void)state;
    const struct device_handle device = {.ops = &ops};
    struct exec e = {.ops = &ops, .opt.device = &device};
    assert_int_equal(lookahead_open(&device, &e.lookahead, NULL), TITAN_OK);
    for (int step = 0; step < 2; step++) { /* the second begins without marks of the first */
        device_ns = 0;
        run(&e, 1000);
        assert_true(recorded >= 1000 / MOST - 1 && waited == recorded - 1);
        assert_true(furthest <= 2 * MOST);
    }
    const int first = e.lookahead.every;
    device_ns = 60000000; /* a slow one: fewer actions are as much work */
    run(&e, 4 * first);
    assert_true(e.lookahead.every >= 1 && e.lookahead.every < first);
    assert_true(furthest <= 2 * first);
    lookahead_close(&ops, &e.lookahead);
}

/* The CPU's compute stream has no queue. */
static void test_no_queue(void **state)
{
    (void)state;
    const struct device_handle device = {.ops = &ops, .info.host_memory = true};
    struct exec e = {.ops = &ops, .opt.device = &device};
    assert_int_equal(lookahead_open(&device, &e.lookahead, NULL), TITAN_OK);
    run(&e, 1000);
    assert_int_equal(recorded, 0);
    lookahead_close(&ops, &e.lookahead);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bound), cmocka_unit_test(test_no_queue)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
