/* SPDX-License-Identifier: Apache-2.0 */
/* What is written into a cgroup's files, and read of them: in a folder that looks like one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "daemon/common/cgroup.h"

static char folder[64];

static void put(const char *name, const char *text)
{
    char path[128];
    (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
    assert_int_equal(file_replace(path, text, strlen(text), NULL), TITAN_OK);
}

static void holds(const char *name, const char *expected)
{
    char path[128];
    struct buf text = BUF_INIT;
    (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
    assert_int_equal(file_read(path, 4096, &text, NULL), TITAN_OK);
    assert_string_equal(text.data ? text.data : "", expected);
    buf_free(&text);
}

static void take_away(const char *name)
{
    char path[128];
    (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
    assert_int_equal(unlink(path), 0);
}

static int setup(void **state)
{
    (void)state;
    (void)snprintf(folder, sizeof(folder), "/tmp/titan-cgroup-XXXXXX");
    assert_non_null(mkdtemp(folder));
    put("memory.max", "");
    put("memory.swap.max", "");
    put("cpu.max", "");
    put("cgroup.subtree_control", "");
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    return dir_remove(folder, NULL) == TITAN_OK ? 0 : -1;
}

static void test_limit(void **state)
{
    (void)state;
    struct titan_error err = {0};
    assert_int_equal(cgroup_limit(folder, &(struct cgroup_limits){.memory = 0}, &err), TITAN_OK);
    holds("memory.max", "");
    holds("cpu.max", "");
    assert_int_equal(cgroup_limit(folder, &(struct cgroup_limits){.memory = UINT64_C(17179869184)}, &err), TITAN_OK);
    holds("memory.max", "17179869184");
    holds("memory.swap.max", "0");
    holds("cpu.max", "");
    assert_int_equal(cgroup_limit(folder, &(struct cgroup_limits){.cpus = 3500}, &err), TITAN_OK);
    holds("cpu.max", "350000 100000");
    put("cpu.max", "");
    assert_int_equal(cgroup_limit(folder, &(struct cgroup_limits){.cpus = 10}, &err), TITAN_OK);
    holds("cpu.max", "1000 100000"); /* the kernel's least */
    put("cpu.max", "");
    assert_int_equal(cgroup_limit(folder, &(struct cgroup_limits){.cpus = 16384000}, &err), TITAN_OK);
    holds("cpu.max", "1638400000 100000");
    take_away("memory.swap.max"); /* a kernel without swap */
    assert_int_equal(cgroup_limit(folder, &(struct cgroup_limits){.memory = 1 << 20}, &err), TITAN_OK);
    take_away("memory.max");
    assert_int_equal(cgroup_limit(folder, &(struct cgroup_limits){.memory = 1 << 20}, &err), TITAN_ENOTFOUND);
    assert_non_null(strstr(err.msg, "cannot limit the memory"));
    take_away("cpu.max");
    assert_int_equal(cgroup_limit(folder, &(struct cgroup_limits){.cpus = 1000}, &err), TITAN_ENOTFOUND);
    assert_non_null(strstr(err.msg, "cannot limit the processors"));
}

static void test_read(void **state)
{
    (void)state;
    put("memory.events", "low 0\noom 3\noom_kill 2\noom_group_kill 1\n");
    put("memory.max", "max\n");
    put("memory.peak", "4096\n");
    put("cgroup.controllers", "cpuset cpu io memory\n");
    uint64_t n = 0;
    assert_true(cgroup_number(folder, "memory.events", "oom_kill ", &n));
    assert_int_equal(n, 2);
    assert_false(cgroup_number(folder, "memory.events", "kill ", &n));
    assert_int_equal(n, 0);
    assert_false(cgroup_number(folder, "memory.max", "", &n));
    assert_true(cgroup_number(folder, "memory.peak", "", &n));
    assert_int_equal(n, 4096);
    assert_false(cgroup_number(folder, "not.there", "", &n));
    assert_int_equal(n, 0);
    assert_true(cgroup_has(folder, "cgroup.controllers", "cpu"));
    assert_true(cgroup_has(folder, "cgroup.controllers", "memory"));
    assert_false(cgroup_has(folder, "cgroup.controllers", "mem"));
    assert_false(cgroup_has(folder, "not.there", "memory"));
}

static void test_hand_on(void **state)
{
    (void)state;
    struct cgroup_holds h = cgroup_hand_on(folder);
    assert_true(h.memory && h.cpus);
    take_away("cgroup.subtree_control");
    h = cgroup_hand_on(folder);
    assert_false(h.memory || h.cpus);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_limit, setup, teardown),
        cmocka_unit_test_setup_teardown(test_read, setup, teardown),
        cmocka_unit_test_setup_teardown(test_hand_on, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
