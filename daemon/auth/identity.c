/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/auth/identity.h"

#include <grp.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/utf8.h"
#include "base/vec.h"

#define CACHE 256                     /* uids with cached groups */
#define CACHE_MS 60000                /* after this time a directory service's change of groups takes effect */
#define GROUPS_MAX 1024               /* groups of one user */
#define GROUP_BYTES ((size_t)1 << 20) /* buffer for a group with its members */
#define CERT_PREFIX "spiffe://titan/"

struct known {
    int64_t uid, until_ms;
    unsigned roles;
};

struct auth {
    struct auth_options options;
    uid_t own;
    bool by_group;      /* a list names a group */
    struct stat groups; /* stat of /etc/group at the last look */
    struct known known[CACHE];
    struct token *tokens;
    size_t n_tokens, cap_tokens;
};

/* --- lists -------------------------------------------------------------------------------------------------------- */

static const char *value_of(const char *entry, const char *kind)
{
    size_t n = strlen(kind);
    return strncmp(entry, kind, n) == 0 ? entry + n : NULL;
}

titan_status auth_list_add(struct auth_list *list, const char *entry, struct titan_error *err)
{
    titan_assert(list->n <= AUTH_LIST_MAX);
    const char *uid = value_of(entry, "uid:"), *user = value_of(entry, "user:"), *group = value_of(entry, "group:");
    const char *name = uid ? uid : user ? user : group;
    bool ok = name && *name && strlen(entry) < AUTH_ENTRY_MAX && !strpbrk(name, ":/ \t\n");
    if (ok && uid)
        ok = strspn(uid, "0123456789") == strlen(uid) && strlen(uid) <= 10 && strtoull(uid, NULL, 10) < UINT32_MAX;
    if (!ok) {
        titan_fail(err, TITAN_EINVAL, "'%.64s' names no identity", entry);
        titan_error_hint(err, "write uid:N, user:NAME or group:NAME");
        return TITAN_EINVAL;
    }
    if (list->n == AUTH_LIST_MAX)
        return titan_fail(err, TITAN_EINVAL, "more than %d identities", AUTH_LIST_MAX);
    (void)snprintf(list->entry[list->n++], AUTH_ENTRY_MAX, "%s", entry);
    return TITAN_OK;
}

/* Is the caller on the list? uid JOB_NO_ID: `name` is from a certificate, and in no group of this machine. */
static bool listed(const struct auth_list *list, int64_t uid, const char *name, const gid_t *groups, int n_groups)
{
    titan_assert(list->n <= AUTH_LIST_MAX && (n_groups == 0 || groups));
    for (size_t i = 0; i < list->n; i++) {
        const char *entry = list->entry[i], *value;
        if ((value = value_of(entry, "uid:")) && uid >= 0 && strtoll(value, NULL, 10) == uid)
            return true;
        if ((value = value_of(entry, "user:")) && strcmp(value, name) == 0)
            return true;
        if (!(value = value_of(entry, "group:")) || n_groups == 0)
            continue;
        _cleanup_free_ char *memory = malloc(GROUP_BYTES);
        struct group found, *g = NULL;
        if (!memory || getgrnam_r(value, &found, memory, GROUP_BYTES, &g) != 0)
            continue;
        for (int k = 0; g && k < n_groups; k++)
            if (groups[k] == g->gr_gid)
                return true;
    }
    return false;
}

static unsigned roles_up_to(enum policy_role role)
{
    titan_assert(role >= POLICY_USER && role <= POLICY_ADMIN);
    unsigned roles = POLICY_BIT(POLICY_USER);
    if (role >= POLICY_OPERATOR)
        roles |= POLICY_BIT(POLICY_OPERATOR);
    return role >= POLICY_ADMIN ? roles | POLICY_BIT(POLICY_ADMIN) : roles;
}

static unsigned roles_of(const struct auth *a, int64_t uid, const char *name, const gid_t *groups, int n_groups)
{
    if (listed(&a->options.admins, uid, name, groups, n_groups))
        return roles_up_to(POLICY_ADMIN);
    if (listed(&a->options.operators, uid, name, groups, n_groups))
        return roles_up_to(POLICY_OPERATOR);
    return listed(&a->options.metrics, uid, name, groups, n_groups) ? POLICY_BIT(POLICY_SCRAPER)
                                                                    : roles_up_to(POLICY_USER);
}

/* --- a process of this machine ------------------------------------------------------------------------------------ */

/* Gets the groups of a uid; an unknown uid has only gid. */
static int groups_of(uid_t uid, gid_t gid, gid_t groups[GROUPS_MAX])
{
    char memory[4096];
    struct passwd entry, *found = NULL;
    int n = GROUPS_MAX;
    groups[0] = gid;
    if (getpwuid_r(uid, &entry, memory, sizeof(memory), &found) != 0 || !found)
        return 1;
    return getgrouplist(found->pw_name, found->pw_gid, groups, &n) < 0 ? GROUPS_MAX : n; /* the groups that fit */
}

