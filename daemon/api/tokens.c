/* SPDX-License-Identifier: Apache-2.0 */
/* Bearer tokens: an admin makes, lists and revokes them. */
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/utf8.h"
#include "base/vec.h"
#include "daemon/api/api.h"
#include "state/enrolment.h"

#define TTL_DEFAULT_S (30 * 86400)

/* A change of the token table on its way into the store. */
struct token_write {
    struct rpc_call *call; /* must be first (api_request_closed); NULL when the client has gone */
    struct coordinator *owner;
    struct token token; /* to revoke: only id is set */
    char text[TOKEN_TEXT];
    bool revoke;
    int64_t at_ms, before_ms; /* before_ms: earlier revocation, 0 = none */
    struct arena memory;
    struct event event;
};

static titan_status write_token(struct db *db, void *arg, struct titan_error *err)
{
    titan_assert(((const struct token_write *)arg)->event.type);
    const struct token_write *w = arg;
    return w->revoke ? token_revoke(db, w->token.id, w->at_ms, &w->event, err)
                     : token_add(db, &w->token, &w->event, err);
}

/* Valid tokens and joins made by calls with a token. */
struct made {
    struct arena *memory;
    int64_t now_ms;
    char by[TOKEN_ID_TEXT + 16]; /* end of the actor name of calls with the token */
    char **tokens, **joins;
    size_t n_tokens, cap_tokens, n_joins, cap_joins;
};

static bool made_by(const struct made *m, const char *actor)
{
    const size_t len = strlen(actor), end = strlen(m->by);
    return len >= end && strcmp(actor + len - end, m->by) == 0;
}

static bool each_made_token(const struct token *t, void *data)
{
    struct made *m = data;
    if (made_by(m, t->created_by) && !t->revoked_at_ms && t->expires_at_ms > m->now_ms)
        VEC_MUST_PUSH(m->tokens, m->n_tokens, m->cap_tokens, arena_strdup(m->memory, t->id));
    return true;
}

static bool each_made_join(const struct join *j, void *data)
{
    struct made *m = data;
    if (made_by(m, j->created_by) && !j->used_at_ms && j->expires_at_ms > m->now_ms)
        VEC_MUST_PUSH(m->joins, m->n_joins, m->cap_joins, arena_strdup(m->memory, j->id));
    return true;
}

static void answer(struct token_write *w)
{
    titan_assert(w->call && (w->revoke || w->text[0]));
    if (w->revoke) {
        Titan__V1__RevokeTokenResponse reply = TITAN__V1__REVOKE_TOKEN_RESPONSE__INIT;
        struct made made = {.memory = &w->memory, .now_ms = w->at_ms};
        (void)snprintf(made.by, sizeof(made.by), "(token %s)", w->token.id);
        struct db *db = store_reader(w->owner->store);
        if (token_list(db, each_made_token, &made, NULL) == TITAN_OK &&
            enrolment_join_list(db, each_made_join, &made, NULL) == TITAN_OK) {
            reply.n_made_tokens = made.n_tokens;
            reply.made_tokens = made.tokens;
            reply.n_made_joins = made.n_joins;
            reply.made_joins = made.joins;
        }
        rpc_call_reply(w->call, &reply.base);
        free(made.tokens);
        free(made.joins);
        return;
    }
    Titan__V1__CreateTokenResponse reply = TITAN__V1__CREATE_TOKEN_RESPONSE__INIT;
    reply.id = w->token.id;
    reply.token = w->text;
    reply.expires_at_ms = w->token.expires_at_ms;
    rpc_call_reply(w->call, &reply.base);
}

static void written(void *arg, const struct titan_error *err)
{
    struct token_write *w = arg;
    struct coordinator *c = w->owner;
    /* revoke once more: another revocation may have failed meanwhile and undone this revocation */
    if (c->auth && w->revoke)
        auth_revoke_token(c->auth, w->token.id, err->status == TITAN_OK && !w->before_ms ? w->at_ms : w->before_ms);
    else if (err->status == TITAN_OK && c->auth && !w->revoke)
        auth_put_token(c->auth, &w->token, w->at_ms);
    if (w->call) {
        rpc_call_set_data(w->call, NULL);
        if (err->status == TITAN_OK)
            answer(w);
        else
            rpc_call_fail(w->call, err);
    }
    if (!c->closing)
        api_watch_poke(c, 0);
    if (!c->closing && w->revoke && err->status == TITAN_OK)
        api_review(c);
    arena_free(&w->memory);
    explicit_bzero(w->text, sizeof(w->text));
    free(w);
}

