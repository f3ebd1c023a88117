/* SPDX-License-Identifier: Apache-2.0 */
/* arena_placement.h - where each buffer of a program lies in its arena. */
#ifndef TITAN_WORKER_PROGRAM_ARENA_PLACEMENT_H
#define TITAN_WORKER_PROGRAM_ARENA_PLACEMENT_H

#include "worker/program/program.h"

#define ARENA_ALIGN 256

static inline size_t arena_round_up(size_t bytes)
{
    return (bytes + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
}

/* Sets arena_bytes, and `offset` of every buffer that is not external and is touched. Lifetimes must be known. */
titan_status program_arena_place(struct program *p, struct titan_error *err) TITAN_MUST_USE;

#endif
