/* SPDX-License-Identifier: Apache-2.0 */
/* job_cache.h - rows of jobs as they are stored, in memory: a status is answered without a read transaction.
 *
 * A row is kept when it is read, unless a change to it is on its way into the store: from when it is handed over until
 * it is known to be stored, the store itself is asked. So no caller reads less than it can have heard of. Loop thread
 * only. */
#ifndef TITAN_DAEMON_COORDINATOR_SHELL_JOB_CACHE_H
#define TITAN_DAEMON_COORDINATOR_SHELL_JOB_CACHE_H

#include "state/change.h"

struct job_cache;

struct job_cache *job_cache_new(void); /* NULL: without one everything is read from the store */
void job_cache_free(struct job_cache *c);
/* The same as job_get(db, ...). */
titan_status job_cache_get(struct job_cache *c, struct db *db, uint64_t id,
                           void (*with)(const struct job *job, void *data), void *data,
                           struct titan_error *err) TITAN_MUST_USE;
/* A stored write has changed the row: forget it. */
void job_cache_drop(struct job_cache *c, uint64_t id);
/* These changes are handed to the store; they are stored. */
void job_cache_begin(struct job_cache *c, const struct change *list);
void job_cache_end(struct job_cache *c, const struct change *list);

#endif
