/* SPDX-License-Identifier: Apache-2.0 */
/* proof.h - what proves a datagram (docs/membership.md, "Keys").
 *
 * A proof is an HMAC-SHA256 of the whole message without its proofs: sender, receiver, subject, and the
 * number or id that makes it fresh. Keys are MAC_BYTES of a coordinator's or what is derived from them; a message may
 * carry proofs under several, and is right when one of them is. */
#ifndef TITAN_DAEMON_COMMON_PROOF_H
#define TITAN_DAEMON_COMMON_PROOF_H

#include "base/mac.h"
#include "titan/internal/agent.pb-c.h"

#define PROOF_KEYS_MAX 8

struct proof_keys {
    size_t n;
    uint8_t key[PROOF_KEYS_MAX][MAC_BYTES];
};
/* One more, unless it is there or there is no room. No key (of an older version) is none. */
void proof_add_key(struct proof_keys *keys, const uint8_t key[MAC_BYTES]);
/* Of agents of members of an epoch, from FormEpoch.key; none when that is empty. */
void proof_add_epoch(struct proof_keys *keys, const Titan__Internal__FormEpoch *form);

/* Into proofs, which must have room for all keys and live as long as m is used. */
void proof_make(Titan__Internal__PeerMessage *m, const struct proof_keys *keys,
                uint8_t proofs[PROOF_KEYS_MAX * MAC_BYTES]);
/* Which of the keys it is proved under; -1 = none. *ret_at: which of its proofs that is. */
int proof_find(const Titan__Internal__PeerMessage *m, const struct proof_keys *keys, size_t *ret_at);

/* --- terms -------------------------------------------------------------------------------------------------------- */
/* Proves that a coordinator with this store's secret has had this term. */
void proof_term(const uint8_t secret[MAC_BYTES], uint64_t term, uint8_t ret[MAC_BYTES]);
/* The highest that an agent has obeyed. */
struct seen_term {
    uint64_t term; /* 0 = none */
    bool proved;   /* not: sent by a coordinator of an older version */
    uint8_t proof[MAC_BYTES];
};

/* --- keys out of keys --------------------------------------------------------------------------------------------- */
/* Of an acting leader's epoch, from that of the one it shrinks. */
void proof_leader_epoch(const Titan__Internal__FormEpoch *shrunk, const ProtobufCBinaryData *comm_id,
                        uint8_t ret[MAC_BYTES]);
/* For the registrations of an epoch's workers; they do not learn their agents'. */
void proof_mesh(const Titan__Internal__FormEpoch *form, uint8_t ret[MAC_BYTES]);
/* For one probe of a node, from the key of its session. */
void proof_probe(const uint8_t session[MAC_BYTES], uint64_t probe_id, uint8_t ret[MAC_BYTES]);
/* A key on its way under another: the same again gives it back. */
void proof_cover(const uint8_t under[MAC_BYTES], const Titan__Internal__FormEpoch *form, uint8_t key[MAC_BYTES]);

#endif
