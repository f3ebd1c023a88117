/* SPDX-License-Identifier: Apache-2.0 */
/* rng.h - counter-based random numbers: a pure function of (key, counter). Any rank computes any element of any stream
 * without drawing the earlier ones. Philox4x32-10: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC
 * 2011; constants and test vectors from that paper. */
#ifndef TITAN_BASE_RNG_H
#define TITAN_BASE_RNG_H

#include <stdint.h>

struct rng_key {
    uint32_t k[2];
};

/* The key of a named stream. Exactly, all in unsigned 64-bit arithmetic:
 *   mix(z):  z = (z ^ z>>30) * 0xBF58476D1CE4E5B9; z = (z ^ z>>27) * 0x94D049BB133111EB; return z ^ z>>31
 *   h = 0xcbf29ce484222325; for each byte b of name: h = (h ^ b) * 0x100000001b3              (FNV-1a)
 *   key = mix(h ^ mix(seed + 0x9E3779B97F4A7C15)); k[0] = low 32 bits, k[1] = high 32 bits */
struct rng_key rng_key(uint64_t seed, const char *name);
/* Four independent 32-bit words for one 128-bit counter {lo, hi}: counter words lo, lo>>32, hi, hi>>32. */
void rng_philox(struct rng_key key, uint64_t lo, uint64_t hi, uint32_t ret_words[4]);
/* Words index..index+count of a stream: word i = philox(lo = i / 4, hi)[i % 4]. */
void rng_words(struct rng_key key, uint64_t index, uint64_t hi, uint64_t count, uint32_t *out);
/* A stream's element `index`, uniform in [0,1) with 24 bits: w = philox(lo=index, hi=0); (w[0] >> 8) / 2^24. */
float rng_uniform(struct rng_key key, uint64_t index);
/* A stream's element `index`, standard normal (Box-Muller in double, rounded once to float). Elements 2i and 2i+1 share
 * a counter: w = philox(lo=index/2, hi=1); u = (w[0]+1)/2^32; a = 2*pi*w[1]/2^32; sqrt(-2 ln u) times cos a (even
 * index) or sin a (odd). |result| < 6.67. */
float rng_normal(struct rng_key key, uint64_t index);
/* Normals [index, index+count); much faster than single calls. */
void rng_normals(struct rng_key key, uint64_t index, uint64_t count, float *out);
/* Normals times std. With limit > 0, a value beyond the limit is drawn again with the keys of `again` in order, until a
 * value is within the limit. The last draw is final. */
#define RNG_REDRAWS 12 /* 0.27 % lie beyond three sigma: not one value in 10^30 needs more draws */
struct rng_weights {
    struct rng_key key, again[RNG_REDRAWS];
    float limit, std;
};
void rng_weights(const struct rng_weights *w, uint64_t index, uint64_t count, float *out);
/* A stateless permutation of [0, n): Feistel network on the next even power of two with cycle walking (Black and
 * Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002). A half has h = ceil(ceil(log2 n) / 2) bits. Six
 * rounds of
 *   (left, right) = (right, left ^ (philox(lo=right, hi=2^33 + round)[0] & (2^h - 1)))
 * are applied to the index, and again to the result while it is not below n. index must be below n. */
uint64_t rng_permute(struct rng_key key, uint64_t index, uint64_t n);

#endif
