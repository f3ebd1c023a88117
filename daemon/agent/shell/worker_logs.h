/* SPDX-License-Identifier: Apache-2.0 */
/* worker_logs.h - what workers print: files bounded in size, read back by rank.
 *
 * A worker appends to JOBDIR/logs/worker-ID.log itself, so its output survives the agent. Beyond half the limit the
 * agent copies the file to worker-ID.log.1 and empties it: at most the limit is kept, the newest part whole.
 * JOBDIR/logs/ranks records "WORKER RANK NODE" lines, the last one for a worker counts; it tells which files are this
 * node's, also where nodes share the folder. That may be on a file server: all of these files are opened on threads of
 * the file pool (daemon/common/file_pool.h). */
#ifndef TITAN_DAEMON_AGENT_SHELL_WORKER_LOGS_H
#define TITAN_DAEMON_AGENT_SHELL_WORKER_LOGS_H

#include <limits.h>
#include <stdbool.h>
#include <uv.h>

#include "base/error.h"
#include "titan/internal/agent.pb-c.h"

struct logs;
struct file_pool;

/* Hand over a piece: whole lines, at most 64 KiB. false = no room now, it will be offered again. */
typedef bool (*logs_send_cb)(const Titan__Internal__AgentLogChunk *chunk, void *data);

/* files is closed before the logs are. */
titan_status logs_open(uv_loop_t *loop, struct file_pool *files, const char *node, logs_send_cb send, void *data,
                       struct logs **ret, struct titan_error *err) TITAN_MUST_USE;
/* Forgets all requests; done on the loop. */
void logs_close(struct logs *logs, void (*done)(void *), void *data);

/* Remember that this node runs this worker, as this rank (-1 = not known yet). */
void logs_record(const struct logs *logs, const char *job_dir, uint64_t worker_id, int32_t rank);
/* The same at once, for a thread of the pool. */
void logs_write_rank(const char *job_dir, const char *node, uint64_t worker_id, int32_t rank);

/* Send what is kept, or the dumps of flight recorders (flight_dumps.h) that are there then; with follow, also what
 * comes, until cancelled. The last chunk has end set, and comes early where the folder does not answer. job_dir NULL:
 * this node knows nothing of the job. */
void logs_request(struct logs *logs, const Titan__Internal__LogRequest *request, const char *job_dir);
void logs_cancel(struct logs *logs, uint64_t request_id);
void logs_forget(struct logs *logs); /* all requests, silently: the session that asked is gone */

/* Keep path below max bytes (two halves). Blocking; for a thread of the pool. */
titan_status log_bound(const char *path, uint64_t max, struct titan_error *err) TITAN_MUST_USE;

#endif
