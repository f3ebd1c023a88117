/* rng.h - counter-based random numbers: a pure function of (key, counter), so any rank computes any element of any
 * stream without having drawn the ones before it. Philox4x32-10: Salmon et al., "Parallel random numbers: as easy as
 * 1, 2, 3", SC 2011; constants and test vectors from that paper. */
#ifndef TITAN_BASE_RNG_H
#define TITAN_BASE_RNG_H

#include <stdint.h>

struct rng_key {
    uint32_t k[2];
};

/* The key of a named stream: (seed, name) hashed with 64-bit FNV-1a and mixed. */
struct rng_key rng_key(uint64_t seed, const char *name);
/* Four independent 32-bit words for one 128-bit counter {lo, hi}. */
void rng_philox(struct rng_key key, uint64_t lo, uint64_t hi, uint32_t ret_words[4]);
/* Element index of a stream as a uniform in [0,1) with 24 bits. */
float rng_uniform(struct rng_key key, uint64_t index);
/* Element index as a standard normal (Box-Muller in double on 32-bit uniforms; rounded once to float). Elements 2i and
 * 2i+1 share a counter. */
float rng_normal(struct rng_key key, uint64_t index);
/* A stateless permutation of [0, n): Feistel network on the next even power of two with cycle walking (Black and
 * Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002). */
uint64_t rng_permute(struct rng_key key, uint64_t index, uint64_t n);

#endif
