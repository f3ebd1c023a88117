/* SPDX-License-Identifier: Apache-2.0 */
/* listeners.h - the coordinator's listeners: the service manager's sockets, the config file's addresses, and the
 * agents' listeners. run/listen and run/listen-agents of the state directory list their addresses. */
#ifndef TITAN_DAEMON_LISTENERS_H
#define TITAN_DAEMON_LISTENERS_H

#include "base/buf.h"
#include "base/log.h"
#include "daemon/config.h"
#include "daemon/coordinator/coordinator.h"
#include "proto/rpc/server.h"

struct listeners {
    const struct daemon_config *config;
    struct log *log;
    struct coordinator *coordinator;
    struct rpc_server *server, *agents; /* open, not started */
};

/* *ret_addresses, empty before the call, gets the clients' addresses, one per line. The caller frees it, also after a
 * failure. */
titan_status listeners_open(const struct listeners *l, struct buf *ret_addresses,
                            struct titan_error *err) TITAN_MUST_USE;

#endif
