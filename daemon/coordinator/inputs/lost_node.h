/* SPDX-License-Identifier: Apache-2.0 */
/* lost_node.h - counts a node and its workers as lost, and later removes the node's record. */
#ifndef TITAN_DAEMON_COORDINATOR_INPUTS_LOST_NODE_H
#define TITAN_DAEMON_COORDINATOR_INPUTS_LOST_NODE_H

#include "daemon/coordinator/records/core_record.h"

void node_lose(struct core *c, struct noderec *n, const char *words);
/* Removes lost ephemeral nodes: drained nodes at once, other nodes after a minute. */
void lost_nodes_tick(struct core *c);

#endif
