/* SPDX-License-Identifier: Apache-2.0 */
/* sessions.h - the agents' open streams. */
#ifndef TITAN_DAEMON_COORDINATOR_SHELL_SESSIONS_H
#define TITAN_DAEMON_COORDINATOR_SHELL_SESSIONS_H

#include "daemon/coordinator/shell/shell.h"

struct agent_session {
    struct agent_session *next;
    uint64_t id;
    struct rpc_call *call; /* NULL = the call is over */
    bool begun;            /* the agent has registered */
    bool revoked;          /* its certificate is revoked: no more input; it ends once the last commands are sent */
};

/* The first message of a call creates a session; NULL = out of memory. */
struct agent_session *sessions_begin(struct coordinator *c, struct rpc_call *call);
/* Ends the session from our side; session_on_close() does the rest. err NULL = orderly end. */
void sessions_end(struct coordinator *c, struct agent_session *s, const struct titan_error *err);
void sessions_send(struct coordinator *c, struct agent_session *s, const ProtobufCMessage *m);

#endif
