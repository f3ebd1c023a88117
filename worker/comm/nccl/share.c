/* SPDX-License-Identifier: Apache-2.0 */
/* share.c - the agreement on NCCL's unique id (share.h). The host is rank 0, guests are the other ranks. */
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/mac.h"
#include "worker/comm/nccl/share.h"

#define GUESTS_EXTRA 16 /* connections beyond one per guest: strays, second tries */
#define LOOK_MS 10      /* interval of looks at the abort flag */

/* The first message of a guest. All members have the same machine type, as NCCL itself requires. With a key, the
 * message also has a number used once, and an HMAC-SHA256 of the whole message under the key. The answer is then masked
 * with the key and the number (cover()), and the answer's own HMAC follows it. */
struct identity {
    char magic[8];
    unsigned char id[COMM_ID_BYTES];
    uint64_t epoch;
    uint32_t rank, world;
};
_Static_assert(sizeof(struct identity) == 40, "it goes over the wire");
struct greeting {
    struct identity identity;
    unsigned char once[32], proof[MAC_BYTES];
};
_Static_assert(sizeof(struct greeting) == 104, "greeting goes over the wire");

struct guest {
    int fd;
    size_t got;
    struct greeting greeting;
};

static struct identity make_identity(const struct comm_config *config)
{
    struct identity h = {.magic = "titncc3", .epoch = config->epoch, .rank = (uint32_t)config->rank};
    if (!config->key)
        memcpy(h.magic, "titnccl", sizeof h.magic);
    memcpy(h.id, config->id, sizeof h.id);
    h.world = (uint32_t)config->world;
    return h;
}

static size_t greeting_bytes(const struct comm_config *config)
{
    return config->key ? sizeof(struct greeting) : sizeof(struct identity);
}

static void prove(const struct comm_config *config, const struct greeting *g, unsigned char ret[MAC_BYTES])
{
    titan_assert(config->key);
    mac_derive(config->key, "titan nccl", g, offsetof(struct greeting, proof), ret);
}

/* Masks or unmasks data: a second call gives the original data back. */
static void cover(const struct comm_config *config, const struct greeting *g, unsigned char *data, size_t bytes)
{
    titan_assert(config->key && bytes <= NCCL_SHARE_MAX);
    unsigned char about[sizeof g->once + 1], pad[MAC_BYTES];
    memcpy(about, g->once, sizeof g->once);
    for (size_t i = 0; i < bytes; i++) {
        about[sizeof g->once] = (unsigned char)(i / MAC_BYTES);
        if (i % MAC_BYTES == 0)
            mac_derive(config->key, "titan nccl cover", about, sizeof about, pad);
        data[i] ^= pad[i % MAC_BYTES];
    }
}

static void prove_answer(const struct comm_config *config, const struct greeting *g, const unsigned char *covered,
                         size_t bytes, unsigned char ret[MAC_BYTES])
{
    struct mac m;
    mac_begin(&m, config->key, MAC_BYTES);
    mac_add(&m, "titan nccl answer", sizeof "titan nccl answer");
    mac_add(&m, g, sizeof *g);
    mac_add(&m, covered, bytes);
    mac_end(&m, ret);
}

static titan_status may_go_on(const struct nccl_agreement *a, struct titan_error *err)
{
    if (a->abort_flag && atomic_load(a->abort_flag))
        return titan_fail(err, TITAN_EREVOKED, "epoch revoked while its communicator was forming");
    if (clock_mono_ns() >= a->deadline_ns)
        return titan_fail(err, TITAN_ETIMEDOUT, "not all members arrived in time to form the communicator");
    return TITAN_OK;
}

static bool by_address(const struct comm_config *config)
{
    return config->addresses && config->addresses[0] && config->addresses[0][0];
}

/* Makes an abstract socket name: it ends with the socket's last descriptor. The segment's inode is part of the name, so
 * runs that were given the same id differ. */
