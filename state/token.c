/* SPDX-License-Identifier: Apache-2.0 */
#include "state/token.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "base/cleanup.h"
#include "base/hex.h"
#include "state/facts.h"

/* --- text --------------------------------------------------------------------------------------------------------- */

static titan_status hash_secret(const unsigned char *secret, unsigned char out[TOKEN_HASH_BYTES],
                                struct titan_error *err)
{
    unsigned n = 0;
    if (EVP_Digest(secret, TOKEN_SECRET_BYTES, out, &n, EVP_sha256(), NULL) != 1 || n != TOKEN_HASH_BYTES)
        return titan_fail(err, TITAN_EBUG, "tokens: SHA-256 is not available");
    return TITAN_OK;
}

titan_status token_make(struct token *ret, char out[TOKEN_TEXT], struct titan_error *err)
{
    unsigned char random[TOKEN_ID_BYTES + TOKEN_SECRET_BYTES];
    char secret[2 * TOKEN_SECRET_BYTES + 1];
    if (getrandom(random, sizeof(random), 0) != (ssize_t)sizeof(random))
        return titan_fail_errno(err, "no random bytes for a token");
    hex_write(random, TOKEN_ID_BYTES, ret->id);
    hex_write(random + TOKEN_ID_BYTES, TOKEN_SECRET_BYTES, secret);
    titan_status status = hash_secret(random + TOKEN_ID_BYTES, ret->hash, err);
    (void)snprintf(out, TOKEN_TEXT, "%s%s_%s", TOKEN_PREFIX, ret->id, secret);
    titan_assert(strlen(out) == TOKEN_TEXT - 1);
    OPENSSL_cleanse(random, sizeof(random));
    OPENSSL_cleanse(secret, sizeof(secret));
    return status;
}

titan_status token_parse(const char *text, char id[TOKEN_ID_TEXT], unsigned char hash[TOKEN_HASH_BYTES],
                         struct titan_error *err)
{
    const size_t prefix = sizeof(TOKEN_PREFIX) - 1, id_chars = TOKEN_ID_TEXT - 1;
    unsigned char secret[TOKEN_SECRET_BYTES], id_bytes[TOKEN_ID_BYTES];
    bool ok = strlen(text) == TOKEN_TEXT - 1 && strncmp(text, TOKEN_PREFIX, prefix) == 0 &&
              hex_read(text + prefix, TOKEN_ID_BYTES, id_bytes) && text[prefix + id_chars] == '_' &&
              hex_read(text + prefix + id_chars + 1, TOKEN_SECRET_BYTES, secret);
    if (!ok)
        return titan_fail(err, TITAN_EPERM, "what came in the place of a token is none");
    titan_assert(prefix + id_chars < TOKEN_TEXT);
    memcpy(id, text + prefix, id_chars);
    id[id_chars] = '\0';
    titan_status status = hash_secret(secret, hash, err);
    OPENSSL_cleanse(secret, sizeof(secret));
    return status;
}

bool token_matches(const struct token *token, const unsigned char hash[TOKEN_HASH_BYTES])
{
    return CRYPTO_memcmp(token->hash, hash, TOKEN_HASH_BYTES) == 0;
}

/* --- table -------------------------------------------------------------------------------------------------------- */

/* clang-format off */
#define TOKEN(X) \
    X(name, name) X(role, role) X(hash, hash) X(created_at_ms, created_at_ms) X(expires_at_ms, expires_at_ms) \
    X(created_by, created_by) X(revoked_at_ms, revoked_at_ms)
/* clang-format on */
#define FIELD(column, field) DB_FIELD(struct token, field),
DB_ROW(token_row, struct token, FIELD(id, id) TOKEN(FIELD));

titan_status token_add(struct db *db, const struct token *t, const struct event *event, struct titan_error *err)
{
    struct event e = *event;
    _cleanup_(facts_free) struct facts facts = {.text = BUF_INIT};
    facts_begin(&facts, "token", t->id);
    facts_text(&facts, "name", t->name);
    facts_number(&facts, "role", (int64_t)t->role);
    facts_bytes(&facts, "hash", t->hash, sizeof(t->hash));
    facts_number(&facts, "created_at_ms", t->created_at_ms);
    facts_number(&facts, "expires_at_ms", t->expires_at_ms);
    facts_text(&facts, "created_by", t->created_by);
    TRY(facts_end(&facts, &e.facts, err));
    TRY(db_put(db, err, "INSERT INTO tokens (id" TOKEN(DB_NAME) ") VALUES (?" TOKEN(DB_MARK) ")", &token_row, t, ""));
    return event_add(db, &e, err);
}

titan_status token_revoke(struct db *db, const char *id, int64_t now_ms, const struct event *event,
                          struct titan_error *err)
{
    struct event e = *event;
    int64_t at_ms = 0;
    _cleanup_(facts_free) struct facts facts = {.text = BUF_INIT};
    TRY(db_run(db, err, "UPDATE tokens SET revoked_at_ms = iif(revoked_at_ms = 0, ?, revoked_at_ms) WHERE id = ?", "it",
               now_ms, id));
    if (!db_changes(db))
        return titan_fail(err, TITAN_ENOTFOUND, "there is no token %.32s", id);
    TRY(db_int(db, &at_ms, err, "SELECT revoked_at_ms FROM tokens WHERE id = ?", "t", id));
    facts_begin(&facts, "token", id);
    facts_number(&facts, "revoked_at_ms", at_ms);
    TRY(facts_end(&facts, &e.facts, err));
    return event_add(db, &e, err);
}

titan_status token_list(struct db *db, bool (*each)(const struct token *token, void *data), void *data,
                        struct titan_error *err)
{
    sqlite3_stmt *stmt = NULL;
    struct token t;
    titan_status status;
    TRY(db_query(db, &stmt, err, "SELECT id" TOKEN(DB_NAME) " FROM tokens ORDER BY created_at_ms, id", ""));
    while (db_next(db, stmt, &token_row, &t, &status, err) && each(&t, data))
        ;
    db_done(stmt);
    return status;
}
