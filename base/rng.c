/* SPDX-License-Identifier: Apache-2.0 */
#include "base/rng.h"

#include <math.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/error.h"
#include "base/hash.h"
#include "base/normal.h"

/* Compiled once per instruction set and selected at load time; sanitizer builds compile it once. */
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define CLONED __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define CLONED
#endif

struct rng_key rng_key(uint64_t seed, const char *name)
{
    const uint64_t key = hash_mix(hash_text(HASH_INIT, name) ^ hash_mix(seed + HASH_STEP));
    return (struct rng_key){{(uint32_t)key, (uint32_t)(key >> 32)}};
}

void rng_philox(struct rng_key key, uint64_t lo, uint64_t hi, uint32_t ret_words[4])
{
    philox(key.k[0], key.k[1], lo, hi, ret_words);
}

float rng_uniform(struct rng_key key, uint64_t index)
{
    uint32_t w[4];
    rng_philox(key, index, 0, w);
    return (float)(w[0] >> 8) * 0x1p-24f;
}

#if defined(__x86_64__)
/* Words of whole counters, 16 at a time: two vectors of eight, so that their products overlap. Compilers use the full
 * product of 64 bits here, or take vectors apart; this takes half the time. Returns how many counters are done. */
__attribute__((target("avx512f"))) static uint64_t counter_words_wide(struct rng_key key, uint64_t counter, uint64_t hi,
                                                                      uint64_t counters, uint32_t *out)
{
    const __m512i m0 = _mm512_set1_epi64(0xD2511F53), m1 = _mm512_set1_epi64(0xCD9E8D57);
    const __m512i first_half = _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11),
                  second_half = _mm512_setr_epi64(4, 12, 5, 13, 6, 14, 7, 15);
    uint64_t done = 0;

    for (; done + 16 <= counters; done += 16) {
        __m512i c[2][4]; /* a counter's word in the lower half of each lane; the upper half is anything */
        uint32_t k0 = key.k[0], k1 = key.k[1];
        for (int g = 0; g < 2; g++) {
            const uint64_t first = counter + done + 8 * (uint64_t)g;
            c[g][0] = _mm512_add_epi64(_mm512_set1_epi64((long long)first), _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7));
            c[g][1] = _mm512_srli_epi64(c[g][0], 32);
            c[g][2] = _mm512_set1_epi64((long long)hi);
            c[g][3] = _mm512_srli_epi64(c[g][2], 32);
        }
#pragma GCC unroll 10
        for (int round = 0; round < 10; round++) {
            const __m512i a = _mm512_set1_epi64(k0), b = _mm512_set1_epi64(k1);
#pragma GCC unroll 2
            for (int g = 0; g < 2; g++) {
                const __m512i p0 = _mm512_mul_epu32(m0, c[g][0]), p1 = _mm512_mul_epu32(m1, c[g][2]);
                c[g][0] = _mm512_xor_si512(_mm512_xor_si512(_mm512_srli_epi64(p1, 32), c[g][1]), a);
                c[g][2] = _mm512_xor_si512(_mm512_xor_si512(_mm512_srli_epi64(p0, 32), c[g][3]), b);
                c[g][1] = p1;
                c[g][3] = p0;
            }
            k0 += 0x9E3779B9u;
            k1 += 0xBB67AE85u;
        }
        for (int g = 0; g < 2; g++) {
            uint32_t *const to = out + 4 * done + 32 * (uint64_t)g;
            const __m512i low = _mm512_mask_blend_epi32(0xaaaa, c[g][0], _mm512_slli_epi64(c[g][1], 32));
            const __m512i high = _mm512_mask_blend_epi32(0xaaaa, c[g][2], _mm512_slli_epi64(c[g][3], 32));
            _mm512_storeu_si512(to, _mm512_permutex2var_epi64(low, first_half, high));
            _mm512_storeu_si512(to + 16, _mm512_permutex2var_epi64(low, second_half, high));
        }
    }
    return done;
}
#endif

/* Words of whole counters. */
CLONED __attribute__((optimize("O3"))) static void counter_words(struct rng_key key, uint64_t counter, uint64_t hi,
                                                                 uint64_t counters, uint32_t *restrict out)
{
    for (uint64_t i = 0; i < counters; i++)
        philox(key.k[0], key.k[1], counter + i, hi, out + 4 * i);
}

