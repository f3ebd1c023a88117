/* SPDX-License-Identifier: Apache-2.0 */
/* quota.h - limits on one user's submits (docs/operations.md, "Limits"). A user here is a job owner's name. It does not
 * matter what proves the name, or which operator submits for the owner. Loop thread only. */
#ifndef TITAN_DAEMON_API_QUOTA_H
#define TITAN_DAEMON_API_QUOTA_H

#include "daemon/coordinator/shell/shell.h"

/* Counts one more submit of the user, until quota_leave(). TITAN_ELIMIT names the limit, the user's number and the
 * remedy. */
titan_status quota_enter(struct coordinator *c, const char *user, struct titan_error *err) TITAN_MUST_USE;
void quota_leave(struct coordinator *c, const char *user); /* the submit is stored or refused */
/* Can this user ever have slots for so many workers? Any thread. */
titan_status quota_check_workers(uint32_t user_slots, uint32_t workers, struct titan_error *err) TITAN_MUST_USE;
void quota_free(struct coordinator *c);

#endif
