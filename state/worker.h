/* SPDX-License-Identifier: Apache-2.0 */
/* worker.h - workers: processes that are, or may become, members of a job's epochs. Ids are never reused.
 *
 *   (new) -> STARTING --ready--> READY --told to stop--> STOPPING
 *               |                  |                        |
 *               `------------------`------------------------`--> EXITED (its agent said so), LOST (unknown)
 *  */
#ifndef TITAN_STATE_WORKER_H
#define TITAN_STATE_WORKER_H

#include "base/sm.h"
#include "state/event.h"

enum worker_state { WORKER_NONE, WORKER_STARTING, WORKER_READY, WORKER_STOPPING, WORKER_EXITED, WORKER_LOST };
extern const struct sm worker_sm;

struct worker {
    uint64_t id, job_id;
    uint32_t run;
    const char *node;
    enum worker_state state;
    const char *address; /* address of its communicator's listener; "" before READY */
    int64_t pid;
    int32_t rank; /* rank in the job's newest epoch; -1 = none */
    int32_t exit_code, signal;
    bool counted; /* its end counts against the restart budget */
    const char *reason;
};

titan_status worker_add(struct db *db, const struct worker *w, const struct event *event,
                        struct titan_error *err) TITAN_MUST_USE;
/* Takes state, address, exit_code, signal, counted and reason from w. */
titan_status worker_move(struct db *db, const struct worker *w, const struct event *event,
                         struct titan_error *err) TITAN_MUST_USE;
titan_status worker_set_pid(struct db *db, uint64_t id, int64_t pid, const struct event *event,
                            struct titan_error *err) TITAN_MUST_USE;
/* Lists a job's workers by id. live: leaves out exited and lost workers. */
titan_status worker_list(struct db *db, uint64_t job_id, bool live, bool (*each)(const struct worker *w, void *data),
                         void *data, struct titan_error *err) TITAN_MUST_USE;
/* Number of workers the job has had, and number of ranks of its largest epoch. */
titan_status worker_extent(struct db *db, uint64_t job_id, int64_t *ret_workers, int64_t *ret_ranks,
                           struct titan_error *err) TITAN_MUST_USE;
titan_status worker_last_id(struct db *db, uint64_t *ret, struct titan_error *err) TITAN_MUST_USE;

#endif
