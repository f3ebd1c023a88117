/* SPDX-License-Identifier: Apache-2.0 */
/* comm.h - collectives among the members of one epoch.
 *
 * Implementations: shm (all members on one host), tcp (several hosts), nccl (in the CUDA plug-in). A communicator lives
 * for one epoch. Rules:
 *
 * - Collectives are enqueued on a stream of the device and run in its order; every member must enqueue the same
 *   collectives in the same order. Counts are per-rank element counts, equal on all members. Several streams may
 *   be used if events make the operations of one communicator run in the order they were enqueued. (shm, tcp: of one
 * that is only used for messages, sends may have one stream and receives another, without events between the two. NCCL
 *   runs them in the order of their calls.)
 * - A member that dies, a lost connection or a revoke make the pending and all later operations fail quickly (a few ms)
 *   with TITAN_EPEER or TITAN_EREVOKED on their stream; buffers they touch are then undefined. Nothing exits. A
 *   communicator and all that was split from it fail, and are revoked, as one.
 * - revoke() may be called from any thread at any time; everything else from the thread that owns the communicator.
 * - Sums are done in rank order for every element (rank 0 + rank 1 + ...), in fp32 for bf16 input and in the type
 * itself for fp32 and fp64, so the result is the same on every run and every member. (NCCL: its own order.) */
#ifndef TITAN_WORKER_COMM_COMM_H
#define TITAN_WORKER_COMM_COMM_H

#include <stdatomic.h>

#include "base/listen.h"
#include "worker/device/device.h"

#define TITAN_COMM_ABI 8 /* declarations 45d29ffcabaa94c1 (tests/docs/test_abi.py) */
#define COMM_ID_BYTES 16
#ifndef COMM_WORLD_MAX /* the simulator has a build with more */
#define COMM_WORLD_MAX 1024
#endif

struct comm; /* implementation's own */

struct comm_config {
    unsigned char id[COMM_ID_BYTES]; /* the same on all members, new for every epoch */
    /* tcp, nccl: 32 bytes that members prove themselves with, borrowed; NULL = their word is taken (an epoch of an
     * older version, and where no agent hands out keys). */
    const unsigned char *key;
    uint64_t epoch;
    int rank, world;
    const char *const *addresses; /* tcp, nccl: "host:port" of each rank's listener, in rank order; borrowed */
    int listener;                 /* tcp: this rank's listening socket (comm_listen), borrowed; -1 = none */
    int memfd;                    /* shm: the segment shared by all members, borrowed; -1 = none. May be empty: the
                                     first member sizes it. One segment serves one epoch */
    const struct device_handle *device;
    uint32_t timeout_ms; /* for forming: all members must have arrived by then; 0 = 30 s */
};

/* How much of a GPU a communicator's collectives may take; zeros: as its library would have it. */
enum comm_policy {
    COMM_POLICY_DEFAULT,
    COMM_POLICY_EFFICIENCY, /* few multiprocessors rather than the shortest time */
    COMM_POLICY_ZERO        /* none where copy engines can do it; they need windows */
};
struct comm_tuning {
    enum comm_policy policy;
    int ctas_most; /* thread blocks */
};

struct comm_ops {
    uint32_t abi; /* TITAN_COMM_ABI */
    const char *name;
    /* Collective: returns when all members are connected. Ends at once with TITAN_EREVOKED when *abort_flag (not NULL,
     * polled or watched) becomes non-zero. */
    titan_status (*open)(const struct comm_config *config, const atomic_int *abort_flag, struct comm **ret,
                         struct titan_error *err);
    /* Frees; pending operations end with TITAN_EREVOKED first, and streams that still hold some are drained: they must
     * be open. Never waits for a peer; peers that still wait for this member get TITAN_EPEER. NULL is fine. */
    void (*close)(struct comm *comm);
    /* close() may leave it to threads to give back what the device has for it, which can stop the whole device: until
     * they are through, or have had long enough. Before operations of several communicators are under way at a time.
     * NULL: close() leaves nothing. */
    void (*settle)(struct device *dev);
    /* Any thread: every pending and later operation fails with TITAN_EREVOKED. Idempotent. Peers are told by their own
     * agents; shm and tcp pass the word on as well, since an epoch is revoked as a whole. */
    void (*revoke)(struct comm *comm);

    /* A communicator of some members, for collectives that run beside the parent's: streams of its own, order of its
     * own. Every rank of the parent calls it at the same point, each with the group it belongs to: members are ranks of
     * the parent, ascending, and become ranks 0..n-1 of the child; groups of one call are disjoint. n 1 is fine. It is
     * revoked with its parent and must be closed before it. Ends early as open does, and when a member ends; the parent
     * has failed then. */
    titan_status (*split)(struct comm *parent, const int *members, int n, const atomic_int *abort_flag,
                          struct comm **ret, struct titan_error *err);

