/* peers.h - a socket for agents: that of another agent, and the coordinator's for their beats. UDP, one protobuf
 * message to a datagram.
 *
 * With a cluster key every datagram carries an HMAC-SHA256 of itself under it, and one without the right proof is
 * dropped and counted: whoever has no key can neither answer for a node nor move an epoch. Without a key nothing is
 * proved, as for the coordinator's TCP port: for networks one trusts. Datagrams may be lost, late, doubled: the core
 * repeats. */
#ifndef TITAN_DAEMON_PEERS_H
#define TITAN_DAEMON_PEERS_H

#include <stdint.h>
#include <uv.h>

#include "base/error.h"
#include "titan/internal/agent.pb-c.h"

struct peers;

/* from: the sender's host:port, for the answer. */
typedef void (*peers_message_cb)(const Titan__Internal__PeerMessage *message, const char *from, void *data);

/* listen: HOST:PORT, port 0 for any free one. key_file: "" or NULL = no proofs; at least 16 bytes, of which 4096 count.
 */
titan_status peers_open(uv_loop_t *loop, const char *listen, const char *key_file, peers_message_cb on_message,
                        void *data, struct peers **ret, struct titan_error *err) TITAN_MUST_USE;
uint16_t peers_port(const struct peers *p);
/* to: host:port. A name is looked up first; until it is found, datagrams to it are lost. */
void peers_send(struct peers *p, const char *to, const Titan__Internal__PeerMessage *message);
/* Names may stand for other addresses by now. Those that are known are used until the new ones are. */
void peers_look_again(struct peers *p);
uint64_t peers_refused(const struct peers *p); /* datagrams that were no message or had no right proof */
/* done on the loop. */
void peers_close(struct peers *p, void (*done)(void *), void *data);

#endif
