/* SPDX-License-Identifier: Apache-2.0 */
/* agent_session.h - the agent's stream to the coordinator, reopened after every loss. The core decides what is sent and
 * resent (agent_core.h). */
#ifndef TITAN_DAEMON_AGENT_SHELL_AGENT_SESSION_H
#define TITAN_DAEMON_AGENT_SHELL_AGENT_SESSION_H

#include <stdbool.h>
#include <uv.h>

#include "base/error.h"
#include "proto/rpc/client.h"
#include "titan/internal/agent.pb-c.h"

struct session;

struct session_events {
    void (*on_open)(void *data); /* a stream is open; the coordinator may not have answered */
    void (*on_message)(const Titan__Internal__CoordinatorMessage *message, void *data);
    void (*on_lost)(void *data); /* once for each on_open */
};

struct session_options {
    const char *target;        /* as in rpc_client_open */
    const struct rpc_tls *tls; /* NULL = none */
    const struct session_events *events;
    void *data; /* argument of the events */
};

/* Nothing happens before session_start. */
titan_status session_open(uv_loop_t *loop, const struct session_options *options, struct session **ret,
                          struct titan_error *err) TITAN_MUST_USE;
/* Returns which address of options.target the stream uses, or tries next. */
const char *session_target(const struct session *s);
struct rpc_client *session_client(const struct session *s); /* for other calls; valid until session_close */
void session_start(struct session *s);
/* The coordinator accepted the registration: after the next loss the session reconnects at once. */
void session_settled(struct session *s);
/* TITAN_EAGAIN: the queue is full; TITAN_ECANCELLED: no stream, or it ended; TITAN_ENOMEM. */
titan_status session_send(struct session *s, const Titan__Internal__AgentMessage *message) TITAN_MUST_USE;
size_t session_queued(const struct session *s); /* messages not yet sent */
/* Ends the stream: on_lost follows, then another attempt. `why` goes to the log. */

void session_end(struct session *s, const char *why);
/* Ends the session when the queue is sent, or after 200 ms; done runs on the loop. */
void session_close(struct session *s, void (*done)(void *), void *data);

#endif
