/* SPDX-License-Identifier: Apache-2.0 */
/* quorum.h - may this coordinator decide the next epoch? (docs/membership.md, "The right to decide";
 * tests/model/membership.pml checks the rules.)
 *
 * Workers of an unreachable node are *away*. They count neither as present nor as ended before an epoch is decided
 * without them, because until then they may be in an epoch that their agents have formed. */
#ifndef TITAN_DAEMON_COORDINATOR_RUN_QUORUM_H
#define TITAN_DAEMON_COORDINATOR_RUN_QUORUM_H

#include "daemon/coordinator/records/core_record.h"

/* The node of w is lost. True: w is away until the next epoch is decided; false: w has ended now. */
bool quorum_keeps(const struct core *c, struct workrec *w);
void quorum_end_away(struct core *c, struct jobrec *j, const struct noderec *n); /* n NULL = any node */
/* Node n is given up without a report of the epochs that its agent has formed. If there may be such epochs, shared with
 * other unreachable nodes, the next epoch gets a number above their numbers. */
void quorum_give_up(const struct core *c, struct jobrec *j, const struct noderec *n);
/* May the next epoch be formed? If so, members that are away end now. False also if their end fails the job. */
bool quorum_decides(struct core *c, struct jobrec *j);
/* The next epoch's number; 0 = the numbers are used up. */
uint64_t quorum_number(const struct core *c, struct jobrec *j);

#endif
