/* SPDX-License-Identifier: Apache-2.0 */
/* site_hooks.h - the site's own programs that decide whether this node may work: HOOKS_DIR/node-check.d/NAME.
 *
 * All executables of the folder run one after another, in the order of their names, when the agent starts, and then
 * each period while the node has no workers. The first hook that does not exit with 0 in its time is the node's
 * problem: "hook NAME: " and the last line that it printed. When all pass, the problem is gone. Names that begin with a
 * dot or end with '~', and files that are not executable, are left out. A missing folder has no hooks.
 *
 * The folders and each hook must belong to root or to the agent's own user, and only the owner may write to them; else
 * the hook does not run, and that is the problem. A hook runs as the agent's user, in a process group of its own, in
 * folder /, without input, and with no other environment than PATH, TITAN_HOOK, TITAN_NODE, TITAN_SLOTS, TITAN_DEVICE
 * and TITAN_REASON ("start", "idle"). What is left of its group when it ends, or when its time is over, is killed. */
#ifndef TITAN_DAEMON_AGENT_SHELL_SITE_HOOKS_H
#define TITAN_DAEMON_AGENT_SHELL_SITE_HOOKS_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "base/error.h"

#define SITE_HOOKS_TEXT 400

struct site_hooks;

struct site_hooks_options {
    const char *dir; /* absolute; copied, as are the texts below */
    const char *node, *device;
    uint32_t slots;
    uint32_t timeout_ms, period_ms; /* for one hook; between two runs of all */
    bool (*idle)(void *data);       /* may they run now? Not asked at the start */
    /* All have run; problem "": all have passed. Valid during the call. */
    void (*checked)(const char *problem, void *data);
    void *data;
};

/* Begins at once; the first checked() comes on the loop later. */
titan_status site_hooks_open(uv_loop_t *loop, const struct site_hooks_options *options, struct site_hooks **ret,
                             struct titan_error *err) TITAN_MUST_USE;
/* Kills what runs. h may be NULL. */
void site_hooks_close(struct site_hooks *h, void (*done)(void *), void *data);

#endif
