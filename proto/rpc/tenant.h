/* SPDX-License-Identifier: Apache-2.0 */
/* tenant.h - what a server is made of: its methods, its listeners, and its tenants. Private to proto/rpc.
 *
 * A tenant is a gRPC server for the connections of one uid or, over TCP, of one address: what gRPC holds is bounded by
 * server. gRPC does not say by which connection a call came, and its name of one that was handed to it is a
 * descriptor's number, which comes again; over TCP a header tells, which the proxy adds (filter.h). Tenants share the
 * completion queue; they are made when the first connection comes. One of an address that has no connection left goes
 * to another; one of a user is given up when there are many and another user comes. */
#ifndef TITAN_PROTO_RPC_TENANT_H
#define TITAN_PROTO_RPC_TENANT_H

#include <sys/un.h>

#include "proto/rpc/common.h"
#include "proto/rpc/health.h"
#include "proto/rpc/proxy.h"
#include "proto/rpc/reflection.h"
#include "proto/rpc/server.h"

struct endpoint {
    struct rpc_method method; /* path NULL: whatever is not served */
    void *data;
    bool own; /* health and reflection */
};

/* A host: of IPv6 its /64, which is one host's to choose from. */
struct peer {
    uint8_t address[16]; /* IPv4 as IPv6 has it */
};

struct tenant {
    struct tenant *next;
    struct rpc_server *owner;
    grpc_server *server;
    struct rpc_identity identity; /* of its connections; with TLS each may have another */
    uint32_t message_max;         /* bytes of a message that it takes */
    bool tcp;
    struct peer peer; /* of TCP: has this tenant to itself, unless there are too many of them */
    grpc_resource_quota *quota;
    struct rpc_tag shutdown_tag;
    uint32_t n_connections;
    uint32_t n_calls;     /* open ones of callers without a name of their own (struct caller) */
    uint32_t n_own_calls; /* open ones of health and reflection, of any caller */
    bool trusted;         /* root's or our own */
    uint32_t n_alive;     /* slots and calls that name it */
    bool leaving;         /* of a user without connections: another user has the place */
    bool shutting;        /* gRPC was told to shut it down */
    bool down;            /* it has */
    struct tenant_method {
        void *registered;
        int slots; /* calls that can be taken in one turn of the loop; further ones wait inside gRPC */
    } methods[];   /* as the server's endpoints */
};

enum { PEER_BUCKETS = 1024, CONNECTION_BUCKETS = 1024, CALLER_BUCKETS = 256 };

/* One with a certificate or a token that has calls open, wherever it calls from. */
struct caller {
    struct caller *next; /* in its bucket */
    uint32_t n_calls;
    enum rpc_id_kind kind;
    char name[sizeof(((struct rpc_identity *)0)->name)];
};

struct connection {
    struct rpc_proxy_connection proxy;
    struct connection *next, *prev;           /* in the bucket of its id */
    struct connection *next_peer, *prev_peer; /* of TCP: in the bucket of its peer */
    uint64_t id;
    struct peer peer;
    char address[96]; /* of TCP: "ipv4:127.0.0.1:5000" */
    uint64_t named;   /* a hash of the certificate or token that it came with; 0: of neither, as far as is known */
    uint32_t n_begun; /* calls that have their first message and are not over */
    struct rpc_server *server;
    struct tenant *tenant;
};

enum listener_kind { LISTENER_LOCAL, LISTENER_PLAIN, LISTENER_TLS };

/* A listening socket: connections are accepted here and handed to gRPC. */
struct listener {
    struct listener *next;
    struct rpc_server *server;
    int fd;
    enum listener_kind kind;
    char path[sizeof(((struct sockaddr_un *)0)->sun_path)]; /* "" = none */
    bool owned;                                             /* or of the service manager: stays open when we go */
    bool polled;
    uv_poll_t poll;
};

struct rpc_server {
    uv_loop_t *loop;
    struct rpc_queue queue;
    struct tenant *tenants;
    struct rpc_pair *pair; /* of its listeners with TLS, or NULL */
    uint32_t n_users;      /* tenants of uids that are not trusted, without those that leave */
    uint32_t n_leaving;    /* ... those */
    uint32_t n_peers[2];   /* tenants of TCP, without and with TLS */
    uint32_t n_active[2];  /* tenants with connections, of Unix sockets (but trusted ones) and of TCP */
    uint64_t share[2];     /* of memory for each of them; 0 = options.memory_bytes */
    struct caller *callers[CALLER_BUCKETS];
    struct listener *listeners;
    struct rpc_proxy *proxy; /* from its start to its end */
    struct connection *connections[CONNECTION_BUCKETS];
    struct connection *peers[PEER_BUCKETS]; /* those of TCP */
    uint64_t last_id;                       /* of a connection */
    char secret[33];                        /* proves that the proxy has added a header */
    uint32_t n_connections;                 /* over Unix sockets, of uids that are not trusted */
    uint32_t n_tcp;                         /* over TCP */
    int spare_fd; /* to take a connection and close it when there is no other descriptor left */
    struct rpc_refusals refusals;
    int64_t refusal_said_ms;
    struct endpoint *endpoints;
    size_t n_endpoints;
    void *methods_data; /* of the endpoints that are not our own */
    struct rpc_server_options options;
    struct rpc_health health;
    struct rpc_reflection reflection;

    struct rpc_call *open, *spare;
    size_t n_calls, n_spare; /* slots and calls alive; spare ones not counted */
    bool started, stopping, stopped, grace_is_over;
    int tenants_up;
    uv_timer_t timer; /* requests that are late; from the shutdown on, its end */
    int handles;      /* still to be closed */
    void (*done)(void *);
    void *data;
};

/* server.c: offer gRPC a slot for the next call of this method. */
void rpc_slot_offer(struct tenant *tenant, size_t endpoint);
/* server.c: one of server->handles is closed. */
void rpc_handle_closed(struct rpc_server *server);

/* server.c: go on with the shutdown of this tenant, and of the server, if there is one. */
void rpc_tenant_advance(struct tenant *tenant);
/* Free it if it leaves and nothing of it is left; called whenever something has gone. */
void rpc_tenant_gone(struct tenant *tenant);
void rpc_shutdown_advance(struct rpc_server *server);

/* The connection of this id, or the one that a call with these headers came over; NULL: it has ended, or is of a Unix
 * socket. */
struct connection *rpc_connection_get(struct rpc_server *server, uint64_t id);
struct connection *rpc_connection_of(struct rpc_server *server, const grpc_metadata_array *headers);
/* Of the connection of this id, if there is one: the first message of one more call that was let in is there, or (by
 * -1) such a call is over. */
void rpc_connection_count(struct rpc_server *server, uint64_t id, const struct rpc_identity *caller, int by);
/* What the client of such a call has proved. */
void rpc_tenant_identify(const struct tenant *tenant, const struct connection *connection, struct rpc_identity *ret);
/* Start every tenant that is there, and take connections from now on. */
titan_status rpc_tenants_start(struct rpc_server *server, struct titan_error *err) TITAN_MUST_USE;
/* Take no more connections. Descriptors of listeners of ours are closed and their files removed. */
void rpc_listeners_stop(struct rpc_server *server);
/* Close the handles of listeners; each calls rpc_handle_closed. Returns how many. */
int rpc_listeners_close(struct rpc_server *server);
void rpc_tenants_destroy(struct rpc_server *server); /* after they are shut down */
void rpc_listeners_free(struct rpc_server *server);

#endif
