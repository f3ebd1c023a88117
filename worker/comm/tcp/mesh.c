#include "worker/comm/tcp/mesh.h"

#include <errno.h>
#include <inttypes.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"

#define OPEN_TIMEOUT_MS_DEFAULT 30000
#define POLL_MS 5
#define RETRY_MS 20
#define STRANGER_MS 2000
#define STRANGERS_MAX 128
#define BACKLOG 1024
#define SILENT_MS 15000

/* What both sides send first; integers little-endian. */
struct hello {
    char magic[8];
    unsigned char id[COMM_ID_BYTES];
    uint64_t epoch;
    uint32_t rank, world;
};
_Static_assert(sizeof(struct hello) == 40, "hello goes over the wire");
static const char magic[8] = "TITANCM1";

enum peer_state { PEER_IDLE, PEER_CONNECTING, PEER_GREETED, PEER_READY };

struct peer {
    enum peer_state state;
    int fd;
    size_t got; /* bytes of its hello */
    struct hello hello;
    int64_t retry_at; /* ms */
    struct sockaddr_storage address;
    socklen_t address_len;
};

/* Accepted, but nobody yet. */
struct stranger {
    int fd;
    size_t got;
    struct hello hello;
    int64_t since; /* ms */
};

struct mesh {
    const struct comm_config *config;
    struct hello own;
    struct peer *peers;
    struct stranger strangers[STRANGERS_MAX];
    int nstrangers, ready;
    struct pollfd *polls;
};

static int64_t now_ms(void)
{
    return clock_mono_ns() / 1000000;
}

/* --- addresses --------------------------------------------------------------------------------------------------- */

static titan_status resolve(const char *address, struct peer *peer, struct titan_error *err)
{
    char host[256];
    const char *colon = address ? strrchr(address, ':') : NULL;
    if (!colon || (size_t)(colon - address) >= sizeof(host))
        return titan_fail(err, TITAN_EINVAL, "'%s' is no host:port", address ? address : "");
    (void)snprintf(host, sizeof(host), "%.*s", (int)(colon - address), address);
    char *name = host;
    size_t len = strlen(host);
    if (len >= 2 && host[0] == '[' && host[len - 1] == ']') {
        host[len - 1] = '\0';
        name = host + 1;
    }
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV}, *list = NULL;
    int rc = getaddrinfo(name, colon + 1, &hints, &list);
    if (rc != 0)
        return titan_fail(err, TITAN_EUNREACHABLE, "'%s': %s", address, gai_strerror(rc));
    memcpy(&peer->address, list->ai_addr, list->ai_addrlen);
    peer->address_len = list->ai_addrlen;
    freeaddrinfo(list);
    return TITAN_OK;
}

titan_status comm_listen(const char *host, int *ret_fd, int *ret_port, struct titan_error *err)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *list = NULL;
    int rc = getaddrinfo(host, NULL, &hints, &list);
    if (rc != 0)
        return titan_fail(err, TITAN_EINVAL, "cannot listen on '%s': %s", host, gai_strerror(rc));
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } bound = {.v6 = {0}};
    socklen_t len = sizeof(bound);
    titan_status status = TITAN_OK;
    _cleanup_fd_ int fd = socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || bind(fd, list->ai_addr, list->ai_addrlen) < 0 || listen(fd, BACKLOG) < 0 ||
        getsockname(fd, &bound.any, &len) < 0)
        status = titan_fail_errno(err, "cannot listen on '%s'", host);
    freeaddrinfo(list);
    if (status != TITAN_OK)
        return status;
    *ret_port = ntohs(bound.any.sa_family == AF_INET6 ? bound.v6.sin6_port : bound.v4.sin_port);
    *ret_fd = TAKE_FD(fd);
    return TITAN_OK;
}

static void set_option(int fd, int level, int name, int value)
{
    (void)setsockopt(fd, level, name, &value, sizeof(value)); /* each is an improvement only */
}

static void set_options(int fd)
{
    set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 5);
    set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 3);
    set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
    set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, SILENT_MS);
}

/* --- hellos ------------------------------------------------------------------------------------------------------- */

