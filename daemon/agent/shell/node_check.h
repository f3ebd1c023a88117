/* SPDX-License-Identifier: Apache-2.0 */
/* node_check.h - what would not work on this node, reported to the coordinator: whether jobs can have their folders
 * here, after every acknowledgement and again when that changes; and all else that an operator asks for. Looked at on
 * threads that may hang (daemon/common/file_pool.h): a path that does not answer within seconds is reported, and so
 * is another node that is not reached (reach.h). */
#ifndef TITAN_DAEMON_AGENT_SHELL_NODE_CHECK_H
#define TITAN_DAEMON_AGENT_SHELL_NODE_CHECK_H

#include <uv.h>

#include "base/error.h"
#include "base/listen.h"
#include "daemon/agent/shell/worker_limits.h"
#include "proto/rpc/tls.h"
#include "titan/internal/agent.pb-c.h"

struct node_checks;

struct node_checks_options {
    const char *node, *address, *program; /* of this agent; the worker's program */
    const struct rpc_tls *tls;            /* NULL = none */
    bool peers;                           /* there is a socket for other agents */
    struct listen_ports ports;            /* that workers listen at */
    struct worker_limits limits;          /* of this node */
    const char *spawnd;                   /* titan-spawnd's socket; NULL = none */
};

/* Each answer goes to said; false: there is no session, ask again. */
titan_status node_checks_open(uv_loop_t *loop, const struct node_checks_options *options,
                              bool (*said)(const Titan__Internal__NodeChecked *answer, void *data), void *data,
                              struct node_checks **ret, struct titan_error *err) TITAN_MUST_USE;
void node_checks_ask(struct node_checks *c, const Titan__Internal__CheckNode *request);
/* The session is over: nothing is said any more of what was asked in it. */
void node_checks_forget(struct node_checks *c);
void node_checks_close(struct node_checks *c, void (*done)(void *), void *data);

#endif
