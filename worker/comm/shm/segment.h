/* segment.h - the memory that the members of one epoch on one host share, and how they wait for each other in it.
 *
 * All-zero memory is the valid initial state: a member that finds the memfd empty gives it its size, which follows
 * from the number of members alone. Nothing in the segment is used as an address or index without a bound.
 *
 *   header | ranks[world] | channels[world*world] | BUFFERS slots per rank | CHANNEL_SLOTS slots per channel
 *
 * Two ways to wait, both on a futex after a short spin where there are at least as many cores as members:
 * - the barrier: the last of `world` arrivals moves the generation on and wakes all. Every round of a collective ends
 *   in one. With three buffers used in turn a buffer is not filled again before the barrier after the next has shown
 *   that everybody has read it.
 * - a channel: head and tail of a ring between two members; a change rings the other's bell.
 * A wait ends with TITAN_EREVOKED or TITAN_EPEER when `broken` is set, when a member it waits for has closed, or when
 * its process has ended (a pidfd, looked at after each bounded sleep). */
#ifndef TITAN_WORKER_COMM_SHM_SEGMENT_H
#define TITAN_WORKER_COMM_SHM_SEGMENT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "worker/comm/comm.h"

#define SEGMENT_BUFFERS 3
#define SEGMENT_CHANNEL_SLOTS 2

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
    uint64_t pid_namespace;
    int *pidfds;       /* of the other members, opened when a wait is long; -1 = not yet */
    int spins;         /* looks at a word before sleeping */
    uint32_t arrivals; /* barriers this member has arrived at */
    const atomic_int *revoked;
};

/* What a channel's two ends wait for. */
enum channel_end { CHANNEL_SEND, CHANNEL_RECV };

struct segment_layout segment_layout(int world);
/* Map the memfd of config, join, and wait for all members; as comm_ops.open. */
titan_status segment_open(struct segment *seg, const struct comm_config *config, const atomic_int *abort_flag,
                          const atomic_int *revoked, struct titan_error *err) TITAN_MUST_USE;
/* Leave; members that still wait for this one get TITAN_EPEER. */
void segment_close(struct segment *seg);
/* Everybody's waits end with this status. Any thread. */
void segment_break(struct segment *seg, titan_status status, int rank);
/* TITAN_OK while usable. */
titan_status segment_check(struct segment *seg, struct titan_error *err);

/* Buffer of the tick'th fill, of that rank. */
unsigned char *segment_slot(const struct segment *seg, uint32_t tick, int rank);
titan_status segment_barrier(struct segment *seg, struct titan_error *err) TITAN_MUST_USE;

/* The next slot of the ring from this rank to the peer (send) or back (recv): waits until it can be filled or read. */
titan_status segment_channel_wait(struct segment *seg, enum channel_end end, int peer, unsigned char **ret_slot,
                                  struct titan_error *err) TITAN_MUST_USE;
/* It has been filled or read. */
void segment_channel_advance(struct segment *seg, enum channel_end end, int peer);

#endif