void rng_words(struct rng_key key, uint64_t index, uint64_t hi, uint64_t count, uint32_t *out)
{
    uint32_t edge[4];

    if (count > 0 && index % 4 != 0) {
        rng_philox(key, index / 4, hi, edge);
        for (; count > 0 && index % 4 != 0; count--)
            *out++ = edge[index++ % 4];
    }
    uint64_t done = 0; /* counters */
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f"))
        done = counter_words_wide(key, index / 4, hi, count / 4, out);
#endif
    counter_words(key, index / 4 + done, hi, count / 4 - done, out + 4 * done);
    if (count % 4 != 0) {
        rng_philox(key, (index + count) / 4, hi, edge);
        memcpy(out + count / 4 * 4, edge, count % 4 * sizeof *out);
    }
}

/* --- normals ------------------------------------------------------------------------------------------------------ */

#define PAIRS 128 /* computed together */

/* Pairs [pair, pair+count) of a stream, from element 2*pair on. */
CLONED
__attribute__((optimize("O3", "no-math-errno", "no-trapping-math", "fp-contract=off"))) static void
normal_pairs(struct rng_key key, uint64_t pair, size_t count, float *restrict out)
{
    uint32_t w0[PAIRS], w1[PAIRS];
    double r[PAIRS], s[PAIRS], c[PAIRS];
    for (size_t done = 0; done < count; done += PAIRS) {
        size_t n = count - done < PAIRS ? count - done : PAIRS;
        for (size_t i = 0; i < n; i++) {
            uint32_t w[4];
            philox(key.k[0], key.k[1], pair + done + i, 1, w);
            w0[i] = w[0];
            w1[i] = w[1];
        }
        for (size_t i = 0; i < n; i++)
            r[i] = sqrt(-2.0 * normal_log(((double)w0[i] + 1.0) * 0x1p-32)); /* (0,1]: the logarithm is finite */
        for (size_t i = 0; i < n; i++)
            normal_sincos(w1[i], &s[i], &c[i]);
        for (size_t i = 0; i < n; i++) {
            out[2 * (done + i)] = (float)(r[i] * c[i]);
            out[2 * (done + i) + 1] = (float)(r[i] * s[i]);
        }
    }
}

float rng_normal(struct rng_key key, uint64_t index)
{
    float pair[2];
    normal_pairs(key, index >> 1, 1, pair);
    return pair[index & 1];
}

void rng_normals(struct rng_key key, uint64_t index, uint64_t count, float *out)
{
    if (count > 0 && (index & 1)) {
        *out++ = rng_normal(key, index++);
        count--;
    }
    normal_pairs(key, index >> 1, count / 2, out);
    if (count & 1)
        out[count - 1] = rng_normal(key, index + count - 1);
}

void rng_weights(const struct rng_weights *w, uint64_t index, uint64_t count, float *out)
{
    rng_normals(w->key, index, count, out);
    for (uint64_t i = 0; i < count; i++) {
        for (int again = 0; w->limit > 0 && fabsf(out[i]) > w->limit && again < RNG_REDRAWS; again++)
            out[i] = rng_normal(w->again[again], index + i);
        out[i] *= w->std;
    }
}

uint64_t rng_permute(struct rng_key key, uint64_t index, uint64_t n)
{
    titan_assert(index < n);
    if (n == 1)
        return 0;
    int bits = 64 - __builtin_clzll(n - 1);
    int half = (bits + 1) / 2; /* the domain is 2^(2*half): less than 4n, so fewer than 4 walks on average */
    uint64_t mask = (half == 32) ? UINT64_C(0xffffffff) : (UINT64_C(1) << half) - 1;
    uint64_t x = index;
    do {
        uint64_t left = x >> half, right = x & mask;
        for (uint32_t round = 0; round < 6; round++) {
            uint32_t w[4];
            rng_philox(key, right, UINT64_C(2) << 32 | round, w);
            uint64_t next = left ^ (w[0] & mask);
            left = right;
            right = next;
        }
        x = left << half | right;
    } while (x >= n);
    titan_assert(x < n);
    return x;
}
