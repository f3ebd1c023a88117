/* SPDX-License-Identifier: Apache-2.0 */
/* identity.h - from what the transport has proved about a caller (rpc_identity) to a user with roles.
 *
 * Unix socket: the process's uid. It is admin or operator where the configuration lists it, its name or a group of it;
 * root always, and the daemon's own uid where a person has started it. Both may speak for a node. Certificate: of a
 * node, or of a user, by its SPIFFE name. Token: the user and the role it was made for. Plain TCP, which a daemon
 * serves with --insecure only: anonymous.
 */
#ifndef TITAN_DAEMON_AUTH_IDENTITY_H
#define TITAN_DAEMON_AUTH_IDENTITY_H

#include <stdint.h>

#include "base/error.h"
#include "daemon/auth/policy.h"
#include "proto/rpc/server.h"
#include "state/job.h"
#include "state/token.h"

#define AUTH_LIST_MAX 32
#define AUTH_ENTRY_MAX 96

/* "uid:N", "user:NAME" (a name of this machine or of a certificate), "group:NAME". */
struct auth_list {
    char entry[AUTH_LIST_MAX][AUTH_ENTRY_MAX];
    size_t n;
};
/* TITAN_EINVAL says what can be written. */
titan_status auth_list_add(struct auth_list *list, const char *entry, struct titan_error *err) TITAN_MUST_USE;

struct auth_user;
/* Is the user among them: checkpoint.shared_with, entries with commas between, "*" for all? What is no entry names
 * no user. Any thread; may block. */
bool auth_shared_with(const char *entries, const struct auth_user *u);

struct auth_options {
    struct auth_list admins, operators;
    bool private_jobs;
    bool nodes_by_address; /* plain TCP is for agents, too */
    bool service; /* every user may connect, and workers may run as the daemon's user: that is no admin by its uid */
};

struct auth_user {
    unsigned roles;                   /* POLICY_BIT */
    int64_t uid, gid;                 /* JOB_NO_ID = none on this machine */
    char name[TOKEN_NAME_MAX + 128];  /* of the user: owner of jobs */
    char actor[TOKEN_NAME_MAX + 160]; /* for the audit: the name, and what it was proved by */
};

struct auth;

struct auth *auth_new(const struct auth_options *options); /* never NULL */
/* Other lists; nodes_by_address and service stay. What was known of groups is asked for anew. */
void auth_reload(struct auth *a, const struct auth_options *options);
void auth_free(struct auth *a);               /* NULL is fine */
bool auth_private_jobs(const struct auth *a); /* NULL: false */

/* A bearer token's header, "Bearer titan_...": what rpc_call_set_identity is to be told. TITAN_EPERM for a token that
 * is unknown, expired or revoked, or that comes over plain TCP. ret is set wherever the secret is that of a token that
 * is known, so that a refusal names the user; else its kind is RPC_ID_NONE. */
titan_status auth_bearer(struct auth *a, const char *header, const struct rpc_identity *transport, int64_t now_ms,
                         struct rpc_identity *ret, struct titan_error *err) TITAN_MUST_USE;
/* a NULL: every caller may call everything (a server without an authority, in tests). */
void auth_resolve(struct auth *a, const struct rpc_identity *identity, int64_t now_ms, struct auth_user *ret);

/* Does the token still count that this identity came by? TITAN_EPERM; TITAN_OK for every other kind. */
titan_status auth_admits(const struct auth *a, const struct rpc_identity *identity, int64_t now_ms,
                         struct titan_error *err) TITAN_MUST_USE;

/* The tokens, as the store has them. One that has expired is not kept. */
void auth_put_token(struct auth *a, const struct token *token, int64_t now_ms);
/* Returns when it was revoked before; 0 = it was not. at_ms 0: it counts again. Nothing happens where the token is not
 * known. */
int64_t auth_revoke_token(struct auth *a, const char *id, int64_t at_ms);

/* An admin, or a caller that needs no identity? What it names is opened with the daemon's rights. */
static inline bool auth_trusted(const struct auth_user *u)
{
    return u->roles & (POLICY_BIT(POLICY_ADMIN) | POLICY_BIT(POLICY_ANONYMOUS));
}
static inline bool auth_operates(const struct auth_user *u)
{
    return u->roles & (POLICY_BIT(POLICY_OPERATOR) | POLICY_BIT(POLICY_ADMIN) | POLICY_BIT(POLICY_ANONYMOUS));
}

#endif
