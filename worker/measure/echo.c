/* SPDX-License-Identifier: Apache-2.0 */
/* echo.c - see echo.h. */
#include "worker/measure/echo.h"

#include <stdlib.h>

#include "base/cleanup.h"

struct comm {
    const struct device_ops *ops;
    int n, rank;
};

struct comm *echo_open(const struct device_ops *ops, const struct mesh *mesh, enum channel channel, int rank)
{
    const enum group group = channel_group(channel);
    struct comm *c = malloc(sizeof *c);

    if (c)
        *c = (struct comm){ops, mesh_group_size(mesh, group), mesh_group_rank(mesh, group, rank)};
    titan_assert(!c || (c->rank >= 0 && c->rank < c->n));
    return c;
}

/* Copies, unless `to` and `from` are the same memory. */
static titan_status echo_copy(const struct comm *c, void *to, const void *from, size_t bytes, struct stream *s)
{
    return to == from || bytes == 0 ? TITAN_OK : c->ops->copy(s, to, from, bytes);
}

static titan_status echo_all_gather(struct comm *c, void *recv, const void *send, size_t count, enum dtype dt,
                                    struct stream *s)
{
    const size_t bytes = count * dtype_bytes(dt);

    for (int i = 0; i < c->n; i++)
        TRY(echo_copy(c, (char *)recv + (size_t)i * bytes, send, bytes, s));
    return TITAN_OK;
}

static titan_status echo_reduce_scatter(struct comm *c, void *recv, const void *send, size_t count, enum dtype dt,
                                        struct stream *s)
{
    const size_t bytes = count * dtype_bytes(dt);
    return echo_copy(c, recv, (const char *)send + (size_t)c->rank * bytes, bytes, s);
}

static titan_status echo_all_reduce(struct comm *c, void *data, size_t count, enum dtype dt, struct stream *s)
{
    (void)c;
    (void)data;
    (void)count;
    (void)dt;
    (void)s;
    return TITAN_OK;
}

static titan_status echo_all_to_all(struct comm *c, void *recv, const void *send, size_t bytes, struct stream *s)
{
    for (int i = 0; i < c->n; i++)
        TRY(echo_copy(c, (char *)recv + (size_t)i * bytes, (const char *)send + (size_t)c->rank * bytes, bytes, s));
    return TITAN_OK;
}

static titan_status echo_all_to_all_v(struct comm *c, const struct comm_rows *rows, struct stream *s)
{
    (void)c;
    (void)rows;
    (void)s;
    return TITAN_OK;
}

static titan_status echo_shift(struct comm *c, void *recv, const void *send, size_t bytes, int distance,
                               struct stream *s)
{
    (void)distance;
    return echo_copy(c, recv, send, bytes, s);
}

static titan_status echo_send(struct comm *c, const void *data, size_t bytes, int to, struct stream *s)
{
    (void)c;
    (void)data;
    (void)bytes;
    (void)to;
    (void)s;
    return TITAN_OK;
}

static titan_status echo_recv(struct comm *c, void *data, size_t bytes, int from, struct stream *s)
{
    (void)c;
    (void)data;
    (void)bytes;
    (void)from;
    (void)s;
    return TITAN_OK;
}

static titan_status echo_group(struct comm *c)
{
    (void)c;
    return TITAN_OK;
}

const struct comm_ops comm_echo = {.abi = TITAN_COMM_ABI,
                                   .name = "echo",
                                   .group_begin = echo_group,
                                   .group_end = echo_group,
                                   .all_gather = echo_all_gather,
                                   .reduce_scatter = echo_reduce_scatter,
                                   .all_reduce = echo_all_reduce,
                                   .all_to_all = echo_all_to_all,
                                   .all_to_all_v = echo_all_to_all_v,
                                   .shift = echo_shift,
                                   .send = echo_send,
                                   .recv = echo_recv};
