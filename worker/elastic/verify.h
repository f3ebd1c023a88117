/* SPDX-License-Identifier: Apache-2.0 */
/* verify.h - checks bit for bit that data which several workers hold is the same on all of them. A shard's hash is a
 * sum over its elements; each term mixes the position (tensor, row, column) with the bits. Equal shards have equal
 * hashes in any order of summation. The sum over all shards' parameters is the model's hash, the same for every mesh.
 * The hash has 64 bits and is no defence against an adversary. */
#ifndef TITAN_WORKER_ELASTIC_VERIFY_H
#define TITAN_WORKER_ELASTIC_VERIFY_H

#include "worker/elastic/holdings.h"

struct shard_hash {
    uint64_t whole;      /* masters, moments, biases; not the kind of state that differs between replicas */
    uint64_t parameters; /* only the masters that no other rank of the replica holds, too */
};

/* Waits for the stream. */
titan_status shard_hash(const struct train_state *shard, struct stream *s, struct shard_hash *ret,
                        struct titan_error *err) TITAN_MUST_USE;

struct verified {
    uint64_t parameters;    /* of the whole model */
    uint64_t bytes;         /* of all ranks */
    bool copies_differ;     /* a buddy's copy differs from its owner's shard */
    struct titan_error why; /* if copies differ: the ranks */
};

/* Collective over the ranks. Each rank brings its shards of the mesh, or no shards. bytes is only summed over the
 * ranks. TITAN_ECORRUPT on all ranks: two replicas differ; the message names both ranks. Data that only a buddy has is
 * accepted unchecked. TITAN_ECONFLICT: a rank's numbers are impossible. */
titan_status verify_shards(const struct mesh *mesh, const struct held_shards *mine, uint64_t bytes,
                           const struct peer_ranks *ranks, struct verified *ret,
                           struct titan_error *err) TITAN_MUST_USE;

#endif
