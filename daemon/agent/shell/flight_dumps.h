/* SPDX-License-Identifier: Apache-2.0 */
/* flight_dumps.h - workers' flight recorders (base/flight.h), written into the job's folder. The agent writes them,
 * because the worker may be dead or stand still. JOBDIR/flight/worker-ID-epoch-EPOCH.json is the last dump of that
 * worker and epoch. Above a limit, dumps of older epochs are deleted. A failed dump is a line in the log.
 *
 * The folder may be on a file server, so a thread of the file pool opens it. */
#ifndef TITAN_DAEMON_AGENT_SHELL_FLIGHT_DUMPS_H
#define TITAN_DAEMON_AGENT_SHELL_FLIGHT_DUMPS_H

#include "base/buf.h"
#include "base/flight.h"
#include "base/log.h"
#include "daemon/agent/shell/workers.h"

#define DUMPS_FILES_MAX 512                  /* dumps of all epochs but the newest */
#define DUMPS_BYTES_MAX ((uint64_t)64 << 20) /* dumps of all epochs but the newest */

enum dump_cause { DUMP_REQUEST, DUMP_REVOKE, DUMP_HANG, DUMP_EXIT, DUMP_CAUSES };

/* Dumps one worker, or all of the job's workers here. The recorders are read now; the dumps are written soon after.
 * detail: the fault of this worker; NULL = none. */
void dump_worker(struct worker *w, enum dump_cause cause, const char *detail, struct file_pool *files,
                 const struct log *log);
void dump_job(struct workers *workers, uint64_t job_id, enum dump_cause cause, struct file_pool *files,
              const struct log *log);

/* Prints a JSON object over several lines. Only the first line begins with {"flight":; each other line but the last
 * holds one record. */
struct dump_head {
    uint64_t job_id, worker_id;
    enum dump_cause cause;
    const char *detail, *node;
    int64_t wall_ms, mono_ns;
};
void dump_print(const struct dump_head *head, const struct flight_copy *copy, struct buf *out);

#endif
