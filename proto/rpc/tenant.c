/* SPDX-License-Identifier: Apache-2.0 */
/* tenant.c - listeners, the identity of their connections, and the gRPC server ("tenant") of each identity; see
 * tenant.h.
 */
#include "proto/rpc/tenant.h"

#include <errno.h>
#include <fcntl.h>
#include <grpc/grpc_posix.h>
#include <grpc/grpc_security.h>
#include <inttypes.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/crypto.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/slowest.h"
#include "proto/rpc/pair.h"

enum {
    PEERS_MAX = 64,  /* addresses with their own tenant, of TCP with or without TLS; further addresses share */
    SHARES = 4,      /* all TCP tenants together get memory_bytes times this, and so do those of Unix sockets */
    SLOTS_FIRST = 2, /* per method; a used tenant gets more */
    LISTEN_BACKLOG = 4096,
    ACCEPTS = 64,       /* per turn of the loop */
    FDS_RESERVED = 256, /* for the daemon's own work, never for connections */
    METADATA_MAX = 16384,
    STREAMS_FACTOR = 4, /* a client may begin calls before it knows the limit */
    PAIR_BUFFER = 64 << 10,
    KEEPALIVE_MS = 30000,
    KEEPALIVE_WAIT_MS = 10000,
    REFUSAL_SAID_MS = 60000,
};

#define CONNECTION_HEADER "titan-connection"

/* --- tenants ------------------------------------------------------------------------------------------------------ */

static bool uid_trusted(uid_t uid)
{
    return uid == 0 || uid == geteuid();
}

/* Requires a shut-down tenant without calls. */
static void tenant_free(struct tenant *tenant)
{
    grpc_server_destroy(tenant->server);
    grpc_resource_quota_unref(tenant->quota);
    free(tenant);
}

static grpc_arg arg_int(const char *key, int value)
{
    return (grpc_arg){.type = GRPC_ARG_INTEGER, .key = (char *)(uintptr_t)key, .value.integer = value};
}

static titan_status tenant_open(struct rpc_server *server, const struct rpc_identity *identity, struct tenant **ret,
                                struct titan_error *err)
{
    struct tenant *tenant = calloc(1, sizeof(*tenant) + server->n_endpoints * sizeof(tenant->methods[0]));
    if (!tenant)
        return titan_fail(err, TITAN_ENOMEM, "rpc: no memory for a server");
    const struct rpc_server_options *options = &server->options;
    tenant->trusted = identity->kind == RPC_ID_UID && uid_trusted(identity->uid);
    tenant->message_max = tenant->trusted ? options->max_message_bytes : options->max_user_message_bytes;
    grpc_resource_quota *quota = tenant->quota = grpc_resource_quota_create(identity->name);
    const uint64_t share = tenant->trusted ? 0 : server->share[identity->kind != RPC_ID_UID];
    grpc_resource_quota_resize(quota, (size_t)(share ? share : options->memory_bytes));
    grpc_arg args[] = {
        arg_int(GRPC_ARG_ALLOW_REUSEPORT, 0),
        arg_int(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, (int)tenant->message_max),
        arg_int(GRPC_ARG_MAX_CONCURRENT_STREAMS, (int)server->options.max_concurrent_streams),
        {.type = GRPC_ARG_POINTER,
         .key = (char *)(uintptr_t)GRPC_ARG_RESOURCE_QUOTA,
         .value.pointer = {quota, grpc_resource_quota_arg_vtable()}},
        arg_int(GRPC_ARG_MAX_METADATA_SIZE, METADATA_MAX),
        arg_int(GRPC_ARG_MAX_CONNECTION_IDLE_MS,
                (int)(identity->kind == RPC_ID_UID ? options->idle_ms : options->tcp_idle_ms)),
        /* BDP pings on every connection dominate: with 1,000 agents 63 % of a core, without them 23 %. */
        arg_int(GRPC_ARG_HTTP2_BDP_PROBE, 0),
        arg_int(GRPC_ARG_KEEPALIVE_TIME_MS, KEEPALIVE_MS),
        arg_int(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, KEEPALIVE_WAIT_MS),
        /* Titan's clients ping every 10 s, also when idle. */
        arg_int(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1),
        arg_int(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5000),
        arg_int(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, RPC_FRAME_MAX),
        /* Headers never refer to earlier answers: the filter may drop an answer. */
        arg_int(GRPC_ARG_HTTP2_HPACK_TABLE_SIZE_ENCODER, 0),
        /* Identity only: a small compressed message could exceed the limit when decompressed. */
        arg_int(GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET, 1 << GRPC_COMPRESS_NONE),
    };
    grpc_channel_args list = {.num_args = ARRAY_SIZE(args), .args = args};
    tenant->owner = server;
    tenant->identity = *identity;
    tenant->server = grpc_server_create(&list, NULL);
    grpc_server_register_completion_queue(tenant->server, server->queue.cq, NULL);
    tenant->next = server->tenants; /* from here on the server's, also after a failure below */
    server->tenants = tenant;
    for (size_t i = 0; i < server->n_endpoints; i++) {
        const struct rpc_method *method = &server->endpoints[i].method;
        if (!method->path)
            continue;
        tenant->methods[i].registered =
            grpc_server_register_method(tenant->server, method->path, NULL, GRPC_SRM_PAYLOAD_NONE, 0);
        titan_assert(tenant->methods[i].registered); /* otherwise the table has a method twice */
    }
    *ret = tenant;
    return TITAN_OK;
}

