/* SPDX-License-Identifier: Apache-2.0 */
/* nccl.h - the NCCL communicator's own structure, and what its files share: nccl.c (waiting, failing, forming,
 * closing), derive.c (communicators of some members of another), collectives.c. */
#ifndef TITAN_WORKER_COMM_NCCL_NCCL_H
#define TITAN_WORKER_COMM_NCCL_NCCL_H

#include <nccl.h>

#include "worker/comm/comm.h"
#include "worker/comm/nccl/peers.h"
#include "worker/device/cuda/cuda.h"

#define NCCL_STREAMS_MAX 16
#define NCCL_FORM_MS 30000      /* default time to form */
#define NCCL_LOOKS_PER_CHECK 20 /* of the peers, while a call is in progress */
#define NCCL_ABORT_MS 1000      /* for kernels to end, and for communicators to be given back, until they are left */

struct comm {
    struct device *dev;
    int rank, world;
    ncclComm_t nccl;      /* NULL: split off with one member, which needs none */
    uint32_t timeout_ms;  /* to form, and to split */
    struct comm *root;    /* the one that was opened; itself there */
    struct comm *next;    /* of the family */
    pthread_mutex_t lock; /* one NCCL call at a time */
    int failed;           /* atomic: 0 or titan_status */
    int stopped;          /* atomic: revoke or abort was called */
    bool aborted;         /* nccl is gone, or going on the abort thread, which its close waits for */
    pthread_t abort_thread;
    pthread_mutex_t streams_lock; /* streams, reason */
    struct stream *streams[NCCL_STREAMS_MAX];
    int n_streams;
    char reason[256];
    struct comm_tuning tuning; /* of those that are split from it */
    ncclWindow_t window;       /* NULL: none */
    float *token;              /* device memory: what a barrier sums */
    int32_t *counts;           /* pinned host memory: 2 * world, of an uneven all-to-all */
    /* A group: opened by its first call, with the lock held until its end. */
    bool grouping, group_open;
    struct stream *group_stream;
    titan_status group_status; /* of its first call */
    ncclResult_t group_result; /* first failure of its calls */
    /* The root's. */
    struct nccl_peers *peers; /* owned */
    pthread_mutex_t family_lock;
    struct comm *family; /* all that was split from it, and from those */
};

/* --- nccl.c ------------------------------------------------------------------------------------------------------- */

/* Done, or going on. */
static inline bool nccl_fine(ncclResult_t r)
{
    return r == ncclSuccess || r == ncclInProgress;
}
/* Has it failed? 0 or titan_status. Any thread. */
static inline titan_status comm_failed(const struct comm *c)
{
    return (titan_status)__atomic_load_n(&c->failed, __ATOMIC_ACQUIRE);
}
titan_status nccl_fail(struct titan_error *err, ncclComm_t nccl, ncclResult_t r, const char *what);
ncclConfig_t nccl_config(const struct comm_tuning *tuning); /* NULL: zeros */
/* Sleeps a little; longer the longer it has been called. */
void nccl_pause(unsigned *looks);
int64_t nccl_deadline(uint32_t ms);
/* Poll a communicator that no other thread knows yet until it is ready. */
titan_status nccl_wait_ready(ncclComm_t nccl, const atomic_int *abort_flag, int64_t deadline_ns, const char *what,
                             struct titan_error *err);
/* Abort one that no struct comm has, on a thread of its own; NULL is fine. */
void nccl_abort(struct device *dev, ncclComm_t nccl);
/* Begin to abort it; what it is in is ended by that. Once, and no call of NCCL for it begins after. */
void nccl_comm_abort(struct comm *c);
/* Any thread: the whole family has failed. The first failure stays. */
void nccl_comm_fail(struct comm *c, titan_status status, const char *reason);
void nccl_comm_revoke(struct comm *c);
/* A communicator around nccl, which it takes: on failure it is aborted. root NULL: a family of its own; peers become
 * its own on success. */
titan_status nccl_comm_make(struct device *dev, ncclComm_t nccl, struct comm *root, struct nccl_peers *peers, int rank,
                            int world, uint32_t timeout_ms, struct comm **ret, struct titan_error *err);

/* --- window.c ----------------------------------------------------------------------------------------------------- */

titan_status nccl_memory_alloc(struct device *dev, size_t bytes, void **ret, struct titan_error *err);
void nccl_memory_release(struct device *dev, void *ptr);
titan_status nccl_window_open(struct comm *c, void *base, size_t bytes, struct titan_error *err);
void nccl_window_close(struct comm *c); /* of an idle communicator, or one that has failed */

/* --- derive.c ----------------------------------------------------------------------------------------------------- */

titan_status nccl_comm_split(struct comm *parent, const int *members, int n, const atomic_int *abort_flag,
                             struct comm **ret, struct titan_error *err);

/* --- collectives.c ------------------------------------------------------------------------------------------------ */

titan_status nccl_group_begin(struct comm *c);
titan_status nccl_group_end(struct comm *c);
titan_status nccl_all_gather(struct comm *c, void *recv, const void *send, size_t count, enum dtype dt,
                             struct stream *s);
titan_status nccl_reduce_scatter(struct comm *c, void *recv, const void *send, size_t count, enum dtype dt,
                                 struct stream *s);
titan_status nccl_all_reduce(struct comm *c, void *data, size_t count, enum dtype dt, struct stream *s);
titan_status nccl_broadcast(struct comm *c, void *data, size_t bytes, int root, struct stream *s);
titan_status nccl_all_to_all(struct comm *c, void *recv, const void *send, size_t bytes, struct stream *s);
titan_status nccl_all_to_all_v(struct comm *c, void *recv, const int32_t *recv_counts, const void *send,
                               const int32_t *send_counts, size_t row_bytes, struct stream *s);
titan_status nccl_shift(struct comm *c, void *recv, const void *send, size_t bytes, int distance, struct stream *s);
titan_status nccl_send(struct comm *c, const void *data, size_t bytes, int to, struct stream *s);
titan_status nccl_recv(struct comm *c, void *data, size_t bytes, int from, struct stream *s);
titan_status nccl_barrier(struct comm *c, struct stream *s);

#endif
