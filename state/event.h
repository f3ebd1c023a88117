/* SPDX-License-Identifier: Apache-2.0 */
/* event.h - all events in order. Rows are only added, in the transaction of the change they record.
 *
 * The log is a chain: events.chain = SHA-256(chain of the previous event | this event in a fixed encoding). The first
 * event follows 32 zero bytes. Ids have no gaps except before EVENT_RESTORED. event_verify() thus finds rows that were
 * changed, removed or inserted later, unless all following rows were rewritten.
 *
 * Every state move also records its words in events.change, by event_add_move(); replaying these words gives every
 * state in the tables (replay.h). The event's facts follow on a separate line (facts.h). */
#ifndef TITAN_STATE_EVENT_H
#define TITAN_STATE_EVENT_H

#include "base/sm.h"
#include "state/db.h"

#define EVENT_CHAIN_BYTES 32
/* The only event type that may follow a gap in ids, because ids published between a backup and its restore are not
 * reused. */
#define EVENT_RESTORED "store.restored"

struct event {
    uint64_t id; /* assigned by the store; increases over all jobs */
    uint64_t job_id;
    int64_t at_ms;
    const char *type;    /* "job.state"; docs/api.md lists all */
    const char *message; /* one sentence for people */
    uint64_t epoch, step;
    int32_t rank;       /* -1 = none */
    const char *node;   /* NULL = none */
    const char *detail; /* a JSON object; NULL = {} */
    const char *actor;  /* the identity that caused it; NULL = none */
    const char *facts;  /* row contents that the event determines (facts.h); NULL = none. Not read back */
};

/* The events that a reader may see and wants. */
struct event_filter {
    uint64_t job_id;   /* 0 = all jobs, and events without a job */
    bool audit;        /* only events of calls: audit.* */
    const char *actor; /* only events of this identity; NULL = all */
    int64_t since_ms;
    uint64_t after; /* only events with a larger id */
    int limit;
};
/* Prefix of the types of audit events. Audit events are left out unless requested. */
#define EVENT_AUDIT "audit."

/* The newest event and the chain up to it. Equal heads mean equal logs. id 0: the log is empty. */
struct event_head {
    uint64_t id;
    unsigned char chain[EVENT_CHAIN_BYTES];
};
#define EVENT_HEAD_TEXT (20 + 1 + 2 * EVENT_CHAIN_BYTES + 1)
titan_status event_head(struct db *db, struct event_head *ret, struct titan_error *err) TITAN_MUST_USE;
/* "1234:HASH", in hexadecimal. */
void event_head_write(const struct event_head *head, char out[EVENT_HEAD_TEXT]);
/* Parses a head at the beginning of untrusted text. *ret_end (may be NULL): the text behind it. False: no head. */
bool event_head_read(const char *text, struct event_head *ret, const char **ret_end);
/* Does the log contain a head recorded earlier? TITAN_ECORRUPT: the log was cut before the head, or has another event
 * in its place; the error names both ends. *ret_lost: the event store.restored that records the loss of the head; 0 =
 * not lost. */
titan_status event_head_find(struct db *db, const struct event_head *head, uint64_t *ret_lost,
                             struct titan_error *err) TITAN_MUST_USE;

titan_status event_add(struct db *db, const struct event *e, struct titan_error *err) TITAN_MUST_USE;
/* A move of a row between two states of its table. */
struct event_move {
    const struct sm *what;
    const char *name; /* the row's key; NULL = the row's id, which follows the job's id if in_job is set */
    uint64_t job_id, id;
    bool in_job;
    int from, to;
    int64_t count; /* a job's restarts, or whether a worker's end counted; otherwise 0 */
};
/* TITAN_EBUG: the table forbids the move. */
titan_status event_check_move(const struct event_move *move, struct titan_error *err) TITAN_MUST_USE;
/* event_add() that also records the move. */
titan_status event_add_move(struct db *db, const struct event *e, const struct event_move *move,
                            struct titan_error *err) TITAN_MUST_USE;
/* Checks the chain behind event `after` (0 = all of it). TITAN_ECORRUPT names the first wrong event. */
titan_status event_verify(struct db *db, uint64_t after, uint64_t *ret_checked, struct titan_error *err) TITAN_MUST_USE;
/* Adds all existing events to a chain, for the migration that adds the chain. */
titan_status event_chain_all(struct db *db, struct titan_error *err) TITAN_MUST_USE;
/* Lists events in order. each returns false to stop; its event is valid during the call. */
titan_status event_list(struct db *db, const struct event_filter *filter,
                        bool (*each)(const struct event *e, void *data), void *data,
                        struct titan_error *err) TITAN_MUST_USE;

#endif
