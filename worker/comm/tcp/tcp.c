/* SPDX-License-Identifier: Apache-2.0 */
/* tcp.c - collectives over a full mesh of TCP connections.
 *
 * Every operation is made of one primitive, the exchange: this member sends to and receives from any of the others, all
 * at once. An exchange uses non-blocking sockets under edge-triggered epoll. Each direction has its own epoll set,
 * because one thread may send messages while another receives. The byte streams need no framing: both ends run the same
 * operations in the same order. Sums are added in rank order from a bounded staging area. While one chunk is summed,
 * the next chunks arrive in the kernel's buffers.
 *
 * A split has its own connections, so a wait in one group does not delay another.
 *
 * An eventfd in both epoll sets ends every wait when the epoch is revoked. A member that fails shuts its connections in
 * all groups. So the members that wait for it fail at once too, and so do the members that wait for these. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/hash.h"
#include "base/progress.h"
#include "worker/comm/core.h"
#include "worker/comm/reduce.h"
#include "worker/comm/tcp/tcp_mesh.h"

#define STAGE_BYTES ((size_t)4 << 20) /* over all members */
#define CHUNK_BYTES_MIN ((size_t)64 << 10)
#define CHUNK_BYTES_MAX ((size_t)1 << 20)
#define PORTION_BYTES ((size_t)512 << 10) /* bytes that one connection moves before the next connection's turn */
/* Up to this many bytes, every member computes the whole sum: one exchange instead of two. */
#define EACH_SUMS_BYTES ((size_t)16 << 10)
/* A broadcast of more bytes is cut up among the members, which then gather the parts. */
#define SCATTER_BYTES_MIN ((size_t)256 << 10)
#define EVENTS_MAX 64

/* Directions, as indices and as bits. */
enum way { OUT, IN, WAYS };
#define WAY(w) (1u << (w))
#define BOTH (WAY(OUT) | WAY(IN))

/* The two directions of a connection share no fields. */
struct link {
    int fd;
    const unsigned char *out;
    size_t out_left;
    bool can_write; /* the socket is not known to be full */
    unsigned char *in;
    size_t in_left;
    bool can_read; /* the socket is not known to be empty */
};

struct comm {
    struct comm_core core; /* first, because the core passes a pointer to it, which is cast back */
    struct link *links;    /* by rank; this rank's own link has fd -1 */
    int epolls[WAYS], event;
    unsigned char *stage; /* chunk bytes per rank */
    size_t chunk;
    struct mesh *mesh; /* the epoch's mesh, owned by the opened communicator */
    int *names;        /* each member's rank in the epoch */
    uint64_t tag;      /* tag of the rendezvous that made this communicator */
    uint64_t splits;   /* splits of this communicator so far, the same on all members */
};

/* --- exchange ----------------------------------------------------------------------------------------------------- */

static titan_status peer_gone(int rank, const char *what, struct titan_error *err)
{
    if (errno == 0)
        return titan_fail(err, TITAN_EPEER, "rank %d closed its connection", rank);
    return titan_fail(err, TITAN_EPEER, "rank %d: %s: %s", rank, what, strerror(errno));
}

/* Collects the readiness of one direction's connections. wait_ms -1: waits until one is ready. */
static titan_status harvest(struct comm *c, enum way way, int wait_ms, struct titan_error *err)
{
    titan_assert(way < WAYS);
    struct epoll_event events[EVENTS_MAX];
    if (wait_ms != 0)
        progress_wait_begin();
    int n = epoll_wait(c->epolls[way], events, EVENTS_MAX, wait_ms);
    if (wait_ms != 0)
        progress_wait_end();
    if (n < 0 && errno != EINTR)
        return titan_fail_errno(err, "epoll_wait");
    for (int i = 0; i < n; i++) {
        if (events[i].data.u32 == (uint32_t)c->core.world)
            continue; /* the eventfd */
        struct link *l = &c->links[events[i].data.u32];
        *(way == OUT ? &l->can_write : &l->can_read) = true;
    }
    return TITAN_OK;
}

