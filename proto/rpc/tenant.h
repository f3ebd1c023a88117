/* SPDX-License-Identifier: Apache-2.0 */
/* tenant.h - the users of a server, and the resources that each holds. A tenant is a user of the Unix sockets, an
 * address of TCP, or a certificate or token. Private to proto/rpc; one thread.
 *
 * All connections of a user or address share a quota of gRPC's memory: incomplete messages and unsent output. Many
 * users together get SHARES times the quota of one user, and so do many addresses. With more than 64 addresses, several
 * addresses share a quota. */
#ifndef TITAN_PROTO_RPC_TENANT_H
#define TITAN_PROTO_RPC_TENANT_H

#include <grpc/grpc.h>

#include "proto/rpc/server.h"

/* TRUSTED: root, and this process's uid. */
enum rpc_class_kind { RPC_USERS, RPC_ADDRESSES, RPC_TRUSTED, RPC_CLASSES };
enum { RPC_TENANT_BUCKETS = 1024, RPC_POOLS = 512 };

/* Tenants that share the memory of gRPC among themselves. */
struct rpc_class {
    struct rpc_pool {
        grpc_resource_quota *quota;
        uint32_t n; /* tenants with connections */
    } pools[RPC_POOLS];
    uint32_t next_pool; /* the pool to look at first for a new user */
    uint32_t n_connections;
    uint32_t n_active; /* pools with connections */
    uint64_t share;    /* memory of each pool */
};

struct rpc_tenant {
    struct rpc_tenant *next;      /* next tenant of the bucket */
    enum rpc_id_kind kind;        /* RPC_ID_NONE: an address */
    char key[192];                /* a uid or address as text, or the caller's name */
    struct rpc_identity identity; /* of connections without a certificate; of an address: anonymous */
    bool trusted;                 /* root, or this process's uid */
    bool forgotten;               /* not in its bucket any more: another user has its place */
    uint32_t n_refs;              /* 0: the user is kept only for its name */
    uint32_t n_connections;
    uint32_t n_calls; /* open calls; calls of a caller with a certificate or token count in the caller's own tenant */
    uint32_t n_own_calls;  /* open calls of health and reflection over its connections, of any caller */
    struct rpc_pool *pool; /* while it has connections */
};

struct rpc_tenants {
    const struct rpc_server_options *options;
    struct rpc_tenant *buckets[RPC_TENANT_BUCKETS];
    struct rpc_class classes[RPC_CLASSES];
    uint32_t n_users; /* untrusted users */
};

/* The tenant of a new connection; NULL: refused. The caller gets a reference. */
struct rpc_tenant *rpc_tenant_of_user(struct rpc_tenants *all, int fd);
/* text gets the address with the port as gRPC writes it. Each address is one tenant. With IPv6, all addresses of a /64
 * are one tenant, because one host can choose any of them. */
struct rpc_tenant *rpc_tenant_of_address(struct rpc_tenants *all, int fd, char *text, size_t text_bytes);
/* Returns the tenant against which a connection's call counts. A caller with a certificate or token has a tenant of its
 * own, at any address. NULL: out of memory. The caller gets a reference. */
struct rpc_tenant *rpc_tenant_of_call(struct rpc_tenants *all, struct rpc_tenant *connection,
                                      const struct rpc_identity *caller);
void rpc_tenant_unref(struct rpc_tenants *all, struct rpc_tenant *tenant);
/* Counts a new connection, or with `by` = -1 an ended connection. */
void rpc_tenant_connected(struct rpc_tenants *all, struct rpc_tenant *tenant, int by);
void rpc_tenants_free(struct rpc_tenants *all);

#endif
