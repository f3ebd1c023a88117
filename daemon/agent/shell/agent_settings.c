/* SPDX-License-Identifier: Apache-2.0 */
/* agent_settings.c - see agent_settings.h. */
#include "daemon/agent/shell/agent_settings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/machine.h"

#define SLOTS_CPU 4
#define SLOTS_MAX 1024
#define LEASE_MS 30000
#define LOG_BYTES_MAX ((uint64_t)64 << 20)

titan_status agent_settings_fill(const struct agent_options *o, struct agent_settings *ret, struct titan_error *err)
{
    char folder[PATH_MAX];

    const char *wanted = o->device && *o->device ? o->device : "auto";
    uint32_t gpus = machine_gpus();
    if (strcmp(wanted, "auto") != 0 && strcmp(wanted, "cpu") != 0 && strcmp(wanted, "cuda") != 0)
        return titan_fail(err, TITAN_EINVAL, "device '%s' is not one of auto, cpu, cuda", wanted);
    if (!strcmp(wanted, "cuda") && gpus == 0)
        return titan_fail(err, TITAN_EDEVICE, "device 'cuda' asked for, but %s",
                          getenv("CUDA_VISIBLE_DEVICES") ? "CUDA_VISIBLE_DEVICES names no GPU"
                                                         : "none of /dev/nvidia0 and so on can be opened");
    bool cuda = strcmp(wanted, "cpu") != 0 && gpus > 0;
    (void)snprintf(ret->device, sizeof(ret->device), "%s", cuda ? "cuda" : "cpu");
    ret->slots = o->slots ? o->slots : cuda ? gpus : SLOTS_CPU;
    if (cuda && ret->slots > gpus) {
        (void)titan_fail(err, TITAN_EINVAL, "%u slots, but this agent may use %u GPU%s", ret->slots, gpus,
                         gpus == 1 ? "" : "s");
        titan_error_hint(err, "a slot has a GPU of its own: at most %u slots, or device cpu", gpus);
        return TITAN_EINVAL;
    }
    if (ret->slots > SLOTS_MAX)
        return titan_fail(err, TITAN_EINVAL, "%u slots, at most %d are possible", ret->slots, SLOTS_MAX);
    titan_assert(ret->slots > 0);

    /* Checks that there is one port per worker, and one for `titanctl admin check`. */
    ret->ports = (struct listen_ports){0};
    if (o->worker_ports && listen_ports_parse(o->worker_ports, &ret->ports, err) != TITAN_OK)
        return titan_error_wrap(err, "agent.worker_ports");
    const uint32_t n = (uint32_t)(ret->ports.last - ret->ports.first) + 1;
    if (o->worker_ports && n <= ret->slots) {
        (void)titan_fail(err, TITAN_EINVAL, "agent.worker_ports: %s has %u port%s, %u slots want %u", o->worker_ports,
                         n, n == 1 ? "" : "s", ret->slots, ret->slots + 1);
        titan_error_hint(err, "one for each worker, and one for admin check; better some more, others may have one");
        return TITAN_EINVAL;
    }

    ret->lease_ms = o->lease_ms ? o->lease_ms : LEASE_MS;
    ret->log_bytes_max = o->log_bytes_max ? o->log_bytes_max : LOG_BYTES_MAX;
    ret->limits = worker_limits_of(o->worker_memory, o->worker_cpus);
    ret->quiet_stop = o->quiet_stop;
    (void)snprintf(ret->address, sizeof(ret->address), "%s", o->address ? o->address : "127.0.0.1");
    if (o->node)
        (void)snprintf(ret->node, sizeof(ret->node), "%s", o->node);
    else if (gethostname(ret->node, sizeof(ret->node) - 1) < 0)
        return titan_fail_errno(err, "cannot find the host's name");
    if (!ret->node[0] || strpbrk(ret->node, " \t\r\n/"))
        return titan_fail(err, TITAN_EINVAL, "node name '%s' is empty or has spaces or slashes", ret->node);
    if (snprintf(ret->run_dir, sizeof(ret->run_dir), "%s/run", o->state_dir) >= PATH_MAX)
        return titan_fail(err, TITAN_EINVAL, "state directory '%s' is too long", o->state_dir);
    if (!o->worker)
        TRY(file_self_dir(folder, sizeof(folder), err));
    if (snprintf(ret->program, PATH_MAX, "%s%s", o->worker ? o->worker : folder, o->worker ? "" : "/titan-worker") >=
        PATH_MAX)
        return titan_fail(err, TITAN_EINVAL, "path of titan-worker is too long");
    if (access(ret->program, X_OK) < 0)
        return titan_fail_errno(err, "cannot run worker program '%s'", ret->program);
    return TITAN_OK;
}
