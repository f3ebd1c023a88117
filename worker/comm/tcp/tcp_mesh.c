/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/comm/tcp/tcp_mesh.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/listen.h"
#include "base/mac.h"
#include "base/progress.h"

#define OPEN_TIMEOUT_MS_DEFAULT 30000
#define POLL_MS 5
#define RETRY_MS 20
#define ARRIVAL_MS 2000
#define ARRIVALS_EXTRA 128 /* arrivals beyond the number of members */
#define BACKLOG 1024
#define SILENT_MS 15000

/* Identity that both sides send; integers are little-endian. */
struct identity {
    char magic[8];
    unsigned char id[COMM_ID_BYTES];
    uint64_t epoch, tag;
    uint32_t rank, members; /* rank in the epoch; number of members in the rendezvous */
};
_Static_assert(sizeof(struct identity) == 48, "it goes over the wire");

/* With a key the accepting side first sends a random challenge of CHALLENGE_BYTES. The connecting side sends a greeting
 * with its identity. The accepting side sends an answer with its identity. A proof is an HMAC-SHA256 under the key over
 * its label, the challenge and all earlier data. */
#define CHALLENGE_BYTES 32
struct greeting {
    struct identity identity;
    unsigned char challenge[CHALLENGE_BYTES]; /* challenge for the accepting side */
    unsigned char proof[MAC_BYTES];
};
struct answer {
    struct identity identity;
    unsigned char proof[MAC_BYTES];
};
_Static_assert(sizeof(struct greeting) == 112 && sizeof(struct answer) == 80, "they go over the wire");

static const char magic[2][8] = {"TITANCM2", "TITANCM3"}; /* without a key, with a key */

/* CHALLENGED: waits for the peer's challenge. */
enum peer_state { PEER_IDLE, PEER_CONNECTING, PEER_CHALLENGED, PEER_GREETED, PEER_READY };

struct address {
    char *text;
    struct sockaddr_storage resolved; /* set for lower ranks only */
    socklen_t len;
};

/* A member during a rendezvous. */
struct peer {
    enum peer_state state;
    int fd;
    size_t got; /* bytes received of its challenge or answer */
    unsigned char challenge[CHALLENGE_BYTES];
    struct greeting greeting; /* greeting sent to the peer */
    struct answer answer;
    int64_t retry_at; /* ms */
};

/* An accepted connection from a sender that is not known yet, or from a member that is early. */
struct arrival {
    int fd;
    size_t got; /* bytes received of its greeting */
    bool known; /* the greeting is complete and comes from a member */
    unsigned char challenge[CHALLENGE_BYTES];
    struct greeting greeting;
    int64_t since; /* ms */
};

struct mesh {
    int rank, world, listener;
    uint32_t timeout_ms;
    bool keyed;
    unsigned char key[MAC_BYTES];
    struct identity own; /* without tag and members */
    struct address *addresses;
    struct arrival *arrivals;
    int n_arrivals, capacity;
};

struct rendezvous {
    struct mesh *m;
    const struct rendezvous_options *options;
    struct identity own;
    int self; /* this rank's place among the members */
    struct peer *peers;
    int ready;
    /* lost: member whose connection has ended; stray: rank that expects other members; -1 = none. */
    int lost, stray;
    struct pollfd *polls;
};

static int64_t now_ms(void)
{
    return clock_mono_ns() / 1000000;
}

/* --- addresses ---------------------------------------------------------------------------------------------------- */

static titan_status resolve(struct address *a, struct titan_error *err)
{
    const char *address = a->text;
    char host[256];
    const char *colon = strrchr(address, ':');
    if (!colon || (size_t)(colon - address) >= sizeof(host))
        return titan_fail(err, TITAN_EINVAL, "'%s' is no host:port", address);
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
    memcpy(&a->resolved, list->ai_addr, list->ai_addrlen);
    a->len = list->ai_addrlen;
    freeaddrinfo(list);
    return TITAN_OK;
}

