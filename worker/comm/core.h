/* SPDX-License-Identifier: Apache-2.0 */
/* core.h - the common part of communicators on host threads (shm, tcp): requests enqueued on a device's streams, groups
 * of requests, one lasting failure, revocation, the tree of an epoch's communicators.
 *
 * A request lives from the call that enqueues it until its stream has run or skipped it. The first failure is kept:
 * later requests fail with it at once. Members may use several streams, but one communicator's requests must run in the
 * order in which they were enqueued. In a communicator with messages only, sends keep their order among themselves, and
 * so do receives.
 *
 * An epoch's communicators are a tree: the opened communicator, and its splits. They fail together, because a member
 * that fails in one communicator does not reach its calls in the others either. Locks are taken from the root
 * downwards. */
#ifndef TITAN_WORKER_COMM_CORE_H
#define TITAN_WORKER_COMM_CORE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "worker/comm/comm.h"

enum comm_op {
    COMM_ALL_GATHER,
    COMM_REDUCE_SCATTER,
    COMM_ALL_REDUCE,
    COMM_BROADCAST,
    COMM_ALL_TO_ALL,
    COMM_ALL_TO_ALL_V,
    COMM_SHIFT,
    COMM_SEND,
    COMM_RECV,
    COMM_BARRIER,
    COMM_GROUP /* a group of other requests */
};

struct comm_core;
struct comm_request {
    struct comm_request *prev, *next;
    struct comm_core *core;
    struct stream *stream;
    enum comm_op op;
    void *recv;
    const void *send;
    size_t count; /* elements of dt: a rank's share (gather, scatter, all-to-all), the total, or a row (all-to-all-v) */
    enum dtype dt;
    int peer; /* root, receiver or sender; for a shift its distance, 0 <= distance < world */
    const int32_t *recv_counts, *send_counts; /* all-to-all-v */
    struct comm_request *parts;               /* requests of a group */
    int n_parts, cap_parts;
};

/* A transport's operations, for a struct comm that begins with its struct comm_core. They run on a stream's host thread
 * unless noted, and only with two members or more. */
struct comm_transport {
    const char *name;
    titan_status (*all_gather)(struct comm *c, unsigned char *recv, const unsigned char *send, size_t bytes,
                               struct titan_error *err);
    titan_status (*reduce_scatter)(struct comm *c, unsigned char *recv, const unsigned char *send, size_t bytes,
                                   enum dtype dt, struct titan_error *err);
    titan_status (*all_reduce)(struct comm *c, unsigned char *data, size_t bytes, enum dtype dt,
                               struct titan_error *err);
    titan_status (*broadcast)(struct comm *c, unsigned char *data, size_t bytes, int root, struct titan_error *err);
    titan_status (*all_to_all)(struct comm *c, unsigned char *recv, const unsigned char *send, size_t bytes,
                               struct titan_error *err);
    titan_status (*all_to_all_v)(struct comm *c, const struct comm_request *r, struct titan_error *err);
    titan_status (*shift)(struct comm *c, unsigned char *recv, const unsigned char *send, size_t bytes, int distance,
                          struct titan_error *err);
    titan_status (*barrier)(struct comm *c, struct titan_error *err);
    /* n sends and receives, all at once. Messages to one peer in one direction keep their order. */
    titan_status (*pass)(struct comm_core *core, const struct comm_request *parts, int n, struct titan_error *err);
    /* Ends every wait in these operations, once the communicator is revoked or has failed. Any thread may call it. */
    void (*wake)(struct comm_core *core);
};

struct comm_core {
    int rank, world;
    const struct device_handle *device; /* NULL: requests run in the calling thread */
    const struct comm_transport *transport;
    atomic_int revoked;
    atomic_int failed;        /* failure is set */
    struct comm_core *parent; /* NULL: this communicator was opened, not split */
    bool grouping;            /* true between group_begin and group_end; only the owner's thread uses it */
    struct comm_request group;
    pthread_mutex_t lock;       /* protects the fields below */
    struct titan_error failure; /* TITAN_OK = none */
    struct comm_request *requests;
    struct comm_core *children, *sibling;
};

