/* SPDX-License-Identifier: Apache-2.0 */
/* nccl.h - the NCCL communicator's own structure, shared by its files: nccl.c (waiting, failing, forming, closing),
 * derive.c (communicators of some members of another), collectives.c. */
#ifndef TITAN_WORKER_COMM_NCCL_NCCL_H
#define TITAN_WORKER_COMM_NCCL_NCCL_H

#include <nccl.h>

#include "worker/comm/comm.h"
#include "worker/comm/nccl/peers.h"
#include "worker/device/cuda/cuda.h"

#define NCCL_STREAMS_MAX 16
#define NCCL_FORM_MS 30000      /* default time limit to form */
#define NCCL_LOOKS_PER_CHECK 20 /* polls of a call in progress per check of the peers */
#define NCCL_ABORT_MS 1000      /* limit for kernels to end and communicators to be freed; then they are abandoned */

struct comm {
    struct device *dev;
    int rank, world;
    ncclComm_t nccl;      /* NULL: a split with one member, which needs none */
    uint32_t timeout_ms;  /* for forming and splitting */
    struct comm *root;    /* the opened communicator; itself for the root */
    struct comm *next;    /* next communicator of the family */
    pthread_mutex_t lock; /* one NCCL call at a time */
    int failed;           /* atomic: 0 or titan_status */
    int stopped;          /* atomic: revoke or abort was called */
    bool aborted;         /* nccl is freed, or is being freed on the abort thread, which close waits for */
    pthread_t abort_thread;
    pthread_mutex_t streams_lock; /* protects streams and reason */
    struct stream *streams[NCCL_STREAMS_MAX];
    int n_streams;
    char reason[256];
    struct comm_tuning tuning; /* tuning of this communicator's splits */
    ncclWindow_t window;       /* NULL = none */
    float *token;              /* device memory: the operand of a barrier's sum */
    int32_t *counts;           /* pinned host memory: 2 * world counts of an all-to-all-v */
    /* A group's first call opens the group and takes the lock, which is held until the group's end. */
    bool grouping, group_open;
    struct stream *group_stream;
    titan_status group_status; /* status of the first call */
    ncclResult_t group_result; /* first failure among the group's calls */
    /* Set in the root only: */
    struct nccl_peers *peers; /* owned */
    pthread_mutex_t family_lock;
    struct comm *family; /* all splits, at any depth */
};

/* --- nccl.c ------------------------------------------------------------------------------------------------------- */

/* Success or in progress. */
static inline bool nccl_fine(ncclResult_t r)
{
    return r == ncclSuccess || r == ncclInProgress;
}
/* Returns the communicator's failure as a titan_status; 0 = none. Any thread. */
static inline titan_status comm_failed(const struct comm *c)
{
    return (titan_status)__atomic_load_n(&c->failed, __ATOMIC_ACQUIRE);
}
titan_status nccl_fail(struct titan_error *err, ncclComm_t nccl, ncclResult_t r, const char *what);
ncclConfig_t nccl_config(const struct comm_tuning *tuning); /* tuning NULL = zeros */
/* Sleeps a little; longer with each call. */
void nccl_pause(unsigned *looks);
int64_t nccl_deadline(uint32_t ms);
/* Polls until nccl is ready; no other thread may know nccl yet. */
titan_status nccl_wait_ready(ncclComm_t nccl, const atomic_int *abort_flag, int64_t deadline_ns, const char *what,
                             struct titan_error *err);
/* Aborts an nccl without a struct comm, on its own thread; NULL is fine. */
void nccl_abort(struct device *dev, ncclComm_t nccl);
/* Begins to abort c; the abort ends c's current call. Call it once; no NCCL call for c may begin afterwards. */
void nccl_comm_abort(struct comm *c);
/* Any thread: fails the whole family. The first failure stays. */
void nccl_comm_fail(struct comm *c, titan_status status, const char *reason);
void nccl_comm_revoke(struct comm *c);
/* Makes a communicator from `like`, which has dev, rank, world, nccl, root, peers and timeout_ms set. Takes ownership
 * of nccl: on failure nccl is aborted. root NULL: the root of a new family, which owns peers on success. */
titan_status nccl_comm_make(const struct comm *like, struct comm **ret, struct titan_error *err);

/* --- window.c ----------------------------------------------------------------------------------------------------- */

titan_status nccl_memory_alloc(struct device *dev, size_t bytes, void **ret, struct titan_error *err);
void nccl_memory_release(struct device *dev, void *ptr);
titan_status nccl_window_open(struct comm *c, void *base, size_t bytes, struct titan_error *err);
void nccl_window_close(struct comm *c); /* c must be idle or failed */

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
titan_status nccl_all_to_all_v(struct comm *c, const struct comm_rows *rows, struct stream *s);
titan_status nccl_shift(struct comm *c, void *recv, const void *send, size_t bytes, int distance, struct stream *s);
titan_status nccl_send(struct comm *c, const void *data, size_t bytes, int to, struct stream *s);
titan_status nccl_recv(struct comm *c, void *data, size_t bytes, int from, struct stream *s);
titan_status nccl_barrier(struct comm *c, struct stream *s);

#endif
