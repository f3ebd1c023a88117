/* SPDX-License-Identifier: Apache-2.0 */
/* input.h - the functions called before and after every input. */
#ifndef TITAN_DAEMON_COORDINATOR_INPUTS_INPUT_H
#define TITAN_DAEMON_COORDINATOR_INPUTS_INPUT_H

#include "daemon/coordinator/records/core_record.h"

void core_moves(struct core *c, struct core_time now); /* time moves on */
void core_begin(struct core *c, struct core_time now, struct batch *out);
void core_finish(struct core *c);

#endif
