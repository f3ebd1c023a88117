/* SPDX-License-Identifier: Apache-2.0 */
/* page_api.h - the reading methods of titan.v1.Titan over HTTP, for the page that titand shows (pages.h):
 *
 *   /api/v1/METHOD?field=value   a method with one answer: its message as JSON (proto/message_json.h)
 *   /api/v1/Logs?...             the last lines of a job's workers, a JSON object a line
 *   /api/v1/events?...           WatchEvents as server-sent events, with the event's number as their id
 *   /api/v1/curves?...           charts of jobs (daemon/api/charts.h), for whom GetJob tells of all of them
 *
 * Fields have their .proto names. Each request is a call of the gRPC server (rpc_local_call), so that authority,
 * limits, audit and counters are its own. Errors are {"error": ..., "code": ...} with gRPC's names of codes.
 * docs/api.md shows it to people.
 *
 * Over plain HTTP there is no proof of who asks. The name in the header Host must be a loopback name there: a page of
 * another site that a browser has been sent to by a name of its own reads nothing.
 *
 * All functions run on the loop. */
#ifndef TITAN_DAEMON_PAGE_API_H
#define TITAN_DAEMON_PAGE_API_H

#include "daemon/coordinator/coordinator.h"
#include "proto/http/http_server.h"

#define PAGE_API_PATH "/api/v1/"
#define PAGE_API_STREAMS_MAX 256            /* streams of events open at once */
#define PAGE_API_LOGS_MAX ((size_t)1 << 20) /* bytes of an answer with logs; older chunks are left out */
#define PAGE_API_TAIL_LINES 100             /* of a worker, where the request does not say; at most: */
#define PAGE_API_TAIL_LINES_MAX 5000
#define PAGE_API_ALIVE_MS 15000 /* interval of comments in a stream */
#define PAGE_API_SHARED_MS 500  /* askers for one chart within this time get the same answer */
#define PAGE_API_POINTS 600     /* of a curve, where the request does not say */

struct page_api;

/* The coordinator and its server outlive the API. answered() hears the status of each answer. NULL: out of memory. */
struct page_api *page_api_new(uv_loop_t *loop, struct coordinator *coordinator, struct rpc_server *server,
                              void (*answered)(unsigned status, void *data), void *data);
/* For a path that begins with PAGE_API_PATH. */
void page_api_answer(struct page_api *p, const struct http_request *r, struct http_answer *a);
/* Once all exchanges have ended. */
void page_api_close(struct page_api *p, void (*done)(void *), void *data);

#endif
