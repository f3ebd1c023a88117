/* SPDX-License-Identifier: Apache-2.0 */
/* mac.h - HMAC-SHA256 (RFC 2104, FIPS 180-4): proves that the sender of a message has the key.
 *
 * Here and not of a library because workers load none: it is used for datagrams and handshakes, a few hundred bytes at
 * a time, and to know a published tokenizer by its file, never for data of a run. No branch and no address depends on a
 * key or on what is hashed. */
#ifndef TITAN_BASE_MAC_H
#define TITAN_BASE_MAC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MAC_BYTES 32 /* of a proof, and of a key */

struct sha256 {
    uint32_t h[8];
    uint64_t len;
    uint8_t block[64];
};
void sha256_begin(struct sha256 *s);
void sha256_add(struct sha256 *s, const void *bytes, size_t len);
void sha256_end(struct sha256 *s, uint8_t ret[MAC_BYTES]);

/* Of parts, one behind the other. What separates them is the caller's affair: label and numbers of fixed length. */
struct mac {
    struct sha256 inner, outer;
};
void mac_begin(struct mac *m, const void *key, size_t key_len);
void mac_add(struct mac *m, const void *bytes, size_t len);
void mac_end(struct mac *m, uint8_t ret[MAC_BYTES]);

/* Of the label with its end, and of what it is about: a key for one purpose out of another. */
void mac_derive(const uint8_t key[MAC_BYTES], const char *label, const void *about, size_t len, uint8_t ret[MAC_BYTES]);

/* In a time that does not tell where they differ. */
bool mac_equal(const uint8_t a[MAC_BYTES], const uint8_t b[MAC_BYTES]);
void mac_wipe(void *bytes, size_t len); /* also when nothing reads it any more */

#endif
