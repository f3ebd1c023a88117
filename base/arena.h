/* SPDX-License-Identifier: Apache-2.0 */
/* arena.h - memory that is given back all at once: strings and messages of one reply, one decision, one query.
 * Allocations never fail and never return NULL: without memory the process ends, since half a decision cannot be taken
 * back and the store is what the next start goes on from. All zero is an empty arena. Not for use by several threads.
 */
#ifndef TITAN_BASE_ARENA_H
#define TITAN_BASE_ARENA_H

#include <stdarg.h>
#include <stddef.h>

struct arena {
    struct arena_chunk *chunks; /* owned, newest first */
};

/* Zeroed, aligned to 16 bytes. 0 bytes give a pointer that may be shared. */
void *arena_alloc(struct arena *a, size_t bytes) __attribute__((malloc, returns_nonnull));
char *arena_strdup(struct arena *a, const char *text) __attribute__((returns_nonnull)); /* NULL -> "" */
/* Text of any length. */
char *arena_printf(struct arena *a, const char *fmt, ...) __attribute__((format(printf, 2, 3), returns_nonnull));
char *arena_vprintf(struct arena *a, const char *fmt, va_list args)
    __attribute__((format(printf, 2, 0), returns_nonnull));
/* Everything allocated from it; the arena is empty and ready for use. */
void arena_free(struct arena *a);

#endif
