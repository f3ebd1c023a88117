/* SPDX-License-Identifier: Apache-2.0 */
/* epoch_forming.h - epochs: revoke, form, first step. */
#ifndef TITAN_DAEMON_COORDINATOR_RUN_EPOCH_FORMING_H
#define TITAN_DAEMON_COORDINATOR_RUN_EPOCH_FORMING_H

#include "daemon/coordinator/records/core_record.h"

void epoch_revoke(struct core *c, struct jobrec *j, const char *why);
/* All members out of the old epoch, and enough for a new one? Then it is formed. */
void epoch_try_form(struct core *c, struct jobrec *j);
/* It has made its first step (or was done at once). */
void epoch_formed(struct core *c, struct jobrec *j);
/* Workers that did not leave the epoch in time are stopped. */
void epoch_exclude_laggards(struct core *c, struct jobrec *j);
/* What proves that a connection is of the epoch; key NULL = nothing does. */
void epoch_set_id(struct jobrec *j, const uint8_t comm_id[16], const uint8_t key[MAC_BYTES]);

#endif