/* Runs the exchange in these directions until everything has been received; with flush also until everything has been
 * sent. */
static titan_status exchange_ways(struct comm *c, unsigned ways, bool flush, struct titan_error *err)
{
    titan_assert(ways != 0 && (ways & ~BOTH) == 0);
    for (;;) {
        bool moved = false, left = false;
        if (comm_core_ended(&c->core))
            return titan_fail(err, TITAN_EPEER, "the epoch has ended");
        for (int i = 1; i < c->core.world; i++) {
            int r = (c->core.rank + i) % c->core.world;
            struct link *l = &c->links[r];
            if ((ways & WAY(OUT)) && l->out_left > 0 && l->can_write) {
                const ssize_t n = send(l->fd, l->out, MIN(l->out_left, PORTION_BYTES), MSG_NOSIGNAL);
                if (n >= 0) {
                    l->out += n;
                    l->out_left -= (size_t)n;
                } else if (errno == EAGAIN) {
                    l->can_write = false;
                } else if (errno != EINTR) {
                    return peer_gone(r, "send", err);
                }
                moved = true;
            }
            if ((ways & WAY(IN)) && l->in_left > 0 && l->can_read) {
                const ssize_t n = recv(l->fd, l->in, MIN(l->in_left, PORTION_BYTES), 0);
                errno = n == 0 ? 0 : errno;
                if (n > 0) {
                    l->in += n;
                    l->in_left -= (size_t)n;
                } else if (n < 0 && errno == EAGAIN) {
                    l->can_read = false;
                } else if (n == 0 || errno != EINTR) {
                    return peer_gone(r, "receive", err);
                }
                moved = true;
            }
            left |= ((ways & WAY(IN)) && l->in_left > 0) || (flush && (ways & WAY(OUT)) && l->out_left > 0);
        }
        if (!left)
            return TITAN_OK;
        if (moved) {
            progress_action();
            continue;
        }
        if (ways == BOTH) { /* waits here, until one of the two sets has events */
            struct pollfd fds[WAYS] = {{.fd = c->epolls[OUT], .events = POLLIN},
                                       {.fd = c->epolls[IN], .events = POLLIN}};
            progress_wait_begin();
            int n = poll(fds, WAYS, -1);
            progress_wait_end();
            if (n < 0 && errno != EINTR)
                return titan_fail_errno(err, "poll");
        }
        if (ways & WAY(OUT))
            TRY(harvest(c, OUT, ways == BOTH ? 0 : -1, err));
        if (ways & WAY(IN))
            TRY(harvest(c, IN, ways == BOTH ? 0 : -1, err));
    }
}

static titan_status exchange(struct comm *c, bool flush, struct titan_error *err)
{
    return exchange_ways(c, BOTH, flush, err);
}

static void to_send(struct comm *c, int rank, const void *data, size_t bytes)
{
    titan_assert(rank >= 0 && rank < c->core.world && rank != c->core.rank);
    titan_assert(c->links[rank].out_left == 0);
    c->links[rank].out = data;
    c->links[rank].out_left = bytes;
}

static void to_receive(struct comm *c, int rank, void *data, size_t bytes)
{
    titan_assert(rank >= 0 && rank < c->core.world && rank != c->core.rank);
    titan_assert(c->links[rank].in_left == 0);
    c->links[rank].in = data;
    c->links[rank].in_left = bytes;
}

/* --- collectives -------------------------------------------------------------------------------------------------- */

/* Cuts `bytes` among the members: part r begins at *ret_at. Parts are equal multiples of 64; the last may be
 * smaller. */
static size_t part_of(size_t bytes, int world, int r, size_t *ret_at)
{
    titan_assert(world >= 1 && r >= 0 && r < world);
    size_t line = 64 * (size_t)world, part = (bytes + line - 1) / line * 64;
    *ret_at = MIN((size_t)r * part, bytes);
    return MIN(part, bytes - *ret_at);
}

