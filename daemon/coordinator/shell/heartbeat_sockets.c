/* SPDX-License-Identifier: Apache-2.0 */
/* Agents' heartbeats as datagrams, at the addresses of their sessions. */
#include "daemon/coordinator/shell/commits.h"

#include <stdlib.h>

#include "daemon/common/peers.h"
#include "daemon/common/proof.h"

struct heartbeat_socket {
    struct heartbeat_socket *next;
    struct coordinator *owner;
    struct peers *socket;
};

static void on_heartbeat(const Titan__Internal__PeerMessage *m, const char *from, void *data)
{
    struct heartbeat_socket *b = data;
    struct proof_keys keys;
    uint8_t proofs[PROOF_KEYS_MAX * MAC_BYTES];
    if (b->owner->closing)
        return;
    const bool counts = core_heartbeat(b->owner->core, m, shell_now(b->owner), &keys);
    shell_set_timer(b->owner); /* it may end a promise */
    if (!counts || !shell_may_answer(b->owner))
        return;
    Titan__Internal__HeartbeatAnswer answer = TITAN__INTERNAL__HEARTBEAT_ANSWER__INIT;
    Titan__Internal__PeerMessage out = TITAN__INTERNAL__PEER_MESSAGE__INIT;
    answer.number = m->heartbeat->number;
    out.from = (char *)""; /* empty: not a node */
    out.to = m->from;
    out.term = m->term;
    out.kind_case = TITAN__INTERNAL__PEER_MESSAGE__KIND_HEARTBEAT_ANSWER;
    out.heartbeat_answer = &answer;
    proof_make(&out, &keys, proofs);
    peers_send(b->socket, from, &out);
}

titan_status coordinator_listen(struct coordinator *c, const char *address, struct titan_error *err)
{
    struct heartbeat_socket *b = calloc(1, sizeof(*b));
    if (!b)
        return titan_fail(err, TITAN_ENOMEM, "no memory for a socket");
    b->owner = c;
    titan_status status = peers_open(c->loop, address, on_heartbeat, b, &b->socket, err);
    if (status != TITAN_OK) {
        free(b);
        return status;
    }
    b->next = c->heartbeat_sockets;
    c->heartbeat_sockets = b;
    c->open_handles++;
    return TITAN_OK;
}

static void on_closed(void *data)
{
    struct heartbeat_socket *b = data;
    struct coordinator *c = b->owner;
    free(b);
    shell_part_closed(c);
}

void heartbeat_sockets_close(struct coordinator *c)
{
    for (struct heartbeat_socket *b = c->heartbeat_sockets, *next; b; b = next) {
        next = b->next;
        peers_close(b->socket, on_closed, b);
    }
    c->heartbeat_sockets = NULL;
}
