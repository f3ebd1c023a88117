/* SPDX-License-Identifier: Apache-2.0 */
/* staging.h on a device that copies as late as it may: at the wait for it. A buffer that is filled again too early, or
 * looked at too early, has the wrong bytes. Pieces are in order, none is too large, each is progress: an agent that
 * watches does not take the worker for one that hangs, as it does where everything is copied in one call. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/cleanup.h"
#include "base/progress.h"
#include "daemon/agent/core/hang_detector.h"
#include "titan/internal/worker.pb-c.h"
#include "worker/state/staging.h"

/* --- a device that is late ---------------------------------------------------------------------------------------- */

enum { COPIES_MAX = 64 };
static struct {
    struct copy {
        void *dst;
        const void *src;
        size_t bytes;
    } copies[COPIES_MAX];
    int queued, run;
    size_t largest;
} late;

struct event {
    int upto;
};

static titan_status allocate(struct device *dev, size_t bytes, void **ret, struct titan_error *err)
{
    (void)dev;
    (void)err;
    *ret = calloc(1, bytes);
    return TITAN_OK;
}

static void release(struct device *dev, void *ptr)
{
    (void)dev;
    free(ptr);
}

static titan_status copy(struct stream *s, void *dst, const void *src, size_t bytes)
{
    (void)s;
    assert_true(late.queued < COPIES_MAX);
    late.copies[late.queued++] = (struct copy){dst, src, bytes};
    late.largest = MAX(late.largest, bytes);
    return TITAN_OK;
}

/* An agent looks at the worker's counters every 25 ms of the time that copies take. */
#define COPY_BYTES_MS (100 << 10)
static struct {
    struct watch watch;
    struct agent_sample sample;
    int64_t now;
    int hangs;
} agent;

static void let_pass(int64_t ms)
{
    static const struct watch_limits limits = {300, 10000};
    uint32_t for_ms;
    for (const int64_t until = agent.now + ms; agent.now < until;) {
        agent.now += MIN((int64_t)25, until - agent.now);
        agent.sample.actions = progress_actions();
        agent.hangs += watch_sample(&agent.watch, &agent.sample, &limits, agent.now, &for_ms) == WATCH_HANGS;
    }
}

static void run_upto(int n)
{
    for (; late.run < n; late.run++) {
        memcpy(late.copies[late.run].dst, late.copies[late.run].src, late.copies[late.run].bytes);
        let_pass((int64_t)late.copies[late.run].bytes / COPY_BYTES_MS);
    }
}

static titan_status stream_sync(struct stream *s, struct titan_error *err)
{
    (void)s;
    (void)err;
    run_upto(late.queued);
    return TITAN_OK;
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
    e->upto = late.queued;
    return TITAN_OK;
}

static titan_status event_sync(struct event *e, struct titan_error *err)
{
    (void)err;
    run_upto(e->upto);
    return TITAN_OK;
}

static const struct device_ops ops = {.alloc_host = allocate,
                                      .release_host = release,
                                      .copy = copy,
                                      .stream_sync = stream_sync,
                                      .event_open = event_open,
                                      .event_close = event_close,
                                      .event_record = event_record,
                                      .event_sync = event_sync};
static const struct device_handle device = {.ops = &ops};

/* --- the checks --------------------------------------------------------------------------------------------------- */

struct host {
    unsigned char *memory;
    size_t at;
    int pieces;
};

static void look(void *arg, void *piece, size_t bytes)
{
    struct host *h = arg;
    memcpy(h->memory + h->at, piece, bytes);
    h->at += bytes;
    h->pieces++;
}

static void fill(void *arg, void *piece, size_t bytes)
{
    struct host *h = arg;
    memcpy(piece, h->memory + h->at, bytes);
    h->at += bytes;
    h->pieces++;
}

