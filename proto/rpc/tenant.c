/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/rpc/tenant.h"

#include <netdb.h>
#include <netinet/in.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/hash.h"

enum { SHARES = 4 };

static struct rpc_tenant **bucket_of(struct rpc_tenants *all, const char *key)
{
    return &all->buckets[hash_index(hash_text(HASH_INIT, key), RPC_TENANT_BUCKETS)];
}

/* Takes the tenant out of the table; a user's connections that gRPC has not shut down yet may still refer to it. */
static void forget(struct rpc_tenants *all, struct rpc_tenant *tenant)
{
    titan_assert(tenant->n_connections == 0 && tenant->n_calls == 0 && tenant->n_own_calls == 0);
    struct rpc_tenant **at = bucket_of(all, tenant->key);
    while (*at != tenant)
        at = &(*at)->next;
    *at = tenant->next;
    tenant->forgotten = true;
    all->n_users -= tenant->kind == RPC_ID_UID && !tenant->trusted;
    if (tenant->n_refs == 0)
        free(tenant);
}

/* Finds or makes the tenant with this key. A new user has no name yet. */
static struct rpc_tenant *get(struct rpc_tenants *all, enum rpc_id_kind kind, const char *key, bool trusted)
{
    for (struct rpc_tenant *t = *bucket_of(all, key); t; t = t->next)
        if (t->kind == kind && strcmp(t->key, key) == 0) {
            t->n_refs++;
            return t;
        }
    const bool counts = kind == RPC_ID_UID && !trusted;
    /* A user without connections makes room for another. */
    for (size_t i = 0; counts && all->n_users >= all->options->max_users; i++) {
        struct rpc_tenant *t = i < RPC_TENANT_BUCKETS ? all->buckets[i] : NULL;
        while (t && (t->kind != RPC_ID_UID || t->trusted || t->n_connections > 0 || t->n_calls > 0))
            t = t->next;
        if (t)
            forget(all, t);
        else if (i >= RPC_TENANT_BUCKETS)
            return NULL;
    }
    struct rpc_tenant *tenant = calloc(1, sizeof(*tenant));
    if (!tenant)
        return NULL;
    struct rpc_tenant **bucket = bucket_of(all, key);
    *tenant = (struct rpc_tenant){.next = *bucket, .kind = kind, .trusted = trusted, .n_refs = 1};
    (void)snprintf(tenant->key, sizeof(tenant->key), "%s", key);
    all->n_users += counts;
    return *bucket = tenant;
}

struct rpc_tenant *rpc_tenant_of_user(struct rpc_tenants *all, int fd)
{
    struct ucred peer;
    socklen_t len = sizeof(peer);
    char key[16], text[4096];
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) != 0 || len != sizeof(peer))
        return NULL;
    (void)snprintf(key, sizeof(key), "%u", (unsigned)peer.uid);
    struct rpc_tenant *tenant = get(all, RPC_ID_UID, key, peer.uid == 0 || peer.uid == geteuid());
    if (!tenant || tenant->identity.name[0])
        return tenant;

    /* The name from NSS, or "uid:N". */
    struct rpc_identity *identity = &tenant->identity;
    struct passwd entry, *found = NULL;
    *identity = (struct rpc_identity){.kind = RPC_ID_UID, .secure = true, .uid = peer.uid, .gid = peer.gid};
    if (getpwuid_r(peer.uid, &entry, text, sizeof(text), &found) == 0 && found && found->pw_name[0] &&
        strlen(found->pw_name) < sizeof(identity->name)) {
        identity->gid = found->pw_gid;
        (void)snprintf(identity->name, sizeof(identity->name), "%s", found->pw_name);
    } else {
        (void)snprintf(identity->name, sizeof(identity->name), "uid:%s", key);
    }
    return tenant;
}

