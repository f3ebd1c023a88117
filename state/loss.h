/* SPDX-License-Identifier: Apache-2.0 */
/* loss.h - losses of workers that count: for the budgets of their jobs, and the quarantine of their nodes. */
#ifndef TITAN_STATE_LOSS_H
#define TITAN_STATE_LOSS_H

#include "state/event.h"

/* Why a worker, or an epoch, was lost. The numbers are in the store. */
enum loss_cause {
    LOSS_NONE,   /* no loss: it was asked to end, had finished, or was never started */
    LOSS_CRASH,  /* it ended by itself */
    LOSS_HANG,   /* it made no progress, or did not obey in time, and was killed */
    LOSS_NODE,   /* its node is lost, or its agent cannot say how it ended */
    LOSS_OOM,    /* killed for the memory it took */
    LOSS_FAULTY, /* it broke the protocol and was killed: its job's fault, never its node's */
    LOSS_EPOCH,  /* no worker was lost, yet the members could not go on together */
};
#define LOSS_CAUSES 7
const char *loss_name(enum loss_cause cause); /* "crash", "hang", "node_loss", "oom", "faulty" */

struct loss {
    uint64_t job_id;
    enum loss_cause cause;
    const char *node; /* "" = nowhere in particular */
    int64_t at_ms;
};

titan_status loss_add(struct db *db, const struct loss *loss, struct titan_error *err) TITAN_MUST_USE;
/* Those at or after since_ms, oldest first; of one job, or with job_id 0 of all. */
titan_status loss_list(struct db *db, uint64_t job_id, int64_t since_ms, void (*each)(const struct loss *l, void *data),
                       void *data, struct titan_error *err) TITAN_MUST_USE;

#endif
