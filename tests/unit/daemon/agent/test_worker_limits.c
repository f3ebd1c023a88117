/* SPDX-License-Identifier: Apache-2.0 */
/* What a worker may have: of what its job asks for, the site gives, the machine has and the cgroups can hold. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "daemon/agent/shell/worker_limits.h"

#define GIB (UINT64_C(1) << 30)

static const struct cgroup_limits nothing;
static const struct worker_limits_held all = {.can = {true, true}};
static const struct worker_limits_held none = {.can = {false, false}, .why = "there is no cgroup"};

static struct worker_limits node_of(uint64_t site_memory, uint32_t site_cpus)
{
    return (struct worker_limits){.site = {.memory = site_memory, .cpus = site_cpus},
                                  .machine = {.memory = 64 * GIB, .cpus = 16000}};
}

static void gets(struct worker_limits node, struct cgroup_limits asked, const struct worker_limits_held *held,
                 uint64_t memory, uint32_t cpus)
{
    struct cgroup_limits got;
    struct titan_error err = {0};
    if (worker_limits_choose(&node, &asked, held, "n1", &got, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    assert_int_equal(got.memory, memory);
    assert_int_equal(got.cpus, cpus);
}

static void refuses(struct worker_limits node, struct cgroup_limits asked, const struct worker_limits_held *held,
                    const char *text)
{
    struct cgroup_limits got;
    struct titan_error err = {0};
    assert_int_equal(worker_limits_choose(&node, &asked, held, "n1", &got, &err), TITAN_EUNPLACEABLE);
    assert_string_equal(err.msg, text);
}

static void test_given(void **state)
{
    (void)state;
    gets(node_of(0, 0), nothing, &all, 0, 0);
    gets(node_of(0, 0), nothing, &none, 0, 0);
    gets(node_of(8 * GIB, 2000), nothing, &all, 8 * GIB, 2000);
    gets(node_of(8 * GIB, 2000), (struct cgroup_limits){.memory = 4 * GIB}, &all, 4 * GIB, 2000);
    gets(node_of(8 * GIB, 2000), (struct cgroup_limits){.memory = 8 * GIB, .cpus = 500}, &all, 8 * GIB, 500);
    gets(node_of(0, 0), (struct cgroup_limits){.memory = 64 * GIB, .cpus = 16000}, &all, 64 * GIB, 16000);
    /* The site's alone is left out where it cannot be held. */
    gets(node_of(8 * GIB, 2000), nothing, &none, 0, 0);
    const struct worker_limits_held one = {.can = {.memory = true}, .why = "no cpu"};
    gets(node_of(8 * GIB, 2000), (struct cgroup_limits){.memory = GIB}, &one, GIB, 0);
}

static void test_refused(void **state)
{
    (void)state;
    refuses(node_of(8 * GIB, 0), (struct cgroup_limits){.memory = 16 * GIB}, &all,
            "the job asks for 16GiB of memory a worker (resources.memory), node n1 gives one 8GiB "
            "(agent.worker_memory)");
    refuses(node_of(8 * GIB, 0), (struct cgroup_limits){.memory = 8 * GIB + 1}, &all,
            "the job asks for 8589934593B of memory a worker (resources.memory), node n1 gives one 8GiB "
            "(agent.worker_memory)");
    refuses(node_of(0, 2000), (struct cgroup_limits){.cpus = 2500}, &all,
            "the job asks for 2.5 processors a worker (resources.cpus), node n1 gives one 2 (agent.worker_cpus)");
    refuses(node_of(8 * GIB, 0), (struct cgroup_limits){.memory = 65 * GIB}, &all,
            "the job asks for 65GiB of memory a worker (resources.memory), node n1 has 64.0 GiB");
    refuses(node_of(0, 0), (struct cgroup_limits){.cpus = 16001}, &all,
            "the job asks for 16.001 processors a worker (resources.cpus), node n1 has 16");
    refuses(node_of(8 * GIB, 2000), (struct cgroup_limits){.memory = 2 * GIB}, &none,
            "the job limits a worker to 2GiB of memory (resources.memory), which node n1 cannot hold: there is no "
            "cgroup");
    refuses(node_of(0, 0), (struct cgroup_limits){.cpus = 1500}, &none,
            "the job limits a worker to 1.5 processors (resources.cpus), which node n1 cannot hold: there is no "
            "cgroup");
}

static void test_unheld(void **state)
{
    (void)state;
    struct worker_limits node = node_of(0, 0);
    const struct worker_limits_held memory = {.can = {.memory = true}};
    assert_false(worker_limits_unheld(&node, &none));
    node = node_of(GIB, 0);
    assert_true(worker_limits_unheld(&node, &none));
    assert_false(worker_limits_unheld(&node, &memory));
    node = node_of(GIB, 1000);
    assert_true(worker_limits_unheld(&node, &memory));
    assert_false(worker_limits_unheld(&node, &all));
}

/* A titan-spawnd that does not answer refuses no job, and lets no worker go without its limit: the start is tried
 * again. */
static void test_unknown(void **state)
{
    (void)state;
    struct worker_limits node = node_of(GIB, 0);
    struct cgroup_limits asked = {.memory = 0}, got;
    struct worker_limits_held held;
    struct titan_error err = {0};
    worker_limits_look("/nowhere/spawnd.sock", &held);
    assert_true(held.unknown && worker_limits_unheld(&node, &held));
    assert_int_equal(worker_limits_choose(&node, &asked, &held, "n1", &got, &err), TITAN_EAGAIN);
    assert_non_null(strstr(err.msg, "titan-spawnd does not answer at '/nowhere/spawnd.sock'"));
    asked.memory = GIB / 2;
    assert_int_equal(worker_limits_choose(&node, &asked, &held, "n1", &got, NULL), TITAN_EAGAIN);
}

/* All that the machine has is no limit. */
static void test_site(void **state)
{
    (void)state;
    struct worker_limits node = worker_limits_of(1 << 20, 10);
    assert_int_equal(node.site.memory, 1 << 20);
    assert_int_equal(node.site.cpus, 10);
    const struct worker_limits most = worker_limits_of(node.machine.memory, node.machine.cpus);
    assert_int_equal(most.site.memory, 0);
    assert_int_equal(most.site.cpus, 0);
}

static void test_asked(void **state)
{
    (void)state;
    static struct recipe r;
    recipe_init(&r);
    struct cgroup_limits asked = worker_limits_asked(&r);
    assert_true(asked.memory == 0 && asked.cpus == 0);
    assert_int_equal(recipe_parse(&r, "[resources]\nmemory = \"2GiB\"\ncpus = 1.2345\n", "recipe", NULL), TITAN_OK);
    asked = worker_limits_asked(&r);
    assert_int_equal(asked.memory, 2 * GIB);
    assert_int_equal(asked.cpus, 1235);
}

static void test_origin(void **state)
{
    (void)state;
    struct worker_limits node = node_of(8 * GIB + 100, 0);
    assert_string_equal(worker_limits_origin(&node, 8 * GIB), " (agent.worker_memory)"); /* as the kernel rounds it */
    assert_string_equal(worker_limits_origin(&node, 4 * GIB), " (resources.memory)");
    node = node_of(0, 0);
    assert_string_equal(worker_limits_origin(&node, 8 * GIB), " (resources.memory)");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_given),  cmocka_unit_test(test_refused),
                                       cmocka_unit_test(test_unheld), cmocka_unit_test(test_site),
                                       cmocka_unit_test(test_asked),  cmocka_unit_test(test_origin),
                                       cmocka_unit_test(test_unknown)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
