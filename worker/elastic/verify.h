/* SPDX-License-Identifier: Apache-2.0 */
/* verify.h - is what should be the same on several workers the same, bit for bit?
 *
 * A shard's hash is a sum over its elements of a mix of what they are (tensor, row, column) and their bits: shards that
 * hold the same have the same hash, in whatever order it is taken, and the sum over the parameters of all shards is the
 * model's, the same for every mesh. 64 bits, no defence against an adversary. */
#ifndef TITAN_WORKER_ELASTIC_VERIFY_H
#define TITAN_WORKER_ELASTIC_VERIFY_H

#include "worker/elastic/holdings.h"

struct shard_hash {
    uint64_t whole;      /* masters, moments, biases */
    uint64_t parameters; /* masters of which no other part of its replica has the same */
};

/* Waits for the stream. */
titan_status shard_hash(const struct train_state *shard, struct stream *s, struct shard_hash *ret,
                        struct titan_error *err) TITAN_MUST_USE;

struct verified {
    uint64_t parameters;    /* of the whole model */
    uint64_t bytes;         /* all ranks' */
    bool copies_differ;     /* a buddy's copy from its owner's shard */
    struct titan_error why; /* it does: between which ranks */
};

/* Collective over comm (NULL: alone) of `ranks`: each brings the shards it has of one mesh, or none, and a number of
 * bytes that is only added up. TITAN_ECORRUPT on all alike when two replicas differ; the message names both ranks. What
 * only a buddy has is taken as it is. TITAN_ECONFLICT: a rank says what cannot be. */
titan_status verify_shards(const struct mesh *mesh, const struct held_shards *mine, uint64_t bytes,
                           const struct device_handle *device, const struct comm_ops *ops, struct comm *comm, int ranks,
                           struct stream *s, struct verified *ret, struct titan_error *err) TITAN_MUST_USE;

#endif