bool auth_shared_with(const char *entries, const struct auth_user *u)
{
    gid_t groups[GROUPS_MAX];
    struct auth_list list = {.n = 0};
    char entry[AUTH_ENTRY_MAX];
    titan_assert(u->uid >= JOB_NO_ID);
    for (const char *e = entries; *e; e += strcspn(e, ","), e += *e == ',') {
        if (strncmp(e, "*", strcspn(e, ",")) == 0)
            return true;
        (void)snprintf(entry, sizeof(entry), "%.*s", (int)strcspn(e, ","), e);
        (void)!auth_list_add(&list, entry, NULL);
    }
    return listed(&list, u->uid, u->name, groups, u->uid >= 0 ? groups_of((uid_t)u->uid, (gid_t)u->gid, groups) : 0);
}

static void forget_roles(struct auth *a)
{
    for (size_t i = 0; i < CACHE; i++)
        a->known[i].uid = JOB_NO_ID;
}

static unsigned process_roles(struct auth *a, const struct rpc_identity *id, int64_t now_ms)
{
    titan_assert(id->kind == RPC_ID_UID);
    /* Drops cached groups when /etc/group changes. Groups of a directory service change when the cache expires. */
    struct stat now = {0};
    if (a->by_group && stat("/etc/group", &now) == 0) {
        if (now.st_ino != a->groups.st_ino || now.st_mtim.tv_sec != a->groups.st_mtim.tv_sec ||
            now.st_mtim.tv_nsec != a->groups.st_mtim.tv_nsec)
            forget_roles(a);
        a->groups = now;
    }

    struct known *k = &a->known[id->uid % CACHE];
    if (k->uid != (int64_t)id->uid || k->until_ms <= now_ms || k->until_ms > now_ms + CACHE_MS) {
        const bool own = id->uid == a->own;
        gid_t groups[GROUPS_MAX];
        const int n = a->by_group ? groups_of(id->uid, id->gid, groups) : 0;
        unsigned roles = roles_of(a, (int64_t)id->uid, id->name, groups, n);
        if (id->uid == 0 || (own && !a->options.service))
            roles |= roles_up_to(POLICY_ADMIN);
        if (id->uid == 0 || own)
            roles |= POLICY_BIT(POLICY_NODE);
        *k = (struct known){(int64_t)id->uid, now_ms + CACHE_MS, roles};
    }
    titan_assert(k->roles != 0);
    return k->roles;
}

/* --- tokens ------------------------------------------------------------------------------------------------------- */

static struct token *find_token(const struct auth *a, const char *id)
{
    titan_assert(a->n_tokens <= a->cap_tokens);
    for (size_t i = 0; i < a->n_tokens; i++)
        if (strcmp(a->tokens[i].id, id) == 0)
            return &a->tokens[i];
    return NULL;
}

void auth_put_token(struct auth *a, const struct token *token, int64_t now_ms)
{
    if (token->expires_at_ms <= now_ms || find_token(a, token->id))
        return;
    VEC_MUST_PUSH(a->tokens, a->n_tokens, a->cap_tokens, *token);
}

int64_t auth_revoke_token(struct auth *a, const char *id, int64_t at_ms)
{
    struct token *t = find_token(a, id);
    const int64_t before_ms = t ? t->revoked_at_ms : 0;
    if (t)
        t->revoked_at_ms = at_ms;
    return before_ms;
}

static titan_status token_counts(const struct token *t, int64_t now_ms, struct titan_error *err)
{
    char then[32];
    if (t->revoked_at_ms)
        return titan_fail(err, TITAN_EPERM, "the token %s of %s was revoked at %s", t->id, t->name,
                          clock_format(t->revoked_at_ms, then));
    if (now_ms >= t->expires_at_ms)
        return titan_fail(err, TITAN_EPERM, "the token %s of %s expired at %s", t->id, t->name,
                          clock_format(t->expires_at_ms, then));
    return TITAN_OK;
}

titan_status auth_admits(const struct auth *a, const struct rpc_identity *identity, int64_t now_ms,
                         struct titan_error *err)
{
    const struct token *t = identity->kind == RPC_ID_TOKEN ? find_token(a, identity->name) : NULL;
    if (identity->kind != RPC_ID_TOKEN)
        return TITAN_OK;
    return t ? token_counts(t, now_ms, err) : titan_fail(err, TITAN_EPERM, "there is no token %s", identity->name);
}

