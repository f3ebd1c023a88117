/* SPDX-License-Identifier: Apache-2.0 */
/* shadow.h - knows which action of every stream was the last to touch each byte of a program's memory.
 *
 * All memory is one range of addresses: the arena, then the external buffers. The range is cut into segments. A segment
 * has its last write and, for every stream, the last read since this write. An access must come after the last write to
 * the segments that it touches. A write must also come after the reads. Memory that is used again needs no rule of its
 * own: the first write of the new owner comes after the last accesses of the old owner. */
#ifndef TITAN_WORKER_PROGRAM_SHADOW_H
#define TITAN_WORKER_PROGRAM_SHADOW_H

#include "worker/program/program.h"

struct shadow {
    const struct program *p;
    size_t *base; /* address of every buffer */
    /* Segment k covers [start[k], start[k + 1]); its accesses are in pool[slot[k]]. */
    size_t *start;
    int *slot;
    int n, cap;
    struct shadow_segment *pool;
    int n_pool, cap_pool, unused; /* unused: a free entry of the pool; its `write` is the next free entry */
};

/* Buffers must be placed. false: out of memory. Call shadow_free() in any case. */
bool shadow_init(struct shadow *s, const struct program *p);
void shadow_free(struct shadow *s);
/* Calls before() for each action that must be over when `action` touches the operand, then notes the access. Some of
 * these actions may be on the same stream as `action`, or may be implied by others. false: out of memory. */
bool shadow_touch(struct shadow *s, int action, const struct operand *o, void (*before)(void *arg, int earlier),
                  void *arg);

#endif
