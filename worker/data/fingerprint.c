/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/data/fingerprint.h"

#include <string.h>

#include "base/cleanup.h"
#include "base/crc32c.h"
#include "base/hash.h"
#include "worker/data/shard.h"

/* One stream of the bytes of all segments without a checksum in a header. */
struct stream_hash {
    uint64_t hash, bytes;
    uint64_t at;    /* end of the regions that have been added */
    uint64_t taken; /* number of blocks that have been hashed */
};

/* A shard's header; NULL: the segment is of another kind. */
static const struct shard_header *header_of(const struct segment *s)
{
    const uint8_t *file = s->mapping.at;
    const bool shard = file && s->data == file + SHARD_HEADER_BYTES && memcmp(file, SHARD_MAGIC, 8) == 0;
    return shard ? (const void *)file : NULL;
}

/* The hashed parts of a segment: its tokens, and the offsets and selection of its document index. */
struct regions {
    struct {
        const uint8_t *data;
        uint64_t bytes;
    } part[3];
};

static struct regions regions_of(const struct corpus *c, const struct segment *s)
{
    const struct document_index *x = &s->index;
    return (struct regions){{{s->data ? s->data : c->small + s->small_offset, (s->tokens - s->separated) * s->width},
                             {x->offsets, x->offsets ? 8 * x->n_offsets : 0},
                             {x->select, x->select ? 8 * (x->documents + 1) : 0}}};
}

static uint64_t block_begin(const struct stream_hash *h, uint64_t block)
{
    titan_assert(h->bytes > FINGERPRINT_WHOLE && block < FINGERPRINT_BLOCKS);
    const uint64_t last = h->bytes - FINGERPRINT_BLOCK_BYTES, steps = FINGERPRINT_BLOCKS - 1;
    return last / steps * block + last % steps * block / steps;
}

static void add_bytes(struct stream_hash *h, const uint8_t *data, uint64_t bytes)
{
    h->hash = hash_word(h->hash, crc32c(0, data, bytes));
}

/* Hashes the blocks that begin in the region. A block is cut at the region's end. */
static void add_region(struct stream_hash *h, const uint8_t *data, uint64_t bytes)
{
    const uint64_t from = h->at;
    h->at += bytes;
    h->hash = hash_word(h->hash, bytes);
    if (h->bytes <= FINGERPRINT_WHOLE) {
        add_bytes(h, data, bytes);
        return;
    }
    while (h->taken < FINGERPRINT_BLOCKS && block_begin(h, h->taken) < h->at) {
        const uint64_t begin = block_begin(h, h->taken++) - from;
        add_bytes(h, data + begin, MIN(FINGERPRINT_BLOCK_BYTES, bytes - begin));
    }
}

uint64_t fingerprint_of_corpus(const struct corpus *c)
{
    struct stream_hash h = {.hash = HASH_INIT};
    for (size_t i = 0; i < c->n; i++) {
        const struct regions r = regions_of(c, &c->segments[i]);
        for (size_t p = 0; p < ARRAY_SIZE(r.part) && !header_of(&c->segments[i]); p++)
            h.bytes += r.part[p].bytes;
    }
    for (size_t i = 0; i < c->n; i++) {
        const struct segment *s = &c->segments[i];
        const struct shard_header *shard = header_of(s);
        const struct regions r = regions_of(c, s);
        h.hash = hash_word(hash_word(h.hash, s->tokens), s->width);
        if (shard)
            h.hash = hash_word(h.hash, (uint64_t)shard->tokens_crc << 32 | shard->index_crc);
        for (size_t p = 0; p < ARRAY_SIZE(r.part) && !shard; p++)
            if (r.part[p].bytes > 0)
                add_region(&h, r.part[p].data, r.part[p].bytes);
    }
    titan_assert(h.at == h.bytes);
    return hash_mix(h.hash);
}
