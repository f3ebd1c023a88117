/* SPDX-License-Identifier: Apache-2.0 */
/* event.h - what happened, in order. Rows are only ever added, in the transaction of the change they speak of.
 *
 * The log is a chain: events.chain = SHA-256(chain of the event before | this event in a fixed encoding), the first one
 * on 32 zero bytes; ids follow each other without a gap but
 * before EVENT_RESTORED. So a row that was changed, taken out or put in later is found
 * (event_verify), unless all rows behind it were written anew.
 *
 * Whatever moves a state also says so in events.change, by event_add_change(); replaying these words gives every state
 * the tables hold (replay.h). Behind them, in a line of their own, are the event's facts (facts.h). */
#ifndef TITAN_STATE_EVENT_H
#define TITAN_STATE_EVENT_H

#include "base/sm.h"
#include "state/db.h"

#define EVENT_CHAIN_BYTES 32
/* Of the one event that may leave a gap in the ids before it: what was published between a backup and its return is not
 * published again under the same numbers. */
#define EVENT_RESTORED "store.restored"

struct event {
    uint64_t id; /* given by the store; increases over all jobs */
    uint64_t job_id;
    int64_t at_ms;
    const char *type;    /* "job.state"; docs/api.md lists all */
    const char *message; /* one sentence for people */
    uint64_t epoch, step;
    int32_t rank;       /* -1 = none */
    const char *node;   /* NULL = none */
    const char *detail; /* a JSON object; NULL = {} */
    const char *actor;  /* the identity that called for it; NULL = none did */
    const char *facts;  /* what rows hold by it (facts.h); NULL = nothing. Not read back */
};

/* Which events a reader may see and wants. */
struct event_filter {
    uint64_t job_id;   /* 0 = of all jobs, and of none */
    bool audit;        /* only those of calls: audit.* ... */
    const char *actor; /* ... of this identity; NULL = of all */
    int64_t since_ms;
};
/* Their types begin so. They are left out unless they are asked for. */
#define EVENT_AUDIT "audit."

/* The newest event and the chain up to it: two logs with the same head are the same log. id 0: there is none. */
struct event_head {
    uint64_t id;
    unsigned char chain[EVENT_CHAIN_BYTES];
};
#define EVENT_HEAD_TEXT (20 + 1 + 2 * EVENT_CHAIN_BYTES + 1)
titan_status event_head(struct db *db, struct event_head *ret, struct titan_error *err) TITAN_MUST_USE;
/* "1234:HASH", in hexadecimal. */
void event_head_write(const struct event_head *head, char out[EVENT_HEAD_TEXT]);
/* What text begins with; from outside. *ret_end (may be NULL): behind it. False: not with a head. */
bool event_head_read(const char *text, struct event_head *ret, const char **ret_end);
/* Is a head that was written down earlier in this log? TITAN_ECORRUPT names both ends where the log was cut behind it,
 * or has another event there. *ret_lost (0 = none is): the event store.restored that tells of events lost with it. */
titan_status event_head_find(struct db *db, const struct event_head *head, uint64_t *ret_lost,
                             struct titan_error *err) TITAN_MUST_USE;

titan_status event_add(struct db *db, const struct event *e, struct titan_error *err) TITAN_MUST_USE;
/* The same, and record that `what` with this key went from a state to a state of its table, and has this count (a job's
 * restarts, whether a worker's end counted; else 0). */
titan_status event_add_change(struct db *db, const struct event *e, const struct sm *what, const char *key, int from,
                              int to, int64_t count, struct titan_error *err) TITAN_MUST_USE;
/* Check the chain behind event `after` (0 = all of it). TITAN_ECORRUPT names the first event that is wrong. */
titan_status event_verify(struct db *db, uint64_t after, uint64_t *ret_checked, struct titan_error *err) TITAN_MUST_USE;
/* For the migration that brings the chain: over the events that are there already. */
titan_status event_chain_all(struct db *db, struct titan_error *err) TITAN_MUST_USE;
/* Events with id > after in order, at most limit. each returns false to stop; its event is valid during the call. */
titan_status event_list(struct db *db, const struct event_filter *filter, uint64_t after, int limit,
                        bool (*each)(const struct event *e, void *data), void *data,
                        struct titan_error *err) TITAN_MUST_USE;

#endif
