/* SPDX-License-Identifier: Apache-2.0 */
/* follow.h - watch a job until it has ended: its events and metrics as they come, over lost connections. */
#ifndef TITAN_CTL_FOLLOW_H
#define TITAN_CTL_FOLLOW_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "titan/v1/titan.pb-c.h"

struct follow_options {
    const char *server;
    uint64_t job_id;
    bool progress; /* show progress and events of note on stderr */
    bool from_now; /* events that are there already are passed over, in favour of how the job is now */
    /* Ctrl-C cancels the job, a second one leaves at once, and SIGUSR1 has it write a checkpoint; otherwise the first
     * Ctrl-C leaves. */
    bool cancel_on_interrupt;
    uint32_t timeout_ms; /* 0 = none */
    int64_t patience_ms; /* how long the server may be gone, below 0: for ever; before its first answer, GONE_MS
                            at most where it is for ever */
    int64_t nodes_ms;    /* cancel a job that nodes are missing for, for so long on end; 0 = never. With progress */
};

/* TITAN_OK: the job has ended and *ret_job (the caller's, ctl_message_free) says how. TITAN_ETIMEDOUT, TITAN_ECANCELLED
 * (interrupted), TITAN_EUNPLACEABLE (cancelled after nodes_ms), or what the server said. */
titan_status follow_job(const struct follow_options *options, Titan__V1__GetJobResponse **ret_job,
                        struct titan_error *err) TITAN_MUST_USE;

/* How a command ends after a job of this state: TITAN_OK for COMPLETED, else TITAN_EJOB with the reason. */
titan_status follow_outcome(const Titan__V1__Job *job, struct titan_error *err) TITAN_MUST_USE;

#endif
