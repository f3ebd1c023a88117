/* SPDX-License-Identifier: Apache-2.0 */
/* comm.h - collectives among the members of one epoch.
 *
 * Implementations: shm (all members on one host), tcp (several hosts), nccl (in the CUDA plug-in). A communicator lives
 * for one epoch. Rules:
 *
 * - Collectives are enqueued on a stream of the device and run in its order; every member must enqueue the same
 *   collectives in the same order. Counts are per-rank element counts, equal on all members. Several streams may be
 *   used if events make one communicator's operations run in the order in which they were enqueued. With shm and tcp, a
 *   communicator that only passes messages may use one stream for sends and another for receives, without events
 *   between the two. NCCL runs even these in the order of their calls.
 * - A member that dies, a lost connection or a revoke make the pending and all later operations fail quickly (a few ms)
 *   with TITAN_EPEER or TITAN_EREVOKED on their stream; buffers they touch are then undefined. Nothing exits. A
 *   communicator and all its splits fail together, and are revoked together.
 * - revoke() may be called from any thread at any time; all other functions are called from the thread that owns the
 *   communicator.
 * - Sums are done in rank order for every element (rank 0 + rank 1 + ...), in fp32 for bf16 input and in the type
 *   itself for fp32 and fp64, so the result is the same on every run and every member. (NCCL sums in its own order.) */
#ifndef TITAN_WORKER_COMM_COMM_H
#define TITAN_WORKER_COMM_COMM_H

#include <stdatomic.h>

#include "base/listen.h"
#include "worker/device/device.h"

#define TITAN_COMM_ABI 9 /* declarations 66233ada28689142 (tests/docs/test_abi.py) */
#define COMM_ID_BYTES 16
#ifndef COMM_WORLD_MAX /* the simulator is built with more */
#define COMM_WORLD_MAX 1024
#endif

struct comm; /* owned by the implementation */

struct comm_config {
    unsigned char id[COMM_ID_BYTES]; /* id of the epoch: new for every epoch, equal on all its members */
    /* tcp, nccl: 32 bytes, the members' proof of identity, borrowed; NULL = identities are not checked (an epoch of an
     * older version, or no agent to distribute keys). */
    const unsigned char *key;
    uint64_t epoch;
    int rank, world;
    const char *const *addresses; /* tcp, nccl: "host:port" of each rank's listener, in rank order; borrowed */
    int listener;                 /* tcp: this rank's listening socket (comm_listen), borrowed; -1 = none */
    int memfd;                    /* shm: the segment shared by all members, borrowed; -1 = none. May be empty: the
                                   * first member sizes it. One segment serves one epoch */
    const struct device_handle *device;
    uint32_t timeout_ms; /* limit for all members to arrive; 0 = 30 s */
};

/* Share of a GPU that a communicator's collectives may use; zeros = the library's default. */
enum comm_policy {
    COMM_POLICY_DEFAULT,
    COMM_POLICY_EFFICIENCY, /* few multiprocessors rather than the shortest time */
    COMM_POLICY_ZERO        /* no multiprocessors where copy engines can do the work; needs windows */
};
struct comm_tuning {
    enum comm_policy policy;
    int ctas_most; /* thread blocks */
};

/* Rows that every member exchanges with every other, packed in rank order on both sides. */
struct comm_rows {
    void *recv;
    const void *send;
    /* [world] in device memory, read when the stream reaches the call: recv_counts[i] rows come from rank i,
     * send_counts[j] rows go to rank j. */
    const int32_t *recv_counts, *send_counts;
    size_t bytes; /* bytes of one row */
};

struct comm_ops {
    uint32_t abi; /* TITAN_COMM_ABI */
    const char *name;
    /* Collective: returns when all members are connected. Ends at once with TITAN_EREVOKED when *abort_flag (not NULL,
     * polled or watched) becomes non-zero. */
    titan_status (*open)(const struct comm_config *config, const atomic_int *abort_flag, struct comm **ret,
                         struct titan_error *err);
    /* Frees the communicator. Pending operations first end with TITAN_EREVOKED. Their streams are drained, so the
     * streams must be open. Never waits for a peer; peers that still wait for this member get TITAN_EPEER. NULL is
     * fine. */
    void (*close)(struct comm *comm);
    /* close() may leave the release of device resources to threads, and the release can stop the whole device. settle
     * waits for these threads, for a limited time. Call settle before operations of several communicators run at a
     * time. NULL: close() leaves nothing. */
    void (*settle)(struct device *dev);
    /* Any thread: every pending and later operation fails with TITAN_EREVOKED. Idempotent. Peers' own agents notify
     * them; shm and tcp pass the revoke on as well, since an epoch is revoked as a whole. */
    void (*revoke)(struct comm *comm);

