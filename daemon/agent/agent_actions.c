/* agent_actions.c - what the core wants done (agent_core.h): a list in an arena of its own. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "daemon/agent/agent_core_internal.h"

#define CHUNK_BYTES 2000

struct agent_chunk {
    struct agent_chunk *next;
    size_t used, cap;
    _Alignas(16) char data[];
};

void agent_actions_init(struct agent_actions *a)
{
    *a = (struct agent_actions){.tail = NULL};
    a->tail = &a->first;
}

void agent_actions_free(struct agent_actions *a)
{
    for (struct agent_chunk *c = a->chunks, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    agent_actions_init(a);
}

/* Zeroed. Without memory the process ends: half a decision cannot be taken back, and the next start goes on from what
 * is on disk. */
void *agent_action_alloc(struct agent_actions *a, size_t bytes)
{
    titan_assert(bytes <= SIZE_MAX / 2);
    bytes = (bytes + 15) & ~(size_t)15;
    struct agent_chunk *c = a->chunks;
    if (!c || c->cap - c->used < bytes) {
        size_t cap = MAX(bytes, (size_t)CHUNK_BYTES);
        c = malloc(sizeof(*c) + cap);
        titan_assert(c);
        *c = (struct agent_chunk){.next = a->chunks, .cap = cap};
        a->chunks = c;
    }
    void *p = c->data + c->used;
    c->used += bytes;
    return memset(p, 0, bytes);
}

static void *unpack_alloc(void *arena, size_t bytes)
{
    return agent_action_alloc(arena, bytes);
}

static void unpack_free(void *arena, void *p)
{
    (void)arena;
    (void)p;
}

static void *copy_with(const ProtobufCMessage *m, ProtobufCAllocator *allocator)
{
    size_t len = protobuf_c_message_get_packed_size(m);
    _cleanup_free_ uint8_t *bytes = malloc(len ? len : 1);
    titan_assert(bytes);
    (void)protobuf_c_message_pack(m, bytes);
    void *copy = protobuf_c_message_unpack(m->descriptor, allocator, len, bytes);
    titan_assert(copy);
    return copy;
}

void *agent_action_copy(struct agent_actions *out, const ProtobufCMessage *m)
{
    ProtobufCAllocator allocator = {unpack_alloc, unpack_free, out};
    return copy_with(m, &allocator);
}

void *agent_message_copy(const ProtobufCMessage *m)
{
    return copy_with(m, NULL);
}

struct agent_action *agent_action_add(struct agent_actions *out, enum agent_action_kind kind)
{
    struct agent_action *a = agent_action_alloc(out, sizeof(*a));
    titan_assert(out->tail && !*out->tail);
    a->kind = kind;
    *out->tail = a;
    out->tail = &a->next;
    return a;
}

static char *text_va(struct agent_actions *out, const char *fmt, va_list args)
{
    va_list again;
    va_copy(again, args);
    int len = vsnprintf(NULL, 0, fmt, again);
    va_end(again);
    titan_assert(len >= 0);
    char *text = agent_action_alloc(out, (size_t)len + 1);
    (void)vsnprintf(text, (size_t)len + 1, fmt, args);
    return text;
}

char *agent_action_text(struct agent_actions *out, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    char *text = text_va(out, fmt, args);
    va_end(args);
    return text;
}

void agent_log(struct agent_actions *out, enum agent_level level, const char *sentence, const char *pairs_fmt, ...)
{
    va_list args;
    va_start(args, pairs_fmt);
    titan_assert(sentence && *sentence);
    struct agent_action *a = agent_action_add(out, AGENT_LOG);
    a->level = level;
    a->text = sentence;
    a->pairs = text_va(out, pairs_fmt, args);
    va_end(args);
}
