/* SPDX-License-Identifier: Apache-2.0 */
/* failpoint.h - named places where a test makes a process fail.
 *
 * The programs that are installed have none: a place is one load and a branch there, and base/failpoint.c is not linked
 * in (tests/unit/test_failpoints_absent.sh checks). `make tests` links a second titand and titan-worker, in
 * $(BUILD)/fp/bin, with it; test programs that call failpoint_set have it too.
 *
 * TITAN_FAILPOINTS (or failpoint_set) arms some, separated by commas: NAME[%RANK]=EFFECT[@N[+]]
 *   EFFECT  kill: SIGKILL to itself; stop: SIGSTOP; hang: the thread never goes on; exit:CODE; sleep:MS;
 *           fail[:STATUS]: the call returns TITAN_STATUS, TITAN_EPEER when left out; call: failpoint_on_call
 *   %RANK   only while this process is that rank of a job
 *   @N      at the Nth time the place is passed (1 when left out), and only then; @N+: from then on every time
 * "exec.agreed%2=kill@9,checkpoint.write=fail:ENOSPC@1+" - for example.
 *
 * A place is named MODULE.WHAT after what has just happened there; grep for failpoint(" lists them. Any thread. */
#ifndef TITAN_BASE_FAILPOINT_H
#define TITAN_BASE_FAILPOINT_H

#include <stdatomic.h>

#include "base/error.h"

/* base/failpoint.c's, where it is linked in. */
extern titan_status (*failpoint_pass)(const char *name, struct titan_error *err);
/* Of this process; -1: none. What knows it says so. */
extern atomic_int failpoint_rank;

static inline TITAN_MUST_USE titan_status failpoint(const char *name, struct titan_error *err)
{
    return failpoint_pass ? failpoint_pass(name, err) : TITAN_OK;
}
/* In place of the environment's; counts begin again. NULL: none. TITAN_EINVAL names what it does not understand. */
titan_status failpoint_set(const char *text, struct titan_error *err) TITAN_MUST_USE;
/* For tests in the same process: what is armed with the effect "call" returns what fn does. NULL: TITAN_OK. */
void failpoint_on_call(titan_status (*fn)(void *arg, const char *name, struct titan_error *err), void *arg);

#endif
