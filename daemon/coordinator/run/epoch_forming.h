/* SPDX-License-Identifier: Apache-2.0 */
/* epoch_forming.h - epochs: revoke, form, first step. */
#ifndef TITAN_DAEMON_COORDINATOR_RUN_EPOCH_FORMING_H
#define TITAN_DAEMON_COORDINATOR_RUN_EPOCH_FORMING_H

#include "daemon/coordinator/records/core_record.h"

void epoch_revoke(struct core *c, struct jobrec *j, const char *why);
/* Forms a new epoch once all members have left the old one and enough workers are ready. */
void epoch_try_form(struct core *c, struct jobrec *j);
/* The epoch has made its first step (or was done at once). */
void epoch_formed(struct core *c, struct jobrec *j);
/* Stops workers that did not leave the epoch in time. */
void epoch_exclude_laggards(struct core *c, struct jobrec *j);
/* Sets the id and key that prove a connection belongs to the epoch; key NULL = no proof. */
void epoch_set_id(struct jobrec *j, const uint8_t comm_id[16], const uint8_t key[MAC_BYTES]);

#endif
