/* SPDX-License-Identifier: Apache-2.0 */
/* mac.h - HMAC-SHA256 (RFC 2104, FIPS 180-4): proves that the sender of a message has the key.
 *
 * Workers load no library, so Titan has its own. It serves datagrams and handshakes of a few hundred bytes, and
 * identifies published tokenizers by their file; it never hashes a run's data. No branch and no address depends on a
 * key or on the hashed bytes. */
#ifndef TITAN_BASE_MAC_H
#define TITAN_BASE_MAC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MAC_BYTES 32 /* size of a proof, and of a key */

struct sha256 {
    uint32_t h[8];
    uint64_t len;
    uint8_t block[64];
};
void sha256_begin(struct sha256 *s);
void sha256_add(struct sha256 *s, const void *bytes, size_t len);
void sha256_end(struct sha256 *s, uint8_t ret[MAC_BYTES]);

/* HMAC of concatenated parts. The caller must separate the parts, with labels and with numbers of fixed length. */
struct mac {
    struct sha256 inner, outer;
};
void mac_begin(struct mac *m, const void *key, size_t key_len);
void mac_add(struct mac *m, const void *bytes, size_t len);
void mac_end(struct mac *m, uint8_t ret[MAC_BYTES]);

/* Derives a key for one purpose: HMAC of the label with its NUL, then of `about`. */
void mac_derive(const uint8_t key[MAC_BYTES], const char *label, const void *about, size_t len, uint8_t ret[MAC_BYTES]);

/* Constant time: the duration does not depend on the bytes. */
bool mac_equal(const uint8_t a[MAC_BYTES], const uint8_t b[MAC_BYTES]);
void mac_wipe(void *bytes, size_t len); /* the compiler cannot drop this write */

#endif
