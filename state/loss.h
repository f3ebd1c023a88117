/* SPDX-License-Identifier: Apache-2.0 */
/* loss.h - counted losses of workers: for the budgets of jobs, and the quarantine of nodes. */
#ifndef TITAN_STATE_LOSS_H
#define TITAN_STATE_LOSS_H

#include "state/event.h"

/* Cause of a lost worker or epoch. The numbers are stored. */
enum loss_cause {
    LOSS_NONE,   /* no loss: the worker was asked to end, had finished, or never started */
    LOSS_CRASH,  /* the worker ended by itself */
    LOSS_HANG,   /* the worker made no progress, or did not obey in time, and was killed */
    LOSS_NODE,   /* the node is lost, or the agent does not know how the worker ended */
    LOSS_OOM,    /* killed for its memory use */
    LOSS_FAULTY, /* the worker broke the protocol and was killed: the job's fault, never the node's */
    LOSS_EPOCH,  /* no worker was lost, but the members could not continue together */
};
#define LOSS_CAUSES 7
const char *loss_name(enum loss_cause cause); /* "crash", "hang", "node_loss", "oom", "faulty" */

struct loss {
    uint64_t job_id;
    enum loss_cause cause;
    const char *node; /* "" = no node */
    int64_t at_ms;
};

titan_status loss_add(struct db *db, const struct loss *loss, struct titan_error *err) TITAN_MUST_USE;
/* Lists losses at or after since_ms, oldest first; job_id 0 = of all jobs. */
titan_status loss_list(struct db *db, uint64_t job_id, int64_t since_ms, void (*each)(const struct loss *l, void *data),
                       void *data, struct titan_error *err) TITAN_MUST_USE;

#endif
