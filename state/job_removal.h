/* SPDX-License-Identifier: Apache-2.0 */
/* job_removal.h - removes a finished job from the store.
 *
 * The job's row stays, marked as removed, and so do the rows of its runs, epochs, workers and checkpoints. The event
 * log leads to these rows (replay.h), and numbers are never reused. Job queries skip the job's row. Recipe, idempotency
 * key, losses and metrics are deleted. */
#ifndef TITAN_STATE_JOB_REMOVAL_H
#define TITAN_STATE_JOB_REMOVAL_H

#include "state/event.h"

/* directory: the job's own directory, which the calling code deletes afterwards. event: names the user that removes the
 * job. TITAN_ENOTFOUND: there is no such job. TITAN_ECONFLICT: the job has not ended, another job keeps its checkpoints
 * in the directory, or an unfinished job begins from a checkpoint there. */
titan_status job_remove(struct db *db, uint64_t id, const char *directory, const struct event *event,
                        struct titan_error *err) TITAN_MUST_USE;
/* Deletes its steps and evaluations in metrics.db. */
titan_status job_remove_metrics(struct db *db, uint64_t id, struct titan_error *err) TITAN_MUST_USE;

#endif
