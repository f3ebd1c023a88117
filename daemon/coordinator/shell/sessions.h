/* SPDX-License-Identifier: Apache-2.0 */
/* sessions.h - the agents' streams that are open. */
#ifndef TITAN_DAEMON_COORDINATOR_SHELL_SESSIONS_H
#define TITAN_DAEMON_COORDINATOR_SHELL_SESSIONS_H

#include "daemon/coordinator/shell/shell.h"

struct agent_session {
    struct agent_session *next;
    uint64_t id;
    struct rpc_call *call; /* NULL once it is over */
    bool begun;            /* with a registration */
    bool revoked;          /* its certificate is: nothing more is taken; it ends when the last commands are out */
};

/* The first message of a call makes one; NULL = no memory. */
struct agent_session *sessions_begin(struct coordinator *c, struct rpc_call *call);
/* End it from our side; session_on_close() does the rest. err NULL = in order. */
void sessions_end(struct coordinator *c, struct agent_session *s, const struct titan_error *err);
void sessions_send(struct coordinator *c, struct agent_session *s, const ProtobufCMessage *m);

#endif