static const struct rpc_identity anonymous = {
    .kind = RPC_ID_NONE, .uid = (uid_t)-1, .gid = (gid_t)-1, .name = "anonymous"};

/* Opens a tenant for connections of an address, with the server's TLS or without. */
static titan_status tcp_open(struct rpc_server *server, bool secure, struct tenant **ret, struct titan_error *err)
{
    struct rpc_identity identity = anonymous;
    identity.secure = secure;
    TRY(tenant_open(server, &identity, ret, err));
    (*ret)->tcp = true;
    server->n_peers[secure]++;
    return TITAN_OK;
}

/* Creates the first tenant of a kind before the server starts, to report errors early. */
static titan_status tcp_prepare(struct rpc_server *server, const struct rpc_tls *tls, struct titan_error *err)
{
    struct tenant *tenant;
    if (tls && !tls->certificate[0])
        return titan_fail(err, TITAN_EINVAL, "tls: a server needs a certificate of its own");
    if (tls && !server->pair)
        TRY(rpc_pair_open(tls, &server->pair, err));
    return server->n_peers[tls != NULL] ? TITAN_OK : tcp_open(server, tls != NULL, &tenant, err);
}

void rpc_tenant_identify(const struct tenant *tenant, const struct connection *connection, struct rpc_identity *ret)
{
    *ret = tenant->identity;
    if (!connection || !atomic_load(&connection->proxy.identified))
        return;
    titan_assert(connection->tenant == tenant && tenant->tcp);
    ret->kind = RPC_ID_CERT;
    memcpy(ret->name, connection->proxy.name, sizeof(ret->name));
    ret->from_ms = connection->proxy.from_ms;
    ret->until_ms = atomic_load(&connection->proxy.until_ms);
}

static void tenant_start(struct tenant *tenant)
{
    grpc_server_start(tenant->server);
    tenant->owner->tenants_up++;
    for (size_t i = 0; i < tenant->owner->n_endpoints; i++)
        for (tenant->methods[i].slots = 0; tenant->methods[i].slots < SLOTS_FIRST; tenant->methods[i].slots++)
            rpc_slot_offer(tenant, i);
}

/* The name from NSS, or "uid:N". */
static void uid_identity(const struct ucred *peer, struct rpc_identity *ret)
{
    char text[4096];
    struct passwd entry, *found = NULL;
    *ret = (struct rpc_identity){.kind = RPC_ID_UID, .secure = true, .uid = peer->uid, .gid = peer->gid};
    if (getpwuid_r(peer->uid, &entry, text, sizeof(text), &found) == 0 && found && found->pw_name[0] &&
        strlen(found->pw_name) < sizeof(ret->name)) {
        ret->gid = found->pw_gid;
        (void)snprintf(ret->name, sizeof(ret->name), "%s", found->pw_name);
    } else {
        (void)snprintf(ret->name, sizeof(ret->name), "uid:%u", (unsigned)peer->uid);
    }
}

static bool tenant_is_idle(const struct tenant *tenant)
{
    return tenant->n_connections == 0 && tenant->n_calls == 0;
}

/* Makes room for another user: the oldest tenant of a user without connections goes. Unlike tenants of addresses it is
 * not reused: a call of the last user may still be inside gRPC. */
