/* SPDX-License-Identifier: Apache-2.0 */
/* resize.h - planned changes of membership (docs/membership.md): which members have to go, and when the other members
 * pause. A resize on request, a drain, a preemption and a joiner all end up here. */
#ifndef TITAN_DAEMON_COORDINATOR_RUN_RESIZE_H
#define TITAN_DAEMON_COORDINATOR_RUN_RESIZE_H

#include "daemon/coordinator/records/core_record.h"

/* Pauses a running epoch when the present workers should form another membership. */
void resize_plan(struct core *c, struct jobrec *j);
/* The epoch's members have their state, so departing ranks and surplus workers may go. */
void resize_release(struct core *c, struct jobrec *j);
/* The pause is over. resize_finished(): the new epoch runs, with its event; resize_over(): no new epoch came. */
void resize_finished(struct core *c, struct jobrec *j);
void resize_over(struct jobrec *j);

#endif
