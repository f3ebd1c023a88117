/* SPDX-License-Identifier: Apache-2.0 */
/* worker_logs.h - workers' output: files bounded in size, read back by rank.
 *
 * A worker itself appends to JOBDIR/logs/worker-ID.log, so its output survives the agent. When the file exceeds half
 * the limit, the agent copies it to worker-ID.log.1 and empties it. So the logs stay within the limit, and the newest
 * part is whole. JOBDIR/logs/ranks records "WORKER RANK NODE" lines; the last line of a worker counts. The lines show
 * which files are this node's, also if nodes share the folder. The folder may be on a file server. So threads of the
 * file pool (daemon/common/file_pool.h) open all of these files. */
#ifndef TITAN_DAEMON_AGENT_SHELL_WORKER_LOGS_H
#define TITAN_DAEMON_AGENT_SHELL_WORKER_LOGS_H

#include <limits.h>
#include <stdbool.h>
#include <uv.h>

#include "base/error.h"
#include "titan/internal/agent.pb-c.h"

struct logs;
struct file_pool;

/* Takes a chunk: whole lines, at most 64 KiB. false = no room now; the chunk is offered again. */
typedef bool (*logs_send_cb)(const Titan__Internal__AgentLogChunk *chunk, void *data);

struct logs_options {
    struct file_pool *files; /* must be closed before the logs */
    const char *node;        /* this node's name */
    logs_send_cb send;
    void *data; /* argument of send */
};

titan_status logs_open(uv_loop_t *loop, const struct logs_options *options, struct logs **ret,
                       struct titan_error *err) TITAN_MUST_USE;
/* Forgets all requests; done runs on the loop. */
void logs_close(struct logs *logs, void (*done)(void *), void *data);

/* Records that this node runs the worker under this rank (-1 = not known yet). */
void logs_record(const struct logs *logs, const char *job_dir, uint64_t worker_id, int32_t rank);
/* Writes the record at once, on a thread of the pool. */
void logs_write_rank(const char *job_dir, const char *node, uint64_t worker_id, int32_t rank);

/* Sends the present logs, or the present dumps of flight recorders (flight_dumps.h). A request with `follow` also gets
 * new output until it is cancelled. The last chunk has end set; it comes early if the folder does not answer. job_dir
 * NULL: this node does not know the job. */
void logs_request(struct logs *logs, const Titan__Internal__LogRequest *request, const char *job_dir);
void logs_cancel(struct logs *logs, uint64_t request_id);
void logs_forget(struct logs *logs); /* drops all requests silently, because their session is gone */

/* Keeps the log at path, with its .1, below max bytes. Blocking; on a thread of the pool. */
titan_status log_bound(const char *path, uint64_t max, struct titan_error *err) TITAN_MUST_USE;

#endif