static bool user_give_up(struct rpc_server *server)
{
    struct tenant *oldest = NULL;
    for (struct tenant *tenant = server->tenants; tenant; tenant = tenant->next)
        if (tenant->identity.kind == RPC_ID_UID && !tenant->trusted && !tenant->leaving && tenant_is_idle(tenant))
            oldest = tenant;
    if (!oldest || server->n_leaving >= server->options.max_users)
        return false;
    titan_assert(server->n_users > 0);
    oldest->leaving = true;
    server->n_users--;
    server->n_leaving++;
    rpc_tenant_advance(oldest);
    return true;
}

void rpc_tenant_gone(struct tenant *tenant)
{
    struct rpc_server *server = tenant->owner;
    if (!tenant->leaving || !tenant->down || tenant->n_alive > 0)
        return;
    titan_assert(server->n_leaving > 0 && tenant_is_idle(tenant));
    struct tenant **at = &server->tenants;
    while (*at != tenant)
        at = &(*at)->next;
    *at = tenant->next;
    server->n_leaving--;
    tenant_free(tenant);
}

/* The tenant of this end's uid; NULL: refused. Root and this process's uid always get one. */
static struct tenant *tenant_of_user(struct rpc_server *server, int fd)
{
    struct ucred peer;
    socklen_t len = sizeof(peer);
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) != 0 || len != sizeof(peer))
        return NULL;
    for (struct tenant *tenant = server->tenants; tenant; tenant = tenant->next)
        if (tenant->identity.kind == RPC_ID_UID && tenant->identity.uid == peer.uid && !tenant->leaving)
            return tenant;
    struct rpc_identity identity;
    struct tenant *tenant = NULL;
    uid_identity(&peer, &identity);
    if (!uid_trusted(peer.uid) && server->n_users >= server->options.max_users && !user_give_up(server))
        return NULL;
    if (tenant_open(server, &identity, &tenant, NULL) != TITAN_OK)
        return NULL;
    server->n_users += !tenant->trusted;
    tenant_start(tenant);
    return tenant;
}

/* The tenant of this address: its own, one without connections, a new one, or the one with the fewest connections. */
static struct tenant *tenant_of_peer(struct rpc_server *server, bool secure, const struct peer *peer)
{
    struct tenant *idle = NULL, *fewest = NULL, *fresh = NULL;
    for (struct tenant *tenant = server->tenants; tenant; tenant = tenant->next) {
        if (!tenant->tcp || tenant->identity.secure != secure)
            continue;
        if (memcmp(&tenant->peer, peer, sizeof(*peer)) == 0)
            return tenant;
        if (tenant_is_idle(tenant))
            idle = tenant;
        if (!fewest || tenant->n_connections < fewest->n_connections)
            fewest = tenant;
    }
    if (!idle && server->n_peers[secure] < PEERS_MAX && tcp_open(server, secure, &fresh, NULL) == TITAN_OK) {
        tenant_start(fresh);
        idle = fresh;
    }
    if (idle)
        idle->peer = *peer;
    titan_assert(idle || fewest);
    return idle ? idle : fewest;
}

/* Divides gRPC's memory among addresses, or users of the Unix sockets, with connections. Root's tenant and that of this
 * process's uid are exempt. */
static void memory_share(struct rpc_server *server, bool tcp)
{
    const uint64_t most = server->options.memory_bytes;
    const uint64_t share = MIN(most, SHARES * most / MAX(server->n_active[tcp], 1));
    if (share == server->share[tcp])
        return;
    server->share[tcp] = share;
    for (struct tenant *tenant = server->tenants; tenant; tenant = tenant->next)
        if (tenant->tcp == tcp && !tenant->trusted)
            grpc_resource_quota_resize(tenant->quota, (size_t)share);
}

/* Counts a new connection, or (by -1) an ended one. */
static void tenant_count(struct tenant *tenant, int by)
{
    struct rpc_server *server = tenant->owner;
    const bool tcp = tenant->tcp;
    const uint32_t before = tenant->n_connections, now = before + (uint32_t)by;
    titan_assert((by == 1 || by == -1) && (by == 1 || before > 0));
    tenant->n_connections = now;
    if (server->options.rests)
        (void)atomic_fetch_add(&server->queue.n_connections, (uint32_t)by);
    if (tenant->trusted)
        return;
    uint32_t *total = tcp ? &server->n_tcp : &server->n_connections;
    titan_assert(by == 1 || *total > 0);
    *total += (uint32_t)by;
    server->n_active[tcp] += (uint32_t)(now > 0) - (uint32_t)(before > 0);
    memory_share(server, tcp);
}

