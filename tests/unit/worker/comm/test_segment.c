/* SPDX-License-Identifier: Apache-2.0 */
/* segment.h: a word of shared memory that another member has damaged is found before it is used as a place. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#include <sys/mman.h>
#include <unistd.h>

#include "worker/comm/shm/segment.h"

enum { WORLD = 2, ARRIVED = 64, USED = 136 }; /* offsets in the header */

/* Rank 0 of two splits off a segment of both, while `used` says this. */
static titan_status split(uint64_t used, struct titan_error *err)
{
    static const int members[] = {0, 1};
    const struct segment_layout l = segment_layout(WORLD);
    const uint32_t others = WORLD - 1;
    struct segment seg, child;
    int fd = -1;
    assert_int_equal(comm_shm_segment(WORLD, &fd, err), TITAN_OK);
    unsigned char *shared = mmap(NULL, l.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(shared != MAP_FAILED);
    const struct comm_config config = {.world = WORLD, .memfd = fd, .listener = -1, .timeout_ms = 20};
    memcpy(shared + ARRIVED, &others, sizeof(others));
    assert_int_equal(segment_open(&seg, &config, NULL, NULL, err), TITAN_OK);
    memcpy(shared + USED, &used, sizeof(used));
    const titan_status status =
        segment_split(&seg, &child, &(struct segment_group){.members = members, .n = WORLD}, NULL, err);
    segment_close(&seg);
    (void)munmap(shared, l.bytes);
    (void)close(fd);
    return status;
}

static void test_place_of_a_split(void **state)
{
    (void)state;
    const struct segment_layout l = segment_layout(WORLD);
    struct titan_error err = {0};
    assert_int_equal(split(0, &err), TITAN_ETIMEDOUT); /* no other rank is here */
    assert_int_equal(split(l.bytes, &err), TITAN_ETIMEDOUT);
    assert_int_equal(split((uint64_t)-4096, &err), TITAN_ECORRUPT); /* over the root's end */
    assert_int_equal(split(-(uint64_t)l.bytes, &err), TITAN_ECORRUPT);
    assert_int_equal(split(100, &err), TITAN_ECORRUPT);
    assert_int_equal(split(INT64_MAX & ~UINT64_C(4095), &err), TITAN_ECORRUPT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_place_of_a_split)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
