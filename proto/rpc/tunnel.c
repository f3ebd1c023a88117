/* SPDX-License-Identifier: Apache-2.0 */
/* tunnel.c - see tunnel.h. A tunnel is freed when the proxy has ended it and the caller has released it. */
#include "proto/rpc/tunnel.h"

#include <stdlib.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "proto/rpc/pair.h"
#include "proto/rpc/proxy.h"

enum { PAIR_BUFFER = 256 << 10 };

struct rpc_tunnels {
    struct rpc_pair *pair;
    struct rpc_queue queue;
    struct rpc_proxy *proxy;
    void (*done)(void *);
    void *data;
};

struct rpc_tunnel {
    struct rpc_proxy_connection proxy;
    void (*ended)(void *data, const struct titan_error *why); /* NULL: released */
    void *data;
};

static void tunnels_closed(void *data)
{
    struct rpc_tunnels *all = data;
    void (*done)(void *) = all->done;
    void *done_data = all->data;
    rpc_library_leave();
    rpc_pair_free(all->pair);
    free(all);
    if (done)
        done(done_data);
}

titan_status rpc_tunnels_open(uv_loop_t *loop, const struct rpc_tls *tls, struct rpc_tunnels **ret,
                              struct titan_error *err)
{
    if (!tls->certificate[0])
        return titan_fail(err, TITAN_EINVAL, "tls: a tunnel needs a certificate of its own");
    struct rpc_tunnels *all = calloc(1, sizeof(*all));
    if (!all)
        return titan_fail(err, TITAN_ENOMEM, "no memory for tunnels");
    titan_status status = rpc_pair_open(tls, &all->pair, err);
    if (status != TITAN_OK) {
        free(all);
        return status;
    }
    rpc_library_enter();
    status = rpc_queue_start(&all->queue, loop, err);
    if (status != TITAN_OK) {
        tunnels_closed(all);
        return status;
    }
    status = rpc_proxy_open(&all->queue, &all->proxy, err);
    if (status != TITAN_OK) {
        rpc_queue_stop(&all->queue, tunnels_closed, all);
        return status;
    }
    *ret = all;
    return TITAN_OK;
}

void rpc_tunnels_close(struct rpc_tunnels *all, void (*done)(void *), void *data)
{
    all->done = done;
    all->data = data;
    rpc_proxy_close(TAKE(all->proxy)); /* its ended tags must precede the queue's end */
    rpc_queue_stop(&all->queue, tunnels_closed, all);
}

static void tunnel_ended(struct rpc_tag *tag, bool ok)
{
    struct rpc_tunnel *tunnel = tag->owner;
    (void)ok;
    if (tunnel->ended)
        tunnel->ended(tunnel->data, &tunnel->proxy.why);
    free(tunnel);
}

titan_status rpc_tunnel_open(struct rpc_tunnels *all, int fd, enum rpc_tunnel_side side,
                             void (*ended)(void *data, const struct titan_error *why), void *data,
                             struct rpc_tunnel **ret, int *ret_fd, struct titan_error *err)
{
    _cleanup_fd_ int own = fd, outer = -1, inner = -1;
    int pair[2];
    const int buffer = PAIR_BUFFER;
    titan_assert(fd >= 0 && ended);
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0)
        return titan_fail_errno(err, "tls: no socket for a tunnel");
    outer = pair[0];
    inner = pair[1];
    for (int i = 0; i < 2; i++)
        (void)setsockopt(pair[i], SOL_SOCKET, SO_SNDBUF, &buffer, sizeof(buffer));
    struct rpc_tunnel *tunnel = calloc(1, sizeof(*tunnel));
    SSL *tls = !tunnel                      ? NULL
               : side == RPC_TUNNEL_ACCEPTS ? rpc_pair_accept(all->pair, fd, RPC_TUNNEL, true)
                                            : rpc_pair_connect(all->pair, fd, RPC_TUNNEL);
    if (!tls) {
        free(tunnel);
        return titan_fail(err, TITAN_ENOMEM, "tls: no memory for a tunnel");
    }
    tunnel->ended = ended;
    tunnel->data = data;
    tunnel->proxy.plain = true;
    tunnel->proxy.tls = tls;
    tunnel->proxy.ended = (struct rpc_tag){.fn = tunnel_ended, .owner = tunnel};
    *ret = tunnel;
    *ret_fd = TAKE_FD(inner);
    rpc_proxy_add(all->proxy, &tunnel->proxy, TAKE_FD(own), TAKE_FD(outer));
    return TITAN_OK;
}

const char *rpc_tunnel_peer(const struct rpc_tunnel *tunnel)
{
    return atomic_load(&tunnel->proxy.identified) ? tunnel->proxy.identity.name : "";
}

void rpc_tunnel_release(struct rpc_tunnel *tunnel)
{
    if (tunnel)
        tunnel->ended = NULL;
}
