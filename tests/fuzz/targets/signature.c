/* SPDX-License-Identifier: Apache-2.0 */
/* The text beside a backup, and a file of a key before it (fuzz_piece). What is read is one text only: made again from
 * what it states it is the same. No text without the key's proof passes, and with one byte changed none does. */
#include "tests/fuzz/common.h"

#include "state/signature.h"

static void check_changed(const char *text, size_t len, size_t at, const struct signature_key *key)
{
    char changed[SIGNATURE_TEXT_MAX];
    struct signature s;
    fuzz_assert(len > 0 && len <= sizeof(changed));
    memcpy(changed, text, len);
    changed[at % len] ^= 1;
    fuzz_assert(signature_check(changed, len, key, NULL) != TITAN_OK);
    fuzz_assert(signature_read(text, len - 1, &s, NULL) != TITAN_OK);
}

/* Signed with the key: that passes, and states the same. */
static void sign(const struct signature *s, const struct signature_key *key, size_t at)
{
    struct titan_error err = {0};
    struct signature again;
    _cleanup_(buf_free) struct buf out = BUF_INIT;
    fuzz_assert(signature_make(s, key, &out, &err) == TITAN_OK && out.len <= SIGNATURE_TEXT_MAX);
    fuzz_assert(signature_check(out.data, out.len, key, &err) == TITAN_OK);
    fuzz_assert(signature_read(out.data, out.len, &again, &err) == TITAN_OK);
    fuzz_assert(again.size == s->size && memcmp(again.digest, s->digest, sizeof(s->digest)) == 0);
    fuzz_assert(again.head.id == s->head.id && strcmp(again.at, s->at) == 0 && strcmp(again.key_id, key->id) == 0);
    check_changed(out.data, out.len, at, key);
}

/* There is one text for what it states, but for the proof. */
static void check_only(const struct signature *s, const struct signature_key *key, const char *text, size_t len)
{
    enum { PROOF = 2 * 32 + 1 };
    struct signature_key named = *key;
    _cleanup_(buf_free) struct buf out = BUF_INIT;
    memcpy(named.id, s->key_id, sizeof(named.id));
    fuzz_assert(signature_make(s, &named, &out, NULL) == TITAN_OK);
    fuzz_assert(out.len == len && memcmp(out.data, text, len - PROOF) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char fallback[] = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\n";
    struct fuzz_input in = {data, size};
    struct titan_error err = {0};
    struct signature_key key;
    struct signature s;
    const size_t at = (size_t)fuzz_take(&in, 2);
    const struct fuzz_input piece = fuzz_piece(&in);
    _cleanup_free_ char *given = fuzz_text(piece.data, piece.len), *text = fuzz_text(in.data, in.len);
    titan_status status = signature_key_read(given, piece.len, &key, &err);
    if (status != TITAN_OK) {
        fuzz_error(status, &err);
        fuzz_assert(signature_key_read(fallback, sizeof(fallback) - 1, &key, NULL) == TITAN_OK);
    }
    status = signature_read(text, in.len, &s, &err);
    const titan_status proved = signature_check(text, in.len, &key, &err);
    if (status != TITAN_OK) {
        fuzz_error(status, &err);
        fuzz_assert(proved == status);
        return 0;
    }
    fuzz_assert(proved == TITAN_OK || proved == TITAN_EPERM || proved == TITAN_ECORRUPT);
    fuzz_assert(in.len <= SIGNATURE_TEXT_MAX && s.at[0] && strlen(s.key_id) < SIGNATURE_KEY_ID);
    if (proved == TITAN_OK)
        check_changed(text, in.len, at, &key);
    check_only(&s, &key, text, in.len);
    sign(&s, &key, at);
    return 0;
}
