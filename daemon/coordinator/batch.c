#include "daemon/coordinator/batch.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct batch_chunk {
    struct batch_chunk *next;
    size_t used, cap;
    _Alignas(16) char data[];
};

void batch_init(struct batch *b)
{
    memset(b, 0, sizeof(*b));
    b->changes_tail = &b->changes;
    b->messages_tail = &b->messages;
    b->answers_tail = &b->answers;
    b->metrics_tail = &b->metrics;
}

void batch_free(struct batch *b)
{
    for (struct batch_chunk *c = b->chunks, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    batch_init(b);
}

bool batch_empty(const struct batch *b)
{
    return !b->changes && !b->messages && !b->answers && !b->metrics && !b->drops;
}

void *batch_alloc(struct batch *b, size_t bytes)
{
    bytes = (bytes + 15) & ~(size_t)15;
    struct batch_chunk *c = b->chunks;
    if (!c || c->cap - c->used < bytes) {
        size_t cap = bytes > 2000 ? bytes : 2000;
        c = malloc(sizeof(*c) + cap);
        titan_assert(c);
        c->used = 0;
        c->cap = cap;
        c->next = b->chunks;
        b->chunks = c;
    }
    void *p = c->data + c->used;
    c->used += bytes;
    return memset(p, 0, bytes);
}

char *batch_strdup(struct batch *b, const char *text)
{
    size_t len = text ? strlen(text) : 0;
    char *copy = batch_alloc(b, len + 1);
    if (len)
        memcpy(copy, text, len);
    return copy;
}

char *batch_printf(struct batch *b, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    return batch_strdup(b, text);
}

struct change *batch_change(struct batch *b, enum change_kind kind)
{
    struct change *c = batch_alloc(b, sizeof(*c));
    c->kind = kind;
    *b->changes_tail = c;
    b->changes_tail = &c->next;
    return c;
}

static void append(struct batch *b, struct batch_message ***tail, uint64_t session,
                   Titan__Internal__CoordinatorMessage *message)
{
    struct batch_message *m = batch_alloc(b, sizeof(*m));
    m->session = session;
    m->message = message;
    **tail = m;
    *tail = &m->next;
}

static Titan__Internal__CoordinatorMessage *add_message(struct batch *b, struct batch_message ***tail, uint64_t session,
                                                        Titan__Internal__CoordinatorMessage__KindCase kind, void *body)
{
    Titan__Internal__CoordinatorMessage *message = batch_alloc(b, sizeof(*message));
    titan__internal__coordinator_message__init(message);
    message->term = b->term;
    message->kind_case = kind;
    message->welcome = body; /* all members of the oneof are pointers */
    append(b, tail, session, message);
    return message;
}

void batch_message_again(struct batch *b, uint64_t session, Titan__Internal__CoordinatorMessage *message)
{
    append(b, &b->messages_tail, session, message);
}

Titan__Internal__CoordinatorMessage *batch_message(struct batch *b, uint64_t session,
                                                   Titan__Internal__CoordinatorMessage__KindCase kind, void *body)
{
    return add_message(b, &b->messages_tail, session, kind, body);
}

Titan__Internal__CoordinatorMessage *batch_answer(struct batch *b, uint64_t session,
                                                  Titan__Internal__CoordinatorMessage__KindCase kind, void *body)
{
    return add_message(b, &b->answers_tail, session, kind, body);
}

struct metric *batch_metric(struct batch *b)
{
    struct batch_metric *m = batch_alloc(b, sizeof(*m));
    *b->metrics_tail = m;
    b->metrics_tail = &m->next;
    return &m->metric;
}

void batch_drop(struct batch *b, uint64_t session)
{
    struct batch_drop *d = batch_alloc(b, sizeof(*d));
    d->session = session;
    d->next = b->drops;
    b->drops = d;
}
