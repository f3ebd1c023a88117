/* session.h - the agent's stream to the coordinator: hello, beats, and again after every loss.
 *
 * What must arrive is kept while there is no session, and for some seconds after it was sent: if the session breaks
 * then, the coordinator may have died with it unread, and it is sent again behind the next hello. Receivers take a
 * repeated report as one. Everything else (progress, log pieces) is worth something only now. */
#ifndef TITAN_DAEMON_AGENT_SESSION_H
#define TITAN_DAEMON_AGENT_SESSION_H

#include <stdbool.h>
#include <uv.h>

#include "base/error.h"
#include "titan/internal/agent.pb-c.h"

struct session;

struct session_events {
    /* Call session_send with the hello; first on every session. */
    void (*greet)(struct session *session, void *data);
    void (*on_message)(const Titan__Internal__CoordinatorMessage *message, void *data);
    void (*on_lost)(void *data);
    uint32_t (*slots_used)(void *data); /* for beats */
};

/* Nothing happens before session_start. */
titan_status session_open(uv_loop_t *loop, const char *target, const struct session_events *events, void *data,
                          struct session **ret, struct titan_error *err) TITAN_MUST_USE;
void session_start(struct session *s);
/* Welcomed by the coordinator and not lost since. */
bool session_connected(const struct session *s);

enum session_keep {
    SESSION_NOW,  /* dropped when there is no session or its queue is full */
    SESSION_KEEP, /* must arrive */
};
/* false: dropped. */
bool session_send(struct session *s, const Titan__Internal__AgentMessage *message, enum session_keep keep);
/* Ends the session after what is queued has gone out, or after 200 ms; done on the loop. */
void session_close(struct session *s, void (*done)(void *), void *data);

#endif
