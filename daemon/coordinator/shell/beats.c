/* SPDX-License-Identifier: Apache-2.0 */
/* Agents' beats as datagrams, at the addresses where their sessions come in. */
#include "daemon/coordinator/shell/shell.h"

#include <stdlib.h>

#include "daemon/peers.h"
#include "daemon/proof.h"

struct beats {
    struct beats *next;
    struct coordinator *owner;
    struct peers *socket;
};

static void on_beat(const Titan__Internal__PeerMessage *m, const char *from, void *data)
{
    struct beats *b = data;
    struct proof_keys keys;
    uint8_t proofs[PROOF_KEYS_MAX * MAC_BYTES];
    if (b->owner->closing || !core_beat(b->owner->core, m, shell_now(), &keys))
        return;
    Titan__Internal__BeatAnswer answer = TITAN__INTERNAL__BEAT_ANSWER__INIT;
    Titan__Internal__PeerMessage out = TITAN__INTERNAL__PEER_MESSAGE__INIT;
    answer.number = m->beat->number;
    out.from = (char *)""; /* no node */
    out.to = m->from;
    out.term = m->term;
    out.kind_case = TITAN__INTERNAL__PEER_MESSAGE__KIND_BEAT_ANSWER;
    out.beat_answer = &answer;
    proof_make(&out, &keys, proofs);
    peers_send(b->socket, from, &out);
}

titan_status coordinator_listen(struct coordinator *c, const char *address, struct titan_error *err)
{
    struct beats *b = calloc(1, sizeof(*b));
    if (!b)
        return titan_fail(err, TITAN_ENOMEM, "no memory for a socket");
    b->owner = c;
    titan_status status = peers_open(c->loop, address, on_beat, b, &b->socket, err);
    if (status != TITAN_OK) {
        free(b);
        return status;
    }
    b->next = c->beats;
    c->beats = b;
    c->open_handles++;
    return TITAN_OK;
}

static void on_closed(void *data)
{
    struct beats *b = data;
    struct coordinator *c = b->owner;
    free(b);
    shell_part_closed(c);
}

void beats_close(struct coordinator *c)
{
    for (struct beats *b = c->beats, *next; b; b = next) {
        next = b->next;
        peers_close(b->socket, on_closed, b);
    }
    c->beats = NULL;
}
