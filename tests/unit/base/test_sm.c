/* SPDX-License-Identifier: Apache-2.0 */
/* sm.h */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "base/cleanup.h"
#include "base/sm.h"

enum { IDLE, BUSY, DONE, FAILED };

static const struct sm_state good_states[] = {
    [IDLE] = {"idle", SM_INITIAL, SM_BIT(BUSY) | SM_BIT(FAILED)},
    [BUSY] = {"busy", 0, SM_BIT(BUSY) | SM_BIT(DONE) | SM_BIT(FAILED)},
    [DONE] = {"done", SM_FINAL, 0},
    [FAILED] = {"failed", SM_FINAL | SM_FAILURE, 0},
};
static const struct sm good = {"work", good_states, 4};

static void test_walk(void **state)
{
    (void)state;
    static const char *const expected[] = {".x.x", ".xxx", "....", "...."};
    for (int from = -1; from <= 4; from++)
        for (int to = -1; to <= 4; to++) {
            bool inside = from >= 0 && from < 4 && to >= 0 && to < 4;
            assert_int_equal(sm_allowed(&good, from, to), inside && expected[from][to] == 'x');
        }
    assert_string_equal(sm_name(&good, BUSY), "busy");
    assert_string_equal(sm_name(&good, 9), "?");
    assert_int_equal(sm_parse(&good, "failed"), FAILED);
    assert_int_equal(sm_parse(&good, "nothing"), -1);
    assert_int_equal(sm_parse(&good, NULL), -1);
    assert_true(sm_final(&good, DONE));
    assert_false(sm_final(&good, BUSY));
    assert_false(sm_final(&good, -1));
}

static void test_valid(void **state)
{
    (void)state;
    assert_true(sm_valid(&good));
    struct sm_state broken[4];
    struct sm sm = {"broken", broken, 4};
    memcpy(broken, good_states, sizeof(broken));
    broken[DONE].allowed = SM_BIT(IDLE); /* a way out of a final state */
    assert_false(sm_valid(&sm));
    memcpy(broken, good_states, sizeof(broken));
    broken[BUSY].allowed = 0; /* a dead end that is not final */
    assert_false(sm_valid(&sm));
    memcpy(broken, good_states, sizeof(broken));
    broken[BUSY].allowed = SM_BIT(BUSY); /* done cannot be reached */
    assert_false(sm_valid(&sm));
    memcpy(broken, good_states, sizeof(broken));
    broken[BUSY].flags = SM_INITIAL; /* two beginnings */
    assert_false(sm_valid(&sm));
    memcpy(broken, good_states, sizeof(broken));
    broken[IDLE].flags = 0; /* none */
    assert_false(sm_valid(&sm));
    memcpy(broken, good_states, sizeof(broken));
    broken[BUSY].allowed |= SM_BIT(7); /* outside the table */
    assert_false(sm_valid(&sm));
    memcpy(broken, good_states, sizeof(broken));
    broken[FAILED].name = "busy"; /* one name twice */
    assert_false(sm_valid(&sm));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_walk), cmocka_unit_test(test_valid)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
