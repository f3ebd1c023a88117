/* SPDX-License-Identifier: Apache-2.0 */
/* segment.h - the memory that the members of one communicator on one host share, and how they wait for each other in
 * it.
 *
 * An epoch has one file (the memfd), which begins with the segment of all its members. Segments of some of them are
 * laid behind it as they are split off: the first member of each group takes room for it, with one addition to `used`,
 * and tells the others where. The file is sparse, so only what is used costs memory; room is not given back before the
 * epoch ends. All-zero memory is the valid initial state of a segment; its size follows from the number of members
 * alone: a member that finds the memfd empty gives it its size. Nothing in a segment is used as an address or index
 * without a bound.
 *
 *   header | ranks[world] | channels[world*world] | BUFFERS slots per rank | CHANNEL_SLOTS slots per channel
 *
 * A slot of a rank has 1 MiB, less above 32 members; one of a channel 256 KiB, less above 16. So a segment is at most
 * 832 MiB of address space, and costs what has gone through it: at most 3 MiB a member for collectives, and 2 MiB for
 * every direction between two members that send each other messages. A step of recipes/demo.toml uses 14 MiB in all
 * segments of an epoch of four workers, 22 with buddies (26 and 42 of eight). As a memfd it counts as shared memory of
 * the cgroup it was made in, and not as part of /dev/shm.
 *
 * Two ways to wait, both on a futex after a short spin where there are at least as many cores as members:
 * - the barrier: the last of `world` arrivals moves the generation on and wakes all. Every round of a collective ends
 *   in one. With three buffers used in turn a buffer is not filled again before the barrier after the next has shown
 *   that all have read it.
 * - a channel: head and tail of a ring between two members; a change rings the other's bell.
 * A wait ends with TITAN_EREVOKED or TITAN_EPEER when the epoch is `broken`, when a member it waits for has closed, or
 * when its process has ended (a pidfd, looked at after each bounded sleep). `broken` is one word for all segments of
 * the epoch; a member that sleeps in a split one sleeps on that word as well, so the word reaches every group at once.
 */
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
    size_t slot_bytes;                            /* of one buffer of one rank; a multiple of 64 * world */
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
    struct segment *root; /* of all members of the epoch; itself there */
    int *names;           /* each member's rank in the root */
    uint32_t splits;      /* made from this one so far, by all members alike */
    uint32_t arrivals;    /* barriers this member has arrived at */
    const atomic_int *revoked;
    /* The root's. */
    int fd;
    uint64_t pid_namespace;
    atomic_int *pidfds; /* of the other members, opened when a wait is long; -1 = not yet */
    int spins;          /* looks at a word before sleeping */
    unsigned char id[COMM_ID_BYTES];
    uint64_t epoch;
    int64_t forming_ns; /* time to form */
};

/* What a channel's two ends wait for. */
enum channel_end { CHANNEL_SEND, CHANNEL_RECV };

static inline void segment_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

struct segment_layout segment_layout(int world);
/* Map the memfd of config, join, and wait for all members; as comm_ops.open. */
titan_status segment_open(struct segment *seg, const struct comm_config *config, const atomic_int *abort_flag,
                          const atomic_int *revoked, struct titan_error *err) TITAN_MUST_USE;
/* A segment of these members, ranks of the parent, of which the caller is one; as comm_ops.split. */
titan_status segment_split(struct segment *parent, struct segment *seg, const int *members, int n,
                           const atomic_int *abort_flag, const atomic_int *revoked,
                           struct titan_error *err) TITAN_MUST_USE;
/* Leave; members that still wait for this one get TITAN_EPEER. */
void segment_close(struct segment *seg);
/* All members' waits end with this status, in all segments of the epoch. Any thread. */
void segment_break(struct segment *seg, titan_status status);
/* TITAN_OK while usable. */
titan_status segment_check(const struct segment *seg, struct titan_error *err);

/* Buffer of the tick'th fill, of that rank. */
unsigned char *segment_slot(const struct segment *seg, uint32_t tick, int rank);
titan_status segment_barrier(struct segment *seg, struct titan_error *err) TITAN_MUST_USE;

/* The next slot of the ring from this rank to the peer (send) or back (recv); NULL: it cannot be filled or read yet. */
unsigned char *segment_channel_slot(const struct segment *seg, enum channel_end end, int peer);
/* It has been filled or read. */
void segment_channel_advance(struct segment *seg, enum channel_end end, int peer);
/* Woken when a channel of this rank moves, or has to be given up. To be read before looking at the channels. */
uint32_t segment_bell(const struct segment *seg);
/* Sleep until the bell is not what it was, for a bounded time. */
void segment_bell_wait(struct segment *seg, uint32_t bell);
/* Has the member closed? With look: or has its process ended? */
bool segment_member_gone(struct segment *seg, int peer, bool look);
/* The failure that follows: for all. */
titan_status segment_give_up(struct segment *seg, int peer, struct titan_error *err) TITAN_MUST_USE;

#endif
