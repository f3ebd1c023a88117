/* SPDX-License-Identifier: Apache-2.0 */
#include "state/signature.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/hex.h"

#define HASH_BYTES 32
#define HASH_TEXT (2 * HASH_BYTES + 1)
#define LAST_LINE "signature "

static titan_status mac_of(const struct signature_key *key, const char *text, size_t len, unsigned char ret[HASH_BYTES],
                           struct titan_error *err)
{
    unsigned n = 0;
    if (!HMAC(EVP_sha256(), key->bytes, sizeof(key->bytes), (const unsigned char *)text, len, ret, &n) ||
        n != HASH_BYTES)
        return titan_fail(err, TITAN_EBUG, "HMAC-SHA256 is not available");
    return TITAN_OK;
}

/* --- the key ------------------------------------------------------------------------------------------------------ */

titan_status signature_key_make(struct buf *out, struct titan_error *err)
{
    unsigned char bytes[SIGNATURE_KEY_BYTES];
    char text[SIGNATURE_KEY_TEXT];
    if (getrandom(bytes, sizeof(bytes), 0) != (ssize_t)sizeof(bytes))
        return titan_fail_errno(err, "no random bytes for a key");
    hex_write(bytes, sizeof(bytes), text);
    buf_printf(out, "%s\n", text);
    OPENSSL_cleanse(bytes, sizeof(bytes));
    OPENSSL_cleanse(text, sizeof(text));
    return buf_failed(out) ? titan_fail(err, TITAN_ENOMEM, "out of memory") : TITAN_OK;
}

titan_status signature_key_read(const char *text, size_t len, struct signature_key *ret, struct titan_error *err)
{
    unsigned char hash[HASH_BYTES];
    static const char label[] = "titan backup key";
    if (len != SIGNATURE_KEY_TEXT || text[len - 1] != '\n' || !hex_read(text, SIGNATURE_KEY_BYTES, ret->bytes))
        return titan_fail(err, TITAN_EINVAL, "not the key of backups, %d hexadecimal digits", SIGNATURE_KEY_TEXT - 1);
    TRY(mac_of(ret, label, sizeof(label), hash, err));
    hex_write(hash, (SIGNATURE_KEY_ID - 1) / 2, ret->id);
    return TITAN_OK;
}

void signature_key_wipe(struct signature_key *key)
{
    OPENSSL_cleanse(key, sizeof(*key));
}

/* --- the text ----------------------------------------------------------------------------------------------------- */

static void digest_free(EVP_MD_CTX **md)
{
    EVP_MD_CTX_free(*md);
}

titan_status signature_digest(int fd, struct signature *ret, struct titan_error *err)
{
    char bytes[1 << 16];
    unsigned n = 0;
    _cleanup_(digest_free) EVP_MD_CTX *md = EVP_MD_CTX_new();
    bool ok = md && EVP_DigestInit_ex(md, EVP_sha256(), NULL) == 1;
    ret->size = 0;
    for (ssize_t got; ok && (got = read(fd, bytes, sizeof(bytes))) != 0;) {
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return titan_fail_errno(err, "the backup cannot be read");
        ok = EVP_DigestUpdate(md, bytes, (size_t)got) == 1;
        ret->size += (uint64_t)got;
    }
    if (!ok || EVP_DigestFinal_ex(md, ret->digest, &n) != 1 || n != HASH_BYTES)
        return titan_fail(err, TITAN_EBUG, "SHA-256 is not available");
    return TITAN_OK;
}

/* Writes all lines but the last. */
static titan_status put_lines(const struct signature *s, struct buf *out, struct titan_error *err)
{
    char digest[HASH_TEXT], head[EVENT_HEAD_TEXT];
    hex_write(s->digest, sizeof(s->digest), digest);
    event_head_write(&s->head, head);
    buf_printf(out, "titan-backup-signature 1\nalgorithm hmac-sha256\nkey %s\nsize %llu\nsha256 %s\nhead %s\nat %s\n",
               s->key_id, (unsigned long long)s->size, digest, head, s->at);
    return buf_failed(out) ? titan_fail(err, TITAN_ENOMEM, "out of memory") : TITAN_OK;
}

