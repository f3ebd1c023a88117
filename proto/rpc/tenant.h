/* SPDX-License-Identifier: Apache-2.0 */
/* tenant.h - the parts of a server: its methods, its listeners, and its tenants. Private to proto/rpc.
 *
 * A tenant is a gRPC server for the connections of one uid or, over TCP, of one address, because gRPC limits its memory
 * per server. gRPC does not report a call's connection, and names an adopted connection by its descriptor's number,
 * which is reused; over TCP a header that the proxy adds identifies the connection (filter.h). Tenants share the
 * completion queue; the first connection creates a tenant. The tenant of an address without connections goes to another
 * address. The tenant of a user is given up when there are many and another user comes. */
#ifndef TITAN_PROTO_RPC_TENANT_H
#define TITAN_PROTO_RPC_TENANT_H

#include <sys/un.h>

#include "proto/rpc/common.h"
#include "proto/rpc/health.h"
#include "proto/rpc/proxy.h"
#include "proto/rpc/reflection.h"
#include "proto/rpc/server.h"

struct endpoint {
    struct rpc_method method; /* path NULL: all methods that are not served */
    void *data;
    bool own; /* health and reflection */
};

/* A host; an IPv6 host is its /64, because one host can choose any address in it. */
struct peer {
    uint8_t address[16]; /* IPv4 in its IPv6 form */
};

struct tenant {
    struct tenant *next;
    struct rpc_server *owner;
    grpc_server *server;
    struct rpc_identity identity; /* identity of its connections; with TLS each may have another */
    uint32_t message_max;         /* bytes of the largest message */
    bool tcp;
    struct peer peer; /* for TCP: the tenant is its own, unless there are too many peers */
    grpc_resource_quota *quota;
    struct rpc_tag shutdown_tag;
    uint32_t n_connections;
    uint32_t n_calls;     /* open calls of callers without a name of their own (struct caller) */
    uint32_t n_own_calls; /* open calls of health and reflection, of any caller */
    bool trusted;         /* root's, or this process's uid */
    uint32_t n_alive;     /* slots and calls that reference it */
    bool leaving;         /* a user's tenant without connections: another user takes its place */
    bool shutting;        /* gRPC's shutdown was requested */
    bool down;            /* gRPC's shutdown is done */
    struct tenant_method {
        void *registered;
        int slots; /* calls accepted in one turn of the loop; further calls wait inside gRPC */
    } methods[];   /* in the order of the server's endpoints */
};

enum { PEER_BUCKETS = 1024, CONNECTION_BUCKETS = 1024, CALLER_BUCKETS = 256 };

/* A certificate or token with open calls, from any address. */
struct caller {
    struct caller *next; /* in the same bucket */
    uint32_t n_calls;
    enum rpc_id_kind kind;
    char name[sizeof(((struct rpc_identity *)0)->name)];
};

struct connection {
    struct rpc_proxy_connection proxy;
    struct connection *next, *prev;           /* in the bucket of its id */
    struct connection *next_peer, *prev_peer; /* TCP: in the bucket of its peer */
    uint64_t id;
    struct peer peer;
    char address[96]; /* TCP: "ipv4:127.0.0.1:5000" */
    uint64_t named;   /* hash of the certificate or token of its calls; 0: none known */
    uint32_t n_begun; /* calls with their first message that have not ended */
    struct rpc_server *server;
    struct tenant *tenant;
};

enum listener_kind { LISTENER_LOCAL, LISTENER_PLAIN, LISTENER_TLS };

/* A listening socket; the server accepts connections here and hands them to gRPC. */
struct listener {
    struct listener *next;
    struct rpc_server *server;
    int fd;
    enum listener_kind kind;
    char path[sizeof(((struct sockaddr_un *)0)->sun_path)]; /* "" = none */
    bool owned; /* false: the service manager's socket, which stays open at exit */
    bool polled;
    uv_poll_t poll;
};

struct rpc_server {
    uv_loop_t *loop;
    struct rpc_queue queue;
    struct tenant *tenants;
    struct rpc_pair *pair; /* of the TLS listeners, or NULL */
    uint32_t n_users;      /* tenants of untrusted uids, without leaving ones */
    uint32_t n_leaving;    /* ... leaving ones */
    uint32_t n_peers[2];   /* tenants of TCP, without and with TLS */
    uint32_t n_active[2];  /* tenants with connections: of Unix sockets (except trusted ones), and of TCP */
    uint64_t share[2];     /* memory for each of them; 0 = options.memory_bytes */
    struct caller *callers[CALLER_BUCKETS];
    struct listener *listeners;
    struct rpc_proxy *proxy; /* from its start to its end */
    struct connection *connections[CONNECTION_BUCKETS];
    struct connection *peers[PEER_BUCKETS]; /* connections of TCP */
    uint64_t last_id;                       /* of the newest connection */
    char secret[33];                        /* proves that the proxy has added a header */
    uint32_t n_connections;                 /* over Unix sockets, of untrusted uids */
    uint32_t n_tcp;                         /* over TCP */
    int spare_fd; /* freed to accept and close a connection when no other descriptor is left */
    struct rpc_refusals refusals;
    int64_t refusal_reported_ms;
    struct endpoint *endpoints;
    size_t n_endpoints;
    void *methods_data; /* for endpoints other than Titan's own */
    struct rpc_server_options options;
    struct rpc_health health;
    struct rpc_reflection reflection;

    struct rpc_call *open, *spare;
    size_t n_calls, n_spare; /* slots and calls alive, without spare ones */
    bool started, stopping, stopped, grace_is_over;
    int tenants_up;
    uv_timer_t timer; /* for late requests; during shutdown, for its end */
    int handles;      /* handles still open */
    void (*done)(void *);
    void *data;
};

/* server.c: offers gRPC a slot for the next call of this method. */
void rpc_slot_offer(struct tenant *tenant, size_t endpoint);
/* server.c: counts a closed handle of server->handles. */
void rpc_handle_closed(struct rpc_server *server);

/* server.c: continues the shutdown of this tenant and of the server, if one is under way. */
void rpc_tenant_advance(struct tenant *tenant);
/* Frees a leaving tenant without remaining parts; called whenever a part has gone. */
void rpc_tenant_gone(struct tenant *tenant);
void rpc_shutdown_advance(struct rpc_server *server);

/* The connection with this id, or the connection of a call with these headers; NULL: the connection has ended, or is of
 * a Unix socket. */
struct connection *rpc_connection_get(struct rpc_server *server, uint64_t id);
struct connection *rpc_connection_of(struct rpc_server *server, const grpc_metadata_array *headers);
/* Counts a call of the connection with this id, if it exists. by 1: an accepted call's first message has arrived; by
 * -1: such a call has ended. */
void rpc_connection_count(struct rpc_server *server, uint64_t id, const struct rpc_identity *caller, int by);
/* The identity that the client of such a call has proved. */
void rpc_tenant_identify(const struct tenant *tenant, const struct connection *connection, struct rpc_identity *ret);
/* Starts every existing tenant, and accepts connections from now on. */
titan_status rpc_tenants_start(struct rpc_server *server, struct titan_error *err) TITAN_MUST_USE;
/* Accepts no more connections. Titan's own listeners are closed and their files removed. */
void rpc_listeners_stop(struct rpc_server *server);
/* Closes the handles of listeners; each calls rpc_handle_closed. Returns their number. */
int rpc_listeners_close(struct rpc_server *server);
void rpc_tenants_destroy(struct rpc_server *server); /* after they are shut down */
void rpc_listeners_free(struct rpc_server *server);

#endif
