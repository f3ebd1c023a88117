/* SPDX-License-Identifier: Apache-2.0 */
/* failpoint.h - named places where a test makes a process fail.
 *
 * Installed programs have no failpoints: a place costs one load and one branch, and base/failpoint.c is not linked
 * (tests/unit/test_failpoints_absent.sh checks this). `make tests` links a second titand and titan-worker with
 * base/failpoint.c, in $(BUILD)/fp/bin; test programs that call failpoint_set link it too.
 *
 * TITAN_FAILPOINTS (or failpoint_set) arms failpoints, separated by commas: NAME[%RANK]=EFFECT[@N[+]]
 *   EFFECT  kill: SIGKILL to itself; stop: SIGSTOP; hang: the thread never continues; exit:CODE; sleep:MS;
 *           fail[:STATUS]: the call returns TITAN_STATUS, by default TITAN_EPEER; call: failpoint_on_call
 *   %RANK   only while this process is that rank of a job
 *   @N      only at the Nth pass through the place (default 1); @N+: from the Nth pass on
 * Example: "exec.agreed%2=kill@9,checkpoint.write=fail:ENOSPC@1+".
 *
 * A place is named MODULE.WHAT after the event that precedes it; grep for failpoint(" lists all places. Any thread. */
#ifndef TITAN_BASE_FAILPOINT_H
#define TITAN_BASE_FAILPOINT_H

#include <stdatomic.h>

#include "base/error.h"

/* Set by base/failpoint.c in programs that link it; otherwise NULL. */
extern titan_status (*failpoint_pass)(const char *name, struct titan_error *err);
/* Rank of this process; -1: none. The code that knows the rank sets it. */
extern atomic_int failpoint_rank;

static inline TITAN_MUST_USE titan_status failpoint(const char *name, struct titan_error *err)
{
    return failpoint_pass ? failpoint_pass(name, err) : TITAN_OK;
}
/* Replaces the failpoints of the environment; counts restart. NULL: none. TITAN_EINVAL names the part that cannot be
 * parsed. */
titan_status failpoint_set(const char *text, struct titan_error *err) TITAN_MUST_USE;
/* For tests in the same process: failpoints with the effect "call" return the result of fn. NULL: TITAN_OK. */
void failpoint_on_call(titan_status (*fn)(void *arg, const char *name, struct titan_error *err), void *arg);

#endif
