/* SPDX-License-Identifier: Apache-2.0 */
/* pages.h - what titand shows over HTTP ([http] of the config), to machines that watch it:
 *
 *   /healthz  200 while the event loop runs and the store's writer answers, else 503. For everyone
 *   /readyz   200 while work is taken: the coordinator takes changes, the agent is registered. Else 503 with the
 * reason. For everyone
 *   /metrics  for Prometheus
 *
 * and, where the coordinator is, to people:
 *
 *   /, /titan.js, /titan.css  the page, files of daemon/page. It holds no data, and is for everyone
 *   /api/v1/                  what the page shows (page_api.h)
 *
 * run/listen-http of the state directory has the address. All functions run on the loop. */
#ifndef TITAN_DAEMON_PAGES_H
#define TITAN_DAEMON_PAGES_H

#include "base/histogram.h"
#include "daemon/agent/shell/agent.h"
#include "daemon/config.h"
#include "daemon/coordinator/coordinator.h"

#define PAGES_SHARED_MS 250

struct pages;

/* Whom the pages show; NULL = not in this process. They outlive the call of pages_close(). */
struct pages_of {
    struct coordinator *coordinator;
    struct rpc_server *server; /* the coordinator's, for clients */
    struct agent *agent;
    const struct histogram *lag; /* of the event loop's iterations */
};

/* Listens at config->http.listen, which is set. config outlives the pages. */
titan_status pages_open(uv_loop_t *loop, const struct daemon_config *config, const struct pages_of *of,
                        struct pages **ret, struct titan_error *err) TITAN_MUST_USE;
void pages_reload(struct pages *p, const struct auth_options *auth); /* new lists of users with roles */
void pages_stopping(struct pages *p); /* the daemon was told to stop: it is not ready any more */
void pages_close(struct pages *p, void (*done)(void *), void *data);

#endif
