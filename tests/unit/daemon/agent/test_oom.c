/* SPDX-License-Identifier: Apache-2.0 */
/* Killed for its memory or not: from a made-up /proc/vmstat and cgroup tree. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "daemon/agent/oom.h"

#define GIB (UINT64_C(1) << 30)

static char folder[64], vmstat[128];
static struct oom_watch o;
static struct worker_process p;
static char reason[600];

static void put(const char *name, const char *text)
{
    char path[256];
    (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
    assert_int_equal(file_replace(path, text, strlen(text), NULL), TITAN_OK);
}

static void pass(int ms)
{
    for (int i = 0; i < ms / 250; i++)
        oom_watch_look(&o);
}

static int setup(void **state)
{
    (void)state;
    (void)snprintf(folder, sizeof(folder), "/tmp/titan-oom-XXXXXX");
    assert_non_null(mkdtemp(folder));
    (void)snprintf(vmstat, sizeof(vmstat), "%s/vmstat", folder);
    put("vmstat", "nr_free_pages 1\noom_kill 5\n");
    oom_watch_init(&o);
    o.vmstat = vmstat;
    o.cgroup_root = folder;
    o.home[0] = '\0';
    pass(5000);
    p = WORKER_PROCESS_NONE;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    return dir_remove(folder, NULL) == TITAN_OK ? 0 : -1;
}

static void cgroup(const char *name)
{
    (void)snprintf(p.cgroup, sizeof(p.cgroup), "%s/%s", folder, name);
    assert_int_equal(dir_make(p.cgroup, NULL), TITAN_OK);
}

static void test_own_cgroup(void **state)
{
    (void)state;
    cgroup("service/worker");
    put("service/worker/memory.events", "low 0\noom 3\noom_kill 2\n");
    put("service/worker/memory.max", "2147483648\n");
    put("service/worker/memory.peak", "2147479552\n");
    assert_true(oom_verdict(&o, &p, GIB, reason, sizeof(reason)));
    assert_string_equal(reason, "out of memory: limit 2.0 GiB, peak 2.0 GiB (oom_kill 2)");
}

/* The cgroup knows better than the machine: the kill was another's. */
static void test_not_in_the_cgroup(void **state)
{
    (void)state;
    cgroup("service/worker");
    put("service/worker/memory.events", "oom_kill 0\n");
    put("vmstat", "oom_kill 6\n");
    assert_false(oom_verdict(&o, &p, GIB, reason, sizeof(reason)));
}

static void test_limit_above(void **state)
{
    (void)state;
    cgroup("service/worker"); /* without the memory controller */
    put("service/memory.max", "3221225472\n");
    put("vmstat", "oom_kill 6\n");
    assert_true(oom_verdict(&o, &p, 5 * GIB / 2, reason, sizeof(reason)));
    assert_string_equal(reason, "out of memory: limit 3.0 GiB (of service), peak 2.5 GiB (oom_kill 1)");
    assert_false(oom_verdict(&o, &p, GIB, reason, sizeof(reason))); /* one kill, one process */
}

/* A worker without a cgroup of its own is in its agent's. */
static void test_limit_of_the_agent(void **state)
{
    (void)state;
    (void)snprintf(o.home, sizeof(o.home), "%s/titand.service", folder);
    assert_int_equal(dir_make(o.home, NULL), TITAN_OK);
    put("titand.service/memory.max", "188743680\n");
    put("titand.service/memory.peak", "188743680\n");
    put("vmstat", "oom_kill 6\n");
    assert_true(oom_verdict(&o, &p, GIB, reason, sizeof(reason)));
    assert_string_equal(reason, "out of memory: limit 180.0 MiB (of titand.service), peak 180.0 MiB (oom_kill 1)");
}

static void test_machine(void **state)
{
    (void)state;
    assert_false(oom_verdict(&o, &p, GIB, reason, sizeof(reason))); /* a user's kill -9 */
    put("vmstat", "oom_kill 6\n");
    pass(4500); /* between the kill and the news of it */
    assert_true(oom_verdict(&o, &p, GIB, reason, sizeof(reason)));
    assert_non_null(strstr(reason, "(the machine's), peak 1.0 GiB"));
}

static void test_others_long_ago(void **state)
{
    (void)state;
    put("vmstat", "oom_kill 9\n");
    pass(5250);
    assert_false(oom_verdict(&o, &p, GIB, reason, sizeof(reason)));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_own_cgroup),         TEST(test_not_in_the_cgroup), TEST(test_limit_above),
        TEST(test_limit_of_the_agent), TEST(test_machine),           TEST(test_others_long_ago),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
