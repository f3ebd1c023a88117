/* SPDX-License-Identifier: Apache-2.0 */
/* batch.h - what the core wants done after one input: store changes, agent messages, metrics. The batch's arena owns
 * all of it. Messages may leave only after the changes are durable. */
#ifndef TITAN_DAEMON_COORDINATOR_BATCH_H
#define TITAN_DAEMON_COORDINATOR_BATCH_H

#include "base/arena.h"
#include "state/change.h"
#include "state/metric.h"
#include "titan/internal/agent.pb-c.h"

struct batch_message {
    struct batch_message *next;
    uint64_t session; /* the message is dropped when this session has ended */
    /* Several batch_messages may share this message. StartWorkers.recipe is empty here; the shell fills it in */
    Titan__Internal__CoordinatorMessage *message;
};
#define METRICS_UNSTORED 1024 /* most metrics on their way from a batch into the store */
struct batch_metric {
    struct batch_metric *next;
    struct metric metric;
};
struct batch_gap {
    struct batch_gap *next;
    uint64_t job_id, after; /* metrics of some steps after the step `after` were never received */
};
struct batch_drop {
    struct batch_drop *next;
    uint64_t session; /* the session to close: its node is lost or has opened another session */
};

struct batch {
    uint64_t term; /* the coordinator's term, copied into every message */
    struct change *changes, **changes_tail;
    struct batch_message *messages, **messages_tail;
    struct batch_message *answers, **answers_tail; /* answers depend on no change of this batch and are sent at once */
    struct batch_metric *metrics, **metrics_tail;
    struct batch_gap *gaps;
    struct batch_drop *drops;
    struct arena memory; /* owns everything above */
};

void batch_init(struct batch *b);
void batch_free(struct batch *b); /* frees everything; call batch_init before the next use */
bool batch_empty(const struct batch *b);

/* Returns zeroed memory of the batch. Out of memory ends the process, because half a decision cannot be undone, and the
 * next start continues from the store. */
void *batch_alloc(struct batch *b, size_t bytes);
char *batch_strdup(struct batch *b, const char *text); /* NULL -> "" */
/* at most 1023 bytes */
char *batch_printf(struct batch *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Appends a change; the caller fills it in. */
struct change *batch_change(struct batch *b, enum change_kind kind);
/* Appends a message. body: the member of the oneof that kind selects, allocated with batch_alloc. */
Titan__Internal__CoordinatorMessage *batch_message(struct batch *b, uint64_t session,
                                                   Titan__Internal__CoordinatorMessage__KindCase kind, void *body);
/* Sends the same message to one more session. Successive calls pack the message only once. */
void batch_message_again(struct batch *b, uint64_t session, Titan__Internal__CoordinatorMessage *message);
/* Like batch_message, but the message does not wait for the store, because a slow disk must not delay answers to
 * heartbeats. */
Titan__Internal__CoordinatorMessage *batch_answer(struct batch *b, uint64_t session,
                                                  Titan__Internal__CoordinatorMessage__KindCase kind, void *body);
struct metric *batch_metric(struct batch *b);
void batch_gap(struct batch *b, uint64_t job_id, uint64_t after);
void batch_drop(struct batch *b, uint64_t session);

#endif
