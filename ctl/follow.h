/* SPDX-License-Identifier: Apache-2.0 */
/* follow.h - watches a job until its end: events and metrics as they come, across lost connections. */
#ifndef TITAN_CTL_FOLLOW_H
#define TITAN_CTL_FOLLOW_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "titan/v1/titan.pb-c.h"

struct recipe;
struct follow_options {
    const char *server;
    uint64_t job_id;
    bool progress;               /* shows progress and notable events on stderr */
    const struct recipe *recipe; /* of the job, for its evaluations in the progress; NULL: unknown */
    bool from_now;               /* skips existing events; shows the job's present state instead */
    /* Ctrl-C cancels the job, a second one leaves at once, and SIGUSR1 requests a checkpoint. Otherwise the first
     * Ctrl-C leaves. */
    bool cancel_on_interrupt;
    uint32_t timeout_ms; /* 0 = none */
    /* how long to wait for a missing server; below 0: GONE_MS until its first answer, without end afterwards */
    int64_t patience_ms;
    /* cancels a job that lacks nodes for this long without a break; 0 = never. Only with `progress` */
    int64_t nodes_ms;
};

/* TITAN_OK: the job has ended; *ret_job is its final status; the caller frees it (ctl_message_free). Otherwise
 * TITAN_ETIMEDOUT, TITAN_ECANCELLED (interrupted), TITAN_EUNPLACEABLE (cancelled after nodes_ms), or the server's
 * error. */
titan_status follow_job(const struct follow_options *options, Titan__V1__GetJobResponse **ret_job,
                        struct titan_error *err) TITAN_MUST_USE;

/* Outcome of a command whose job ended in this state: TITAN_OK for COMPLETED, else TITAN_EJOB with the reason. */
titan_status follow_outcome(const Titan__V1__Job *job, struct titan_error *err) TITAN_MUST_USE;

#endif
