/* SPDX-License-Identifier: Apache-2.0 */
/* epoch.h - the numbered memberships of a job. The whole content of a FormEpoch is stored before it is sent: a
 * restarted coordinator sends the same epoch with the same members again, never a different epoch with this number.
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
    uint64_t source_epoch; /* with STATE_MEMORY: the epoch whose members have the state; otherwise 0 */
    uint64_t resume_step;
    const char *checkpoint; /* newest checkpoint; with STATE_MEMORY the next source in the fallback order; "" = none */
    unsigned char comm_id[16];
    bool keyed; /* key is set; false in epochs of an older version */
    unsigned char key[32];
    uint32_t world_size;
    uint32_t departing;      /* members of source_epoch that transfer their state shards and are not in this epoch */
    const uint64_t *workers; /* ids in rank order, then the departing ranks' */
    const char *leader;      /* node that committed the epoch without the coordinator; "" = none */
    int64_t created_at_ms;
    bool complete;   /* its members have their state, or made a step; set by epoch_get */
    bool has_origin; /* epoch_set_origin() was called; set by epoch_get */
};
/* The final source of its members' state. */
struct epoch_origin {
    int32_t recovery_source; /* titan.internal.RecoverySource */
    uint64_t step, params_hash;
};

/* Adds a FORMING epoch with its members and sets their workers' ranks. TITAN_ECONFLICT: the number exists. */
titan_status epoch_add(struct db *db, const struct epoch *e, const struct event *event,
                       struct titan_error *err) TITAN_MUST_USE;
titan_status epoch_move(struct db *db, uint64_t job_id, uint64_t number, enum epoch_state to, const struct event *event,
                        struct titan_error *err) TITAN_MUST_USE;
titan_status epoch_set_origin(struct db *db, uint64_t job_id, uint64_t number, const struct epoch_origin *origin,
                              const struct event *event, struct titan_error *err) TITAN_MUST_USE;
/* Number of the newest epoch that made a step; 0 = none. */
titan_status epoch_last_trained(struct db *db, uint64_t job_id, uint64_t *ret, struct titan_error *err) TITAN_MUST_USE;
/* Advances *number to the next epoch; 0 = no further epoch. */
titan_status epoch_next(struct db *db, uint64_t job_id, uint64_t *number, struct titan_error *err) TITAN_MUST_USE;
/* Passes the epoch with this number to with(), once; number 0 = the newest. TITAN_ENOTFOUND. */
titan_status epoch_get(struct db *db, uint64_t job_id, uint64_t number, void (*with)(const struct epoch *e, void *data),
                       void *data, struct titan_error *err) TITAN_MUST_USE;

#endif