titan_status comm_listen(const char *host, const struct listen_ports *ports, int *ret_fd, int *ret_port,
                         struct titan_error *err)
{
    uint16_t port = 0;
    TRY(listen_tcp(host, ports, BACKLOG, ret_fd, &port, err));
    *ret_port = port;
    return TITAN_OK;
}

static void set_option(int fd, int level, int name, int value)
{
    (void)setsockopt(fd, level, name, &value, sizeof(value)); /* each option only helps, so a failure does not matter */
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

/* --- identities --------------------------------------------------------------------------------------------------- */

static bool send_all(int fd, const void *bytes, size_t len)
{
    /* The send buffer of a new connection always has room for these bytes. */
    return send(fd, bytes, len, MSG_NOSIGNAL) == (ssize_t)len;
}

/* Continues to read. Returns 1: complete, 0: not yet, -1: the connection has ended. */
static int receive(int fd, void *bytes, size_t len, size_t *got)
{
    titan_assert(*got <= len);
    while (*got < len) {
        ssize_t n = recv(fd, (char *)bytes + *got, len - *got, 0);
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

static size_t greeting_bytes(const struct mesh *m)
{
    return m->keyed ? sizeof(struct greeting) : sizeof(struct identity);
}

static size_t answer_bytes(const struct mesh *m)
{
    return m->keyed ? sizeof(struct answer) : sizeof(struct identity);
}

/* Computes a proof. answer NULL: the connecting side's proof. Otherwise the accepting side's proof, which also covers
 * the greeting that the accepting side received. */
static void prove(const struct mesh *m, const unsigned char challenge[CHALLENGE_BYTES], const struct greeting *greeting,
                  const struct identity *answer, unsigned char ret[MAC_BYTES])
{
    titan_assert(m->keyed);
    const char *label = answer ? "titan hello accepted" : "titan hello";
    struct mac mac;
    mac_begin(&mac, m->key, sizeof(m->key));
    mac_add(&mac, label, strlen(label) + 1);
    mac_add(&mac, challenge, CHALLENGE_BYTES);
    mac_add(&mac, greeting, offsetof(struct greeting, proof));
    if (answer)
        mac_add(&mac, answer, sizeof(*answer));
    mac_end(&mac, ret);
}

static bool draw_challenge(unsigned char ret[CHALLENGE_BYTES])
{
    return getrandom(ret, CHALLENGE_BYTES, 0) == CHALLENGE_BYTES;
}

static bool send_greeting(const struct rendezvous *g, struct peer *p)
{
    struct greeting *x = &p->greeting;
    *x = (struct greeting){.identity = g->own};
    if (g->m->keyed) {
        if (!draw_challenge(x->challenge))
            return false;
        prove(g->m, p->challenge, x, NULL, x->proof);
    }
    return send_all(p->fd, x, greeting_bytes(g->m));
}

/* Does the identity belong to a member of this epoch? */
static bool is_member(const struct mesh *m, const struct identity *h)
{
    return memcmp(h->magic, m->own.magic, sizeof(h->magic)) == 0 && memcmp(h->id, m->own.id, sizeof(h->id)) == 0 &&
           h->epoch == m->own.epoch && h->rank < (uint32_t)m->world;
}

/* Returns the place of a greeting's sender among the members of this rendezvous; -1: the sender is not a member. */
static int place_of(const struct rendezvous *g, const struct identity *h)
{
    for (int i = 0; h->members == g->own.members && i < g->options->n; i++)
        if (g->options->members[i] == (int)h->rank)
            return i;
    return -1;
}

/* --- connecting --------------------------------------------------------------------------------------------------- */

static void retry_later(struct peer *p)
{
    if (p->fd >= 0)
        (void)close(p->fd);
    p->fd = -1;
    p->got = 0;
    p->state = PEER_IDLE;
    p->retry_at = now_ms() + RETRY_MS;
}

/* Handles an event on the socket to a lower rank. */
static void advance_peer(struct rendezvous *g, int i)
{
    struct peer *p = &g->peers[i];
    if (p->state == PEER_CONNECTING) {
        int error = 0;
        socklen_t len = sizeof(error);
        if (getsockopt(p->fd, SOL_SOCKET, SO_ERROR, &error, &len) < 0 || error != 0 ||
            (!g->m->keyed && !send_greeting(g, p))) {
            retry_later(p);
            return;
        }
        p->state = g->m->keyed ? PEER_CHALLENGED : PEER_GREETED;
        return;
    }
    if (p->state == PEER_CHALLENGED) {
        int rc = receive(p->fd, p->challenge, sizeof(p->challenge), &p->got);
        if (rc < 0 || (rc > 0 && !send_greeting(g, p))) {
            retry_later(p);
        } else if (rc > 0) {
            p->got = 0;
            p->state = PEER_GREETED;
        }
        return;
    }
    const struct identity *identity = &p->answer.identity;
    int rc = receive(p->fd, &p->answer, answer_bytes(g->m), &p->got);
    bool fits =
        rc == 0 || (rc > 0 && is_member(g->m, identity) && identity->tag == g->own.tag && place_of(g, identity) == i);
    if (rc > 0 && fits && g->m->keyed) {
        unsigned char right[MAC_BYTES];
        prove(g->m, p->challenge, &p->greeting, identity, right);
        fits = mac_equal(right, p->answer.proof);
    }
    if (!fits) { /* the peer has gone, is still in another epoch, or another process has its address now */
        retry_later(p);
    } else if (rc > 0) {
        p->state = PEER_READY;
        g->ready++;
    }
}

/* --- accepting ---------------------------------------------------------------------------------------------------- */

static void drop_arrival(struct mesh *m, int i)
{
    titan_assert(i >= 0 && i < m->n_arrivals);
    if (m->arrivals[i].fd >= 0)
        (void)close(m->arrivals[i].fd);
    m->arrivals[i] = m->arrivals[--m->n_arrivals];
}

/* Handles an arrival with a complete greeting: a higher rank becomes a peer, an early member stays, all others are
 * closed. */
static void admit(struct rendezvous *g, int at)
{
    struct mesh *m = g->m;
    titan_assert(at >= 0 && at < m->n_arrivals);
    struct arrival *s = &m->arrivals[at];
    const struct identity identity = s->greeting.identity;
    if (!s->known) {
        unsigned char right[MAC_BYTES];
        s->known = is_member(m, &identity);
        if (s->known && m->keyed) {
            prove(m, s->challenge, &s->greeting, NULL, right);
            s->known = mac_equal(right, s->greeting.proof);
        }
    }
    if (!s->known) {
        drop_arrival(m, at);
        return;
    }
    if (identity.tag != g->own.tag)
        return;
    int i = place_of(g, &identity);
    if (i < 0)
        g->stray = (int)identity.rank;
    struct answer answer = {.identity = g->own};
    if (i > g->self && m->keyed)
        prove(m, s->challenge, &s->greeting, &answer.identity, answer.proof);
    if (i > g->self && send_all(s->fd, &answer, answer_bytes(m))) {
        struct peer *p = &g->peers[i];
        if (p->state == PEER_READY)
            (void)close(p->fd); /* the peer connected again and uses its last connection */
        else
            g->ready++;
        p->state = PEER_READY;
        p->fd = TAKE_FD(s->fd);
    }
    drop_arrival(m, at);
}

static void advance_arrivals(struct rendezvous *g)
{
    struct mesh *m = g->m;
    for (int i = m->n_arrivals - 1; i >= 0; i--) {
        struct arrival *s = &m->arrivals[i];
        int rc = receive(s->fd, &s->greeting, greeting_bytes(m), &s->got);
        if (rc > 0)
            admit(g, i);
        else if (rc < 0 || now_ms() - s->since > ARRIVAL_MS)
            drop_arrival(m, i);
    }
}

/* --- the loop ----------------------------------------------------------------------------------------------------- */

/* Polls once and handles all descriptors that are ready. */
static void step(struct rendezvous *g)
{
    const struct rendezvous_options *o = g->options;
    struct mesh *m = g->m;
    int n = 0;

    /* Collects the descriptors: peers below, existing links, the listener, arrivals whose greeting is incomplete. */
    for (int i = 0; i < o->n; i++) {
        struct peer *p = &g->peers[i];
        if (i < g->self && p->state == PEER_IDLE && now_ms() >= p->retry_at) {
            const struct address *a = &m->addresses[o->members[i]];
            titan_assert(p->fd < 0);
            p->fd = socket(a->resolved.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
            if (p->fd >= 0)
                set_options(p->fd);
            p->state = PEER_CONNECTING;
            if (p->fd < 0 ||
                (connect(p->fd, (const struct sockaddr *)&a->resolved, a->len) < 0 && errno != EINPROGRESS))
                retry_later(p);
        }
        bool waits = p->state != PEER_IDLE && p->state != PEER_READY;
        g->polls[n++] =
            (struct pollfd){.fd = waits ? p->fd : -1, .events = p->state == PEER_CONNECTING ? POLLOUT : POLLIN};
    }
    for (int i = 0; i < o->n; i++)
        g->polls[n++] = (struct pollfd){.fd = o->links ? o->links[i] : -1, .events = POLLRDHUP};
    g->polls[n++] = (struct pollfd){.fd = m->listener, .events = POLLIN};
    for (int i = 0; i < m->n_arrivals; i++) {
        const struct arrival *s = &m->arrivals[i];
        g->polls[n++] = (struct pollfd){.fd = s->got < greeting_bytes(m) ? s->fd : -1, .events = POLLIN};
    }
    progress_wait_begin();
    int ready = poll(g->polls, (nfds_t)n, POLL_MS);
    progress_wait_end();
    if (ready < 0)
        return;

    for (int i = 0; i < g->self; i++)
        if (g->polls[i].fd >= 0 && g->polls[i].revents)
            advance_peer(g, i);
    for (int i = 0; i < o->n; i++)
        if (g->polls[o->n + i].revents)
            g->lost = i;
    int fd = -1;
    while (g->polls[2 * o->n].revents && (fd = accept4(m->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0) {
        titan_assert(m->n_arrivals <= m->capacity);
        if (m->n_arrivals == m->capacity)
            drop_arrival(m, 0);
        set_options(fd);
        struct arrival *s = &m->arrivals[m->n_arrivals++];
        *s = (struct arrival){.fd = fd, .since = now_ms()};
        if (m->keyed && (!draw_challenge(s->challenge) || !send_all(fd, s->challenge, sizeof(s->challenge))))
            drop_arrival(m, m->n_arrivals - 1);
    }
    advance_arrivals(g);
}

static titan_status check(const struct rendezvous *g, int64_t end, struct titan_error *err)
{
    const struct rendezvous_options *o = g->options;
    if (o->abort_flag && atomic_load(o->abort_flag))
        return titan_fail(err, TITAN_EREVOKED, "the epoch was revoked while its members met");
    if (o->in)
        TRY(comm_core_error(o->in, err));
    if (g->lost >= 0)
        return titan_fail(err, TITAN_EPEER, "rank %d closed its connection while members met", o->members[g->lost]);
    if (g->stray >= 0)
        return titan_fail(err, TITAN_ECONFLICT, "rank %d came for a group of others: members do not split alike",
                          g->stray);
    if (now_ms() < end)
        return TITAN_OK;
    int i = 0;
    while (i == g->self || g->peers[i].state == PEER_READY)
        i++;
    return titan_fail(err, TITAN_ETIMEDOUT, "rank %d (%s) did not connect within %u ms", o->members[i],
                      g->m->addresses[o->members[i]].text, g->m->timeout_ms);
}

static void clear_rendezvous(struct rendezvous *g)
{
    for (int i = 0; g->peers && i < g->options->n; i++)
        if (g->peers[i].fd >= 0)
            (void)close(g->peers[i].fd);
    free(g->peers);
    free(g->polls);
}

titan_status tcp_mesh_meet(struct mesh *m, const struct rendezvous_options *options, int *fds, struct titan_error *err)
{
    titan_assert(options->n >= 1);
    size_t n = (size_t)options->n;
    _cleanup_(clear_rendezvous) struct rendezvous g = {
        .m = m, .options = options, .own = m->own, .self = -1, .lost = -1, .stray = -1};
    g.own.tag = options->tag;
    g.own.members = (uint32_t)n;
    g.peers = calloc(n, sizeof(*g.peers));
    g.polls = calloc(2 * n + 1 + (size_t)m->capacity, sizeof(*g.polls));
    if (!g.peers || !g.polls)
        return titan_fail(err, TITAN_ENOMEM, "no memory for a mesh of %zu members", n);
    for (int i = 0; i < options->n; i++) {
        g.peers[i].fd = -1;
        if (options->members[i] == m->rank)
            g.self = i;
    }
    titan_assert(g.self >= 0);
    const int64_t end = now_ms() + m->timeout_ms;
    advance_arrivals(&g); /* members that came early */
    while (g.ready < options->n - 1) {
        TRY(check(&g, end, err));
        step(&g);
    }
    for (size_t i = 0; i < n; i++)
        fds[i] = TAKE_FD(g.peers[i].fd);
    return TITAN_OK;
}

/* --- opening and closing ------------------------------------------------------------------------------------------ */

void tcp_mesh_close(struct mesh *m)
{
    if (!m)
        return;
    while (m->n_arrivals > 0)
        drop_arrival(m, 0);
    for (int r = 0; m->addresses && r < m->world; r++)
        free(m->addresses[r].text);
    if (m->listener >= 0)
        (void)close(m->listener);
    free(m->addresses);
    free(m->arrivals);
    mac_wipe(m->key, sizeof(m->key));
    free(m);
}

static void close_mesh(struct mesh **m)
{
    tcp_mesh_close(*m);
}

titan_status tcp_mesh_open(const struct comm_config *config, struct mesh **ret, struct titan_error *err)
{
    titan_assert(config->rank >= 0 && config->rank < config->world);
    size_t world = (size_t)config->world;
    _cleanup_(close_mesh) struct mesh *m = calloc(1, sizeof(*m));
    if (!m)
        return titan_fail(err, TITAN_ENOMEM, "no memory for a mesh");
    *m = (struct mesh){.rank = config->rank, .world = config->world, .listener = -1};
    m->timeout_ms = config->timeout_ms ? config->timeout_ms : OPEN_TIMEOUT_MS_DEFAULT;
    m->own = (struct identity){.epoch = config->epoch, .rank = (uint32_t)config->rank};
    m->keyed = config->key != NULL;
    if (m->keyed)
        memcpy(m->key, config->key, sizeof(m->key));
    memcpy(m->own.magic, magic[m->keyed], sizeof(m->own.magic));
    memcpy(m->own.id, config->id, sizeof(m->own.id));
    m->capacity = config->world + ARRIVALS_EXTRA;
    m->addresses = calloc(world, sizeof(*m->addresses));
    m->arrivals = calloc((size_t)m->capacity, sizeof(*m->arrivals));
    if (!m->addresses || !m->arrivals)
        return titan_fail(err, TITAN_ENOMEM, "no memory for a mesh of %zu members", world);
    if (config->rank < config->world - 1 && config->listener < 0)
        return titan_fail(err, TITAN_EINVAL, "rank %d has no listening socket", config->rank);
    /* Splits need the socket later, and the caller may close its own descriptor. So a duplicate is kept. */
    if (config->listener >= 0 && (m->listener = fcntl(config->listener, F_DUPFD_CLOEXEC, 0)) < 0)
        return titan_fail_errno(err, "cannot keep the listening socket");
    for (int r = 0; r < config->world; r++) {
        const char *text = config->addresses && config->addresses[r] ? config->addresses[r] : "";
        m->addresses[r].text = strdup(text);
        if (!m->addresses[r].text)
            return titan_fail(err, TITAN_ENOMEM, "no memory for a mesh of %zu members", world);
        if (r < config->rank)
            TRY(resolve(&m->addresses[r], err));
    }
    *ret = TAKE(m);
    return TITAN_OK;
}
