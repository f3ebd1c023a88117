/* SPDX-License-Identifier: Apache-2.0 */
/* proof.h - proofs of datagrams (docs/membership.md, "Keys").
 *
 * A proof is an HMAC-SHA256 of the whole message without its proofs: sender, receiver, subject, and the number or id
 * that makes it fresh. Keys are a coordinator's MAC_BYTES or derived from them. A message may carry proofs under
 * several keys; one right proof is enough. */
#ifndef TITAN_DAEMON_COMMON_PROOF_H
#define TITAN_DAEMON_COMMON_PROOF_H

#include "base/mac.h"
#include "titan/internal/agent.pb-c.h"

#define PROOF_KEYS_MAX 8

struct proof_keys {
    size_t n;
    uint8_t key[PROOF_KEYS_MAX][MAC_BYTES];
};
/* Adds a key unless it is there or there is no room. An empty key (from an older version) is not added. */
void proof_add_key(struct proof_keys *keys, const uint8_t key[MAC_BYTES]);
/* Adds the key of the agents of an epoch's members, from FormEpoch.key; adds nothing when that field is empty. */
void proof_add_epoch(struct proof_keys *keys, const Titan__Internal__FormEpoch *form);

/* Writes the proofs, which must have room for all keys and live as long as m is used. */
void proof_make(Titan__Internal__PeerMessage *m, const struct proof_keys *keys,
                uint8_t proofs[PROOF_KEYS_MAX * MAC_BYTES]);
/* Returns the index of the key that proves m; -1 = none. *ret_at: index of the matching proof. */
int proof_find(const Titan__Internal__PeerMessage *m, const struct proof_keys *keys, size_t *ret_at);

/* --- terms -------------------------------------------------------------------------------------------------------- */
/* Proves that a coordinator with this store's secret has had this term. */
void proof_term(const uint8_t secret[MAC_BYTES], uint64_t term, uint8_t ret[MAC_BYTES]);
/* The highest term that an agent has obeyed. */
struct seen_term {
    uint64_t term; /* 0 = none */
    bool proved;   /* false: sent by a coordinator of an older version */
    uint8_t proof[MAC_BYTES];
};

/* --- keys out of keys --------------------------------------------------------------------------------------------- */
/* Key of an acting leader's epoch, derived from the epoch that it shrinks. */
void proof_leader_epoch(const Titan__Internal__FormEpoch *shrunk, const ProtobufCBinaryData *comm_id,
                        uint8_t ret[MAC_BYTES]);
/* Key for the registrations of an epoch's workers. The workers do not learn their agents' key. */
void proof_mesh(const Titan__Internal__FormEpoch *form, uint8_t ret[MAC_BYTES]);
/* Key of one probe of a node, derived from its session's key. */
void proof_probe(const uint8_t session[MAC_BYTES], uint64_t probe_id, uint8_t ret[MAC_BYTES]);
/* Covers a key for transport under another key. Applied again, it uncovers the key. */
void proof_cover(const uint8_t under[MAC_BYTES], const Titan__Internal__FormEpoch *form, uint8_t key[MAC_BYTES]);

#endif
