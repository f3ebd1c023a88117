/* SPDX-License-Identifier: Apache-2.0 */
/* peers.h - a socket for agents: that of another agent, and the coordinator's for their heartbeats. UDP, one protobuf
 * message to a datagram.
 *
 * Any process can send to it: what a message proves is looked at by the cores (daemon/common/proof.h). Datagrams may be
 * lost, late, doubled: the core repeats. */
#ifndef TITAN_DAEMON_COMMON_PEERS_H
#define TITAN_DAEMON_COMMON_PEERS_H

#include <stdint.h>
#include <uv.h>

#include "base/error.h"
#include "titan/internal/agent.pb-c.h"

struct peers;

/* from: the sender's host:port, for the answer. */
typedef void (*peers_message_cb)(const Titan__Internal__PeerMessage *message, const char *from, void *data);

/* listen: HOST:PORT, port 0 for any free one. An address that the machine does not have yet is bound to all the same.
 */
titan_status peers_open(uv_loop_t *loop, const char *listen, peers_message_cb on_message, void *data,
                        struct peers **ret, struct titan_error *err) TITAN_MUST_USE;
/* Does the machine have that address, or the one of that name, by now? May wait for a name service. */
bool peers_address_is_here(const char *host);
uint16_t peers_port(const struct peers *p);
/* to: host:port. A name is looked up first; until it is found, datagrams to it are lost. */
void peers_send(struct peers *p, const char *to, const Titan__Internal__PeerMessage *message);
/* Names may stand for other addresses by now. Those that are known are used until the new ones are. */
void peers_look_again(struct peers *p);
/* done on the loop. */
void peers_close(struct peers *p, void (*done)(void *), void *data);

#endif