void rpc_tenants_destroy(struct rpc_server *server)
{
    while (server->tenants) {
        struct tenant *tenant = server->tenants;
        server->tenants = tenant->next;
        tenant_free(tenant);
    }
    rpc_pair_free(TAKE(server->pair));
}

/* --- listeners ---------------------------------------------------------------------------------------------------- */

/* A listener may replace a socket file without a listening process, and no other file. */
static titan_status socket_check(const char *path, struct titan_error *err)
{
    struct stat st;
    if (lstat(path, &st) != 0)
        return errno == ENOENT ? TITAN_OK : titan_fail_errno(err, "socket %s", path);
    if (!S_ISSOCK(st.st_mode))
        return titan_fail(err, TITAN_EEXIST, "%s is there already and is not a socket", path);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    (void)snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
    _cleanup_fd_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return titan_fail_errno(err, "socket %s", path);
    if (connect(fd, (struct sockaddr *)&address, sizeof(address)) != 0 && (errno == ECONNREFUSED || errno == ENOENT)) {
        (void)unlink(path);
        return TITAN_OK;
    }
    return titan_fail(err, TITAN_EEXIST, "socket %s is in use by another process", path);
}

/* Takes ownership of fd on success. */
static titan_status listener_add(struct rpc_server *server, int fd, enum listener_kind kind, const char *path,
                                 struct titan_error *err)
{
    titan_assert(fd >= 0 && !server->started);
    struct listener *l = calloc(1, sizeof(*l));
    if (!l)
        return titan_fail(err, TITAN_ENOMEM, "no memory for a listener");
    *l = (struct listener){.next = server->listeners, .server = server, .fd = fd, .kind = kind};
    (void)snprintf(l->path, sizeof(l->path), "%s", path);
    server->listeners = l;
    return TITAN_OK;
}

static titan_status listen_local(struct rpc_server *server, const char *path, struct titan_error *err)
{
    TRY(socket_check(path, err));
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    (void)snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return titan_fail_errno(err, "socket %s", path);
    /* No client can connect before listen(); by then the file has its mode, under any umask. */
    titan_status status = TITAN_OK;
    bool bound = bind(fd, (struct sockaddr *)&address, sizeof(address)) == 0;
    if (!bound || chmod(path, server->options.socket_mode) != 0 || listen(fd, LISTEN_BACKLOG) != 0)
        status = titan_fail_errno(err, "cannot listen on unix:%s", path);
    if (status == TITAN_OK)
        status = listener_add(server, fd, LISTENER_LOCAL, path, err);
    if (status == TITAN_OK)
        server->listeners->owned = true;
    if (status != TITAN_OK) {
        (void)close(fd);
        if (bound)
            (void)unlink(path);
    }
    return status;
}

static uint16_t *port_of(struct sockaddr *address)
{
    return address->sa_family == AF_INET6 ? &((struct sockaddr_in6 *)address)->sin6_port
                                          : &((struct sockaddr_in *)address)->sin_port;
}

/* text is for messages; *port: 0 = any; returns the port. A connection inherits its listener's options. */
static titan_status listen_at(struct rpc_server *server, const struct addrinfo *at, enum listener_kind kind,
                              const char *text, in_port_t *port, struct titan_error *err)
{
    struct sockaddr_storage address;
    socklen_t len = sizeof(address);
    int on = 1, off = 0;
    unsigned wait_ms = KEEPALIVE_WAIT_MS;
    _cleanup_fd_ int fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return titan_fail_errno(err, "cannot listen on %s", text);
    memcpy(&address, at->ai_addr, at->ai_addrlen);
    *port_of((struct sockaddr *)&address) = *port;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (at->ai_family == AF_INET6)
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &wait_ms, sizeof(wait_ms));
    if (bind(fd, (struct sockaddr *)&address, at->ai_addrlen) != 0 || listen(fd, LISTEN_BACKLOG) != 0) {
        if (errno == EADDRINUSE)
            return titan_fail(err, TITAN_EEXIST, "address %s is in use by another process", text);
        if (errno == EADDRNOTAVAIL)
            return titan_fail(err, TITAN_EINVAL, "cannot listen on %s: not an address of this machine", text);
        return titan_fail_errno(err, "cannot listen on %s", text);
    }
    if (getsockname(fd, (struct sockaddr *)&address, &len) != 0)
        return titan_fail_errno(err, "cannot listen on %s", text);
    TRY(listener_add(server, fd, kind, "", err));
    server->listeners->owned = true;
    *port = *port_of((struct sockaddr *)&address);
    (void)TAKE_FD(fd);
    return TITAN_OK;
}

