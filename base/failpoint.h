/* failpoint.h - named places where a test makes a process fail.
 *
 * TITAN_FAILPOINTS (or failpoint_set) arms some: "exec.agreed=kill@9,state.filled=fail" - kill: SIGKILL to itself;
 * stop: SIGSTOP; hang: never returns; sleep:MS; fail: the call returns TITAN_EPEER, as if a peer had gone. @N: at the
 * Nth time the place is passed (1 when left out), and only then. Nothing armed costs one load.
 *
 * A place is named MODULE.WHAT after what has just happened there; grep for failpoint(" lists them. Any thread. */
#ifndef TITAN_BASE_FAILPOINT_H
#define TITAN_BASE_FAILPOINT_H

#include "base/error.h"

titan_status failpoint(const char *name, struct titan_error *err) TITAN_MUST_USE;
/* In place of the environment's; counts begin again. NULL: none. TITAN_EINVAL names what it does not understand. */
titan_status failpoint_set(const char *text, struct titan_error *err) TITAN_MUST_USE;

#endif
