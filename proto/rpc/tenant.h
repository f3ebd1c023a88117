/* SPDX-License-Identifier: Apache-2.0 */
/* tenant.h - what a server is made of: its methods, its listeners, and its tenants. Private to proto/rpc.
 *
 * A tenant is a gRPC server for one identity of connections: gRPC does not say by which listener
 * or connection a call came, and its name of a connection that was handed to it is a descriptor's number, which comes
 * again. Over TCP it is one for each address: what gRPC holds is bounded by tenant. Tenants share the completion queue;
 * they are made when the first connection comes. One of an address that has no connection left goes to another; one of
 * a user is given up when there are many and another user comes. */
#ifndef TITAN_PROTO_RPC_TENANT_H
#define TITAN_PROTO_RPC_TENANT_H

#include <sys/un.h>

#include "proto/rpc/common.h"
#include "proto/rpc/health.h"
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
    struct rpc_pair *pair;        /* with TLS; the server's */
    struct peer peer;             /* of TCP: has this tenant to itself, unless there are too many of them */
    grpc_resource_quota *quota;
    void *taker; /* gRPC's, of connections that are accepted here; of TCP, with and without TLS */
    struct rpc_tag shutdown_tag;
    uint32_t n_connections;
    uint32_t n_calls;     /* open ones of callers without a name of their own (struct caller) */
    uint32_t n_own_calls; /* open ones of health and reflection, of any caller */
    bool trusted;         /* root's or our own */
    uint32_t n_alive;     /* slots and calls that name it */
    bool leaving;         /* of a user without connections: another user has the place */
    bool shutting;        /* gRPC was told to shut it down */
    bool down;            /* it has */
    struct arrival *waiting, **waiting_last;
    int n_handing; /* arrivals on their way into gRPC, each on a thread */
    struct tenant_method {
        void *registered;
        int slots; /* calls that can be taken in one turn of the loop; further ones wait inside gRPC */
    } methods[];   /* as the server's endpoints */
};

enum { PEER_BUCKETS = 1024, CALLER_BUCKETS = 256 };

/* One with a certificate or a token that has calls open, wherever it calls from. */
struct caller {
    struct caller *next; /* in its bucket */
    uint32_t n_calls;
    enum rpc_id_kind kind;
    char name[sizeof(((struct rpc_identity *)0)->name)];
};

/* gRPC has the descriptor; fd is another of the same socket, which tells its end. */
struct connection {
    struct connection *next, *prev;
    struct connection *next_peer, *prev_peer; /* of TCP: in the bucket of its peer */
    struct peer peer;
    struct rpc_server *server;
    struct tenant *tenant; /* until it has ended */
    int fd;
    struct arrival *arrival; /* until gRPC has let go of the thread that brought it */
    uv_poll_t poll;
};

/* A connection that is handed to gRPC, by a thread: gRPC reads and parses it on that thread for as long as there is
 * something to read, which a client can draw out for many seconds. */
struct arrival {
    struct arrival *next;
    struct rpc_tag tag;
    pthread_t thread;
    struct tenant *tenant;
    struct connection *connection; /* NULL once that has ended */
    int fd;
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
    struct connection *connections;
    struct connection *peers[PEER_BUCKETS]; /* those of TCP */
    uint32_t n_connections;                 /* over Unix sockets, of uids that are not trusted */
    uint32_t n_tcp;                         /* over TCP */
    int spare_fd; /* to take a connection and close it when there is no other descriptor left */
    struct rpc_refusals refusals;
    int64_t refusal_said_ms;
    struct endpoint *endpoints;
    size_t n_endpoints;
    struct rpc_server_options options;
    struct rpc_health health;
    struct rpc_reflection reflection;

    struct rpc_call *open, *spare;
    size_t n_calls, n_spare; /* slots and calls alive; spare ones not counted */
    bool started, stopping, stopped, grace_is_over;
    int tenants_up, n_handing;
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

/* What the client of this call has proved. */
void rpc_tenant_identify(const struct tenant *tenant, grpc_call *call, struct rpc_identity *ret);
/* Start every tenant that is there, and take connections from now on. */
titan_status rpc_tenants_start(struct rpc_server *server, struct titan_error *err) TITAN_MUST_USE;
/* Take no more connections. Descriptors of listeners of ours are closed and their files removed. */
void rpc_listeners_stop(struct rpc_server *server);
/* Close the handles of listeners; each calls rpc_handle_closed. Returns how many. */
int rpc_listeners_close(struct rpc_server *server);
/* Drop connections that wait for gRPC, and cut those that hold up the thread that brings them. */
void rpc_arrivals_drop(struct rpc_server *server);
void rpc_arrivals_cut(struct rpc_server *server);
/* The same for connections, of which each is freed. */
int rpc_connections_close(struct rpc_server *server);
void rpc_tenants_destroy(struct rpc_server *server); /* after they are shut down */
void rpc_listeners_free(struct rpc_server *server);

#endif
