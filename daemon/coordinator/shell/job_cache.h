/* SPDX-License-Identifier: Apache-2.0 */
/* job_cache.h - stored rows of jobs, in memory: a status needs no read transaction.
 *
 * A read row is kept unless a change to it is on its way into the store: from handing the change over until it is known
 * to be stored, reads go to the store. So no caller reads data that is older than data it may know. Loop thread
 * only. */
#ifndef TITAN_DAEMON_COORDINATOR_SHELL_JOB_CACHE_H
#define TITAN_DAEMON_COORDINATOR_SHELL_JOB_CACHE_H

#include "state/change.h"

struct job_cache;

struct job_cache *job_cache_new(void); /* NULL = no cache: every read goes to the store */
void job_cache_free(struct job_cache *c);
/* Like job_get(db, ...). */
titan_status job_cache_get(struct job_cache *c, struct db *db, uint64_t id,
                           void (*with)(const struct job *job, void *data), void *data,
                           struct titan_error *err) TITAN_MUST_USE;
/* A stored write has changed the row: drop it. */
void job_cache_drop(struct job_cache *c, uint64_t id);
/* The changes are handed to the store (begin), and stored (end). */
void job_cache_begin(struct job_cache *c, const struct change *list);
void job_cache_end(struct job_cache *c, const struct change *list);

#endif