static socklen_t local_name(const struct comm_config *config, struct sockaddr_un *ret)
{
    struct stat st = {0};
    if (config->memfd >= 0)
        (void)fstat(config->memfd, &st);
    memset(ret, 0, sizeof *ret);
    ret->sun_family = AF_UNIX;
    int n = snprintf(ret->sun_path + 1, sizeof ret->sun_path - 1, "titan-nccl-%llx-%llx-",
                     (unsigned long long)st.st_ino, (unsigned long long)config->epoch);
    for (int i = 0; i < COMM_ID_BYTES; i++)
        n += snprintf(ret->sun_path + 1 + n, sizeof ret->sun_path - 1 - (size_t)n, "%02x", config->id[i]);
    titan_assert((size_t)n < sizeof ret->sun_path - 1);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

/* Reads from a guest. Returns 1: the identity is complete and of this communicator, 0: incomplete, -1: drop the
 * guest. */
static int guest_read(struct guest *g, const struct comm_config *config)
{
    const size_t all = greeting_bytes(config);
    titan_assert(g->got < all);
    const struct identity *identity = &g->greeting.identity;
    unsigned char right[MAC_BYTES];
    ssize_t n = recv(g->fd, (char *)&g->greeting + g->got, all - g->got, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    if (n <= 0)
        return -1;
    g->got += (size_t)n;
    if (g->got < all)
        return 0;
    struct identity want = make_identity(config);
    if (identity->rank == 0 || identity->rank >= want.world)
        return -1;
    want.rank = identity->rank;
    if (memcmp(&want, identity, sizeof want) != 0)
        return -1;
    if (config->key)
        prove(config, &g->greeting, right);
    return !config->key || mac_equal(right, g->greeting.proof) ? 1 : -1;
}

struct reception {
    struct guest *guests;
    struct pollfd *polls; /* [0] is the listener */
    bool *served;         /* by rank */
    int n, capacity, left;
};

static void reception_drop(struct reception *r, int i)
{
    titan_assert(i >= 0 && i < r->n);
    (void)close(r->guests[i].fd);
    r->guests[i] = r->guests[--r->n];
}

static void reception_free(struct reception *r)
{
    while (r->n > 0)
        reception_drop(r, r->n - 1);
    free(r->guests);
    free(r->polls);
    free(r->served);
}

/* Serves each guest that has sent something. */
static void reception_serve(struct reception *r, const struct nccl_agreement *a)
{
    const struct comm_config *config = a->config;
    unsigned char answer[NCCL_SHARE_MAX + MAC_BYTES];

    for (int i = r->n - 1; i >= 0; i--) {
        struct guest *g = &r->guests[i];
        const int state = guest_read(g, config);
        size_t len = a->bytes;
        if (state > 0) {
            memcpy(answer, a->data, len);
            if (config->key) {
                cover(config, &g->greeting, answer, len);
                prove_answer(config, &g->greeting, answer, len, answer + len);
                len += MAC_BYTES;
            }
        }
        /* A new connection takes a few hundred bytes at once, or is broken. */
        if (state > 0 && send(g->fd, answer, len, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)len) {
            const int rank = (int)g->greeting.identity.rank;
            nccl_peers_add(a->peers, g->fd, rank);
            r->guests[i] = r->guests[--r->n]; /* `peers` owns the connection now */
            r->left -= !r->served[rank];
            r->served[rank] = true;
            continue;
        }
        if (state != 0)
            reception_drop(r, i);
    }
}

static titan_status host(const struct nccl_agreement *a, struct titan_error *err)
{
    const struct comm_config *config = a->config;
    _cleanup_fd_ int own = -1;
    int listener = config->listener;
    if (!by_address(config)) {
        struct sockaddr_un name;
        const socklen_t len = local_name(config, &name);
        own = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (own < 0 || bind(own, (struct sockaddr *)&name, len) != 0 || listen(own, COMM_WORLD_MAX) != 0)
            return titan_fail_errno(err, "listening for the members of this host");
        listener = own;
    } else if (listener < 0) {
        return titan_fail(err, TITAN_EINVAL, "rank 0 has an address but no listening socket");
    }
    _cleanup_(reception_free) struct reception r = {.capacity = config->world + GUESTS_EXTRA,
                                                    .left = config->world - 1};
    r.guests = calloc((size_t)r.capacity, sizeof *r.guests);
    r.polls = calloc((size_t)r.capacity + 1, sizeof *r.polls);
    r.served = calloc((size_t)config->world, sizeof *r.served);
    if (!r.guests || !r.polls || !r.served)
        return titan_fail(err, TITAN_ENOMEM, "no memory to receive %d members", config->world);
    while (r.left > 0) {
        titan_status st = may_go_on(a, err);
        if (st == TITAN_ETIMEDOUT)
            return titan_error_wrap(err, "%d of %d missing", r.left, config->world);
        TRY(st);
        r.polls[0] = (struct pollfd){.fd = listener, .events = POLLIN};
        for (int i = 0; i < r.n; i++)
            r.polls[i + 1] = (struct pollfd){.fd = r.guests[i].fd, .events = POLLIN};
        if (poll(r.polls, (nfds_t)r.n + 1, LOOK_MS) <= 0)
            continue;
        reception_serve(&r, a);
        const int fd = r.polls[0].revents & POLLIN ? accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK) : -1;
        if (fd < 0)
            continue;
        titan_assert(r.n <= r.capacity);
        if (r.n == r.capacity)
            reception_drop(&r, 0); /* the oldest has been silent the longest */
        r.guests[r.n++] = (struct guest){.fd = fd};
    }
    return TITAN_OK;
}

/* Returns a socket that is connecting to rank 0; -1 with errno if connecting cannot begin. */
static int dial(const struct comm_config *config)
{
    if (!by_address(config)) {
        struct sockaddr_un name;
        socklen_t len = local_name(config, &name);
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd >= 0 && connect(fd, (struct sockaddr *)&name, len) != 0) {
            (void)close(fd);
            fd = -1;
        }
        return fd;
    }
    char address[512];
    (void)snprintf(address, sizeof address, "%s", config->addresses[0]);
    char *colon = strrchr(address, ':');
    if (!colon)
        return -1;
    *colon = '\0';
    char *name = address;
    if (name[0] == '[' && colon > name && colon[-1] == ']') { /* [::1]:7000 */
        name++;
        colon[-1] = '\0';
    }
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    if (getaddrinfo(name, colon + 1, &hints, &found) != 0)
        return -1;
    int fd = socket(found->ai_family, found->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, found->ai_protocol);
    if (fd >= 0 && connect(fd, found->ai_addr, found->ai_addrlen) != 0 && errno != EINPROGRESS) {
        (void)close(fd);
        fd = -1;
    }
    freeaddrinfo(found);
    return fd;
}

