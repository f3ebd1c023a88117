/* SPDX-License-Identifier: Apache-2.0 */
/* methods.h - the API for its server and the coordinator. */
#ifndef TITAN_DAEMON_API_METHODS_H
#define TITAN_DAEMON_API_METHODS_H

#include "daemon/coordinator/coordinator.h"

/* Methods of titan.v1.Titan and titan.internal.Coordinator. Hand the table to rpc_server_open, with the coordinator as
 * data. */
const struct rpc_method *api_methods(size_t *ret_n);
/* Only the agents' methods, for a separate server. */
const struct rpc_method *api_agent_methods(size_t *ret_n);
/* rpc_server_options.authorize for these tables. */
titan_status api_authorize(struct rpc_call *call, const struct rpc_method *method, void *data,
                           struct titan_error *err) TITAN_MUST_USE;
/* rpc_server_options.check: the caller still has the right, and every request field is within its range
 * (proto/ranges.h). */
titan_status api_check(struct rpc_call *call, const struct rpc_method *method, const ProtobufCMessage *request,
                       void *data, struct titan_error *err) TITAN_MUST_USE;
/* rpc_server_options.review and review_connection. */
titan_status api_may_go_on(struct rpc_call *call, const struct rpc_method *method, void *data,
                           struct titan_error *err) TITAN_MUST_USE;
bool api_connection_may_go_on(const struct rpc_identity *identity, void *data);
/* May this client of HTTP read the metrics? transport: as the transport has proved it; bearer: its header
 * "authorization", NULL = none. TITAN_EPERM with the reason; *ret_known: the client has shown who it is. */
titan_status api_may_scrape(struct coordinator *c, const struct rpc_identity *transport, const char *bearer,
                            bool *ret_known, struct titan_error *err) TITAN_MUST_USE;
/* Puts the coordinator's metrics, from memory alone. */
struct exposition;
void api_scrape(struct coordinator *c, struct exposition *e);
/* The number of the newest event; 0 = there is none, or it cannot be read. */
uint64_t api_newest_event(struct coordinator *c);
/* coordinator_options.observer of a coordinator that serves these methods. */
extern const struct coordinator_observer api_observer;

#endif