/* Listens on each address of the name that this machine has, all with one port. */
static titan_status listen_tcp(struct rpc_server *server, const char *address, enum listener_kind kind, int *ret_port,
                               struct titan_error *err)
{
    const char *colon = strrchr(address, ':');
    titan_assert(colon);
    char host[256];
    size_t len = MIN((size_t)(colon - address), sizeof(host) - 1);
    const char *from = address;
    if (len >= 2 && from[0] == '[' && from[len - 1] == ']') {
        from++;
        len -= 2;
    }
    memcpy(host, from, len);
    host[len] = '\0';
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *found = NULL;
    int rc = getaddrinfo(host, colon + 1, &hints, &found);
    if (rc != 0)
        return titan_fail(err, TITAN_EINVAL, "cannot listen on %s: %s", address, gai_strerror(rc));
    in_port_t port = *port_of(found->ai_addr);
    titan_status status = TITAN_OK, last = TITAN_OK;
    bool listening = false;
    for (const struct addrinfo *at = found; at && status == TITAN_OK; at = at->ai_next) {
        last = listen_at(server, at, kind, address, &port, err);
        listening = listening || last == TITAN_OK;
        if (last == TITAN_EEXIST)
            status = last;
    }
    freeaddrinfo(found);
    if (status == TITAN_OK && !listening)
        status = last;
    if (status == TITAN_OK && ret_port)
        *ret_port = ntohs(port);
    return status;
}

titan_status rpc_server_listen(struct rpc_server *server, const char *address, const struct rpc_tls *tls, int *ret_port,
                               struct titan_error *err)
{
    titan_assert(!server->started);
    TRY(rpc_target_check(address, err));
    if (ret_port)
        *ret_port = 0;
    if (strncmp(address, "unix:", 5) == 0)
        return listen_local(server, address + 5, err);
    TRY(tcp_prepare(server, tls, err));
    return listen_tcp(server, address, tls ? LISTENER_TLS : LISTENER_PLAIN, ret_port, err);
}

titan_status rpc_server_adopt(struct rpc_server *server, int fd, struct titan_error *err)
{
    titan_assert(!server->started);
    int listens = 0, domain = 0, flags = fcntl(fd, F_GETFL);
    socklen_t len = sizeof(listens);
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &len) < 0 || !listens)
        return titan_fail(err, TITAN_EINVAL, "descriptor %d is not a socket that listens", fd);
    len = sizeof(domain);
    if (flags < 0 || getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &len) < 0 ||
        fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0)
        return titan_fail_errno(err, "cannot use socket %d", fd);
    if (domain != AF_UNIX)
        TRY(tcp_prepare(server, NULL, err));
    return listener_add(server, fd, domain == AF_UNIX ? LISTENER_LOCAL : LISTENER_PLAIN, "", err);
}

/* --- connections -------------------------------------------------------------------------------------------------- */

/* First descriptor number reserved for the daemon's own work. */
static int fd_max(void)
{
    struct rlimit limit = {.rlim_cur = 1024};
    (void)getrlimit(RLIMIT_NOFILE, &limit);
    return (int)(MIN(limit.rlim_cur, (rlim_t)INT32_MAX) - MIN(limit.rlim_cur / 4, (rlim_t)FDS_RESERVED));
}

static void refused(struct rpc_server *server, const char *why)
{
    static const struct log log = {.subsystem = "rpc"};
    int64_t now_ms = clock_mono_ms();
    server->refusals.connections++;
    if (server->refusal_reported_ms && now_ms - server->refusal_reported_ms < REFUSAL_SAID_MS)
        return;
    server->refusal_reported_ms = now_ms;
    tlog_warn(&log, "connections are refused", "reason=\"%s\" refused=%" PRIu64, why, server->refusals.connections);
}

