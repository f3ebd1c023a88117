/* SPDX-License-Identifier: Apache-2.0 */
/* node_check.h - reports problems of this node to the coordinator. After every acknowledgement, and at each change, it
 * reports whether jobs can have their folders here. At an operator's request, it makes all other checks. The checks run
 * on threads that may hang (daemon/common/file_pool.h). A path that does not answer within seconds is reported, and so
 * is an unreachable node (reach.h). */
#ifndef TITAN_DAEMON_AGENT_SHELL_NODE_CHECK_H
#define TITAN_DAEMON_AGENT_SHELL_NODE_CHECK_H

#include <uv.h>

#include "base/error.h"
#include "base/listen.h"
#include "daemon/agent/shell/site_hooks.h"
#include "daemon/agent/shell/worker_limits.h"
#include "proto/rpc/tls.h"
#include "titan/internal/agent.pb-c.h"

struct node_checks;

struct node_checks_options {
    const char *node, *address, *program; /* this agent's name and address; program: path of titan-worker */
    const struct rpc_tls *tls;            /* NULL = none */
    bool peers;                           /* there is a socket for other agents */
    /* The site's hooks; NULL = none. Its problem is this node's, and nothing is reported before the hooks have run
     * once, so that the node gets no workers until then. `checked` is not used. */
    const struct site_hooks_options *hooks;
    struct listen_ports ports;   /* ports for workers' listeners */
    struct worker_limits limits; /* of this node */
    const char *spawnd;          /* titan-spawnd's socket; NULL = none */
    /* Looks at the daemon's settings, on any thread; NULL = none. */
    void (*look)(const void *settings, void (*found)(void *data, const char *what, bool wrong, const char *text),
                 void *data);
    const void *settings;
};

/* Passes each answer to `reported`. Without a session `reported` returns false, and the folders' result is reported
 * again later. */
titan_status node_checks_open(uv_loop_t *loop, const struct node_checks_options *options,
                              bool (*reported)(const Titan__Internal__NodeChecked *answer, void *data), void *data,
                              struct node_checks **ret, struct titan_error *err) TITAN_MUST_USE;
void node_checks_ask(struct node_checks *c, const Titan__Internal__CheckNode *request);
/* The session ended: answers to its requests are dropped. */
void node_checks_forget(struct node_checks *c);
void node_checks_close(struct node_checks *c, void (*done)(void *), void *data);

#endif