static titan_status all_gather(struct comm *c, unsigned char *recv, const unsigned char *send, size_t bytes,
                               struct titan_error *err)
{
    unsigned char *own = recv + (size_t)c->core.rank * bytes;
    for (int r = 0; r < c->core.world; r++) {
        if (r == c->core.rank)
            continue;
        to_send(c, r, send, bytes);
        to_receive(c, r, recv + (size_t)r * bytes, bytes);
    }
    TRY(exchange(c, true, err));
    if (own != send && bytes > 0)
        memcpy(own, send, bytes);
    return TITAN_OK;
}

/* Gathers all parts of data. Part r is already complete on rank r. */
static titan_status gather_parts(struct comm *c, unsigned char *data, size_t bytes, struct titan_error *err)
{
    size_t own_at, at, own = part_of(bytes, c->core.world, c->core.rank, &own_at);
    for (int r = 0; r < c->core.world; r++) {
        if (r == c->core.rank)
            continue;
        size_t len = part_of(bytes, c->core.world, r, &at);
        to_send(c, r, data + own_at, own);
        to_receive(c, r, data + at, len);
    }
    return exchange(c, true, err);
}

/* out (bytes) = sum over ranks of the addends that they send to this rank. own: this rank's own addend. The caller has
 * already put the outgoing data on the links. */
static titan_status sum_incoming(struct comm *c, unsigned char *out, const unsigned char *own, size_t bytes,
                                 enum dtype dt, struct titan_error *err)
{
    const void *src[COMM_WORLD_MAX];
    for (size_t at = 0; at < bytes; at += c->chunk) {
        size_t len = MIN(c->chunk, bytes - at);
        for (int r = 0; r < c->core.world; r++) {
            unsigned char *staged = c->stage + (size_t)r * c->chunk;
            src[r] = r == c->core.rank ? own + at : staged;
            if (r != c->core.rank)
                to_receive(c, r, staged, len);
        }
        TRY(exchange(c, false, err));
        reduce_sum(out + at, src, c->core.world, len / dtype_bytes(dt), dt);
    }
    return exchange(c, true, err);
}

static titan_status reduce_scatter(struct comm *c, unsigned char *recv, const unsigned char *send, size_t bytes,
                                   enum dtype dt, struct titan_error *err)
{
    for (int r = 0; r < c->core.world; r++)
        if (r != c->core.rank)
            to_send(c, r, send + (size_t)r * bytes, bytes);
    return sum_incoming(c, recv, send + (size_t)c->core.rank * bytes, bytes, dt, err);
}

static titan_status all_reduce(struct comm *c, unsigned char *data, size_t bytes, enum dtype dt,
                               struct titan_error *err)
{
    int world = c->core.world;
    size_t at, own_at, own = part_of(bytes, world, c->core.rank, &own_at);
    if (bytes <= EACH_SUMS_BYTES) {
        unsigned char addend[EACH_SUMS_BYTES];
        memcpy(addend, data, bytes);
        for (int r = 0; r < world; r++)
            if (r != c->core.rank)
                to_send(c, r, addend, bytes);
        return sum_incoming(c, data, addend, bytes, dt, err);
    }
    for (int r = 0; r < world; r++) {
        if (r == c->core.rank)
            continue;
        size_t len = part_of(bytes, world, r, &at);
        to_send(c, r, data + at, len);
    }
    TRY(sum_incoming(c, data + own_at, data + own_at, own, dt, err));
    return gather_parts(c, data, bytes, err);
}

