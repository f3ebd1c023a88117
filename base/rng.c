#include "base/rng.h"

#include <math.h>

#include "base/error.h"

#define PHILOX_M0 0xD2511F53u
#define PHILOX_M1 0xCD9E8D57u
#define PHILOX_W0 0x9E3779B9u /* golden ratio */
#define PHILOX_W1 0xBB67AE85u /* sqrt(3) - 1 */

/* splitmix64's finaliser (Steele, Lea and Flood, OOPSLA 2014, variant 13 of Stafford): every bit reaches every bit. */
static uint64_t mix64(uint64_t z)
{
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

struct rng_key rng_key(uint64_t seed, const char *name)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (const unsigned char *p = (const unsigned char *)name; *p; p++)
        h = (h ^ *p) * UINT64_C(0x100000001b3);
    uint64_t key = mix64(h ^ mix64(seed + UINT64_C(0x9E3779B97F4A7C15)));
    return (struct rng_key){{(uint32_t)key, (uint32_t)(key >> 32)}};
}

void rng_philox(struct rng_key key, uint64_t lo, uint64_t hi, uint32_t ret_words[4])
{
    uint32_t c0 = (uint32_t)lo, c1 = (uint32_t)(lo >> 32), c2 = (uint32_t)hi, c3 = (uint32_t)(hi >> 32);
    uint32_t k0 = key.k[0], k1 = key.k[1];
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)PHILOX_M0 * c0, p1 = (uint64_t)PHILOX_M1 * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += PHILOX_W0;
        k1 += PHILOX_W1;
    }
    ret_words[0] = c0;
    ret_words[1] = c1;
    ret_words[2] = c2;
    ret_words[3] = c3;
}

float rng_uniform(struct rng_key key, uint64_t index)
{
    uint32_t w[4];
    rng_philox(key, index, 0, w);
    return (float)(w[0] >> 8) * 0x1p-24f;
}

/* Elements 2*pair and 2*pair+1 of a stream. */
static inline void normal_pair(struct rng_key key, uint64_t pair, float ret[2])
{
    uint32_t w[4];
    rng_philox(key, pair, 1, w);
    double u = ((double)w[0] + 1.0) * 0x1p-32; /* (0,1]: the logarithm is finite */
    double r = sqrt(-2.0 * log(u)), a = 6.283185307179586476925 * ((double)w[1] * 0x1p-32), s, c;
    sincos(a, &s, &c);
    ret[0] = (float)(r * c);
    ret[1] = (float)(r * s);
}

float rng_normal(struct rng_key key, uint64_t index)
{
    float pair[2];
    normal_pair(key, index >> 1, pair);
    return pair[index & 1];
}

void rng_normals(struct rng_key key, uint64_t index, uint64_t count, float *out)
{
    float pair[2];
    uint64_t i = 0;
    if (count > 0 && (index & 1))
        out[i++] = rng_normal(key, index);
    for (; i + 2 <= count; i += 2)
        normal_pair(key, (index + i) >> 1, out + i);
    if (i < count) {
        normal_pair(key, (index + i) >> 1, pair);
        out[i] = pair[0];
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
    return x;
}
