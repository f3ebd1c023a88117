/* SPDX-License-Identifier: Apache-2.0 */
/* failure_detector.h - is a node there? (docs/membership.md, "Detection".)
 *
 * Heartbeats come as datagrams and in its stream; a node that is silent for suspect_ms is asked for: up to three others
 * try to reach it. It is lost when they say that they do not, kept for longer when one of them does or none says
 * anything (reachable_ms), and given node_timeout_ms when there is no node to ask. A stream that was closed says that
 * the machine lives and its agent does not: peers are asked at once, and it has twice node_timeout_ms to come back and
 * to answer its acknowledgement. When this process itself stood still, silence says nothing about the nodes. */
#ifndef TITAN_DAEMON_COORDINATOR_CLUSTER_FAILURE_DETECTOR_H
#define TITAN_DAEMON_COORDINATOR_CLUSTER_FAILURE_DETECTOR_H

#include "daemon/coordinator/records/core_record.h"

/* Something was heard of it. */
void detector_heard(struct core *c, struct noderec *n);
void detector_has_key(struct noderec *n); /* that of its newest session */
/* What node n reports of another node that it was asked to reach; each node's first report counts. */
void detector_probe_result(struct core *c, struct noderec *n, const Titan__Internal__ProbeResult *m);
bool detector_by_datagram(const struct core *c, const struct noderec *n); /* do its heartbeats come so? */
void detector_lost(struct core *c, struct noderec *n);
void detector_returned(struct core *c, struct noderec *n, bool same_agent);
/* Nodes have come: heartbeats as often as the coordinator can take, and the times that count them in the same ratio.
 * Agents with another interval are sent the new one. */
void detector_set_interval(struct core *c);
int64_t detector_deadline(const struct core *c);
/* A heartbeat that came as a datagram: is it proved? *keys: those that the answer goes under. */
bool detector_proved(struct core *c, struct noderec *n, const Titan__Internal__PeerMessage *m, struct proof_keys *keys);
/* ... and does it count? hears: the agent has had an answer lately. */
bool detector_datagram(struct core *c, struct noderec *n, bool hears);
/* This process stood still for so long: that silence says nothing about the nodes, so their times are moved on. */
void detector_shift(struct core *c, int64_t ms);
/* In each tick detector_round() is called, then detector_look() for each node. It returns why the node is lost, or NULL
 * if it is not. */
void detector_round(struct core *c);
const char *detector_look(struct core *c, struct noderec *n);
void detector_answered(struct core *c, struct noderec *n); /* a heartbeat of it, or its registration */
void detector_streams(struct core *c, struct noderec *n);  /* a message has come in its stream */

#endif
