/* SPDX-License-Identifier: Apache-2.0 */
/* hash.h - non-cryptographic hashes for tables, recipes and random streams. Files and the numeric contract contain
 * their values (recipe_hash(), rng_key(), request hashes), so these functions never change. */
#ifndef TITAN_BASE_HASH_H
#define TITAN_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

/* FNV-1a, 64 bits (Fowler, Noll, Vo): begin with HASH_INIT, then pass the previous value. */
#define HASH_INIT UINT64_C(0xcbf29ce484222325)
#define HASH_PRIME UINT64_C(0x100000001b3)

static inline uint64_t hash_bytes(uint64_t hash, const void *data, size_t len)
{
    for (const unsigned char *p = data, *end = p + len; p < end; p++)
        hash = (hash ^ *p) * HASH_PRIME;
    return hash;
}

/* Omits the terminator: hash_text("ab") then hash_text("c") equals hash_text("abc"). */
static inline uint64_t hash_text(uint64_t hash, const char *text)
{
    for (; *text; text++)
        hash = (hash ^ (unsigned char)*text) * HASH_PRIME;
    return hash;
}

/* Hashes a whole word in one round; differs from hash_bytes() over its bytes. */
static inline uint64_t hash_word(uint64_t hash, uint64_t word)
{
    return (hash ^ word) * HASH_PRIME;
}

/* Index into a table. FNV's low bits depend little on the high bits, so both halves are mixed. */
static inline size_t hash_index(uint64_t hash, size_t size)
{
    return (size_t)((hash ^ hash >> 32) % size);
}

/* splitmix64's finaliser (Steele, Lea and Flood, OOPSLA 2014, variant 13 of Stafford): a bijection in which every bit
 * reaches every bit. */
static inline uint64_t hash_mix(uint64_t z)
{
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

/* splitmix64, the generator: the next value of a stream with any initial state. A stream that begins with state s has
 * the value hash_mix(s + i * HASH_STEP) at place i, from 1. */
#define HASH_STEP UINT64_C(0x9e3779b97f4a7c15)
static inline uint64_t hash_draw(uint64_t *state)
{
    return hash_mix(*state += HASH_STEP);
}

/* One element's term in the hash of a set. The hash is the sum of all terms modulo 2^64, in any order. The element is
 * given by its key, its place and its bits. */
static inline uint64_t hash_element(uint64_t key, int64_t place, uint32_t bits)
{
    uint64_t z = (key + (uint64_t)place * HASH_STEP) ^ (bits * UINT64_C(0xd6e8feb86659fd93));
    z = (z ^ z >> 32) * UINT64_C(0xbf58476d1ce4e5b9);
    return z ^ z >> 29;
}

#endif
