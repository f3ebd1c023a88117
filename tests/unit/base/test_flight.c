/* SPDX-License-Identifier: Apache-2.0 */
/* The flight recorder: what was written is read back, what hangs is not written over, what cannot be is left out. And
 * what a record costs. */
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/flight.h"

static char path[] = "/tmp/test_flight-XXXXXX";
static struct flight_copy copy; /* of the last read */

static int attach(void **state)
{
    struct titan_error err = {0};
    (void)state;
    const int fd = mkstemp(path);
    if (fd < 0 || close(fd) < 0 || flight_attach(path, 0, &err) != TITAN_ECORRUPT || flight_attached())
        return -1;
    return flight_create(path, &err) != TITAN_OK || flight_attach(path, 0, &err) != TITAN_OK;
}

static int detach(void **state)
{
    (void)state;
    return unlink(path);
}

static struct flight_ring *raw(void)
{
    struct titan_error err = {0};
    struct flight_ring *ring = NULL;
    assert_int_equal(flight_read(path, &ring, &err), TITAN_OK);
    return ring;
}

static void look(void)
{
    struct titan_error err = {0};
    _cleanup_free_ struct flight_ring *ring = raw();
    assert_int_equal(flight_check(ring, clock_mono_ns(), &copy, &err), TITAN_OK);
}

static void begin_epoch(uint64_t epoch)
{
    flight_epoch(epoch, 1, 3);
    flight_group(2, "dp_shard", (const int[]){0, 1, 2}, 3);
}

static struct flight_what collective(const char *op)
{
    return (struct flight_what){.op = op,
                                .place = "layers.7",
                                .phase = "reduce",
                                .step = 41,
                                .bytes = 4096,
                                .number = flight_number(2, FLIGHT_COLLECTIVE),
                                .microbatch = 2,
                                .peer = -1,
                                .kind = FLIGHT_COLLECTIVE,
                                .group = 2};
}

static struct flight_what action(const char *op)
{
    return (struct flight_what){.op = op, .microbatch = -1, .peer = -1, .kind = FLIGHT_ACTION};
}

static void test_reads_back(void **state)
{
    (void)state;
    begin_epoch(3);
    const struct flight_what first = collective("all_gather"), second = collective("all_reduce");
    flight_end(flight_begin(&first));
    (void)flight_begin(&second);
    look();
    assert_int_equal(copy.epoch, 3);
    assert_int_equal(copy.rank, 1);
    assert_int_equal(copy.world, 3);
    assert_string_equal(copy.groups[2].name, "dp_shard");
    assert_int_equal(copy.groups[2].members[0], 7);
    assert_int_equal(copy.n, 2);
    assert_int_equal(copy.damaged, 0);
    const struct flight_entry *e = &copy.entries[1];
    assert_true(copy.entries[0].ended_ns >= copy.entries[0].began_ns);
    assert_int_equal(e->ended_ns, 0);
    assert_int_equal(e->number, 2);
    assert_int_equal(e->step, 41);
    assert_int_equal(e->bytes, 4096);
    assert_int_equal(e->microbatch, 2);
    assert_string_equal(e->op, "all_reduce");
    assert_string_equal(e->place, "layers.7");
    assert_string_equal(e->phase, "reduce");
}

/* However much goes on beside it; in the next epoch its place is free. */
static void test_what_hangs_stays(void **state)
{
    (void)state;
    begin_epoch(4);
    const struct flight_what hung = collective("all_reduce"), other = action("matmul");
    (void)flight_begin(&hung);
    for (int i = 0; i < 5 * FLIGHT_RECORDS; i++)
        flight_end(flight_begin(&other));
    look();
    assert_int_equal(copy.n, FLIGHT_RECORDS);
    assert_string_equal(copy.entries[0].op, "all_reduce");
    begin_epoch(5);
    for (int i = 0; i < FLIGHT_RECORDS; i++)
        flight_end(flight_begin(&other));
    look();
    assert_int_equal(copy.n, FLIGHT_RECORDS);
    assert_string_equal(copy.entries[0].op, "matmul");
}

/* More open ones than places: the writer does not wait, the newest are not recorded. */
static void test_all_places_open(void **state)
{
    (void)state;
    begin_epoch(6);
    const struct flight_what hung = action("matmul");
    for (int i = 0; i < 2 * FLIGHT_RECORDS; i++)
        (void)flight_begin(&hung);
    look();
    assert_int_equal(copy.n, FLIGHT_RECORDS);
}

static void *many(void *arg)
{
    const struct flight_what what = action(arg);
    for (int i = 0; i < 100000; i++)
        flight_end(flight_begin(&what));
    return NULL;
}

