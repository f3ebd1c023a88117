/* SPDX-License-Identifier: Apache-2.0 */
/* job_removal.h - removes a finished job from the store.
 *
 * Its row stays, marked, and so do rows of its runs, epochs, workers and checkpoints: the event log leads to them
 * (replay.h), and numbers are never reused. Job queries skip it; recipe, idempotency key, losses and metrics are
 * deleted. */
#ifndef TITAN_STATE_JOB_REMOVAL_H
#define TITAN_STATE_JOB_REMOVAL_H

#include "state/event.h"

/* directory: the job's own, which the caller deletes afterwards. The event names the caller. TITAN_ENOTFOUND.
 * TITAN_ECONFLICT: the job has not ended, or another job keeps its checkpoints in that directory or begins from a
 * checkpoint there. */
titan_status job_remove(struct db *db, uint64_t id, const char *directory, const struct event *event,
                        struct titan_error *err) TITAN_MUST_USE;
/* Deletes its steps and evaluations in metrics.db. */
titan_status job_remove_metrics(struct db *db, uint64_t id, struct titan_error *err) TITAN_MUST_USE;

#endif
