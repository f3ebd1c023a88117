/* SPDX-License-Identifier: Apache-2.0 */
/* snapshot.h: all of the memory is taken and pinned in pieces, or it is said that it is not; nothing is taken that the
 * machine has not, and nothing stays pinned. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <cmocka.h>

#include "base/cleanup.h"
#include "tests/support/patience.h"
#include "worker/state/snapshot.h"

#define BYTES (3 * SNAPSHOT_PIECE_BYTES + 4096)

static atomic_int pins, pinned, pins_fail_from;
static atomic_size_t largest;
static _Atomic uint64_t free_bytes;

static titan_status pin(struct device *dev, void *ptr, size_t bytes, struct titan_error *err)
{
    (void)dev;
    assert_true((uintptr_t)ptr % 4096 == 0);
    if (atomic_fetch_add(&pins, 1) >= atomic_load(&pins_fail_from))
        return titan_fail(err, TITAN_EDEVICE, "no");
    (void)atomic_fetch_add(&pinned, 1);
    atomic_store(&largest, MAX(atomic_load(&largest), bytes));
    return TITAN_OK;
}

static void unpin(struct device *dev, void *ptr)
{
    (void)dev;
    (void)ptr;
    (void)atomic_fetch_sub(&pinned, 1);
}

static uint64_t available(void)
{
    return atomic_load(&free_bytes);
}

static const struct device_ops ops = {.pin_host = pin, .unpin_host = unpin};
static const struct device_handle gpu = {.ops = &ops}, cpu = {.ops = &ops, .info = {.host_memory = true}};

static int reset(void **state)
{
    (void)state;
    atomic_store(&pins, 0);
    atomic_store(&pins_fail_from, 1000);
    atomic_store(&largest, 0);
    atomic_store(&free_bytes, UINT64_MAX);
    return 0;
}

static size_t pages_there(const struct snapshot *m)
{
    static unsigned char in[BYTES / 4096];
    size_t n = 0;
    assert_int_equal(mincore(snapshot_memory(m), BYTES, in), 0);
    for (size_t i = 0; i < BYTES / 4096; i++)
        n += in[i] & 1;
    return n;
}

/* The host can write all of it, and nothing stays pinned. */
static void close_it(struct snapshot *m)
{
    memset(snapshot_memory(m), 1, BYTES);
    snapshot_unpin(m);
    assert_int_equal(atomic_load(&pinned), 0);
    snapshot_close(m);
}

static void test_pinned(void **state)
{
    struct snapshot *m = NULL;
    (void)state;
    assert_int_equal(snapshot_open(&gpu, BYTES, available, &m, NULL), TITAN_OK);
    assert_true(snapshot_ready(m) && snapshot_ready(m));
    assert_int_equal(pages_there(m), BYTES / 4096);
    assert_int_equal(atomic_load(&pinned), 4);
    assert_int_equal(atomic_load(&largest), SNAPSHOT_PIECE_BYTES);
    close_it(m);
}

static void test_host_memory(void **state)
{
    struct snapshot *m = NULL;
    (void)state;
    assert_int_equal(snapshot_open(&cpu, BYTES, available, &m, NULL), TITAN_OK);
    assert_true(snapshot_ready(m));
    assert_int_equal(pages_there(m), BYTES / 4096);
    assert_int_equal(atomic_load(&pins), 0);
    close_it(m);
}

static void test_too_little_memory(void **state)
{
    struct snapshot *m = NULL;
    (void)state;
    atomic_store(&free_bytes, SNAPSHOT_KEPT_FREE + SNAPSHOT_PIECE_BYTES - 1);
    assert_int_equal(snapshot_open(&gpu, BYTES, available, &m, NULL), TITAN_OK);
    assert_false(snapshot_ready(m));
    assert_int_equal(atomic_load(&pins), 0);
    assert_true(pages_there(m) < BYTES / 4096 / 2);
    close_it(m);
}

static void test_not_pinned(void **state)
{
    struct snapshot *m = NULL;
    (void)state;
    atomic_store(&pins_fail_from, 1);
    assert_int_equal(snapshot_open(&gpu, BYTES, available, &m, NULL), TITAN_OK);
    assert_false(snapshot_ready(m));
    assert_int_equal(atomic_load(&pinned), 1);
    close_it(m);
}

static void test_without_device(void **state)
{
    struct snapshot *m = NULL;
    (void)state;
    assert_int_equal(snapshot_open(NULL, BYTES, available, &m, NULL), TITAN_OK);
    assert_false(snapshot_ready(m));
    assert_true(pages_there(m) < BYTES / 4096 / 2);
    close_it(m);
}

/* Whenever it is given up, it is whole. */
static void test_stopped(void **state)
{
    (void)state;
    for (int i = 0; i < 20; i++) {
        struct snapshot *m = NULL;
        assert_int_equal(snapshot_open(&gpu, BYTES, available, &m, NULL), TITAN_OK);
        patience_pause_ms(i / 2, "it gets as far as it gets");
        snapshot_unpin(m);
        assert_int_equal(atomic_load(&pinned), 0);
        snapshot_close(m);
    }
}

static void test_available(void **state)
{
    (void)state;
    assert_true(snapshot_available() > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup(test_pinned, reset),
                                       cmocka_unit_test_setup(test_host_memory, reset),
                                       cmocka_unit_test_setup(test_too_little_memory, reset),
                                       cmocka_unit_test_setup(test_not_pinned, reset),
                                       cmocka_unit_test_setup(test_without_device, reset),
                                       cmocka_unit_test_setup(test_stopped, reset),
                                       cmocka_unit_test(test_available)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
