/* SPDX-License-Identifier: Apache-2.0 */
#include "base/mac.h"

#include <string.h>

#include "base/error.h"

/* --- SHA-256 ------------------------------------------------------------------------------------------------------ */

static const uint32_t constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t turn(uint32_t x, int by)
{
    return x >> by | x << (32 - by);
}

/* One round changes d and h. Each round shifts the roles of the variables by one. */
#define ROUND(a, b, c, d, e, f, g, h, i)                                                                               \
    do {                                                                                                               \
        const uint32_t t_ =                                                                                            \
            (h) + (turn(e, 6) ^ turn(e, 11) ^ turn(e, 25)) + ((g) ^ ((e) & ((f) ^ (g)))) + constants[i] + w[i];        \
        (d) += t_;                                                                                                     \
        (h) = t_ + (turn(a, 2) ^ turn(a, 13) ^ turn(a, 22)) + (((a) & (b)) | ((c) & ((a) | (b))));                     \
    } while (0)

static void compress(uint32_t state[8], const uint8_t block[64])
{
    uint32_t w[64];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 | (uint32_t)block[4 * i + 2] << 8 |
               block[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        const uint32_t x = w[i - 15], y = w[i - 2];
        w[i] = w[i - 16] + (turn(x, 7) ^ turn(x, 18) ^ x >> 3) + w[i - 7] + (turn(y, 17) ^ turn(y, 19) ^ y >> 10);
    }
    uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
    uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
    for (int i = 0; i < 64; i += 8) {
        ROUND(a, b, c, d, e, f, g, h, i);
        ROUND(h, a, b, c, d, e, f, g, i + 1);
        ROUND(g, h, a, b, c, d, e, f, i + 2);
        ROUND(f, g, h, a, b, c, d, e, i + 3);
        ROUND(e, f, g, h, a, b, c, d, i + 4);
        ROUND(d, e, f, g, h, a, b, c, i + 5);
        ROUND(c, d, e, f, g, h, a, b, i + 6);
        ROUND(b, c, d, e, f, g, h, a, i + 7);
    }
    const uint32_t sum[8] = {a, b, c, d, e, f, g, h};
    for (int i = 0; i < 8; i++)
        state[i] += sum[i];
}

void sha256_begin(struct sha256 *s)
{
    static const uint32_t first[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    memcpy(s->h, first, sizeof(first));
    s->len = 0;
}

void sha256_add(struct sha256 *s, const void *bytes, size_t len)
{
    const uint8_t *b = bytes;
    size_t have = s->len % sizeof(s->block);
    titan_assert(have < sizeof(s->block));
    s->len += len;
    while (len > 0) {
        const size_t room = sizeof(s->block) - have, n = len < room ? len : room;
        memcpy(s->block + have, b, n);
        b += n;
        len -= n;
        have += n;
        if (have == sizeof(s->block)) {
            compress(s->h, s->block);
            have = 0;
        }
    }
}

void sha256_end(struct sha256 *s, uint8_t ret[MAC_BYTES])
{
    const uint64_t bits = s->len * 8;
    const uint8_t one = 0x80, zeros[64] = {0};
    uint8_t end[8];
    sha256_add(s, &one, 1);
    sha256_add(s, zeros, (120 - s->len % 64) % 64); /* pads up to 8 bytes before the end of a block */
    titan_assert(s->len % sizeof(s->block) == 56);
    for (int i = 0; i < 8; i++)
        end[i] = (uint8_t)(bits >> (56 - 8 * i));
    sha256_add(s, end, sizeof(end));
    titan_assert(s->len % sizeof(s->block) == 0);
    for (int i = 0; i < 8; i++)
        for (int k = 0; k < 4; k++)
            ret[4 * i + k] = (uint8_t)(s->h[i] >> (24 - 8 * k));
    mac_wipe(s, sizeof(*s));
}

/* --- HMAC --------------------------------------------------------------------------------------------------------- */

void mac_begin(struct mac *m, const void *key, size_t key_len)
{
    uint8_t pad[64] = {0};
    if (key_len > sizeof(pad)) {
        struct sha256 s;
        sha256_begin(&s);
        sha256_add(&s, key, key_len);
        sha256_end(&s, pad);
    } else if (key_len > 0) {
        memcpy(pad, key, key_len);
    }
    for (size_t i = 0; i < sizeof(pad); i++)
        pad[i] ^= 0x36;
    sha256_begin(&m->inner);
    sha256_add(&m->inner, pad, sizeof(pad));
    for (size_t i = 0; i < sizeof(pad); i++)
        pad[i] ^= 0x36 ^ 0x5c;
    sha256_begin(&m->outer);
    sha256_add(&m->outer, pad, sizeof(pad));
    mac_wipe(pad, sizeof(pad));
}

void mac_add(struct mac *m, const void *bytes, size_t len)
{
    sha256_add(&m->inner, bytes, len);
}

void mac_end(struct mac *m, uint8_t ret[MAC_BYTES])
{
    uint8_t inner[MAC_BYTES];
    sha256_end(&m->inner, inner);
    sha256_add(&m->outer, inner, sizeof(inner));
    sha256_end(&m->outer, ret);
    mac_wipe(inner, sizeof(inner));
}

void mac_derive(const uint8_t key[MAC_BYTES], const char *label, const void *about, size_t len, uint8_t ret[MAC_BYTES])
{
    titan_assert(label[0]);
    struct mac m;
    mac_begin(&m, key, MAC_BYTES);
    mac_add(&m, label, strlen(label) + 1);
    mac_add(&m, about, len);
    mac_end(&m, ret);
}

bool mac_equal(const uint8_t a[MAC_BYTES], const uint8_t b[MAC_BYTES])
{
    uint8_t differs = 0;
    for (int i = 0; i < MAC_BYTES; i++)
        differs |= a[i] ^ b[i];
    return differs == 0;
}

void mac_wipe(void *bytes, size_t len)
{
    explicit_bzero(bytes, len);
}
