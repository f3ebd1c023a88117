/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/common/proof.h"

#include <endian.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/mutant.h"

static bool has_key(const Titan__Internal__FormEpoch *form)
{
    return form->key.len == MAC_BYTES;
}

void proof_add_key(struct proof_keys *keys, const uint8_t key[MAC_BYTES])
{
    titan_assert(keys->n <= PROOF_KEYS_MAX);
    for (size_t i = 0; i < keys->n; i++)
        if (mac_equal(keys->key[i], key))
            return;
    if (keys->n < PROOF_KEYS_MAX)
        memcpy(keys->key[keys->n++], key, MAC_BYTES);
}

void proof_add_epoch(struct proof_keys *keys, const Titan__Internal__FormEpoch *form)
{
    uint8_t key[MAC_BYTES];
    if (!has_key(form))
        return;
    mac_derive(form->key.data, "titan agents", &form->job_id, sizeof(form->job_id), key);
    proof_add_key(keys, key);
    mac_wipe(key, sizeof(key));
}

/* Packs the message as the sender did, because both ends have the same protocol. NULL = out of memory. */
static uint8_t *packed(const Titan__Internal__PeerMessage *m, size_t *ret_len)
{
    Titan__Internal__PeerMessage bare = *m;
    bare.proof = (ProtobufCBinaryData){0};
    *ret_len = titan__internal__peer_message__get_packed_size(&bare);
    uint8_t *bytes = malloc(*ret_len + 1);
    if (bytes)
        (void)titan__internal__peer_message__pack(&bare, bytes);
    return bytes;
}

void proof_make(Titan__Internal__PeerMessage *m, const struct proof_keys *keys,
                uint8_t proofs[PROOF_KEYS_MAX * MAC_BYTES])
{
    titan_assert(keys->n <= PROOF_KEYS_MAX);
    size_t len;
    _cleanup_free_ uint8_t *bytes = packed(m, &len);
    for (size_t i = 0; bytes && i < keys->n; i++)
        mac_derive(keys->key[i], "titan datagram", bytes, len, proofs + i * MAC_BYTES);
    m->proof = (ProtobufCBinaryData){bytes ? keys->n * MAC_BYTES : 0, proofs};
}

int proof_find(const Titan__Internal__PeerMessage *m, const struct proof_keys *keys, size_t *ret_at)
{
    size_t len, n = m->proof.len / MAC_BYTES;
    _cleanup_free_ uint8_t *bytes = packed(m, &len);
    *ret_at = 0;
    if (!bytes || m->proof.len % MAC_BYTES || n > PROOF_KEYS_MAX)
        return -1;
    for (size_t k = 0; k < keys->n; k++) {
        uint8_t right[MAC_BYTES];
        mac_derive(keys->key[k], "titan datagram", bytes, len, right);
        for (*ret_at = 0; *ret_at < n; (*ret_at)++)
            if (mac_equal(right, m->proof.data + *ret_at * MAC_BYTES) || MUTANT(PROOF_IGNORED))
                return (int)k;
    }
    return -1;
}

void proof_term(const uint8_t secret[MAC_BYTES], uint64_t term, uint8_t ret[MAC_BYTES])
{
    const uint64_t bytes = htole64(term); /* fixed byte order: a backup may be restored on any machine */
    mac_derive(secret, "titan term", &bytes, sizeof(bytes), ret);
}

void proof_leader_epoch(const Titan__Internal__FormEpoch *shrunk, const ProtobufCBinaryData *comm_id,
                        uint8_t ret[MAC_BYTES])
{
    titan_assert(has_key(shrunk));
    mac_derive(shrunk->key.data, "titan delegated", comm_id->data, comm_id->len, ret);
}

/* The bytes that identify an epoch: job, number, communicator id. */
static void about(const Titan__Internal__FormEpoch *form, uint8_t out[32])
{
    const size_t id = MIN(form->comm_id.len, (size_t)16);
    memset(out, 0, 32);
    memcpy(out, &form->job_id, 8);
    memcpy(out + 8, &form->epoch, 8);
    if (id)
        memcpy(out + 16, form->comm_id.data, id);
}

void proof_mesh(const Titan__Internal__FormEpoch *form, uint8_t ret[MAC_BYTES])
{
    titan_assert(has_key(form));
    uint8_t what[32];
    about(form, what);
    mac_derive(form->key.data, "titan mesh", what, sizeof(what), ret);
}

void proof_probe(const uint8_t session[MAC_BYTES], uint64_t probe_id, uint8_t ret[MAC_BYTES])
{
    mac_derive(session, "titan probe", &probe_id, sizeof(probe_id), ret);
}

void proof_cover(const uint8_t under[MAC_BYTES], const Titan__Internal__FormEpoch *form, uint8_t key[MAC_BYTES])
{
    uint8_t what[32], cover[MAC_BYTES];
    about(form, what);
    mac_derive(under, "titan cover", what, sizeof(what), cover);
    for (size_t i = 0; i < MAC_BYTES; i++)
        key[i] ^= cover[i];
    mac_wipe(cover, sizeof(cover));
}
