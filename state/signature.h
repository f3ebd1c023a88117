/* SPDX-License-Identifier: Apache-2.0 */
/* signature.h - the signature of a backup: a text in its own file, FILE.sig, beside the backup.
 *
 *   titan-backup-signature 1
 *   algorithm hmac-sha256
 *   key 3f2a9c01d4e5b6a7              id of the key; useless for signing
 *   size 389120
 *   sha256 HASH                       of the backup
 *   head 1234:HASH                    its newest event (event.h)
 *   at 2026-11-20T02:15:00.000Z
 *   signature HASH                    HMAC-SHA256 (RFC 2104) of the lines before it
 *
 * The key is the coordinator's secret and never in the store. Pure: no file is opened. */
#ifndef TITAN_STATE_SIGNATURE_H
#define TITAN_STATE_SIGNATURE_H

#include "base/buf.h"
#include "state/event.h"

#define SIGNATURE_KEY_BYTES 32
#define SIGNATURE_KEY_TEXT (2 * SIGNATURE_KEY_BYTES + 1)
#define SIGNATURE_KEY_ID 17    /* 16 digits and the NUL */
#define SIGNATURE_TEXT_MAX 512 /* bytes of the whole text */

struct signature_key {
    unsigned char bytes[SIGNATURE_KEY_BYTES];
    char id[SIGNATURE_KEY_ID];
};

struct signature {
    char key_id[SIGNATURE_KEY_ID];
    uint64_t size;
    unsigned char digest[32]; /* SHA-256 */
    struct event_head head;
    char at[32]; /* as clock_format() writes it */
};

/* Makes a random key: the content of its file. */
titan_status signature_key_make(struct buf *out, struct titan_error *err) TITAN_MUST_USE;
/* Parses 64 hexadecimal digits and a newline. TITAN_EINVAL: the text has another form. */
titan_status signature_key_read(const char *text, size_t len, struct signature_key *ret,
                                struct titan_error *err) TITAN_MUST_USE;
void signature_key_wipe(struct signature_key *key);

/* SHA-256 and size of an open file, from its current position to its end. */
titan_status signature_digest(int fd, struct signature *ret, struct titan_error *err) TITAN_MUST_USE;
/* Writes the whole text; s->key_id is ignored. */
titan_status signature_make(const struct signature *s, const struct signature_key *key, struct buf *out,
                            struct titan_error *err) TITAN_MUST_USE;
/* Parses the statements of a text, from any bytes; they are not verified. TITAN_ECORRUPT: the text is no signature. */
titan_status signature_read(const char *text, size_t len, struct signature *ret,
                            struct titan_error *err) TITAN_MUST_USE;
/* Was the text made with the key? TITAN_EPERM: with another key; TITAN_ECORRUPT: the text was changed. */
titan_status signature_check(const char *text, size_t len, const struct signature_key *key,
                             struct titan_error *err) TITAN_MUST_USE;

#endif