static titan_status broadcast(struct comm *c, unsigned char *data, size_t bytes, int root, struct titan_error *err)
{
    titan_assert(root >= 0 && root < c->core.world);
    bool cut = bytes >= SCATTER_BYTES_MIN && c->core.world > 2;
    for (int r = 0; r < c->core.world; r++) {
        size_t at = 0, len = cut ? part_of(bytes, c->core.world, r, &at) : bytes;
        if (c->core.rank == root && r != root)
            to_send(c, r, data + at, len);
        else if (c->core.rank == r && r != root)
            to_receive(c, root, data + at, len);
    }
    TRY(exchange(c, true, err));
    return cut ? gather_parts(c, data, bytes, err) : TITAN_OK;
}

static titan_status all_to_all(struct comm *c, unsigned char *recv, const unsigned char *send, size_t bytes,
                               struct titan_error *err)
{
    size_t own = (size_t)c->core.rank * bytes;
    for (int r = 0; r < c->core.world; r++) {
        if (r == c->core.rank)
            continue;
        to_send(c, r, send + (size_t)r * bytes, bytes);
        to_receive(c, r, recv + (size_t)r * bytes, bytes);
    }
    TRY(exchange(c, true, err));
    if (bytes > 0)
        memcpy(recv + own, send + own, bytes);
    return TITAN_OK;
}

/* Dissemination barrier (Hensgen, Finkel and Manber 1988): in round k each rank sends a byte to the rank 2^k above. */
static titan_status barrier(struct comm *c, struct titan_error *err)
{
    unsigned char out = 1, in = 0;
    int world = c->core.world;
    for (int distance = 1; distance < world; distance *= 2) {
        to_send(c, (c->core.rank + distance) % world, &out, 1);
        to_receive(c, (c->core.rank - distance + world) % world, &in, 1);
        TRY(exchange(c, true, err));
    }
    return TITAN_OK;
}

/* Sends to rank + distance and receives from rank - distance. */
static titan_status shift(struct comm *c, unsigned char *recv, const unsigned char *send, size_t bytes, int distance,
                          struct titan_error *err)
{
    titan_assert(distance >= 0 && distance < c->core.world);
    int rank = c->core.rank, world = c->core.world;
    if (distance == 0) {
        memcpy(recv, send, bytes);
        return TITAN_OK;
    }
    to_send(c, (rank + distance) % world, send, bytes);
    to_receive(c, (rank - distance + world) % world, recv, bytes);
    return exchange(c, true, err);
}

static titan_status all_to_all_v(struct comm *c, const struct comm_request *r, struct titan_error *err)
{
    const unsigned char *send = r->send, *own = send;
    unsigned char *recv = r->recv, *to = recv;
    for (int i = 0; i < c->core.world; i++) {
        size_t gives = (size_t)r->send_counts[i] * r->count, gets = (size_t)r->recv_counts[i] * r->count;
        if (i == c->core.rank) {
            own = send;
            to = recv;
        } else {
            to_send(c, i, send, gives);
            to_receive(c, i, recv, gets);
        }
        send += gives;
        recv += gets;
    }
    memcpy(to, own, (size_t)r->send_counts[c->core.rank] * r->count);
    return exchange(c, true, err);
}

/* A connection carries one message at a time in each direction. So round n carries the n-th message of each connection
 * and direction, on both sides. No round waits for a later round. */
static titan_status pass(struct comm_core *core, const struct comm_request *parts, int n, struct titan_error *err)
{
    struct comm *c = (struct comm *)core;
    _cleanup_free_ bool *begun = calloc((size_t)n, sizeof(*begun));
    unsigned ways = 0;
    if (!begun)
        return titan_fail(err, TITAN_ENOMEM, "no memory for %d messages at once", n);
    for (int i = 0; i < n; i++)
        ways |= WAY(parts[i].op == COMM_SEND ? OUT : IN);
    for (int left = n; left > 0;) {
        for (int i = 0; i < n; i++) {
            const struct comm_request *r = &parts[i];
            const struct link *l = &c->links[r->peer];
            if (begun[i] || (r->op == COMM_SEND ? l->out_left : l->in_left) > 0)
                continue;
            if (r->op == COMM_SEND)
                to_send(c, r->peer, r->send, r->count);
            else
                to_receive(c, r->peer, r->recv, r->count);
            begun[i] = true;
            left--;
        }
        TRY(exchange_ways(c, ways, true, err));
    }
    return TITAN_OK;
}