/* TITAN_EINVAL: a rank outside the world; TITAN_EUNSUPPORTED: the host cannot reach the device's memory. */
titan_status comm_core_init(struct comm_core *core, const struct comm_transport *transport, int rank, int world,
                            const struct device_handle *device, struct titan_error *err) TITAN_MUST_USE;
/* Makes a child for these members of the parent. The parent does not know the child yet. TITAN_EINVAL: the members do
 * not ascend, or the caller is not a member; TITAN_EREVOKED, or the parent's failure. */
titan_status comm_core_init_child(struct comm_core *child, const struct comm_core *parent, const int *members, int n,
                                  struct titan_error *err) TITAN_MUST_USE;
/* Tells the parent that the child is complete. From now on the child fails or is revoked with its parent, and at once
 * if the parent has already failed or been revoked. */
void comm_core_adopt(struct comm_core *parent, struct comm_core *child);
/* Revokes the epoch if requests are left, waits until none runs or can still run, and frees them. Their streams must be
 * open; children must be closed. */
void comm_core_shut(struct comm_core *core);
/* Fails the whole epoch: this communicator, its parents and all their splits. */
void comm_core_fail(struct comm_core *core, const struct titan_error *failure);
/* Revokes this communicator and all its splits. */
void comm_core_revoke(struct comm_core *core);
titan_status comm_core_error(struct comm_core *core, struct titan_error *err);
/* Must a transport's wait end? */
static inline bool comm_core_ended(struct comm_core *core)
{
    return atomic_load(&core->revoked) || atomic_load(&core->failed);
}

/* comm_ops' operations for a struct comm that begins with its struct comm_core. */
void comm_core_revoke_comm(struct comm *comm);
titan_status comm_core_group_begin(struct comm *comm);
titan_status comm_core_group_end(struct comm *comm);
titan_status comm_core_all_gather(struct comm *comm, void *recv, const void *send, size_t count, enum dtype dt,
                                  struct stream *s);
titan_status comm_core_reduce_scatter(struct comm *comm, void *recv, const void *send, size_t count, enum dtype dt,
                                      struct stream *s);
titan_status comm_core_all_reduce(struct comm *comm, void *data, size_t count, enum dtype dt, struct stream *s);
titan_status comm_core_broadcast(struct comm *comm, void *data, size_t bytes, int root, struct stream *s);
titan_status comm_core_all_to_all(struct comm *comm, void *recv, const void *send, size_t bytes, struct stream *s);
titan_status comm_core_all_to_all_v(struct comm *comm, const struct comm_rows *rows, struct stream *s);
titan_status comm_core_shift(struct comm *comm, void *recv, const void *send, size_t bytes, int distance,
                             struct stream *s);
titan_status comm_core_send(struct comm *comm, const void *data, size_t bytes, int to, struct stream *s);
titan_status comm_core_recv(struct comm *comm, void *data, size_t bytes, int from, struct stream *s);
titan_status comm_core_barrier(struct comm *comm, struct stream *s);
/* Initializers that put these operations into a struct comm_ops. */
#define COMM_CORE_OPERATIONS                                                                                           \
    .revoke = comm_core_revoke_comm, .group_begin = comm_core_group_begin, .group_end = comm_core_group_end,           \
    .all_gather = comm_core_all_gather, .reduce_scatter = comm_core_reduce_scatter,                                    \
    .all_reduce = comm_core_all_reduce, .broadcast = comm_core_broadcast, .all_to_all = comm_core_all_to_all,          \
    .all_to_all_v = comm_core_all_to_all_v, .shift = comm_core_shift, .send = comm_core_send, .recv = comm_core_recv,  \
    .barrier = comm_core_barrier

#endif
