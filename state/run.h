/* SPDX-License-Identifier: Apache-2.0 */
/* run.h - the runs of a job. A run begins when workers are placed, and lasts as long as any of these workers lives. It
 * ends with the job, or with the loss of its last worker; the next run then starts from a checkpoint. */
#ifndef TITAN_STATE_RUN_H
#define TITAN_STATE_RUN_H

#include "base/sm.h"
#include "state/event.h"

enum run_state { RUN_NONE, RUN_ACTIVE, RUN_COMPLETED, RUN_FAILED, RUN_CANCELLED, RUN_LOST };
extern const struct sm run_sm;

struct run {
    uint64_t job_id;
    uint32_t number;
    enum run_state state;
    const char *reason;
};

titan_status run_add(struct db *db, uint64_t job_id, uint32_t number, const struct event *event,
                     struct titan_error *err) TITAN_MUST_USE;
/* Ends the run: r has its final state and the reason. */
titan_status run_move(struct db *db, const struct run *r, const struct event *event,
                      struct titan_error *err) TITAN_MUST_USE;
/* Number and state of a job's newest run; 0 and RUN_NONE: none. */
titan_status run_last(struct db *db, uint64_t job_id, uint32_t *ret_number, enum run_state *ret_state,
                      struct titan_error *err) TITAN_MUST_USE;

#endif
