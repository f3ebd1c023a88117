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
#include "daemon/agent/shell/oom.h"

#define GIB (UINT64_C(1) << 30)
#define PID 4711

static char folder[64], proc[128], cgroups[128], own[256];
static struct oom_watch o;
static struct oom_group *group;
static char reason[600];
static struct worker_limits node = {.site = {.memory = 3 * GIB}, .machine = {.memory = 64 * GIB, .cpus = 4000}};

static void put(const char *name, const char *text)
{
    char path[256], *slash;
    (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
    assert_non_null(slash = strrchr(path, '/'));
    *slash = '\0';
    assert_int_equal(dir_make(path, NULL), TITAN_OK);
    *slash = '/';
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
    (void)snprintf(proc, sizeof(proc), "%s/proc", folder);
    (void)snprintf(cgroups, sizeof(cgroups), "%s/cgroup", folder);
    put("proc/vmstat", "nr_free_pages 1\noom_kill 5\n");
    put("cgroup/cgroup.procs", "");
    oom_watch_init(&o);
    o.proc = proc;
    o.cgroups = cgroups;
    own[0] = '\0';
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    oom_group_leave(&o, &group);
    assert_null(o.groups);
    return dir_remove(folder, NULL) == TITAN_OK ? 0 : -1;
}

/* The process runs, in what its lines of /proc/PID/cgroup say. */
static void runs_in(const char *lines)
{
    put("proc/4711/cgroup", lines);
    oom_group_follow(&o, &group, PID);
    assert_non_null(group);
}

static void own_cgroup(const char *name)
{
    (void)snprintf(own, sizeof(own), "%s/%s", cgroups, name);
}

static enum oom verdict(uint64_t rss_max)
{
    reason[0] = '\0';
    return oom_verdict(&o, &(struct oom_victim){group, own, &node, rss_max}, reason, sizeof(reason));
}

static void test_own_cgroup(void **state)
{
    (void)state;
    own_cgroup("service/worker");
    put("cgroup/service/worker/memory.events", "low 0\noom 0\noom_kill 0\n");
    put("cgroup/service/worker/memory.max", "2147483648\n");
    put("cgroup/service/worker/memory.peak", "2147479552\n");
    runs_in("0::/service/worker\n");
    assert_int_equal(verdict(GIB), OOM_NO);
    put("cgroup/service/worker/memory.events", "low 0\noom 3\noom_kill 2\n");
    assert_int_equal(verdict(GIB), OOM_YES);
    assert_string_equal(reason, "out of memory: limit 2.0 GiB (resources.memory), peak 2.0 GiB (oom_kill 2)");
    put("cgroup/service/worker/memory.max", "3221225472\n");
    put("cgroup/service/worker/memory.peak", "3221221376\n");
    put("cgroup/service/worker/memory.events", "low 0\noom 3\noom_kill 4\n");
    assert_int_equal(verdict(GIB), OOM_YES);
    assert_string_equal(reason, "out of memory: limit 3.0 GiB (agent.worker_memory), peak 3.0 GiB (oom_kill 3)");
}

/* The cgroup knows better than the machine: it was another one. */
static void test_not_in_the_cgroup(void **state)
{
    (void)state;
    put("cgroup/service/worker/memory.events", "oom_kill 0\n");
    runs_in("0::/service/worker\n");
    put("proc/vmstat", "oom_kill 6\n");
    assert_int_equal(verdict(GIB), OOM_NO);
    put("cgroup/service/worker/memory.events", "oom_kill 1\n"); /* of a cgroup below it */
    put("cgroup/service/worker/memory.events.local", "oom_kill 0\n");
    assert_int_equal(verdict(GIB), OOM_NO);
}

/* Without the memory controller the cgroup above it counts, and two workers share that. */
static void test_limit_above(void **state)
{
    (void)state;
    put("cgroup/service/worker/cgroup.procs", "4711\n");
    put("cgroup/service/memory.events.local", "oom_kill 7\n");
    put("cgroup/service/memory.max", "3221225472\n");
    runs_in("0::/service/worker\n");
    put("cgroup/service/memory.events.local", "oom_kill 8\n");
    assert_int_equal(verdict(5 * GIB / 2), OOM_YES);
    assert_string_equal(reason, "out of memory: limit 3.0 GiB (of service), peak 2.5 GiB (oom_kill 1)");
    struct oom_group *other = NULL;
    put("proc/4712/cgroup", "0::/service\n");
    oom_group_follow(&o, &other, 4712);
    assert_ptr_equal(other, group);
    assert_int_equal(oom_verdict(&o, &(struct oom_victim){other, own, &node, GIB}, reason, sizeof(reason)),
                     OOM_NO); /* one kill, one process */
    oom_group_leave(&o, &other);
}

/* Of several limits that one is named that was reached. */
static void test_limit_that_acted(void **state)
{
    (void)state;
    put("cgroup/slice/service/memory.events", "oom_kill 0\n");
    put("cgroup/slice/service/memory.max", "1073741824\n");
    put("cgroup/slice/service/memory.peak", "534773760\n");
    put("cgroup/slice/memory.events", "oom_kill 0\n");
    put("cgroup/slice/memory.max", "3221225472\n");
    put("cgroup/slice/memory.peak", "3221225472\n");
    runs_in("0::/slice/service\n");
    put("cgroup/slice/service/memory.events", "oom_kill 1\n");
    assert_int_equal(verdict(GIB), OOM_YES);
    assert_string_equal(reason, "out of memory: limit 3.0 GiB (of slice), peak 3.0 GiB (oom_kill 1)");
    put("cgroup/slice/memory.peak", "1073741824\n");
    put("cgroup/slice/service/memory.events", "oom_kill 2\n");
    assert_int_equal(verdict(GIB), OOM_YES);
    assert_non_null(strstr(reason, "(the machine's), peak 1.0 GiB"));
}

static void test_version_1(void **state)
{
    (void)state;
    const char *const lines = "9:name=systemd:/\n4:cpu,memory:/pod/worker\n0::/\n";
    put("cgroup/memory/pod/worker/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n");
    put("cgroup/memory/pod/worker/memory.limit_in_bytes", "9223372036854771712\n");
    put("cgroup/memory/pod/worker/memory.max_usage_in_bytes", "69206016\n");
    put("cgroup/memory/pod/memory.limit_in_bytes", "125829120\n");
    put("cgroup/memory/pod/memory.max_usage_in_bytes", "125829120\n");
    put("cgroup/memory/memory.oom_control", "oom_kill 40\n");
    runs_in(lines);
    runs_in("4:memory:/\n"); /* as it ends */
    put("cgroup/memory/memory.oom_control", "oom_kill 41\n");
    assert_int_equal(verdict(GIB), OOM_NO);
    put("cgroup/memory/pod/worker/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n");
    assert_int_equal(verdict(GIB), OOM_YES);
    assert_string_equal(reason, "out of memory: limit 120.0 MiB (of pod), peak 120.0 MiB (oom_kill 1)");
}

/* It is moved into another cgroup while it runs. */
static void test_moved(void **state)
{
    (void)state;
    put("cgroup/a/memory.events", "oom_kill 0\n");
    put("cgroup/b/memory.events", "oom_kill 3\n");
    runs_in("0::/a\n");
    runs_in("0::/b\n");
    assert_int_equal(verdict(GIB), OOM_NO);
    put("cgroup/b/memory.events", "oom_kill 4\n");
    assert_int_equal(verdict(GIB), OOM_YES);
}

/* The machine's count has those of all cgroups. */
static void test_machine(void **state)
{
    (void)state;
    runs_in("0::/\n");
    pass(5000);
    assert_int_equal(verdict(GIB), OOM_NO); /* a user's kill -9 */
    put("proc/vmstat", "oom_kill 6\n");
    pass(4500);                                 /* between the kill and the news of it */
    assert_int_equal(verdict(1 << 20), OOM_NO); /* so little is no reason */
    assert_int_equal(verdict(GIB), OOM_PERHAPS);
    assert_non_null(strstr(reason, "perhaps out of memory: "));
    assert_non_null(strstr(reason, "peak 1.0 GiB of the machine's "));
    assert_int_equal(verdict(GIB), OOM_NO);
}

static void test_long_ago(void **state)
{
    (void)state;
    runs_in("0::/\n");
    put("proc/vmstat", "oom_kill 9\n");
    pass(5250);
    assert_int_equal(verdict(GIB), OOM_NO);
}

/* An idle agent does not look; what was killed meanwhile was before the next worker. */
static void test_while_idle(void **state)
{
    (void)state;
    runs_in("0::/\n");
    oom_group_leave(&o, &group);
    put("proc/vmstat", "oom_kill 9\n");
    runs_in("0::/\n");
    assert_int_equal(verdict(GIB), OOM_NO);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_own_cgroup),       TEST(test_not_in_the_cgroup), TEST(test_limit_above),
        TEST(test_limit_that_acted), TEST(test_version_1),         TEST(test_moved),
        TEST(test_machine),          TEST(test_long_ago),          TEST(test_while_idle),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
