/* SPDX-License-Identifier: Apache-2.0 */
/* job_cache.h - stored rows of jobs, in memory, so that a status needs no read transaction.
 *
 * The cache keeps a row that was read, unless a change to the row is on its way into the store. From handing the change
 * over until it is known to be stored, reads go to the store. So no caller gets older data than it may know already.
 * Loop thread only. */
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
/* Drops the row, because a stored write has changed it. */
void job_cache_drop(struct job_cache *c, uint64_t id);
/* The changes are handed to the store (begin), and stored (end). */
void job_cache_begin(struct job_cache *c, const struct change *list);
void job_cache_end(struct job_cache *c, const struct change *list);

#endif