    /* Makes a communicator of some members, for collectives that run beside the parent's, with its own streams and
     * order. Every rank of the parent calls it at the same point with its own group: members are ranks of the parent,
     * ascending, and become ranks 0..n-1 of the child. Groups of one call are disjoint; n 1 is fine. The child is
     * revoked with its parent and must be closed before it. The call ends early when *abort_flag becomes non-zero or a
     * member ends; the parent has then failed. */
    titan_status (*split)(struct comm *parent, const int *members, int n, const atomic_int *abort_flag,
                          struct comm **ret, struct titan_error *err);

    /* --- NULL, all five, where there is no such thing --- */
    /* Sets the tuning of later splits. All members must set the same. */
    void (*tune)(struct comm *parent, const struct comm_tuning *tuning);
    /* Zeroed memory for windows. TITAN_ENOMEM; TITAN_EUNSUPPORTED: this device has no such memory. */
    titan_status (*memory_alloc)(struct device *dev, size_t bytes, void **ret, struct titan_error *err);
    void (*memory_release)(struct device *dev, void *ptr);
    /* Lets peers access this memory of memory_alloc() directly in collectives of this communicator, until the
     * communicator is closed. Every member calls it once, at the same point and with the same size. TITAN_EUNSUPPORTED:
     * no window is possible. Only some members may get this error; the call then changes nothing. A failed communicator
     * returns its failure. */
    titan_status (*window_open)(struct comm *comm, void *base, size_t bytes, struct titan_error *err);
    /* Closes the window, if any, before the communicator is closed. Nothing may be in progress on it. */
    void (*window_close)(struct comm *comm);

    /* Calls of this communicator between begin and end are gathered and carried out as one: one launch on a GPU. They
     * must be on one stream. Adjacent sends and receives run at once: all members may send first. */
    titan_status (*group_begin)(struct comm *comm);
    titan_status (*group_end)(struct comm *comm);

    /* recv (world*count) = every rank's send (count), in rank order. send may be this rank's slot of recv (in
     * place). */
    titan_status (*all_gather)(struct comm *comm, void *recv, const void *send, size_t count, enum dtype dt,
                               struct stream *s);
    /* recv (count) fp32/fp64/bf16 = sum over ranks of the slice [rank*count, +count) of send (world*count). recv may be
     * this rank's slot of send. */
    titan_status (*reduce_scatter)(struct comm *comm, void *recv, const void *send, size_t count, enum dtype dt,
                                   struct stream *s);
    titan_status (*all_reduce)(struct comm *comm, void *data, size_t count, enum dtype dt, struct stream *s); /* sum */
    titan_status (*broadcast)(struct comm *comm, void *data, size_t bytes, int root, struct stream *s);
    /* Slice j (bytes) of send goes to rank j; slice i of recv comes from rank i. Not in place. */
    titan_status (*all_to_all)(struct comm *comm, void *recv, const void *send, size_t bytes, struct stream *s);
    /* Slices of different sizes. rows is borrowed until the return. A GPU's communicator makes the host wait until the
     * stream has reached the call. */
    titan_status (*all_to_all_v)(struct comm *comm, const struct comm_rows *rows, struct stream *s);
    /* Every rank sends to rank + distance and receives from rank - distance, both modulo world, at once. distance may
     * be negative. Not in place. */
    titan_status (*shift)(struct comm *comm, void *recv, const void *send, size_t bytes, int distance,
                          struct stream *s);
    /* Point to point. Both sides make matching calls in the same order. A send may end before its receive has begun. */
    titan_status (*send)(struct comm *comm, const void *data, size_t bytes, int to, struct stream *s);
    titan_status (*recv)(struct comm *comm, void *data, size_t bytes, int from, struct stream *s);
    /* No member goes on before all have arrived. */
    titan_status (*barrier)(struct comm *comm, struct stream *s);
};

extern const struct comm_ops comm_shm;
extern const struct comm_ops comm_tcp;

/* Opens a TCP socket that listens on host ("0.0.0.0": all addresses), on a free port of `ports` (listen_tcp). The
 * socket is close-on-exec. *ret_port gets the port. */
titan_status comm_listen(const char *host, const struct listen_ports *ports, int *ret_fd, int *ret_port,
                         struct titan_error *err) TITAN_MUST_USE;
/* Makes a segment for comm_shm: a memfd that can only grow, close-on-exec. world: number of members it must serve. */
titan_status comm_shm_segment(int world, int *ret_fd, struct titan_error *err) TITAN_MUST_USE;

/* The largest operation of each kind in a communicator, in bytes; 0 = none. */
struct comm_use {
    size_t gathered;  /* all_gather, broadcast: per member */
    size_t exchanged; /* reduce_scatter, all_to_all: from one member to another */
    size_t summed;    /* all_reduce */
    size_t message;   /* send, receive, shift, all_to_all_v: to one member */
    int ways;         /* number of message directions in use: each is to one member or from one member */
};
/* Bytes of a comm_shm segment that a member has touched after some steps. These pages are resident memory of the
 * member, even if other members have touched them too. */
size_t comm_shm_touched(int members, const struct comm_use *use);

#endif
