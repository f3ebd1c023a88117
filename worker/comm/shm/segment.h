/* SPDX-License-Identifier: Apache-2.0 */
/* segment.h - shared memory of one communicator's members on one host, and their waits in it.
 *
 * An epoch has one file (the memfd), which begins with the segment of all its members. Segments of splits follow behind
 * that segment. Each group's first member reserves the space with one addition to `used`, and gives the other members
 * the offset. The file is sparse, so only used pages cost memory; space is not freed before the epoch ends. All-zero
 * memory is the valid initial state of a segment. A segment's size follows from the number of members alone: a member
 * that finds the memfd empty sets its size. No value in a segment is used as an address or index without a bound.
 *
 *   header | ranks[world] | channels[world*world] | BUFFERS slots per rank | CHANNEL_SLOTS slots per channel
 *
 * A rank's slot has 1 MiB, or less with more than 32 members. A channel's slot has 256 KiB, or less with more than 16
 * members. So a segment is at most 832 MiB of address space. The used pages are at most 3 MiB a member for collectives,
 * and 2 MiB for every direction between two members that exchange messages. In an epoch of four workers, a step of
 * recipes/demo.toml uses 14 MiB in all segments together, or 22 MiB with buddies. With eight workers it uses 26 or 42
 * MiB. As a memfd the file counts as shared memory of the cgroup it was made in, and not as part of /dev/shm.
 *
 * Members wait in two ways. In both, a member sleeps on a futex, after a short spin if there are at least as many cores
 * as members:
 * - the barrier: the last of `world` arrivals moves the generation on and wakes all. Every round of a collective ends
 *   in one. Three buffers are used in turn. So a buffer is refilled only after two more barriers, when all members have
 *   read it.
 * - a channel: head and tail of a ring between two members; a change rings the other member's bell.
 * A wait ends with TITAN_EREVOKED or TITAN_EPEER when the epoch is `broken`, when an awaited member has closed, or when
 * that member's process has ended (a pidfd, polled after each bounded sleep). `broken` is one word for all segments of
 * the epoch; a member that sleeps in a split segment also sleeps on `broken`. So a broken epoch wakes every group at
 * once. */
#ifndef TITAN_WORKER_COMM_SHM_SEGMENT_H
#define TITAN_WORKER_COMM_SHM_SEGMENT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "worker/comm/comm.h"

#define SEGMENT_BUFFERS 3
#define SEGMENT_CHANNEL_SLOTS 8
#define SEGMENT_SLEEP_NS (20 * 1000 * 1000)

struct segment_rank;
struct segment_channel;
struct segment_header;

/* Sizes that follow from the number of members. */
struct segment_layout {
    size_t slot_bytes;                            /* per buffer of one rank; a multiple of 64 * world */
    size_t channel_slot_bytes;                    /* a multiple of 64 */
    size_t ranks, channels, slots, channel_slots; /* offsets */
    size_t bytes;
};

struct segment {
    int rank, world;
    struct segment_layout layout;
    unsigned char *base; /* mapped */
    struct segment_header *header;
    struct segment_rank *ranks;
    struct segment_channel *channels;
    struct segment *root; /* segment of all members of the epoch; a root points to itself */
    int *names;           /* per member: its rank in the root */
    uint32_t splits;      /* splits of this segment so far, the same on all members */
    uint32_t arrivals;    /* this member's arrivals at barriers */
    const atomic_int *revoked;
    /* The root's descriptor. */
    int fd;
    uint64_t pid_namespace;
    atomic_int *pidfds; /* pidfds of the other members, each opened in a long wait; -1 = not open yet */
    int spins;          /* reads of a word before sleeping */
    unsigned char id[COMM_ID_BYTES];
    uint64_t epoch;
    int64_t forming_ns; /* time limit to form */
};

/* The end of a channel that a call is about. */
enum channel_end { CHANNEL_SEND, CHANNEL_RECV };

static inline void segment_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

struct segment_layout segment_layout(int world);
/* Maps the memfd of config, joins, and waits for all members; as comm_ops.open. */
titan_status segment_open(struct segment *seg, const struct comm_config *config, const atomic_int *abort_flag,
                          const atomic_int *revoked, struct titan_error *err) TITAN_MUST_USE;
/* The members of a split. */
struct segment_group {
    const int *members; /* ranks of the parent, ascending; the caller is one of them */
    int n;
    const atomic_int *abort_flag; /* as in comm_ops.split */
};
/* Opens a segment for this group. As comm_ops.split. */
titan_status segment_split(struct segment *parent, struct segment *seg, const struct segment_group *group,
                           const atomic_int *revoked, struct titan_error *err) TITAN_MUST_USE;
/* Leaves the segment. Members that still wait for this member get TITAN_EPEER. */
void segment_close(struct segment *seg);
/* Ends all members' waits with this status, in all segments of the epoch. Any thread. */
void segment_break(struct segment *seg, titan_status status);
/* TITAN_OK while usable. */
titan_status segment_check(const struct segment *seg, struct titan_error *err);

/* The rank's buffer for fill number `tick`. */
unsigned char *segment_slot(const struct segment *seg, uint32_t tick, int rank);
titan_status segment_barrier(struct segment *seg, struct titan_error *err) TITAN_MUST_USE;

/* The next slot of the ring from this rank to the peer (send) or back (recv); NULL: not ready to be filled or read. */
unsigned char *segment_channel_slot(const struct segment *seg, enum channel_end end, int peer);
/* Marks that slot as filled or read. */
void segment_channel_advance(struct segment *seg, enum channel_end end, int peer);
/* Returns the bell's value. The bell rings when a channel of this rank moves or must be given up. Read it before you
 * look at the channels. */
uint32_t segment_bell(const struct segment *seg);
/* Sleeps until the bell changes, for a bounded time. */
void segment_bell_wait(struct segment *seg, uint32_t bell);
/* Has the member closed its segment? With `look` also: has its process ended? */
bool segment_member_gone(struct segment *seg, int peer, bool look);
/* Fails the communicator for all members, because the peer is gone. */
titan_status segment_give_up(struct segment *seg, int peer, struct titan_error *err) TITAN_MUST_USE;

#endif
