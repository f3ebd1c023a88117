/* SPDX-License-Identifier: Apache-2.0 */
#include "base/arena.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"

#define CHUNK_BYTES ((size_t)2000) /* half a page less malloc's header: most replies and decisions fit in one chunk */

struct arena_chunk {
    struct arena_chunk *next;
    size_t used, cap;
    _Alignas(16) char data[];
};

void *arena_alloc(struct arena *a, size_t bytes)
{
    titan_assert(bytes <= SIZE_MAX - sizeof(struct arena_chunk) - 16);
    bytes = (bytes + 15) & ~(size_t)15;
    struct arena_chunk *c = a->chunks;
    if (!c || c->cap - c->used < bytes) {
        const size_t cap = MAX(bytes, CHUNK_BYTES);
        c = malloc(sizeof(*c) + cap);
        titan_assert(c);
        *c = (struct arena_chunk){.next = a->chunks, .cap = cap};
        a->chunks = c;
    }
    void *p = c->data + c->used;
    c->used += bytes;
    titan_assert(c->used <= c->cap && ((uintptr_t)p & 15) == 0);
    return memset(p, 0, bytes);
}

char *arena_strdup(struct arena *a, const char *text)
{
    const size_t len = text ? strlen(text) : 0;
    char *copy = arena_alloc(a, len + 1);
    if (len)
        memcpy(copy, text, len);
    return copy;
}

char *arena_vprintf(struct arena *a, const char *fmt, va_list args)
{
    va_list again;
    va_copy(again, args);
    const int len = vsnprintf(NULL, 0, fmt, again);
    va_end(again);
    titan_assert(len >= 0);
    char *text = arena_alloc(a, (size_t)len + 1);
    titan_assert(text[0] == '\0');
    (void)vsnprintf(text, (size_t)len + 1, fmt, args);
    return text;
}

char *arena_printf(struct arena *a, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    char *text = arena_vprintf(a, fmt, args);
    va_end(args);
    return text;
}

void arena_free(struct arena *a)
{
    for (struct arena_chunk *c = a->chunks, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    a->chunks = NULL;
}
