/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/coordinator/batch.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    arena_free(&b->memory);
    batch_init(b);
}

bool batch_empty(const struct batch *b)
{
    return !b->changes && !b->messages && !b->answers && !b->metrics && !b->gaps && !b->drops;
}

void *batch_alloc(struct batch *b, size_t bytes)
{
    return arena_alloc(&b->memory, bytes);
}

char *batch_strdup(struct batch *b, const char *text)
{
    return arena_strdup(&b->memory, text);
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
    message->ack = body; /* all members of the oneof are pointers */
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

void batch_gap(struct batch *b, uint64_t job_id, uint64_t after)
{
    struct batch_gap *g = batch_alloc(b, sizeof(*g));
    g->job_id = job_id;
    g->after = after;
    g->next = b->gaps;
    b->gaps = g;
}

void batch_drop(struct batch *b, uint64_t session)
{
    struct batch_drop *d = batch_alloc(b, sizeof(*d));
    d->session = session;
    d->next = b->drops;
    b->drops = d;
}
