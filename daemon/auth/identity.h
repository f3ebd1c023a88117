/* SPDX-License-Identifier: Apache-2.0 */
/* identity.h - maps what the transport has proved about a caller (rpc_identity) to a user with roles.
 *
 * Unix socket: the process's uid. The uid is admin or operator if the configuration lists it, its name or one of its
 * groups. Root is always admin, and so is the daemon's own uid if a person started the daemon. Root and the daemon's
 * own uid may speak for a node. Certificate: a node or a user, by SPIFFE name. Token: its user and role. Plain TCP
 * (served with --insecure only): anonymous. A user that is listed for metrics, and has no higher role, has that role
 * alone. */
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

/* "uid:N", "user:NAME" (a name on this machine or in a certificate), "group:NAME". */
struct auth_list {
    char entry[AUTH_LIST_MAX][AUTH_ENTRY_MAX];
    size_t n;
};
/* TITAN_EINVAL names the valid forms. */
titan_status auth_list_add(struct auth_list *list, const char *entry, struct titan_error *err) TITAN_MUST_USE;

struct auth_user;
/* Is the user in the list checkpoint.shared_with? Its entries are separated by commas; "*" = all users. An invalid
 * entry matches no user. Any thread; may block. */
bool auth_shared_with(const char *entries, const struct auth_user *u);

struct auth_options {
    struct auth_list admins, operators, metrics;
    bool private_jobs;
    bool nodes_by_address; /* plain TCP also admits agents */
    /* the daemon's own uid is no admin, since every user may connect and workers may run as the daemon's user */
    bool service;
};

struct auth_user {
    unsigned roles;                   /* set of POLICY_BIT */
    int64_t uid, gid;                 /* JOB_NO_ID = none on this machine */
    char name[TOKEN_NAME_MAX + 128];  /* the user's name: owner of jobs */
    char actor[TOKEN_NAME_MAX + 160]; /* name and its proof, for the audit */
};

struct auth;

struct auth *auth_new(const struct auth_options *options); /* never NULL */
/* Replaces the lists; nodes_by_address and service stay. Cached groups are dropped. */
void auth_reload(struct auth *a, const struct auth_options *options);
void auth_free(struct auth *a);               /* NULL is fine */
bool auth_private_jobs(const struct auth *a); /* NULL: false */

/* Checks the header of a bearer token, "Bearer titan_...". *ret is the argument for rpc_call_set_identity().
 * TITAN_EPERM: the token is unknown, expired or revoked, or arrives over plain TCP. If the secret belongs to a known
 * token, *ret is set even then, so that a refusal names the user. Otherwise the kind of *ret is RPC_ID_NONE. */
titan_status auth_bearer(struct auth *a, const char *header, const struct rpc_identity *transport, int64_t now_ms,
                         struct rpc_identity *ret, struct titan_error *err) TITAN_MUST_USE;
/* If a is NULL, every caller may call everything (a server without an authority, in tests). */
void auth_resolve(struct auth *a, const struct rpc_identity *identity, int64_t now_ms, struct auth_user *ret);

/* Is the identity's token still valid? TITAN_EPERM: it is not; TITAN_OK for identities without a token. */
titan_status auth_admits(const struct auth *a, const struct rpc_identity *identity, int64_t now_ms,
                         struct titan_error *err) TITAN_MUST_USE;

/* Adds a token from the store. An expired token is not kept. */
void auth_put_token(struct auth *a, const struct token *token, int64_t now_ms);
/* Returns the earlier time of revocation; 0 = it was not revoked. at_ms 0: the token is valid again. No effect on an
 * unknown token. */
int64_t auth_revoke_token(struct auth *a, const char *id, int64_t at_ms);

/* Is the user an admin, or a caller that needs no identity? Paths that such a user names are opened with the daemon's
 * rights. */
static inline bool auth_trusted(const struct auth_user *u)
{
    return u->roles & (POLICY_BIT(POLICY_ADMIN) | POLICY_BIT(POLICY_ANONYMOUS));
}
static inline bool auth_operates(const struct auth_user *u)
{
    return u->roles & (POLICY_BIT(POLICY_OPERATOR) | POLICY_BIT(POLICY_ADMIN) | POLICY_BIT(POLICY_ANONYMOUS));
}

#endif
