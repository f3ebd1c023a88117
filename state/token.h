/* SPDX-License-Identifier: Apache-2.0 */
/* token.h - bearer tokens: "titan_ID_SECRET". The store holds the SHA-256 of the secret, never the secret. */
#ifndef TITAN_STATE_TOKEN_H
#define TITAN_STATE_TOKEN_H

#include "state/event.h"

#define TOKEN_PREFIX "titan_"
#define TOKEN_ID_BYTES 8
#define TOKEN_SECRET_BYTES 32
#define TOKEN_ID_TEXT (2 * TOKEN_ID_BYTES + 1)
#define TOKEN_TEXT                                                                                                     \
    (sizeof(TOKEN_PREFIX) + 2 * TOKEN_ID_BYTES + 1 + 2 * TOKEN_SECRET_BYTES) /* all of it, terminated                  \
                                                                              */
#define TOKEN_HASH_BYTES 32
#define TOKEN_NAME_MAX 64

/* Numbers are stored. */
enum token_role { TOKEN_USER = 1, TOKEN_OPERATOR, TOKEN_ADMIN };

struct token {
    char id[TOKEN_ID_TEXT];
    char name[TOKEN_NAME_MAX + 1]; /* the user of the token */
    enum token_role role;
    unsigned char hash[TOKEN_HASH_BYTES];
    int64_t created_at_ms, expires_at_ms;
    int64_t revoked_at_ms; /* 0 = not revoked */
    char created_by[192];
};

/* Makes a new token: id, secret and hash. out: the whole text, to be shown once. */
titan_status token_make(struct token *ret, char out[TOKEN_TEXT], struct titan_error *err) TITAN_MUST_USE;
/* Splits a text into the id and the hash of its secret. TITAN_EPERM: no token; messages never contain the text. */
titan_status token_parse(const char *text, char id[TOKEN_ID_TEXT], unsigned char hash[TOKEN_HASH_BYTES],
                         struct titan_error *err) TITAN_MUST_USE;
/* Constant time. */
bool token_matches(const struct token *token, const unsigned char hash[TOKEN_HASH_BYTES]);

/* Adds a token; the event records it, with everything but the secret as facts. */
titan_status token_add(struct db *db, const struct token *token, const struct event *event,
                       struct titan_error *err) TITAN_MUST_USE;
/* TITAN_ENOTFOUND. A revoked token stays as it is; the event is recorded anyway. */
titan_status token_revoke(struct db *db, const char *id, int64_t now_ms, const struct event *event,
                          struct titan_error *err) TITAN_MUST_USE;
/* Oldest first. */
titan_status token_list(struct db *db, bool (*each)(const struct token *token, void *data), void *data,
                        struct titan_error *err) TITAN_MUST_USE;

#endif
