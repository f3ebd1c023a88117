/* SPDX-License-Identifier: Apache-2.0 */
/* epoch.h - the numbered memberships of a job. Everything a FormEpoch says is stored before it is sent, so a
 * coordinator that comes back sends the same epoch with the same members again, never another of that number.
 *
 *   (new) -> FORMING --first step--> RUNNING --paused--> ENDED
 *               `------ a member is lost -----`--------> REVOKED
 */
#ifndef TITAN_STATE_EPOCH_H
#define TITAN_STATE_EPOCH_H

#include "base/sm.h"
#include "state/event.h"

enum epoch_state { EPOCH_NONE, EPOCH_FORMING, EPOCH_RUNNING, EPOCH_REVOKED, EPOCH_ENDED };
extern const struct sm epoch_sm;

struct epoch {
    uint64_t job_id, number;
    uint32_t run;
    enum epoch_state state;
    uint32_t source;       /* titan.internal.StateSource */
    uint64_t source_epoch; /* with STATE_MEMORY: the epoch of the members that hold the state; else 0 */
    uint64_t resume_step;
    const char *checkpoint; /* newest; with STATE_MEMORY the next source in the fallback order; "" = none */
    unsigned char comm_id[16];
    bool keyed; /* key is set; not so in epochs of an older version */
    unsigned char key[32];
    uint32_t world_size;
    uint32_t departing;      /* members of source_epoch that hand their state shards over and are not in this one */
    const uint64_t *workers; /* ids in rank order, then the departing ranks' */
    const char *leader;      /* node that committed it while the coordinator was away; "" = none */
    int64_t created_at_ms;
    bool complete;   /* its members have had their state, or made a step; for epoch_get to say */
    bool has_origin; /* epoch_set_origin() was; the same */
};
/* Where its members' state came from in the end. */
struct epoch_origin {
    int32_t recovery_source; /* titan.internal.RecoverySource */
    uint64_t step, params_hash;
};

/* Adds a FORMING epoch with its members and sets their workers' ranks. TITAN_ECONFLICT when the number exists. */
titan_status epoch_add(struct db *db, const struct epoch *e, const struct event *event,
                       struct titan_error *err) TITAN_MUST_USE;
titan_status epoch_move(struct db *db, uint64_t job_id, uint64_t number, enum epoch_state to, const struct event *event,
                        struct titan_error *err) TITAN_MUST_USE;
titan_status epoch_set_origin(struct db *db, uint64_t job_id, uint64_t number, const struct epoch_origin *origin,
                              const struct event *event, struct titan_error *err) TITAN_MUST_USE;
/* Of the newest epoch that has made a step; 0 = there was none. */
titan_status epoch_last_trained(struct db *db, uint64_t job_id, uint64_t *ret, struct titan_error *err) TITAN_MUST_USE;
/* The number behind *number; 0 = it is the last. */
titan_status epoch_next(struct db *db, uint64_t job_id, uint64_t *number, struct titan_error *err) TITAN_MUST_USE;
/* The epoch of that number; number 0 = the newest. TITAN_ENOTFOUND. with() is called once. */
titan_status epoch_get(struct db *db, uint64_t job_id, uint64_t number, void (*with)(const struct epoch *e, void *data),
                       void *data, struct titan_error *err) TITAN_MUST_USE;

#endif
