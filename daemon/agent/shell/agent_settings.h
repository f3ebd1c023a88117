/* SPDX-License-Identifier: Apache-2.0 */
/* agent_settings.h - an agent's options, checked and completed: name, device, slots, folders. */
#ifndef TITAN_DAEMON_AGENT_SHELL_AGENT_SETTINGS_H
#define TITAN_DAEMON_AGENT_SHELL_AGENT_SETTINGS_H

#include <limits.h>

#include "base/listen.h"
#include "daemon/agent/shell/agent.h"
#include "daemon/agent/shell/worker_limits.h"

struct agent_settings {
    char node[256], address[256], device[16];
    char run_dir[PATH_MAX], program[PATH_MAX]; /* run_dir: in the state folder; program: path of titan-worker */
    uint32_t slots, lease_ms;
    struct listen_ports ports; /* ports for workers' listeners; 0 = any */
    uint64_t log_bytes_max;
    struct worker_limits limits;
    bool quiet_stop;
};

/* TITAN_EDEVICE: the device is not there; TITAN_EINVAL: an option does not fit this node. */
titan_status agent_settings_fill(const struct agent_options *options, struct agent_settings *ret,
                                 struct titan_error *err) TITAN_MUST_USE;

#endif
