/* SPDX-License-Identifier: Apache-2.0 */
/* worker_limits.c - see worker_limits.h. */
#include "daemon/agent/shell/worker_limits.h"

#include <math.h>
#include <stdio.h>
#include <unistd.h>

#include "base/units.h"
#include "daemon/agent/shell/spawn_client.h"
#include "daemon/agent/shell/worker_cgroup.h"

struct worker_limits worker_limits_of(uint64_t site_memory, uint32_t site_cpus)
{
    struct worker_limits l = {.site = {.memory = site_memory, .cpus = site_cpus},
                              .machine = {.memory = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE),
                                          .cpus = (uint32_t)sysconf(_SC_NPROCESSORS_ONLN) * 1000}};
    titan_assert(l.machine.memory > 0 && l.machine.cpus > 0);
    /* One setting serves nodes of several sizes. So a limit at or above the node's size counts as no limit. */
    l.site.memory = l.site.memory < l.machine.memory ? l.site.memory : 0;
    l.site.cpus = l.site.cpus < l.machine.cpus ? l.site.cpus : 0;
    return l;
}

struct cgroup_limits worker_limits_asked(const struct recipe *r)
{
    return (struct cgroup_limits){.memory = (uint64_t)r->resources.memory,
                                  .cpus = r->resources.cpus > 0 ? (uint32_t)lround(r->resources.cpus * 1000) : 0};
}

void worker_limits_look(const char *spawnd, struct worker_limits_held *ret)
{
    _Static_assert(WORKER_LIMITS_WHY >= SPAWN_TEXT && WORKER_LIMITS_WHY >= WORKER_CGROUP_WHY, "one holds the others");
    struct titan_error err = {0};
    *ret = (struct worker_limits_held){.why = ""};
    if (!spawnd[0])
        ret->can = worker_cgroup_holds(ret->why);
    else if (spawn_client_holds(spawnd, &ret->can, ret->why, &err) != TITAN_OK) {
        ret->unknown = true;
        (void)snprintf(ret->why, sizeof(ret->why), "%.*s", WORKER_LIMITS_WHY - 1, err.msg);
    }
}

bool worker_limits_unheld(const struct worker_limits *node, const struct worker_limits_held *held)
{
    return (node->site.memory && !held->can.memory) || (node->site.cpus && !held->can.cpus);
}

/* Memory or processors: the request, the site's limit and the machine's size, as text. */
struct claim {
    const char *key, *of, *setting;
    uint64_t asked, site, machine;
    bool can;
    char asked_text[UNITS_TEXT], site_text[UNITS_TEXT], machine_text[UNITS_TEXT];
};

static titan_status check(const struct claim *k, const char *node, const char *why, uint64_t *ret,
                          struct titan_error *err)
{
    if (k->asked > k->machine)
        return titan_fail(err, TITAN_EUNPLACEABLE, "the job asks for %s %s a worker (resources.%s), node %s has %s",
                          k->asked_text, k->of, k->key, node, k->machine_text);
    if (k->site && k->asked > k->site)
        return titan_fail(err, TITAN_EUNPLACEABLE,
                          "the job asks for %s %s a worker (resources.%s), node %s gives one %s (agent.%s)",
                          k->asked_text, k->of, k->key, node, k->site_text, k->setting);
    if (k->asked && !k->can)
        return titan_fail(err, TITAN_EUNPLACEABLE,
                          "the job limits a worker to %s %s (resources.%s), which node %s cannot hold: %s",
                          k->asked_text, k->of, k->key, node, why);
    *ret = !k->can ? 0 : k->asked ? k->asked : k->site;
    return TITAN_OK;
}

titan_status worker_limits_choose(const struct worker_limits *node, const struct cgroup_limits *asked,
                                  const struct worker_limits_held *held, const char *name, struct cgroup_limits *ret,
                                  struct titan_error *err)
{
    struct claim memory = {.key = "memory",
                           .of = "of memory",
                           .setting = "worker_memory",
                           .asked = asked->memory,
                           .site = node->site.memory,
                           .machine = node->machine.memory,
                           .can = held->can.memory};
    struct claim cpus = {.key = "cpus",
                         .of = "processors",
                         .setting = "worker_cpus",
                         .asked = asked->cpus,
                         .site = node->site.cpus,
                         .machine = node->machine.cpus,
                         .can = held->can.cpus};
    uint64_t thousandths = 0;
    (void)format_exact_bytes(memory.asked, memory.asked_text);
    (void)format_exact_bytes(memory.site, memory.site_text);
    (void)format_bytes(memory.machine, memory.machine_text);
    (void)snprintf(cpus.asked_text, UNITS_TEXT, "%g", (double)cpus.asked / 1000);
    (void)snprintf(cpus.site_text, UNITS_TEXT, "%g", (double)cpus.site / 1000);
    (void)snprintf(cpus.machine_text, UNITS_TEXT, "%g", (double)cpus.machine / 1000);
    *ret = (struct cgroup_limits){.memory = 0};
    if (held->unknown)
        return titan_fail(err, TITAN_EAGAIN, "%s", held->why);
    TRY(check(&memory, name, held->why, &ret->memory, err));
    TRY(check(&cpus, name, held->why, &thousandths, err));
    ret->cpus = (uint32_t)thousandths;
    titan_assert(ret->memory <= node->machine.memory && ret->cpus <= node->machine.cpus);
    return TITAN_OK;
}

const char *worker_limits_origin(const struct worker_limits *node, uint64_t limit)
{
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE); /* the kernel rounds to pages */
    return node->site.memory && limit / page == node->site.memory / page ? " (agent.worker_memory)"
                                                                         : " (resources.memory)";
}
