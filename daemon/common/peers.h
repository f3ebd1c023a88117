/* SPDX-License-Identifier: Apache-2.0 */
/* peers.h - a UDP socket for agents: between agents, and for their heartbeats to the coordinator. One protobuf message
 * per datagram.
 *
 * Any process can send to it. So the cores check each message's proof (daemon/common/proof.h). Datagrams may be lost,
 * late or doubled. So the core repeats them. */
#ifndef TITAN_DAEMON_COMMON_PEERS_H
#define TITAN_DAEMON_COMMON_PEERS_H

#include <stdint.h>
#include <uv.h>

#include "base/error.h"
#include "titan/internal/agent.pb-c.h"

struct peers;

/* from: the sender's host:port, for the answer. */
typedef void (*peers_message_cb)(const Titan__Internal__PeerMessage *message, const char *from, void *data);

/* listen: HOST:PORT, port 0 = any free one. Binds even to an address that the machine does not have yet. */
titan_status peers_open(uv_loop_t *loop, const char *listen, peers_message_cb on_message, void *data,
                        struct peers **ret, struct titan_error *err) TITAN_MUST_USE;
/* Does the machine have this address, or the address of this name, by now? May wait for a name service. */
bool peers_address_is_here(const char *host);
uint16_t peers_port(const struct peers *p);
/* Sends a message to host:port. A name is looked up first; until its address is known, its datagrams are lost. */
void peers_send(struct peers *p, const char *to, const Titan__Internal__PeerMessage *message);
/* Looks all names up again. Known addresses are used until the new addresses are found. */
void peers_look_again(struct peers *p);
/* Calls done on the loop. */
void peers_close(struct peers *p, void (*done)(void *), void *data);

#endif
