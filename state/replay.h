/* SPDX-License-Identifier: Apache-2.0 */
/* replay.h - recomputes every state of the store from the event log alone.
 *
 * The tables have the present states; the log has their history. Each change in the log (event.h) must be an edge of
 * the state tables, and begin at the state of the previous change. The last change must end at the state in the table.
 * This is checked for the states of jobs, runs, epochs, workers, checkpoints and nodes, for jobs' restarts, and for
 * which workers' ends counted. Other contents that only an event may set must also match (facts.h): owners and recipes
 * of jobs, tokens, join tokens, revocations. */
#ifndef TITAN_STATE_REPLAY_H
#define TITAN_STATE_REPLAY_H

#include "state/db.h"

struct replay_report {
    uint64_t changes; /* replayed */
    uint64_t rows;    /* compared */
    uint64_t wrong;   /* differences */
    /* Rows in the log with values from before events had facts; and the id of the first event with facts, 0 = none. */
    uint64_t unknown, facts_from;
};

/* Read-only. TITAN_ECORRUPT: something differs; print (may be NULL) gets a line for each of the first 100. Rows from
 * schema 2 count from their first change on. */
titan_status replay_check(struct db *db, struct replay_report *ret, void (*print)(const char *line, void *data),
                          void *data, struct titan_error *err) TITAN_MUST_USE;

#endif
