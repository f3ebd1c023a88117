/* SPDX-License-Identifier: Apache-2.0 */
/* batch.h - what the core wants done after one input: changes for the store, messages for agents, metrics. Everything
 * in a batch lives in its arena and dies with it. Messages may leave only after the changes are durable. */
#ifndef TITAN_DAEMON_COORDINATOR_BATCH_H
#define TITAN_DAEMON_COORDINATOR_BATCH_H

#include "base/arena.h"
#include "state/change.h"
#include "state/metric.h"
#include "titan/internal/agent.pb-c.h"

struct batch_message {
    struct batch_message *next;
    uint64_t session;                             /* drop it when this session is over */
    Titan__Internal__CoordinatorMessage *message; /* StartWorkers: recipe is left empty, the shell fills it in. Others
                                                     may have the same one */
};
#define METRICS_UNSTORED 1024 /* at most, on their way from a batch into the store */
struct batch_metric {
    struct batch_metric *next;
    struct metric metric;
};
struct batch_gap {
    struct batch_gap *next;
    uint64_t job_id, after; /* metrics of some steps after that one were never received */
};
struct batch_drop {
    struct batch_drop *next;
    uint64_t session; /* to be closed: its node is lost or has opened another session */
};

struct batch {
    uint64_t term; /* every message says it */
    struct change *changes, **changes_tail;
    struct batch_message *messages, **messages_tail;
    struct batch_message *answers, **answers_tail; /* depend on no change of this batch, so they are sent at once */
    struct batch_metric *metrics, **metrics_tail;
    struct batch_gap *gaps;
    struct batch_drop *drops;
    struct arena memory; /* of all the above */
};

void batch_init(struct batch *b);
void batch_free(struct batch *b); /* everything; ready for use again after batch_init */
bool batch_empty(const struct batch *b);

/* Zeroed memory of the batch. Running out of it ends the process: half a decision cannot be taken back, and the store
 * is what the next start continues from. */
void *batch_alloc(struct batch *b, size_t bytes);
char *batch_strdup(struct batch *b, const char *text);                                           /* NULL -> "" */
char *batch_printf(struct batch *b, const char *fmt, ...) __attribute__((format(printf, 2, 3))); /* cut at 1023 bytes */

/* Appended, to be filled in by the caller. */
struct change *batch_change(struct batch *b, enum change_kind kind);
/* Appended: body is the member of the oneof selected by kind, allocated with batch_alloc. */
Titan__Internal__CoordinatorMessage *batch_message(struct batch *b, uint64_t session,
                                                   Titan__Internal__CoordinatorMessage__KindCase kind, void *body);
/* The same message to one more session: it is packed once for all that follow each other. */
void batch_message_again(struct batch *b, uint64_t session, Titan__Internal__CoordinatorMessage *message);
/* As batch_message, for one that does not wait for the store: heartbeats are answered however slow the disk is. */
Titan__Internal__CoordinatorMessage *batch_answer(struct batch *b, uint64_t session,
                                                  Titan__Internal__CoordinatorMessage__KindCase kind, void *body);
struct metric *batch_metric(struct batch *b);
void batch_gap(struct batch *b, uint64_t job_id, uint64_t after);
void batch_drop(struct batch *b, uint64_t session);

#endif