/* Also returns the address as gRPC writes it. */
static bool peer_read(int fd, struct peer *ret, char *text, size_t text_bytes)
{
    struct sockaddr_storage address = {0};
    socklen_t len = sizeof(address);
    char host[64], port[8];
    if (getpeername(fd, (struct sockaddr *)&address, &len) != 0 ||
        getnameinfo((struct sockaddr *)&address, len, host, sizeof(host), port, sizeof(port),
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        return false;
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)&address;
    bool mapped = address.ss_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr);
    if (address.ss_family == AF_INET6 && !mapped)
        (void)snprintf(text, text_bytes, "ipv6:[%s]:%s", host, port);
    else
        (void)snprintf(text, text_bytes, "ipv4:%s:%s", mapped ? host + strlen("::ffff:") : host, port);
    memset(ret, 0, sizeof(*ret));
    if (address.ss_family == AF_INET6 && !mapped) {
        memcpy(ret->address, &v6->sin6_addr, 8);
        return true;
    }
    ret->address[10] = ret->address[11] = 0xff;
    if (mapped)
        memcpy(ret->address + 12, v6->sin6_addr.s6_addr + 12, 4);
    else
        memcpy(ret->address + 12, &((const struct sockaddr_in *)&address)->sin_addr, 4);
    return true;
}

static struct connection **peer_bucket(struct rpc_server *server, const struct peer *peer)
{
    return &server->peers[hash_index(hash_bytes(HASH_INIT, peer->address, sizeof(peer->address)), PEER_BUCKETS)];
}

/* One certificate or token may not take more of its address than all clients without one. */
static void connection_name(struct connection *c, const char *name)
{
    struct rpc_server *server = c->server;
    const uint64_t hash = hash_text(HASH_INIT, name) | 1;
    uint32_t n = 0;
    if (c->named)
        return;
    c->named = hash;
    for (struct connection *x = *peer_bucket(server, &c->peer); x; x = x->next_peer)
        n += x->named == hash && memcmp(&x->peer, &c->peer, sizeof(x->peer)) == 0;
    if (n <= server->options.max_peer_connections)
        return;
    refused(server, "too many connections of one certificate or token from one address");
    rpc_proxy_cut(server->proxy, &c->proxy, RPC_CUT_SOON);
}

/* Makes room for a connection of this address. If too many have shown neither certificate nor token, the oldest one
 * without a call ends. False: all have a call. */
static bool peer_make_room(struct rpc_server *server, const struct peer *peer)
{
    uint32_t n = 0;
    struct connection *silent = NULL;
    for (struct connection *c = *peer_bucket(server, peer); c; c = c->next_peer) { /* newest first */
        if (memcmp(&c->peer, peer, sizeof(*peer)) != 0 || atomic_load(&c->proxy.cut) != RPC_CUT_NOT)
            continue;
        if (atomic_load(&c->proxy.identified))
            connection_name(c, c->proxy.name);
        if (c->named)
            continue;
        n++;
        if (c->n_begun == 0)
            silent = c;
    }
    if (n >= server->options.max_peer_connections && silent)
        rpc_proxy_cut(server->proxy, &silent->proxy, RPC_CUT_NOW);
    return n < server->options.max_peer_connections || silent;
}

static struct connection **id_bucket(struct rpc_server *server, uint64_t id)
{
    return &server->connections[id % CONNECTION_BUCKETS];
}

struct connection *rpc_connection_get(struct rpc_server *server, uint64_t id)
{
    struct connection *c = *id_bucket(server, id);
    while (c && c->id != id)
        c = c->next;
    return c;
}

void rpc_connection_count(struct rpc_server *server, uint64_t id, const struct rpc_identity *caller, int by)
{
    struct connection *c = id ? rpc_connection_get(server, id) : NULL;
    if (!c)
        return;
    titan_assert(by > 0 || c->n_begun > 0);
    c->n_begun += (uint32_t)by;
    if (by > 0 && (caller->kind == RPC_ID_CERT || caller->kind == RPC_ID_TOKEN))
        connection_name(c, caller->name);
}

struct connection *rpc_connection_of(struct rpc_server *server, const grpc_metadata_array *headers)
{
    const size_t len = strlen(server->secret);
    char text[17] = "";
    for (size_t i = 0; i < headers->count; i++) {
        const grpc_metadata *m = &headers->metadata[i];
        if (grpc_slice_str_cmp(m->key, CONNECTION_HEADER) != 0 ||
            GRPC_SLICE_LENGTH(m->value) != len + sizeof(text) - 1 ||
            CRYPTO_memcmp(GRPC_SLICE_START_PTR(m->value), server->secret, len) != 0)
            continue; /* identified: counted on its own */
        memcpy(text, GRPC_SLICE_START_PTR(m->value) + len, sizeof(text) - 1);
        return rpc_connection_get(server, strtoull(text, NULL, 16));
    }
    return NULL;
}

