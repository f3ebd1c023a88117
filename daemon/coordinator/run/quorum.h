/* SPDX-License-Identifier: Apache-2.0 */
/* quorum.h - may the next epoch be decided here? (docs/membership.md, "The right to decide"; tests/model/membership.pml
 * checks the rules.)
 *
 * Workers of a node that cannot be reached are *away*: they count neither as there nor as ended before an epoch is
 * decided without them, for until then they may be in one that their agents have formed. */
#ifndef TITAN_DAEMON_COORDINATOR_RUN_QUORUM_H
#define TITAN_DAEMON_COORDINATOR_RUN_QUORUM_H

#include "daemon/coordinator/records/core_record.h"

/* The node of w is lost: does w count as away, until the next epoch is decided, rather than as ended now? */
bool quorum_keeps(const struct core *c, struct workrec *w);
void quorum_end_away(struct core *c, struct jobrec *j, const struct noderec *n); /* n NULL = wherever they were */
/* n is given up, and has not said which epochs its agent has formed. Where that could be any, with others that cannot
 * be reached, the next one's number is above those. */
void quorum_give_up(const struct core *c, struct jobrec *j, const struct noderec *n);
/* May the next epoch be formed? If so, members that are away count as ended now; false where that fails the job. */
bool quorum_decides(struct core *c, struct jobrec *j);
/* The next epoch's number; 0 = all are used up. */
uint64_t quorum_number(const struct core *c, struct jobrec *j);

#endif
