/* SPDX-License-Identifier: Apache-2.0 */
/* worker_channel.h - the agent's Unix socket for its workers: connections, messages, descriptors.
 *
 * A connection must register first, within five seconds and in one small message; until on_registration accepts it, the
 * agent gets none of its messages. Garbage, an oversize message, or a peer of another user closes the connection, with
 * one line in the log. All callbacks run on the loop. */
#ifndef TITAN_DAEMON_AGENT_SHELL_WORKER_CHANNEL_H
#define TITAN_DAEMON_AGENT_SHELL_WORKER_CHANNEL_H

#include <stdbool.h>
#include <uv.h>

#include "base/error.h"
#include "base/frame.h"
#include "titan/internal/worker.pb-c.h"

struct channel;
struct channel_connection; /* one accepted connection */

struct channel_events {
    /* Returns the connection's owner, or NULL to refuse it (reason in err). */
    void *(*on_registration)(struct channel_connection *connection,
                             const Titan__Internal__WorkerRegistration *registration, void *data,
                             struct titan_error *err);
    /* Here `data` is message_data. The other callbacks get channel_open()'s data. */
    void (*on_message)(void *owner, const Titan__Internal__WorkerToAgent *message, void *data);
    void *message_data;
    /* The connection is gone and must not be used again. */
    void (*on_close)(void *owner, void *data);
    bool any_user; /* other users' workers reach the socket by a descriptor of its folder */
};

/* May the connection speak for the process pid? True for a peer of the agent's user, and if pid itself is the peer. */
bool channel_speaks_for(const struct channel_connection *connection, pid_t pid);

titan_status channel_open(uv_loop_t *loop, const char *path, const struct channel_events *events, void *data,
                          struct channel **ret, struct titan_error *err) TITAN_MUST_USE;
/* Closes every connection without on_close and removes the socket; done runs on the loop once all is freed. */
void channel_close(struct channel *channel, void (*done)(void *), void *data);

/* Packs the message into a queue; fd (-1 = none) is duplicated. */
titan_status channel_pack(struct frame_writer *queue, const Titan__Internal__AgentToWorker *message, int fd,
                          struct titan_error *err) TITAN_MUST_USE;
/* Sends now, or when the socket accepts it. A worker with a full queue loses the connection. */
void channel_send(struct channel_connection *connection, const Titan__Internal__AgentToWorker *message, int fd);
/* Sends the messages that were queued while there was no connection. */
void channel_send_queue(struct channel_connection *connection, struct frame_writer *queue);
/* Delivers the socket's pending messages, before a worker's end is reported. May close the connection. */
void channel_drain(struct channel_connection *connection);
/* Closes the connection without on_close. */
void channel_drop(struct channel_connection *connection);

#endif