    /* --- NULL, all five, where there is no such thing --- */
    /* For what is split off from now on; the same on all members. */
    void (*tune)(struct comm *parent, const struct comm_tuning *tuning);
    /* Memory for windows, zeroed. TITAN_ENOMEM; TITAN_EUNSUPPORTED: there is none of that kind here. */
    titan_status (*memory_alloc)(struct device *dev, size_t bytes, void **ret, struct titan_error *err);
    void (*memory_release)(struct device *dev, void *ptr);
    /* Peers may reach this memory of memory_alloc() directly in collectives of this communicator, until it is closed.
     * Every member calls it at the same point with as many bytes; once. TITAN_EUNSUPPORTED: they cannot, which may be
     * known on some members only and changes nothing else; where the communicator has failed, its failure. */
    titan_status (*window_open)(struct comm *comm, void *base, size_t bytes, struct titan_error *err);
    /* Give it back before the communicator is closed, where there is one. Nothing is under way on it. */
    void (*window_close)(struct comm *comm);

    /* Between begin and end, calls of this communicator are gathered and carried out as one: one launch on a GPU. They
     * must be on one stream. Sends and receives that follow each other pass at once: all members may send first. */
    titan_status (*group_begin)(struct comm *comm);
    titan_status (*group_end)(struct comm *comm);

    /* recv (world*count) = every rank's send (count), in rank order. send may be its own slot of recv (in place). */
    titan_status (*all_gather)(struct comm *comm, void *recv, const void *send, size_t count, enum dtype dt,
                               struct stream *s);
    /* recv (count) fp32/fp64/bf16 = sum over ranks of the slice [rank*count, +count) of send (world*count). recv may be
     * its own slot of send. */
    titan_status (*reduce_scatter)(struct comm *comm, void *recv, const void *send, size_t count, enum dtype dt,
                                   struct stream *s);
    titan_status (*all_reduce)(struct comm *comm, void *data, size_t count, enum dtype dt, struct stream *s); /* sum */
    titan_status (*broadcast)(struct comm *comm, void *data, size_t bytes, int root, struct stream *s);
    /* Slice j (bytes) of send goes to rank j; slice i of recv comes from rank i. Not in place. */
    titan_status (*all_to_all)(struct comm *comm, void *recv, const void *send, size_t bytes, struct stream *s);
    /* Slices of different sizes: rows send_counts[j] go to rank j, recv_counts[i] rows come from rank i, each row_bytes
     * long, packed one after the other in rank order on both sides. The counts (world) are int32 in device memory and
     * are read when the stream gets there; a GPU's communicator makes the host wait for that. */
    titan_status (*all_to_all_v)(struct comm *comm, void *recv, const int32_t *recv_counts, const void *send,
                                 const int32_t *send_counts, size_t row_bytes, struct stream *s);
    /* Every rank sends to rank + distance and receives from rank - distance, both modulo world, at once. distance may
     * be negative. Not in place. */
    titan_status (*shift)(struct comm *comm, void *recv, const void *send, size_t bytes, int distance,
                          struct stream *s);
    /* Point to point; matching calls in the same order on both sides. A send may end before its receive has begun. */
    titan_status (*send)(struct comm *comm, const void *data, size_t bytes, int to, struct stream *s);
    titan_status (*recv)(struct comm *comm, void *data, size_t bytes, int from, struct stream *s);
    /* All members arrive before any goes on. */
    titan_status (*barrier)(struct comm *comm, struct stream *s);
};

extern const struct comm_ops comm_shm;
extern const struct comm_ops comm_tcp;

/* A listening TCP socket of host ("0.0.0.0" for all), close-on-exec, on a free port of these (listen_tcp); *ret_port
 * gets the port. */
titan_status comm_listen(const char *host, const struct listen_ports *ports, int *ret_fd, int *ret_port,
                         struct titan_error *err) TITAN_MUST_USE;
/* A segment for comm_shm: a memfd that can only grow, close-on-exec. world: members it must serve. */
titan_status comm_shm_segment(int world, int *ret_fd, struct titan_error *err) TITAN_MUST_USE;

/* The largest of each kind that a communicator carries, in bytes; 0: none. */
struct comm_use {
    size_t gathered;  /* all_gather, broadcast: of a member */
    size_t exchanged; /* reduce_scatter, all_to_all: of a member for another */
    size_t summed;    /* all_reduce */
    size_t message;   /* send, receive, shift, all_to_all_v: to a member */
    int ways;         /* to and from members that such messages go */
};
/* What a member has touched of the segment of a communicator of comm_shm after some steps: pages that count as its
 * resident memory, whether or not others count them, too. */
size_t comm_shm_touched(int members, const struct comm_use *use);

#endif