/* Runs one conversation with rank 0. TITAN_EAGAIN: the conversation broke off. */
static titan_status visit(const struct nccl_agreement *a, int fd, struct titan_error *err)
{
    const struct comm_config *config = a->config;
    struct greeting greeting = {.identity = make_identity(config)};
    unsigned char answer[NCCL_SHARE_MAX + MAC_BYTES], right[MAC_BYTES];
    const size_t all = a->bytes + (config->key ? MAC_BYTES : 0), reported_bytes = greeting_bytes(config);
    size_t got = 0;
    bool reported = false;
    if (config->key) {
        if (getrandom(greeting.once, sizeof greeting.once, 0) != (ssize_t)sizeof greeting.once)
            return titan_fail_errno(err, "no random numbers");
        prove(config, &greeting, greeting.proof);
    }
    while (got < all) {
        TRY(may_go_on(a, err));
        struct pollfd p = {.fd = fd, .events = reported ? POLLIN : POLLOUT};
        if (poll(&p, 1, LOOK_MS) <= 0)
            continue;
        if (!reported) {
            if (send(fd, &greeting, reported_bytes, MSG_NOSIGNAL) != (ssize_t)reported_bytes)
                return TITAN_EAGAIN;
            reported = true;
            continue;
        }
        ssize_t n = recv(fd, answer + got, all - got, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            continue;
        if (n <= 0)
            return TITAN_EAGAIN;
        got += (size_t)n;
    }
    if (config->key) {
        prove_answer(config, &greeting, answer, a->bytes, right);
        if (!mac_equal(right, answer + a->bytes)) /* another process has rank 0's address */
            return TITAN_EAGAIN;
        cover(config, &greeting, answer, a->bytes);
    }
    memcpy(a->data, answer, a->bytes);
    return TITAN_OK;
}

titan_status nccl_share(const struct nccl_agreement *a, struct titan_error *err)
{
    const struct comm_config *config = a->config;
    if (a->bytes > NCCL_SHARE_MAX || config->world < 1 || config->world > COMM_WORLD_MAX || config->rank < 0 ||
        config->rank >= config->world)
        return titan_fail(err, TITAN_EINVAL, "rank %d of %d members", config->rank, config->world);
    if (config->rank == 0)
        return host(a, err);
    for (;;) {
        TRY(may_go_on(a, err));
        _cleanup_fd_ int fd = dial(config);
        titan_status st = fd < 0 ? TITAN_EAGAIN : visit(a, fd, err);
        if (st == TITAN_OK)
            nccl_peers_add(a->peers, TAKE_FD(fd), 0);
        if (st != TITAN_EAGAIN)
            return st;
        (void)nanosleep(&(struct timespec){.tv_nsec = LOOK_MS * 1000000L}, NULL); /* rank 0 is not there yet */
    }
}
