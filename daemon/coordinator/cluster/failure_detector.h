/* SPDX-License-Identifier: Apache-2.0 */
/* failure_detector.h - whether a node is alive (docs/membership.md, "Detection").
 *
 * Heartbeats come as datagrams and in the node's stream. After suspect_ms of silence, up to three other nodes probe the
 * node. The node is lost when these peers report that they cannot reach it. The node is kept for reachable_ms when a
 * peer reaches it or no peer answers. It is kept for node_timeout_ms when no peer can be asked. A closed stream means
 * that the machine lives, but the agent does not. Peers then probe at once, and the node has 2 * node_timeout_ms to
 * return and to answer its acknowledgement. When this process itself stood still, silence proves nothing about the
 * nodes.
 *
 * An agent without workers promises when its next heartbeat comes. Each of these times is then later by the node's
 * slack, IDLE_MISSES promised heartbeats. The slack ends with the stream, with a heartbeat that promises nothing, and
 * when the node gets a worker: the command, once sent, has suspect_ms to bring a heartbeat. */
#ifndef TITAN_DAEMON_COORDINATOR_CLUSTER_FAILURE_DETECTOR_H
#define TITAN_DAEMON_COORDINATOR_CLUSTER_FAILURE_DETECTOR_H

#include "daemon/coordinator/records/core_record.h"

/* A message from the node has arrived. */
void detector_received(struct core *c, struct noderec *n);
void detector_has_key(struct noderec *n); /* the agent has the key of its newest session */
/* Node n reports whether it reached the node that it probed. Only the first report of each node counts. */
void detector_probe_result(struct core *c, struct noderec *n, const Titan__Internal__ProbeResult *m);
bool detector_by_datagram(const struct core *c, const struct noderec *n); /* do its heartbeats arrive as datagrams? */
/* A heartbeat that counts has arrived. It promises the next one within next_ms; 0 = it promises nothing. */
void detector_promised(struct core *c, struct noderec *n, uint32_t next_ms);
/* From this time on the node's silence counts. A heartbeat that ends a promise can make it earlier. */
int64_t detector_expected(const struct noderec *n);
/* The node's stream ends. Call it before the node's session is cleared. */
void detector_closed(struct core *c, struct noderec *n);
void detector_lost(struct core *c, struct noderec *n);
void detector_returned(struct core *c, struct noderec *n, bool same_agent);
/* Adapts the heartbeat interval to the number of nodes, and scales the timeouts with it. Sends the new interval to
 * agents that have another interval. */
void detector_set_interval(struct core *c);
int64_t detector_deadline(const struct core *c);
/* Is this heartbeat datagram proved? *keys: the keys that prove the answer. */
bool detector_proved(struct core *c, struct noderec *n, const Titan__Internal__PeerMessage *m, struct proof_keys *keys);
/* Does a proved heartbeat datagram count? hears: the agent has received an answer lately. */
bool detector_datagram(struct core *c, struct noderec *n, bool hears);
/* This process stood still for ms. Shifts the nodes' times by ms, since their silence proves nothing. */
void detector_shift(struct core *c, int64_t ms);
/* Each tick calls detector_round() once, then detector_look() for each node. detector_look returns why the node is
 * lost; NULL = it is not. */
void detector_round(struct core *c);
const char *detector_look(struct core *c, struct noderec *n);
/* Has each connected node promised rare heartbeats, and is no node suspected? */
bool detector_calm(const struct core *c);
void detector_answered(struct core *c, struct noderec *n); /* the node has sent a heartbeat or registered */
void detector_streams(struct core *c, struct noderec *n);  /* a message has arrived in the node's stream */

#endif
