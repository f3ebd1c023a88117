/* SPDX-License-Identifier: Apache-2.0 */
/* job_removal.h - a job that has ended is taken out of the store.
 *
 * Its row stays, marked, and so do those of its runs, epochs, workers and checkpoints: the event log leads to them
 * (replay.h), and no number is given twice. Nothing that reads jobs finds it any more; recipe, idempotency key, losses
 * and metrics are gone. */
#ifndef TITAN_STATE_JOB_REMOVAL_H
#define TITAN_STATE_JOB_REMOVAL_H

#include "state/event.h"

/* directory: the job's own, which is deleted afterwards. The event names the caller. TITAN_ENOTFOUND; TITAN_ECONFLICT:
 * it has not ended, or another job that is there keeps its checkpoints in that directory, or begins from one there. */
titan_status job_remove(struct db *db, uint64_t id, const char *directory, const struct event *event,
                        struct titan_error *err) TITAN_MUST_USE;
/* Its steps and evaluations, in metrics.db. */
titan_status job_remove_metrics(struct db *db, uint64_t id, struct titan_error *err) TITAN_MUST_USE;

#endif