/* Called after the proxy has closed it. */
static void connection_ended(struct rpc_tag *tag, bool ok)
{
    (void)ok;
    struct connection *c = tag->owner;
    struct rpc_server *server = c->server;
    const bool tcp = c->tenant->tcp;
    tenant_count(c->tenant, -1);
    if (tcp) {
        *(c->prev_peer ? &c->prev_peer->next_peer : peer_bucket(server, &c->peer)) = c->next_peer;
        if (c->next_peer)
            c->next_peer->prev_peer = c->prev_peer;
    }
    *(c->prev ? &c->prev->next : id_bucket(server, c->id)) = c->next;
    if (c->next)
        c->next->prev = c->prev;
    if (c->proxy.why.status != TITAN_OK)
        refused(server, c->proxy.why.msg);
    free(c);
}

static void connection_link(struct connection *c)
{
    struct connection **bucket = id_bucket(c->server, c->id);
    c->next = *bucket;
    if (c->next)
        c->next->prev = c;
    *bucket = c;
    if (!c->tenant->tcp)
        return;
    bucket = peer_bucket(c->server, &c->peer);
    c->next_peer = *bucket;
    if (c->next_peer)
        c->next_peer->prev_peer = c;
    *bucket = c;
}

static bool connection_filter(struct connection *c)
{
    const struct rpc_filter_limits limits = {
        .message_max = c->tenant->message_max,
        .header_max = METADATA_MAX,
        .streams_max = STREAMS_FACTOR * c->server->options.max_concurrent_streams,
    };
    char value[sizeof(c->server->secret) + 16];
    (void)snprintf(value, sizeof(value), "%s%016" PRIx64, c->server->secret, c->id);
    return rpc_filter_init(&c->proxy.filter, &limits, c->tenant->tcp ? CONNECTION_HEADER : NULL, value, NULL) ==
           TITAN_OK;
}

/* Gives gRPC one end of a socket pair, and the proxy the other end and fd. */
static titan_status connection_open(struct connection *c, int fd, enum listener_kind kind)
{
    struct rpc_server *server = c->server;
    int pair[2];
    const int buffer = PAIR_BUFFER;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0)
        return TITAN_ELIMIT;
    titan_status status = pair[1] > fd_max() && !c->tenant->trusted ? TITAN_ELIMIT : TITAN_OK;
    if (status == TITAN_OK && kind == LISTENER_TLS) {
        c->proxy.tls = rpc_pair_accept(server->pair, fd, server->options.certificates_only);
        status = c->proxy.tls ? TITAN_OK : TITAN_ENOMEM;
    }
    if (status == TITAN_OK && !connection_filter(c))
        status = TITAN_ENOMEM;
    if (status != TITAN_OK) {
        SSL_free(c->proxy.tls);
        (void)close(pair[0]);
        (void)close(pair[1]);
        return status;
    }
    for (int i = 0; i < 2; i++)
        (void)setsockopt(pair[i], SOL_SOCKET, SO_SNDBUF, &buffer, sizeof(buffer));
    tenant_count(c->tenant, 1);
    connection_link(c);
    grpc_server_credentials *credentials = grpc_insecure_server_credentials_create();
    grpc_server_add_channel_from_fd(c->tenant->server, pair[1], credentials); /* takes ownership */
    grpc_server_credentials_release(credentials);
    rpc_proxy_add(server->proxy, &c->proxy, fd, pair[0]);
    return TITAN_OK;
}

static const char *local_refusal(const struct tenant *tenant, int fd)
{
    const struct rpc_server *server = tenant->owner;
    if (tenant->trusted)
        return NULL;
    if (fd > fd_max())
        return "descriptors are short";
    if (tenant->n_connections >= server->options.max_user_connections)
        return "too many connections of one user";
    return server->n_connections >= server->options.max_connections ? "too many connections" : NULL;
}

/* A connection takes three descriptors. TCP gets half of all descriptors, the Unix sockets the rest. */
static const char *tcp_refusal(struct rpc_server *server, int fd, struct connection *c)
{
    if (!peer_read(fd, &c->peer, c->address, sizeof(c->address)))
        return "they are gone already";
    if (fd > fd_max() || server->n_tcp >= (uint32_t)fd_max() / 6)
        return "descriptors are short";
    if (server->n_tcp >= server->options.max_connections)
        return "too many connections over TCP";
    return peer_make_room(server, &c->peer) ? NULL : "too many connections from one address";
}

