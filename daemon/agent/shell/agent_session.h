/* SPDX-License-Identifier: Apache-2.0 */
/* agent_session.h - the agent's stream to the coordinator, and again after every loss. What is said on it, and said
 * again, is the core's to decide (agent_core.h). */
#ifndef TITAN_DAEMON_AGENT_SHELL_AGENT_SESSION_H
#define TITAN_DAEMON_AGENT_SHELL_AGENT_SESSION_H

#include <stdbool.h>
#include <uv.h>

#include "base/error.h"
#include "proto/rpc/client.h"
#include "titan/internal/agent.pb-c.h"

struct session;

struct session_events {
    void (*on_open)(void *data); /* a stream is there; the other side may not be */
    void (*on_message)(const Titan__Internal__CoordinatorMessage *message, void *data);
    void (*on_lost)(void *data); /* once for each on_open */
};

/* Nothing happens before session_start. */
titan_status session_open(uv_loop_t *loop, const char *target, const struct rpc_tls *tls,
                          const struct session_events *events, void *data, struct session **ret,
                          struct titan_error *err) TITAN_MUST_USE;
/* Of the addresses of target the one that the stream goes to, or is tried next. */
const char *session_target(const struct session *s);
struct rpc_client *session_client(const struct session *s); /* for other calls; until session_close */
void session_start(struct session *s);
/* The coordinator has taken us in: the next loss is tried again at once. */
void session_settled(struct session *s);
/* TITAN_EAGAIN: its queue is full; TITAN_ECANCELLED: there is no stream, or it is over; TITAN_ENOMEM. */
titan_status session_send(struct session *s, const Titan__Internal__AgentMessage *message) TITAN_MUST_USE;
size_t session_queued(const struct session *s); /* messages that have not gone out */
/* on_lost follows, and another attempt. why is said in the log. */
void session_end(struct session *s, const char *why);
/* Ends the session after what is queued has gone out, or after 200 ms; done on the loop. */
void session_close(struct session *s, void (*done)(void *), void *data);

#endif
