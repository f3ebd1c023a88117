/* SPDX-License-Identifier: Apache-2.0 */
/* quota.h - what one user may submit (docs/operations.md, "Limits"). A user is the owner of jobs, by name, whatever
 * proves it and whichever operator submits for it. Loop thread only. */
#ifndef TITAN_DAEMON_API_QUOTA_H
#define TITAN_DAEMON_API_QUOTA_H

#include "daemon/coordinator/shell/shell.h"

/* One more job of this user is submitted, until quota_leave(). TITAN_ELIMIT names the limit, what the user has, and
 * what to do. */
titan_status quota_enter(struct coordinator *c, const char *user, struct titan_error *err) TITAN_MUST_USE;
void quota_leave(struct coordinator *c, const char *user); /* it is stored, or refused */
/* Can this user ever have slots for so many workers? May be called on any thread. */
titan_status quota_check_workers(uint32_t user_slots, uint32_t workers, struct titan_error *err) TITAN_MUST_USE;
void quota_free(struct coordinator *c);

#endif
