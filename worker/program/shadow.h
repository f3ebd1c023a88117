/* SPDX-License-Identifier: Apache-2.0 */
/* shadow.h - what touched each byte of a program's memory last, on every stream.
 *
 * All memory is one line of addresses: the arena, then the external buffers. It is cut into segments, each with its
 * last write and, for every stream, the last read since. An access must come after the write of what it touches; one
 * that writes, after the reads too. Memory that is used again needs no rule of its own: its next owner's first write
 * meets the last accesses of the one before. */
#ifndef TITAN_WORKER_PROGRAM_SHADOW_H
#define TITAN_WORKER_PROGRAM_SHADOW_H

#include "worker/program/program.h"

struct shadow {
    const struct program *p;
    size_t *base; /* address of every buffer */
    /* Segment k covers [start[k], start[k + 1]); what it holds is pool[slot[k]]. */
    size_t *start;
    int *slot;
    int n, cap;
    struct shadow_segment *pool;
    int n_pool, cap_pool, unused; /* a free one's write is the next free one */
};

/* Buffers must be placed. false: out of memory; free in any case. */
bool shadow_init(struct shadow *s, const struct program *p);
void shadow_free(struct shadow *s);
/* Call before for the actions that must be over when this one touches the operand (some may be its own stream's, or be
 * implied by others), then note the access. false: out of memory. */
bool shadow_touch(struct shadow *s, int action, const struct operand *o, void (*before)(void *arg, int earlier),
                  void *arg);

#endif
