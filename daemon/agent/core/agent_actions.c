/* SPDX-License-Identifier: Apache-2.0 */
/* agent_actions.c - the core's list of actions (agent_core.h), in its own arena. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/pairs.h"
#include "daemon/agent/core/agent_core_internal.h"

void agent_actions_init(struct agent_actions *a)
{
    *a = (struct agent_actions){.tail = NULL};
    a->tail = &a->first;
}

void agent_actions_free(struct agent_actions *a)
{
    arena_free(&a->memory);
    agent_actions_init(a);
}

void *agent_action_alloc(struct agent_actions *a, size_t bytes)
{
    return arena_alloc(&a->memory, bytes);
}

static void *unpack_alloc(void *arena, size_t bytes)
{
    return arena_alloc(arena, bytes);
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
    ProtobufCAllocator allocator = {unpack_alloc, unpack_free, &out->memory};
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

char *agent_action_text(struct agent_actions *out, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    char *text = arena_vprintf(&out->memory, fmt, args);
    va_end(args);
    return text;
}

void agent_log(struct agent_actions *out, enum agent_level level, const char *sentence, const char *pairs_fmt, ...)
{
    va_list args;
    va_start(args, pairs_fmt);
    struct agent_action *a = agent_action_add(out, AGENT_LOG);
    a->level = level;
    a->text = sentence;
    char pairs[PAIRS_MAX];
    pairs_format(pairs, sizeof pairs, pairs_fmt, args);
    va_end(args);
    a->pairs = arena_strdup(&out->memory, pairs);
}

char *agent_text_copy(const char *text)
{
    char *copy = strdup(text ? text : "");
    titan_assert(copy);
    return copy;
}