static titan_status fill(struct token_write *w, const Titan__V1__CreateTokenRequest *request, const struct auth_user *u,
                         struct titan_error *err)
{
    struct token *t = &w->token;
    uint64_t ttl = request->ttl_s ? request->ttl_s : TTL_DEFAULT_S;
    if (!*request->name || strpbrk(request->name, ":/ "))
        return titan_fail(err, TITAN_EINVAL, "name: '%s' cannot be a user's name (no ':', '/' or blanks)",
                          request->name);
    if (strcmp(request->role, "user") == 0)
        t->role = TOKEN_USER;
    else if (strcmp(request->role, "operator") == 0)
        t->role = TOKEN_OPERATOR;
    else if (strcmp(request->role, "admin") == 0)
        t->role = TOKEN_ADMIN;
    else
        return titan_fail(err, TITAN_EINVAL, "role: '%.32s' is not one of user, operator, admin", request->role);
    (void)snprintf(t->name, sizeof(t->name), "%s", request->name);
    (void)snprintf(t->created_by, sizeof(t->created_by), "%.*s", (int)sizeof(t->created_by) - 1, u->actor);
    text_fit(t->created_by, '?'); /* the cut may split a character */
    t->created_at_ms = w->at_ms;
    t->expires_at_ms = w->at_ms + (int64_t)ttl * 1000;
    return token_make(t, w->text, err);
}

static void begin(struct coordinator *c, struct rpc_call *call, const ProtobufCMessage *request, unsigned method)
{
    struct titan_error err = {0};
    struct auth_user u;
    struct token_write *w = calloc(1, sizeof(*w));
    titan_assert(w);
    api_user(c, call, &u);
    w->owner = c;
    w->at_ms = clock_wall_ms();
    w->revoke = method == POLICY_REVOKE_TOKEN;
    titan_status status = shell_accepts(c, &err);
    if (status == TITAN_OK && w->revoke) {
        const char *id = ((const Titan__V1__RevokeTokenRequest *)request)->id;
        (void)snprintf(w->token.id, sizeof(w->token.id), "%s", id);
        if (strlen(id) >= sizeof(w->token.id))
            status = titan_fail(&err, TITAN_ENOTFOUND, "there is no token %.32s", id);
    } else if (status == TITAN_OK) {
        status = fill(w, (const Titan__V1__CreateTokenRequest *)request, &u, &err);
    }
    if (status != TITAN_OK) {
        api_failed(c, &u, method, 0, &err);
        rpc_call_fail(call, &err);
        arena_free(&w->memory);
        free(w);
        return;
    }
    w->event = api_audit_event(&w->memory, &u, method, 0);
    w->event.message =
        arena_printf(&w->memory, "%s: %s%s%s", w->event.message, w->token.id, w->revoke ? "" : " for ", w->token.name);
    w->call = call;
    rpc_call_set_data(call, w);
    /* before the write: so no write of a caller with this token follows the revocation in the store */
    if (w->revoke && c->auth)
        w->before_ms = auth_revoke_token(c->auth, w->token.id, w->at_ms);
    store_write(c->store, write_token, w, written);
}

void api_create_token(struct rpc_call *call, const ProtobufCMessage *request, void *data)
{
    begin(data, call, request, POLICY_CREATE_TOKEN);
}

void api_revoke_token(struct rpc_call *call, const ProtobufCMessage *request, void *data)
{
    begin(data, call, request, POLICY_REVOKE_TOKEN);
}

/* --- list --------------------------------------------------------------------------------------------------------- */

static bool each_token(const struct token *t, void *data)
{
    static const char *const roles[] = {[TOKEN_USER] = "user", [TOKEN_OPERATOR] = "operator", [TOKEN_ADMIN] = "admin"};
    struct reply *l = data;
    Titan__V1__Token *m = arena_alloc(&l->memory, sizeof(*m));
    titan__v1__token__init(m);
    m->id = arena_strdup(&l->memory, t->id);
    m->name = arena_strdup(&l->memory, t->name);
    m->role = arena_strdup(&l->memory, roles[t->role]);
    m->created_at_ms = t->created_at_ms;
    m->expires_at_ms = t->expires_at_ms;
    m->revoked_at_ms = t->revoked_at_ms;
    m->created_by = arena_strdup(&l->memory, t->created_by);
    api_reply_add(l, m);
    return true;
}

void api_list_tokens(struct rpc_call *call, const ProtobufCMessage *request, void *data)
{
    struct titan_error err = {0};
    _cleanup_(api_reply_free) struct reply r = {.c = data};
    (void)request;
    if (token_list(store_reader(r.c->store), each_token, &r, &err) != TITAN_OK) {
        rpc_call_fail(call, &err);
        return;
    }
    Titan__V1__ListTokensResponse reply = TITAN__V1__LIST_TOKENS_RESPONSE__INIT;
    reply.n_tokens = r.n;
    reply.tokens = (Titan__V1__Token **)r.items;
    rpc_call_reply(call, &reply.base);
}
