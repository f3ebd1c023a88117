/* SPDX-License-Identifier: Apache-2.0 */
/* cores.c: how many cores' worth a process may use, by what bounds it, and which processes share them. */
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/file.h"
#include "worker/device/cpu/cpu.h"

static char root[] = "/tmp/titan-cgroups-XXXXXX";

static uint64_t group(const char *name, const char *cpu_max)
{
    char path[256];
    struct stat st;

    (void)snprintf(path, sizeof path, "%s%s", root, name);
    assert_int_equal(dir_make(path, NULL), TITAN_OK);
    assert_int_equal(stat(path, &st), 0);
    (void)snprintf(path, sizeof path, "%s%s/cpu.max", root, name);
    if (cpu_max)
        assert_int_equal(file_write(path, cpu_max, strlen(cpu_max), NULL), TITAN_OK);
    return (uint64_t)st.st_ino;
}

static void near(double got, double want)
{
    assert_true(fabs(got - want) < 1e-9);
}

/* The least of a cgroup and those above it counts, and that one's processes share it. */
static void quotas(void **state)
{
    uint64_t bound = 1;

    (void)state;
    const uint64_t service = group("/service", "250000 100000\n");
    const uint64_t half = group("/service/half", "50000 100000\n");
    (void)group("/service/half/worker", NULL);
    (void)group("/service/wide", "max 100000\n");
    (void)group("/service/more", "400000 100000\n");
    (void)group("/free", "max 100000\n");
    (void)group("/odd", "0 0\n");
    near(cpu_cores_quota(root, "/service", &bound), 2.5);
    assert_int_equal(bound, service);
    near(cpu_cores_quota(root, "/service/half/worker", &bound), 0.5);
    assert_int_equal(bound, half);
    near(cpu_cores_quota(root, "/service/wide", &bound), 2.5);
    assert_int_equal(bound, service);
    near(cpu_cores_quota(root, "/service/more", &bound), 2.5);
    assert_int_equal(bound, service);
    static const char *const unbound[] = {"/free", "/odd", "/", "/not/there", ""};
    for (size_t i = 0; i < ARRAY_SIZE(unbound); i++) {
        assert_true(isinf(cpu_cores_quota(root, unbound[i], &bound)));
        assert_int_equal(bound, 0);
    }
    (void)group("", "100000 100000\n"); /* as a container sees its own */
    near(cpu_cores_quota(root, "/", &bound), 1);
}

/* Processes with the same processors share them; others have others. */
static void affinity(void **state)
{
    cpu_set_t all, one;

    (void)state;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    const struct cpu_cores of_all = cpu_cores_find();
    assert_true(of_all.usable > 0 && of_all.usable <= CPU_COUNT(&all));
    assert_true(cpu_cores_find().id == of_all.id);
    CPU_ZERO(&one);
    for (int i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; i++)
        if (CPU_ISSET(i, &all))
            CPU_SET(i, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    const struct cpu_cores of_one = cpu_cores_find();
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
    assert_true(of_one.usable > 0 && of_one.usable <= 1);
    assert_true((of_one.id == of_all.id) == (CPU_COUNT(&all) == 1));
}

static int make_root(void **state)
{
    (void)state;
    return mkdtemp(root) ? 0 : -1;
}

static int remove_root(void **state)
{
    char command[64];

    (void)state;
    (void)snprintf(command, sizeof command, "rm -r %s", root);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(quotas), cmocka_unit_test(affinity)};
    return cmocka_run_group_tests(tests, make_root, remove_root);
}