static bool send_hello(int fd, const struct hello *own)
{
    /* A new connection always has room for 40 bytes. */
    return send(fd, own, sizeof(*own), MSG_NOSIGNAL) == (ssize_t)sizeof(*own);
}

/* Read on; 1 = complete, 0 = not yet, -1 = gone. */
static int receive_hello(int fd, struct hello *hello, size_t *got)
{
    while (*got < sizeof(*hello)) {
        ssize_t n = recv(fd, (char *)hello + *got, sizeof(*hello) - *got, 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return 0;
        if (n <= 0)
            return -1;
        *got += (size_t)n;
    }
    return 1;
}

/* From a member of this communicator? Its rank, or -1. */
static int rank_of(const struct mesh *m, const struct hello *h)
{
    bool same = memcmp(h->magic, magic, sizeof(magic)) == 0 && memcmp(h->id, m->own.id, sizeof(h->id)) == 0 &&
                h->epoch == m->own.epoch && h->world == m->own.world && h->rank < h->world;
    return same ? (int)h->rank : -1;
}

/* --- connecting -----------------------------------------------------------------------------------------------------
 */

static void retry_later(struct peer *p)
{
    if (p->fd >= 0)
        (void)close(p->fd);
    p->fd = -1;
    p->got = 0;
    p->state = PEER_IDLE;
    p->retry_at = now_ms() + RETRY_MS;
}

static void start_connect(struct peer *p)
{
    p->fd = socket(p->address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (p->fd < 0) {
        retry_later(p);
        return;
    }
    set_options(p->fd);
    p->state = PEER_CONNECTING;
    if (connect(p->fd, (struct sockaddr *)&p->address, p->address_len) < 0 && errno != EINPROGRESS)
        retry_later(p);
}

/* The socket to a lower rank has something to say. */
static void advance_peer(struct mesh *m, int rank)
{
    struct peer *p = &m->peers[rank];
    if (p->state == PEER_CONNECTING) {
        int error = 0;
        socklen_t len = sizeof(error);
        if (getsockopt(p->fd, SOL_SOCKET, SO_ERROR, &error, &len) < 0 || error != 0 || !send_hello(p->fd, &m->own)) {
            retry_later(p);
            return;
        }
        p->state = PEER_GREETED;
        return;
    }
    int rc = receive_hello(p->fd, &p->hello, &p->got);
    if (rc < 0 || (rc > 0 && rank_of(m, &p->hello) != rank)) {
        /* It is still in another epoch, or somebody else has its address now. */
        retry_later(p);
    } else if (rc > 0) {
        p->state = PEER_READY;
        m->ready++;
    }
}

/* --- accepting ------------------------------------------------------------------------------------------------------
 */

static void drop_stranger(struct mesh *m, int i)
{
    if (m->strangers[i].fd >= 0)
        (void)close(m->strangers[i].fd);
    m->strangers[i] = m->strangers[--m->nstrangers];
}

static void accept_strangers(struct mesh *m)
{
    for (;;) {
        int fd = accept4(m->config->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0)
            return;
        if (m->nstrangers == STRANGERS_MAX)
            drop_stranger(m, 0);
        set_options(fd);
        m->strangers[m->nstrangers++] = (struct stranger){.fd = fd, .since = now_ms()};
    }
}

/* Its hello is complete: a higher rank becomes a peer, all others go. */
static void admit(struct mesh *m, int i)
{
    struct stranger *s = &m->strangers[i];
    int rank = rank_of(m, &s->hello);
    if (rank > m->config->rank && send_hello(s->fd, &m->own)) {
        struct peer *p = &m->peers[rank];
        if (p->state == PEER_READY)
            (void)close(p->fd); /* it came again: the last connection is the one it uses */
        else
            m->ready++;
        p->state = PEER_READY;
        p->fd = TAKE_FD(s->fd);
    }
    drop_stranger(m, i);
}

static void advance_strangers(struct mesh *m)
{
    for (int i = m->nstrangers - 1; i >= 0; i--) {
        struct stranger *s = &m->strangers[i];
        int rc = receive_hello(s->fd, &s->hello, &s->got);
        if (rc > 0)
            admit(m, i);
        else if (rc < 0 || now_ms() - s->since > STRANGER_MS)
            drop_stranger(m, i);
    }
}

/* --- the loop -------------------------------------------------------------------------------------------------------
 */

/* One look at everything that may have moved. */
static void step(struct mesh *m)
{
    int n = 0, rank = m->config->rank;
    for (int r = 0; r < rank; r++) {
        struct peer *p = &m->peers[r];
        if (p->state == PEER_IDLE && now_ms() >= p->retry_at)
            start_connect(p);
        bool waits = p->state == PEER_CONNECTING || p->state == PEER_GREETED;
        m->polls[n++] =
            (struct pollfd){.fd = waits ? p->fd : -1, .events = p->state == PEER_GREETED ? POLLIN : POLLOUT};
    }
    m->polls[n++] = (struct pollfd){.fd = m->config->listener, .events = POLLIN};
    for (int i = 0; i < m->nstrangers; i++)
        m->polls[n++] = (struct pollfd){.fd = m->strangers[i].fd, .events = POLLIN};
    if (poll(m->polls, (nfds_t)n, POLL_MS) < 0)
        return;
    for (int r = 0; r < rank; r++)
        if (m->polls[r].fd >= 0 && m->polls[r].revents)
            advance_peer(m, r);
    if (m->polls[rank].revents)
        accept_strangers(m);
    advance_strangers(m);
}

static titan_status meet(struct mesh *m, const atomic_int *abort_flag, struct titan_error *err)
{
    int world = m->config->world;
    int64_t limit = m->config->timeout_ms ? m->config->timeout_ms : OPEN_TIMEOUT_MS_DEFAULT;
    int64_t end = now_ms() + limit;
    while (m->ready < world - 1) {
        if (abort_flag && atomic_load(abort_flag))
            return titan_fail(err, TITAN_EREVOKED, "the epoch was revoked while its members met");
        if (now_ms() >= end) {
            int missing = 0;
            while (missing == m->config->rank || m->peers[missing].state == PEER_READY)
                missing++;
            return titan_fail(err, TITAN_ETIMEDOUT, "rank %d (%s) did not connect within %" PRId64 " ms", missing,
                              m->config->addresses[missing], limit);
        }
        step(m);
    }
    return TITAN_OK;
}

static void mesh_clear(struct mesh *m)
{
    while (m->nstrangers > 0)
        drop_stranger(m, 0);
    for (int r = 0; m->peers && r < m->config->world; r++)
        if (m->peers[r].fd >= 0)
            (void)close(m->peers[r].fd);
    free(m->peers);
    free(m->polls);
    free(m);
}

static void clear_mesh(struct mesh **m)
{
    if (*m)
        mesh_clear(*m);
}

titan_status mesh_connect(const struct comm_config *config, const atomic_int *abort_flag, int *fds,
                          struct titan_error *err)
{
    size_t world = (size_t)config->world;
    _cleanup_(clear_mesh) struct mesh *m = calloc(1, sizeof(*m));
    if (!m)
        return titan_fail(err, TITAN_ENOMEM, "no memory for a mesh");
    m->config = config;
    m->own = (struct hello){.epoch = config->epoch, .rank = (uint32_t)config->rank, .world = (uint32_t)config->world};
    memcpy(m->own.magic, magic, sizeof(magic));
    memcpy(m->own.id, config->id, sizeof(m->own.id));
    m->peers = calloc(world, sizeof(*m->peers));
    m->polls = calloc(world + 1 + STRANGERS_MAX, sizeof(*m->polls));
    if (!m->peers || !m->polls)
        return titan_fail(err, TITAN_ENOMEM, "no memory for a mesh of %zu members", world);
    for (size_t r = 0; r < world; r++)
        m->peers[r].fd = -1;
    if (config->rank < config->world - 1 && config->listener < 0)
        return titan_fail(err, TITAN_EINVAL, "rank %d has no listening socket", config->rank);
    for (int r = 0; r < config->rank; r++)
        TRY(resolve(config->addresses ? config->addresses[r] : NULL, &m->peers[r], err));
    TRY(meet(m, abort_flag, err));
    for (size_t r = 0; r < world; r++)
        fds[r] = TAKE_FD(m->peers[r].fd);
    return TITAN_OK;
}
