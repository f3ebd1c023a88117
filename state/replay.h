/* SPDX-License-Identifier: Apache-2.0 */
/* replay.h - every state of the store once more, from the event log alone.
 *
 * The tables hold where things stand, the log how they came there. Replaying the log's changes (event.h) must walk
 * along edges of the state tables only, each from where the one before has led, and end where the tables are: states of
 * jobs, runs, epochs, workers, checkpoints and nodes, jobs' restarts, and which workers' ends counted. So must what
 * else only an event may give a row (facts.h): owners and recipes of jobs, tokens, join tokens, revocations. */
#ifndef TITAN_STATE_REPLAY_H
#define TITAN_STATE_REPLAY_H

#include "state/db.h"

struct replay_report {
    uint64_t changes; /* replayed */
    uint64_t rows;    /* compared */
    uint64_t wrong;   /* differences */
    /* Rows that the log knows, but with values from before events had facts, and the first event that has; 0 = none. */
    uint64_t unknown, facts_from;
};

/* Reads only. TITAN_ECORRUPT when anything differs; say (may be NULL) gets a line for each of the first 100. What a
 * store of schema 2 brought along is taken as it was at its first change. */
titan_status replay_check(struct db *db, struct replay_report *ret, void (*print)(const char *line, void *data),
                          void *data, struct titan_error *err) TITAN_MUST_USE;

#endif