/* Sockets stay open until close(), so wake() is safe while an exchange runs. */
static void wake(struct comm_core *core)
{
    struct comm *c = (struct comm *)core;
    uint64_t one = 1;
    if (c->event >= 0)
        (void)!write(c->event, &one, sizeof(one));
    for (int r = 0; c->links && r < core->world; r++)
        if (c->links[r].fd >= 0)
            (void)shutdown(c->links[r].fd, SHUT_RDWR);
}

/* --- the table ---------------------------------------------------------------------------------------------------- */

static const struct comm_transport transport = {
    .name = "tcp",
    .all_gather = all_gather,
    .reduce_scatter = reduce_scatter,
    .all_reduce = all_reduce,
    .broadcast = broadcast,
    .all_to_all = all_to_all,
    .all_to_all_v = all_to_all_v,
    .shift = shift,
    .barrier = barrier,
    .pass = pass,
    .wake = wake,
};

static titan_status watch(struct comm *c, enum way way, int fd, uint32_t events, uint32_t data, struct titan_error *err)
{
    titan_assert(fd >= 0);
    struct epoll_event e = {.events = events, .data.u32 = data};
    if (epoll_ctl(c->epolls[way], EPOLL_CTL_ADD, fd, &e) < 0)
        return titan_fail_errno(err, "epoll_ctl");
    return TITAN_OK;
}

/* Makes everything but the connections. */
static titan_status prepare_links(struct comm *c, struct titan_error *err)
{
    titan_assert(!c->links && !c->stage);
    size_t world = (size_t)c->core.world;
    c->chunk = MAX(MIN(STAGE_BYTES / world, CHUNK_BYTES_MAX), CHUNK_BYTES_MIN) / 64 * 64;
    c->stage = malloc(c->chunk * world);
    c->links = calloc(world, sizeof(*c->links));
    c->names = malloc(world * sizeof(*c->names));
    if (!c->stage || !c->links || !c->names)
        return titan_fail(err, TITAN_ENOMEM, "no memory for %zu connections", world);
    for (size_t r = 0; r < world; r++) {
        c->links[r] = (struct link){.fd = -1, .can_read = true, .can_write = true};
        c->names[r] = (int)r;
    }
    c->epolls[OUT] = epoll_create1(EPOLL_CLOEXEC);
    c->epolls[IN] = epoll_create1(EPOLL_CLOEXEC);
    c->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (c->epolls[OUT] < 0 || c->epolls[IN] < 0 || c->event < 0)
        return titan_fail_errno(err, "cannot make an epoll set");
    TRY(watch(c, OUT, c->event, EPOLLIN, (uint32_t)world, err)); /* level-triggered: stays readable once revoked */
    return watch(c, IN, c->event, EPOLLIN, (uint32_t)world, err);
}

static titan_status connect_links(struct comm *c, const struct rendezvous_options *options, struct titan_error *err)
{
    titan_assert(options->n == c->core.world);
    int fds[COMM_WORLD_MAX];
    TRY(tcp_mesh_meet(c->mesh, options, fds, err));
    for (int r = 0; r < options->n; r++)
        c->links[r].fd = fds[r];
    for (int r = 0; r < options->n; r++) {
        if (c->links[r].fd < 0)
            continue;
        TRY(watch(c, OUT, c->links[r].fd, EPOLLOUT | EPOLLET, (uint32_t)r, err));
        TRY(watch(c, IN, c->links[r].fd, EPOLLIN | EPOLLRDHUP | EPOLLET, (uint32_t)r, err));
    }
    return TITAN_OK;
}

