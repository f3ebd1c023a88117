/* SPDX-License-Identifier: Apache-2.0 */
/* job_size.h - how many workers a job may have: the recipe's numbers, narrowed by requests, by other jobs' need and by
 * nodes that are to be empty. */
#ifndef TITAN_DAEMON_COORDINATOR_RECORDS_JOB_SIZE_H
#define TITAN_DAEMON_COORDINATOR_RECORDS_JOB_SIZE_H

#include "daemon/coordinator/records/core_record.h"

/* The range of workers the job is to have: the recipe's, narrowed by requests and by other jobs' need. */
uint32_t size_min(const struct jobrec *j);
uint32_t size_max(const struct jobrec *j);
/* Must the worker go because its node is to be empty? */
bool worker_displaced(const struct workrec *w);
uint32_t size_kept(const struct jobrec *j);    /* workers neither told to stop nor displaced */
uint32_t size_staying(const struct jobrec *j); /* workers not told to stop */
/* Largest number of workers the job may run on, at most n; 0 = none. */
uint32_t size_world(const struct jobrec *j, uint32_t n);
/* The fewest workers it may run on; 0 = none. */
uint32_t size_least(const struct jobrec *j);
uint32_t size_owned(const struct jobrec *j);   /* slots that the job has or claims */
void size_claim(struct jobrec *j, uint32_t n); /* n workers get slots before the queue does */
/* Limits the job to `world` workers for now, since for_job needs slots; 0 = no limit. */
void size_limit(struct jobrec *j, uint32_t world, uint64_t for_job);

#endif
