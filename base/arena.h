/* SPDX-License-Identifier: Apache-2.0 */
/* arena.h - memory freed all at once: strings and messages of one reply, one decision, one query. Allocations never
 * fail and never return NULL. If memory runs out, the process ends: half a decision cannot be undone, and the next
 * start continues from the store. A zeroed struct is an empty arena. An arena is not thread-safe. */
#ifndef TITAN_BASE_ARENA_H
#define TITAN_BASE_ARENA_H

#include <stdarg.h>
#include <stddef.h>

struct arena {
    struct arena_chunk *chunks; /* owned, newest first */
};

/* Memory is zeroed and aligned to 16 bytes. For 0 bytes, several calls may return the same pointer. */
void *arena_alloc(struct arena *a, size_t bytes) __attribute__((malloc, returns_nonnull));
char *arena_strdup(struct arena *a, const char *text) __attribute__((returns_nonnull)); /* NULL -> "" */
/* The text may have any length. */
char *arena_printf(struct arena *a, const char *fmt, ...) __attribute__((format(printf, 2, 3), returns_nonnull));
char *arena_vprintf(struct arena *a, const char *fmt, va_list args)
    __attribute__((format(printf, 2, 0), returns_nonnull));
/* Frees every allocation; the arena is empty and ready for use. */
void arena_free(struct arena *a);

#endif