static void close_links(struct comm *c, bool is_child)
{
    for (int r = 0; c->links && r < c->core.world; r++)
        if (c->links[r].fd >= 0)
            (void)close(c->links[r].fd);
    for (int way = 0; way < WAYS; way++)
        if (c->epolls[way] >= 0)
            (void)close(c->epolls[way]);
    if (c->event >= 0)
        (void)close(c->event);
    if (!is_child)
        tcp_mesh_close(c->mesh);
    free(c->links);
    free(c->names);
    free(c->stage);
    free(c);
}

static struct comm *comm_new(void)
{
    struct comm *c = calloc(1, sizeof(*c));
    if (c)
        c->epolls[OUT] = c->epolls[IN] = c->event = -1;
    return c;
}

static titan_status tcp_open(const struct comm_config *config, const atomic_int *abort_flag, struct comm **ret,
                             struct titan_error *err)
{
    struct comm *c = comm_new();
    if (!c)
        return titan_fail(err, TITAN_ENOMEM, "no memory for a communicator");
    titan_status status = comm_core_init(&c->core, &transport, config->rank, config->world, config->device, err);
    if (status != TITAN_OK) {
        free(c);
        return status;
    }
    if (config->world > 1)
        status = prepare_links(c, err);
    if (config->world > 1 && status == TITAN_OK)
        status = tcp_mesh_open(config, &c->mesh, err);
    const struct rendezvous_options all = {.members = c->names, .n = config->world, .abort_flag = abort_flag};
    if (config->world > 1 && status == TITAN_OK)
        status = connect_links(c, &all, err);
    if (status != TITAN_OK) {
        (void)titan_error_wrap(err, "communicator tcp, rank %d of %d", config->rank, config->world);
        comm_core_shut(&c->core);
        close_links(c, false);
        return status;
    }
    *ret = c;
    return TITAN_OK;
}

static titan_status tcp_split(struct comm *parent, const int *members, int n, const atomic_int *abort_flag,
                              struct comm **ret, struct titan_error *err)
{
    struct titan_error local = {0};
    struct comm *c = comm_new();
    if (!c)
        return titan_fail(err, TITAN_ENOMEM, "no memory for a communicator");
    titan_status status = comm_core_init_child(&c->core, &parent->core, members, n, err);
    if (status != TITAN_OK) {
        free(c);
        return status;
    }
    parent->splits++;
    if (n > 1)
        status = prepare_links(c, &local);
    if (n > 1 && status == TITAN_OK) {
        int links[COMM_WORLD_MAX];
        for (int i = 0; i < n; i++) {
            c->names[i] = parent->names[members[i]];
            links[i] = parent->links[members[i]].fd;
        }
        c->mesh = parent->mesh;
        /* The tag differs for every rendezvous of an epoch: a bijection of the count, mixed with the parent's tag. */
        c->tag = hash_mix(parent->tag + parent->splits * HASH_STEP);
        const struct rendezvous_options some = {
            .tag = c->tag, .members = c->names, .n = n, .links = links, .in = &parent->core, .abort_flag = abort_flag};
        status = connect_links(c, &some, &local);
    }
    if (status != TITAN_OK) {
        (void)titan_error_wrap(&local, "communicator tcp, rank %d of %d: a group of %d", parent->core.rank,
                               parent->core.world, n);
        comm_core_shut(&c->core);
        close_links(c, true);
        comm_core_fail(&parent->core, &local);
        if (err)
            *err = local;
        return status;
    }
    comm_core_adopt(&parent->core, &c->core);
    *ret = c;
    return TITAN_OK;
}

static void tcp_close(struct comm *c)
{
    if (!c)
        return;
    bool is_child = c->core.parent;
    comm_core_shut(&c->core);
    close_links(c, is_child);
}

const struct comm_ops comm_tcp = {.abi = TITAN_COMM_ABI,
                                  .name = "tcp",
                                  .open = tcp_open,
                                  .close = tcp_close,
                                  .split = tcp_split,
                                  COMM_CORE_OPERATIONS};
