/* SPDX-License-Identifier: Apache-2.0 */
/* flight_dumps.h - what workers' flight recorders (base/flight.h) hold, written into the job's folder by the agent,
 * because the worker may be dead or stand still: JOBDIR/flight/worker-ID-epoch-EPOCH.json, the last dump of each
 * worker and epoch. Dumps of older epochs go when there are many. A dump that cannot be written is a line in the log.
 *
 * The folder may be on a file server: it is opened on a thread of the file pool. */
#ifndef TITAN_DAEMON_AGENT_SHELL_FLIGHT_DUMPS_H
#define TITAN_DAEMON_AGENT_SHELL_FLIGHT_DUMPS_H

#include "base/buf.h"
#include "base/flight.h"
#include "base/log.h"
#include "daemon/agent/shell/workers.h"

#define DUMPS_FILES_MAX 512                  /* of epochs but the newest */
#define DUMPS_BYTES_MAX ((uint64_t)64 << 20) /* the same */

enum dump_cause { DUMP_REQUEST, DUMP_REVOKE, DUMP_HANG, DUMP_EXIT, DUMP_CAUSES };
const char *dump_cause_name(enum dump_cause cause);

/* Of this worker, or of all of the job's here: read now, written soon. detail: what is wrong with this worker itself,
 * or NULL. */
void dump_worker(struct worker *w, enum dump_cause cause, const char *detail, struct file_pool *files,
                 const struct log *log);
void dump_job(struct workers *workers, uint64_t job_id, enum dump_cause cause, struct file_pool *files,
              const struct log *log);

/* Its text: an object over several lines, of which only the first begins with {"flight": and each other one but the
 * last holds a record. */
struct dump_head {
    uint64_t job_id, worker_id;
    enum dump_cause cause;
    const char *detail, *node;
    int64_t wall_ms, mono_ns;
};
void dump_print(const struct dump_head *head, const struct flight_copy *copy, struct buf *out);

#endif