struct rpc_tenant *rpc_tenant_of_address(struct rpc_tenants *all, int fd, char *text, size_t text_bytes)
{
    union {
        struct sockaddr any;
        struct sockaddr_in6 v6;
        struct sockaddr_storage room;
    } address = {.room = {0}};
    socklen_t len = sizeof(address);
    char host[64], port[8], key[64];
    if (getpeername(fd, &address.any, &len) != 0 ||
        getnameinfo(&address.any, len, host, sizeof(host), port, sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        return NULL;
    const bool v6 = address.any.sa_family == AF_INET6, mapped = v6 && IN6_IS_ADDR_V4MAPPED(&address.v6.sin6_addr);
    if (!v6 || mapped) {
        (void)snprintf(key, sizeof(key), "%s", mapped ? host + strlen("::ffff:") : host);
        (void)snprintf(text, text_bytes, "ipv4:%s:%s", key, port);
    } else {
        const uint8_t *a = address.v6.sin6_addr.s6_addr;
        (void)snprintf(text, text_bytes, "ipv6:[%s]:%s", host, port);
        (void)snprintf(key, sizeof(key), "%02x%02x:%02x%02x:%02x%02x:%02x%02x::/64", a[0], a[1], a[2], a[3], a[4], a[5],
                       a[6], a[7]);
    }
    struct rpc_tenant *tenant = get(all, RPC_ID_NONE, key, false);
    if (tenant)
        tenant->identity = (struct rpc_identity){.uid = (uid_t)-1, .gid = (gid_t)-1, .name = "anonymous"};
    return tenant;
}

struct rpc_tenant *rpc_tenant_of_call(struct rpc_tenants *all, struct rpc_tenant *connection,
                                      const struct rpc_identity *caller)
{
    if (caller->kind == RPC_ID_CERT || caller->kind == RPC_ID_TOKEN)
        return get(all, caller->kind, caller->name, false);
    connection->n_refs++;
    return connection;
}

void rpc_tenant_unref(struct rpc_tenants *all, struct rpc_tenant *tenant)
{
    titan_assert(tenant->n_refs > 0);
    if (--tenant->n_refs > 0 || (tenant->kind == RPC_ID_UID && !tenant->forgotten))
        return;
    if (!tenant->forgotten)
        forget(all, tenant);
    else
        free(tenant);
}

void rpc_tenant_connected(struct rpc_tenants *all, struct rpc_tenant *tenant, int by)
{
    static const size_t n_pools[RPC_CLASSES] = {[RPC_USERS] = RPC_POOLS, [RPC_ADDRESSES] = 64, [RPC_TRUSTED] = 2};
    const bool tcp = tenant->kind == RPC_ID_NONE;
    const enum rpc_class_kind kind = tenant->trusted ? RPC_TRUSTED : tcp ? RPC_ADDRESSES : RPC_USERS;
    struct rpc_class *class = &all->classes[kind];
    titan_assert(by == 1 || (by == -1 && tenant->n_connections > 0));
    class->n_connections += (uint32_t)by;
    tenant->n_connections += (uint32_t)by;
    if (by == 1 && tenant->n_connections == 1) {
        /* Chooses the pool with the fewest tenants. Of equal pools it avoids the pool chosen last, where memory of a
         * user that has left may still be. */
        tenant->pool = &class->pools[class->next_pool++ % n_pools[kind]];
        for (size_t i = 0; i < n_pools[kind]; i++)
            if (class->pools[i].n < tenant->pool->n)
                tenant->pool = &class->pools[i];
        class->n_active += tenant->pool->n++ == 0;
    } else if (tenant->n_connections == 0) {
        class->n_active -= --tenant->pool->n == 0;
    }

    /* Divides gRPC's memory among the pools with connections. */
    const uint64_t most = all->options->memory_bytes;
    const uint64_t share = MIN(most, SHARES * most / MAX(class->n_active, 1));
    if (!tenant->pool->quota) {
        tenant->pool->quota = grpc_resource_quota_create(tenant->key);
        grpc_resource_quota_resize(tenant->pool->quota, (size_t)share);
    }
    for (size_t i = 0; share != class->share && i < n_pools[kind]; i++)
        if (class->pools[i].quota)
            grpc_resource_quota_resize(class->pools[i].quota, (size_t)share);
    class->share = share;
}

void rpc_tenants_free(struct rpc_tenants *all)
{
    for (size_t i = 0; i < RPC_TENANT_BUCKETS; i++)
        while (all->buckets[i])
            forget(all, all->buckets[i]);
    for (size_t i = 0; i < RPC_CLASSES * RPC_POOLS; i++)
        if (all->classes[i / RPC_POOLS].pools[i % RPC_POOLS].quota)
            grpc_resource_quota_unref(all->classes[i / RPC_POOLS].pools[i % RPC_POOLS].quota);
}
