/* SPDX-License-Identifier: Apache-2.0 */
/* resize.h - planned changes of membership (docs/membership.md): which members have to go, and when the others are
 * paused for it. A resize on request, a drain, a preemption and a joiner all come down to this. */
#ifndef TITAN_DAEMON_COORDINATOR_RUN_RESIZE_H
#define TITAN_DAEMON_COORDINATOR_RUN_RESIZE_H

#include "daemon/coordinator/records/core_record.h"

/* Pause a running epoch when the workers that are there should form another membership. */
void resize_plan(struct core *c, struct jobrec *j);
/* The epoch's members have their state: departing ranks and surplus workers may go. */
void resize_release(struct core *c, struct jobrec *j);
/* The pause is over: resize_finished() when the new epoch runs, with the event of it; resize_over() when none came. */
void resize_finished(struct core *c, struct jobrec *j);
void resize_over(struct jobrec *j);

#endif