static void test_threads(void **state)
{
    static char *const ops[] = {"matmul", "silu", "norm", "rope"};
    pthread_t threads[ARRAY_SIZE(ops)];
    (void)state;
    begin_epoch(7);
    for (size_t i = 0; i < ARRAY_SIZE(ops); i++)
        assert_int_equal(pthread_create(&threads[i], NULL, many, ops[i]), 0);
    for (int i = 0; i < 20; i++) { /* while they write, each record is whole or left out */
        look();
        for (int k = 0; k < copy.n; k++)
            assert_true(!strcmp(copy.entries[k].op, "matmul") || !strcmp(copy.entries[k].op, "silu") ||
                        !strcmp(copy.entries[k].op, "norm") || !strcmp(copy.entries[k].op, "rope"));
    }
    for (size_t i = 0; i < ARRAY_SIZE(ops); i++)
        (void)pthread_join(threads[i], NULL);
    look();
    assert_int_equal(copy.n, FLIGHT_RECORDS);
    assert_int_equal(copy.damaged, 0);
}

/* What is written outside the rules. */
static void test_damaged_records(void **state)
{
    struct titan_error err = {0};
    (void)state;
    begin_epoch(8);
    const struct flight_what what = collective("all_reduce");
    for (int i = 0; i < 12; i++)
        flight_end(flight_begin(&what));
    _cleanup_free_ struct flight_ring *ring = raw();
    struct flight_record *own[12];
    int n = 0;
    for (int i = 0; i < FLIGHT_RECORDS && n < 12; i++)
        if (atomic_load(&ring->records[i].epoch) == 8)
            own[n++] = &ring->records[i];
    assert_int_equal(n, 12);
    own[0]->kind = 200;
    own[1]->group = 3; /* has no name */
    own[2]->number = 0;
    own[3]->began_ns = INT64_MAX;
    atomic_store(&own[4]->ended_ns, 1);
    own[5]->peer = 3;
    own[6]->step = UINT64_MAX;
    memset(own[7]->op, 'x', sizeof own[7]->op);
    own[8]->place[0] = '\033';
    atomic_store(&own[9]->epoch, 9);
    own[10]->microbatch = -2;
    assert_int_equal(flight_check(ring, clock_mono_ns(), &copy, &err), TITAN_OK);
    assert_int_equal(copy.damaged, 11);
    assert_int_equal(copy.n, 1);
}

static void test_damaged_heads(void **state)
{
    struct titan_error err = {0};
    (void)state;
    begin_epoch(10);
    _cleanup_free_ struct flight_ring *ring = raw();
    atomic_store(&ring->world, FLIGHT_RANKS_MAX + 1);
    assert_int_equal(flight_check(ring, clock_mono_ns(), &copy, &err), TITAN_ECORRUPT);
    atomic_store(&ring->world, 1);
    assert_int_equal(flight_check(ring, clock_mono_ns(), &copy, &err), TITAN_ECORRUPT); /* rank 1 of 1 */
    atomic_store(&ring->world, 2);
    assert_int_equal(flight_check(ring, clock_mono_ns(), &copy, &err), TITAN_OK);
    assert_int_equal(copy.groups[2].members[0], 3); /* rank 2 is none */
    memset(ring->groups[2].name, 'x', sizeof ring->groups[2].name);
    assert_int_equal(flight_check(ring, clock_mono_ns(), &copy, &err), TITAN_ECORRUPT);
    ring->magic = 0;
    assert_int_equal(flight_check(ring, clock_mono_ns(), &copy, &err), TITAN_ECORRUPT);
}

static void test_files(void **state)
{
    struct titan_error err = {0};
    struct flight_ring *ring = NULL;
    char short_path[] = "/tmp/test_flight-XXXXXX", of_page[PATH_MAX];
    (void)state;
    _cleanup_fd_ int fd = mkstemp(short_path);
    assert_true(fd >= 0);
    assert_int_equal(flight_read(short_path, &ring, &err), TITAN_ECORRUPT);
    assert_int_equal(unlink(short_path), 0);
    assert_int_equal(flight_read(short_path, &ring, &err), TITAN_ENOTFOUND);
    assert_int_equal(symlink(path, short_path), 0);
    assert_int_not_equal(flight_read(short_path, &ring, &err), TITAN_OK);
    assert_int_equal(unlink(short_path), 0);
    flight_path("/run/titan/w7.page", of_page);
    assert_string_equal(of_page, "/run/titan/w7.flight");
}

static int64_t thread_ns(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static void test_cost(void **state)
{
    enum { ROUNDS = 200000 };
    const struct flight_what what = action("matmul");
    (void)state;
    begin_epoch(11);
    const int64_t from = thread_ns();
    for (int i = 0; i < ROUNDS; i++)
        flight_end(flight_begin(&what));
    const double each = (double)(thread_ns() - from) / ROUNDS;
    print_message("# %.1f ns a record\n", each);
    assert_true(each < 5000); /* with sanitizers, too */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads_back),      cmocka_unit_test(test_what_hangs_stays),
        cmocka_unit_test(test_all_places_open), cmocka_unit_test(test_threads),
        cmocka_unit_test(test_damaged_records), cmocka_unit_test(test_damaged_heads),
        cmocka_unit_test(test_files),           cmocka_unit_test(test_cost),
    };
    return cmocka_run_group_tests(tests, attach, detach);
}
