/* core.h - what the communicators that run on host threads (shm, tcp) have in common: requests enqueued on a device's
 * streams, one lasting failure, revocation.
 *
 * A request lives from the call that enqueues it until its stream has run or skipped it. The first failure is kept:
 * later requests fail with it at once. Members may use several streams, but all of one communicator's requests must
 * run in the order they were enqueued. */
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
    COMM_SEND,
    COMM_RECV,
    COMM_BARRIER
};

struct comm_core;
struct comm_request {
    struct comm_request *prev, *next;
    struct comm_core *core;
    struct stream *stream;
    enum comm_op op;
    void *recv;
    const void *send;
    size_t count; /* elements of dt: a rank's share (gather, scatter, all-to-all) or all of it */
    enum dtype dt;
    int peer; /* root, to, from */
};

struct comm_core {
    int rank, world;
    const struct device_handle *device; /* NULL: requests run in the calling thread */
    const char *name;
    /* Carry the request out; runs on a stream's host thread. */
    titan_status (*execute)(struct comm_core *core, const struct comm_request *r, struct titan_error *err);
    /* End every wait of execute. Any thread. */
    void (*wake)(struct comm_core *core);
    atomic_int revoked;
    pthread_mutex_t lock;       /* what follows */
    struct titan_error failure; /* status TITAN_OK: none */
    struct comm_request *requests;
};

/* TITAN_EINVAL for a rank outside the world, TITAN_EUNSUPPORTED for a device whose memory the host cannot reach. */
titan_status comm_core_init(struct comm_core *core, const struct comm_config *config, const char *name,
                            struct titan_error *err) TITAN_MUST_USE;
/* Revoke, wait until no request runs or can still run, free what is left of them. Streams they are on must be open. */
void comm_core_shut(struct comm_core *core);
void comm_core_revoke(struct comm_core *core);
titan_status comm_core_error(struct comm_core *core, struct titan_error *err);
/* One member: what it would receive from itself. */
void comm_core_alone(const struct comm_request *r);

/* comm_ops' operations for a struct comm that begins with its struct comm_core. */
void comm_core_revoke_comm(struct comm *comm);
titan_status comm_core_all_gather(struct comm *comm, void *recv, const void *send, size_t count, enum dtype dt,
                                  struct stream *s);
titan_status comm_core_reduce_scatter(struct comm *comm, void *recv, const void *send, size_t count, enum dtype dt,
                                      struct stream *s);
titan_status comm_core_all_reduce(struct comm *comm, void *data, size_t count, enum dtype dt, struct stream *s);
titan_status comm_core_broadcast(struct comm *comm, void *data, size_t bytes, int root, struct stream *s);
titan_status comm_core_all_to_all(struct comm *comm, void *recv, const void *send, size_t bytes, struct stream *s);
titan_status comm_core_send(struct comm *comm, const void *data, size_t bytes, int to, struct stream *s);
titan_status comm_core_recv(struct comm *comm, void *data, size_t bytes, int from, struct stream *s);
titan_status comm_core_barrier(struct comm *comm, struct stream *s);

#endif