/* Reason to refuse this connection; NULL: accepted. */
static const char *connection_take(struct listener *l, int fd)
{
    const bool local = l->kind == LISTENER_LOCAL;
    struct connection *c = calloc(1, sizeof(*c));
    const char *why = NULL;
    if (!c)
        return "there is no memory";
    c->server = l->server;
    c->id = ++l->server->last_id;
    c->proxy.ended = (struct rpc_tag){.fn = connection_ended, .owner = c};
    if (local)
        c->tenant = tenant_of_user(l->server, fd);
    if (local && !c->tenant)
        why = "too many users are connected";
    else
        why = local ? local_refusal(c->tenant, fd) : tcp_refusal(l->server, fd, c);
    if (!why && !local)
        c->tenant = tenant_of_peer(l->server, l->kind == LISTENER_TLS, &c->peer);
    const titan_status status = why ? TITAN_OK : connection_open(c, fd, l->kind);
    if (status != TITAN_OK)
        why = status == TITAN_ELIMIT ? "descriptors are short" : "there is no memory";
    if (why)
        free(c);
    return why;
}

static int spare_open(void)
{
    return open("/dev/null", O_RDONLY | O_CLOEXEC);
}

/* Called without a free descriptor: otherwise waiting clients would wake the loop forever. */
static bool turn_away(struct listener *l)
{
    struct rpc_server *server = l->server;
    if (server->spare_fd < 0)
        return false;
    (void)close(server->spare_fd);
    int fd = accept4(l->fd, NULL, NULL, SOCK_CLOEXEC);
    if (fd >= 0)
        (void)close(fd);
    server->spare_fd = spare_open();
    refused(server, "descriptors are short");
    return fd >= 0;
}

static void on_connection(uv_poll_t *poll, int status, int events)
{
    HANDLER("connection");
    struct listener *l = poll->data;
    (void)events;
    for (int i = 0; status == 0 && i < ACCEPTS; i++) {
        int fd = accept4(l->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0 && (errno == EMFILE || errno == ENFILE) && turn_away(l))
            continue;
        if (fd < 0)
            return;
        const char *why = connection_take(l, fd);
        if (why) {
            (void)close(fd);
            refused(l->server, why);
        }
    }
}

titan_status rpc_tenants_start(struct rpc_server *server, struct titan_error *err)
{
    uint8_t secret[16];
    if (getrandom(secret, sizeof(secret), 0) != (ssize_t)sizeof(secret))
        return titan_fail_errno(err, "rpc: no random bytes");
    for (size_t i = 0; i < sizeof(secret); i++)
        (void)snprintf(server->secret + 2 * i, 3, "%02x", secret[i]);
    TRY(rpc_proxy_open(&server->queue, &server->proxy, err));
    server->spare_fd = spare_open();
    /* Tenants of uids follow later, one by one. */
    for (struct tenant *tenant = server->tenants; tenant; tenant = tenant->next)
        tenant_start(tenant);
    for (struct listener *l = server->listeners; l; l = l->next) {
        if (uv_poll_init(server->loop, &l->poll, l->fd) != 0)
            return titan_fail(err, TITAN_EIO, "cannot watch socket %d", l->fd);
        l->poll.data = l;
        l->polled = true;
        (void)uv_poll_start(&l->poll, UV_READABLE, on_connection);
    }
    return TITAN_OK;
}

static void listener_release(struct listener *l)
{
    struct stat st;
    if (!l->owned || l->fd < 0)
        return;
    if (l->path[0] && lstat(l->path, &st) == 0 && S_ISSOCK(st.st_mode))
        (void)unlink(l->path);
    (void)close(l->fd);
    l->fd = -1;
}

void rpc_listeners_stop(struct rpc_server *server)
{
    for (struct listener *l = server->listeners; l; l = l->next) {
        if (l->polled)
            (void)uv_poll_stop(&l->poll); /* later clients wait for the next process, or are refused */
        listener_release(l);
    }
}

static void listener_closed(uv_handle_t *handle)
{
    rpc_handle_closed(((struct listener *)handle->data)->server);
}

int rpc_listeners_close(struct rpc_server *server)
{
    int n = 0;
    for (struct listener *l = server->listeners; l; l = l->next) {
        if (!l->polled)
            continue;
        n++;
        uv_close((uv_handle_t *)&l->poll, listener_closed);
    }
    return n;
}

void rpc_listeners_free(struct rpc_server *server)
{
    while (server->listeners) {
        struct listener *l = server->listeners;
        server->listeners = l->next;
        listener_release(l);
        free(l);
    }
    if (server->spare_fd >= 0)
        (void)close(server->spare_fd);
}