titan_status signature_make(const struct signature *s, const struct signature_key *key, struct buf *out,
                            struct titan_error *err)
{
    titan_assert(out->len == 0 && s->at[0]);
    struct signature own = *s;
    unsigned char mac[HASH_BYTES];
    char text[HASH_TEXT];
    memcpy(own.key_id, key->id, sizeof(own.key_id));
    TRY(put_lines(&own, out, err));
    TRY(mac_of(key, out->data, out->len, mac, err));
    hex_write(mac, sizeof(mac), text);
    buf_printf(out, LAST_LINE "%s\n", text);
    return buf_failed(out) ? titan_fail(err, TITAN_ENOMEM, "out of memory") : TITAN_OK;
}

/* Parses the lines, writes them again and compares, because each content has exactly one text. */
static titan_status parse(const char *text, size_t len, struct signature *ret, size_t *ret_signed,
                          unsigned char mac[HASH_BYTES], struct titan_error *err)
{
    char copy[SIGNATURE_TEXT_MAX + 1], digest[HASH_TEXT], head[EVENT_HEAD_TEXT], last[HASH_TEXT];
    unsigned long long size = 0;
    const char *end = "-";
    _cleanup_(buf_free) struct buf again = BUF_INIT;
    *ret = (struct signature){.size = 0};
    if (len > SIGNATURE_TEXT_MAX || memchr(text, '\0', len))
        return titan_fail(err, TITAN_ECORRUPT, "this is no signature of a backup");
    memcpy(copy, text, len);
    copy[len] = '\0';
    bool ok = sscanf(copy,
                     "titan-backup-signature 1\nalgorithm hmac-sha256\nkey %16[0-9a-f]\nsize %19llu\nsha256 "
                     "%64[0-9a-f]\nhead %85[0-9a-f:]\nat %31[0-9TZ:.-]\nsignature %64[0-9a-f]\n",
                     ret->key_id, &size, digest, head, ret->at, last) == 6 &&
              strlen(digest) == HASH_TEXT - 1 && hex_read(digest, HASH_BYTES, ret->digest) &&
              event_head_read(head, &ret->head, &end) && !*end && strlen(last) == HASH_TEXT - 1 &&
              hex_read(last, HASH_BYTES, mac);
    ret->size = size;
    if (ok)
        TRY(put_lines(ret, &again, err));
    *ret_signed = again.len;
    if (ok)
        buf_printf(&again, LAST_LINE "%s\n", last);
    ok = ok && !buf_failed(&again) && again.len == len && memcmp(again.data, text, len) == 0;
    return ok ? TITAN_OK : titan_fail(err, TITAN_ECORRUPT, "this is no signature of a backup");
}

titan_status signature_read(const char *text, size_t len, struct signature *ret, struct titan_error *err)
{
    unsigned char mac[HASH_BYTES];
    size_t n = 0;
    return parse(text, len, ret, &n, mac, err);
}

titan_status signature_check(const char *text, size_t len, const struct signature_key *key, struct titan_error *err)
{
    struct signature s;
    unsigned char is[HASH_BYTES], should[HASH_BYTES];
    size_t n = 0;
    TRY(parse(text, len, &s, &n, is, err));
    if (strcmp(s.key_id, key->id) != 0)
        return titan_fail(err, TITAN_EPERM, "it is signed with the key %s; the key here is %s", s.key_id, key->id);
    TRY(mac_of(key, text, n, should, err));
    return CRYPTO_memcmp(is, should, HASH_BYTES) == 0
               ? TITAN_OK
               : titan_fail(err, TITAN_ECORRUPT, "its signature is not what the key %s makes: it was changed", key->id);
}