titan_status auth_bearer(struct auth *a, const char *header, const struct rpc_identity *transport, int64_t now_ms,
                         struct rpc_identity *ret, struct titan_error *err)
{
    char id[TOKEN_ID_TEXT];
    unsigned char hash[TOKEN_HASH_BYTES];
    const char *text = value_of(header, "Bearer ");
    *ret = (struct rpc_identity){.kind = RPC_ID_NONE};
    if (!text)
        return titan_fail(err, TITAN_EPERM, "the header authorization is no bearer token");
    if (!transport->secure)
        return titan_fail(err, TITAN_EPERM, "a token is taken over TLS or the Unix socket only; it is no secret now");
    TRY(token_parse(text, id, hash, err));
    const struct token *t = find_token(a, id);
    if (!t || !token_matches(t, hash))
        return titan_fail(err, TITAN_EPERM, "the token is unknown");
    *ret = (struct rpc_identity){.kind = RPC_ID_TOKEN,
                                 .secure = true,
                                 .uid = (uid_t)-1,
                                 .gid = (gid_t)-1,
                                 .from_ms = t->created_at_ms,
                                 .until_ms = t->expires_at_ms};
    (void)snprintf(ret->name, sizeof(ret->name), "%s", t->id);
    return token_counts(t, now_ms, err);
}

/* --- all ---------------------------------------------------------------------------------------------------------- */

void auth_resolve(struct auth *a, const struct rpc_identity *id, int64_t now_ms, struct auth_user *u)
{
    static const enum policy_role roles[] = {
        [TOKEN_USER] = POLICY_USER, [TOKEN_OPERATOR] = POLICY_OPERATOR, [TOKEN_ADMIN] = POLICY_ADMIN};
    *u = (struct auth_user){.roles = POLICY_BIT(POLICY_UNAUTHENTICATED), .uid = JOB_NO_ID, .gid = JOB_NO_ID};
    (void)snprintf(u->actor, sizeof(u->actor), "%s", *id->name ? id->name : "anonymous");
    if (!a) {
        u->roles = POLICY_BIT(POLICY_ROLES) - 1;
        return;
    }
    switch (id->kind) {
    case RPC_ID_NONE:
        if (id->secure)
            break;
        u->roles |= POLICY_BIT(POLICY_ANONYMOUS);
        if (a->options.nodes_by_address)
            u->roles |= POLICY_BIT(POLICY_NODE);
        break;
    case RPC_ID_UID:
        u->uid = (int64_t)id->uid;
        u->gid = (int64_t)id->gid;
        u->roles |= process_roles(a, id, now_ms);
        (void)snprintf(u->name, sizeof(u->name), "%.*s", (int)sizeof(u->name) - 1, id->name);
        text_fit(u->name, '?'); /* a directory service may return any characters */
        text_fit(u->actor, '?');
        break;
    case RPC_ID_CERT: {
        const char *path = value_of(id->name, CERT_PREFIX);
        const char *user = path ? value_of(path, "user/") : NULL, *node = path ? value_of(path, "node/") : NULL;
        (void)snprintf(u->actor, sizeof(u->actor), "%s", path ? path : id->name);
        text_fit(u->actor, '?');
        if (user && *user && !strpbrk(user, ":/") && strlen(user) <= TOKEN_NAME_MAX &&
            text_unfit(user, strlen(user)) == strlen(user)) {
            (void)snprintf(u->name, sizeof(u->name), "%s", user);
            u->roles |= roles_of(a, JOB_NO_ID, user, NULL, 0);
        } else if (node && *node && !strchr(node, '/')) {
            u->roles |= POLICY_BIT(POLICY_NODE);
        }
        break;
    }
    case RPC_ID_TOKEN: {
        const struct token *t = find_token(a, id->name);
        if (!t)
            break;
        (void)snprintf(u->name, sizeof(u->name), "%s", t->name);
        (void)snprintf(u->actor, sizeof(u->actor), "%s (token %s)", t->name, t->id);
        if (token_counts(t, now_ms, NULL) == TITAN_OK && t->role >= TOKEN_USER && t->role <= TOKEN_ADMIN)
            u->roles |= t->role == TOKEN_USER && listed(&a->options.metrics, JOB_NO_ID, t->name, NULL, 0)
                            ? POLICY_BIT(POLICY_SCRAPER)
                            : roles_up_to(roles[t->role]);
        break;
    }
    }
}

static void take_options(struct auth *a, const struct auth_options *options)
{
    const struct auth_list *const lists[] = {&a->options.admins, &a->options.operators, &a->options.metrics};
    a->options = *options;
    a->by_group = false;
    for (size_t l = 0; l < ARRAY_SIZE(lists); l++)
        for (size_t i = 0; i < lists[l]->n; i++)
            a->by_group |= value_of(lists[l]->entry[i], "group:") != NULL;
    forget_roles(a);
}

struct auth *auth_new(const struct auth_options *options)
{
    struct auth *a = calloc(1, sizeof(*a));
    titan_assert(a);
    a->own = geteuid();
    take_options(a, options);
    return a;
}

void auth_reload(struct auth *a, const struct auth_options *options)
{
    struct auth_options now = *options;
    now.nodes_by_address = a->options.nodes_by_address;
    now.service = a->options.service;
    take_options(a, &now);
}

void auth_free(struct auth *a)
{
    titan_assert(!a || a->n_tokens <= a->cap_tokens);
    if (a)
        free(a->tokens);
    free(a);
}

bool auth_private_jobs(const struct auth *a)
{
    return a && a->options.private_jobs;
}