static void check(bool own, size_t bytes)
{
    struct staging *g = NULL;
    unsigned char *there = calloc(1, bytes + 1), *here = malloc(bytes + 1), *back = calloc(1, bytes + 1);
    memset(&late, 0, sizeof late);
    for (size_t i = 0; i < bytes; i++)
        here[i] = (unsigned char)(i * 7 + i / STAGING_BYTES * 31 + 1);
    assert_int_equal(staging_open(&device, own, bytes, &g, NULL), TITAN_OK);
    const int pieces = (int)((bytes + STAGING_BYTES - 1) / STAGING_BYTES);
    const uint64_t before = progress_actions();
    struct host h = {.memory = here};
    assert_int_equal(staging_write(g, there, bytes, (struct staging_work){fill, &h}, NULL, NULL), TITAN_OK);
    assert_true(h.at == bytes && h.pieces == pieces);
    /* At once: what is on its way to the device is there before it is read back. */
    h = (struct host){.memory = back};
    assert_int_equal(staging_read(g, there, bytes, (struct staging_work){look, &h}, NULL, NULL), TITAN_OK);
    assert_true(h.at == bytes && h.pieces == pieces);
    assert_true(progress_actions() - before == 2 * (uint64_t)pieces);
    assert_memory_equal(there, here, bytes);
    assert_memory_equal(back, here, bytes);
    assert_true(late.largest <= STAGING_BYTES && (late.queued > 0) == (own && bytes > 0));
    staging_close(g);
    free(there);
    free(here);
    free(back);
}

static void test_pieces(void **state)
{
    (void)state;
    for (int own = 0; own < 2; own++) {
        check(own, 0);
        check(own, 1);
        check(own, STAGING_BYTES);
        check(own, STAGING_BYTES + 4);
        check(own, 3 * STAGING_BYTES + 12344);
    }
}

/* Without buffers, into host memory that is pinned in parts: no copy crosses the end of one. */
static void test_pinned_parts(void **state)
{
    (void)state;
    enum { PART = 1 << 20, BYTES = 5 * PART + 1236, AT = PART - 64 };
    struct staging *g = NULL;
    unsigned char *there = malloc(BYTES), *here = calloc(1, AT + BYTES);
    memset(&late, 0, sizeof late);
    for (size_t i = 0; i < BYTES; i++)
        there[i] = (unsigned char)(i * 7 + i / PART * 31 + 1);
    assert_int_equal(staging_open(&device, true, PART, &g, NULL), TITAN_OK);
    assert_true(staging_pinned(g));
    const uint64_t before = progress_actions();
    assert_int_equal(staging_copy(g, (struct pinned_place){here, AT, PART}, there, BYTES, NULL, NULL), TITAN_OK);
    assert_memory_equal(here + AT, there, BYTES);
    assert_true(late.queued == 7 && late.run == 7);
    for (int i = 0; i < late.queued; i++) {
        const size_t from = (size_t)((unsigned char *)late.copies[i].dst - here);
        assert_true(from / PART == (from + late.copies[i].bytes - 1) / PART);
    }
    assert_true(progress_actions() - before >= 7);
    staging_close(g);
    free(there);
    free(here);
}

/* A worker with steps of 20 ms saves 48 MiB, which takes half a second. */
static void test_no_hang(void **state)
{
    (void)state;
    enum { BYTES = 3 * (16 << 20) };
    struct staging *g = NULL;
    unsigned char *there = calloc(1, BYTES), *here = calloc(1, BYTES);
    memset(&late, 0, sizeof late);
    memset(&agent, 0, sizeof agent);
    agent.sample = (struct agent_sample){
        .epoch = 1, .phase = TITAN__INTERNAL__WORKER_PHASE__WORKER_TRAINING, .process_state = 'R'};
    for (int i = 0; i < 50; i++) {
        agent.sample.step++;
        progress_action();
        let_pass(20);
    }
    assert_int_equal(staging_open(&device, true, BYTES, &g, NULL), TITAN_OK);
    struct host h = {.memory = here};
    assert_int_equal(staging_read(g, there, BYTES, (struct staging_work){look, &h}, NULL, NULL), TITAN_OK);
    assert_int_equal(agent.hangs, 0);
    assert_int_equal(ops.copy(NULL, here, there, BYTES), TITAN_OK); /* in one */
    assert_int_equal(ops.stream_sync(NULL, NULL), TITAN_OK);
    assert_true(agent.hangs > 0);
    staging_close(g);
    free(there);
    free(here);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_pieces), cmocka_unit_test(test_pinned_parts),
                                       cmocka_unit_test(test_no_hang)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
