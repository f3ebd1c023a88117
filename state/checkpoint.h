/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint.h - checkpoints with every byte durable. A row is added only after the files are synced and renamed, and
 * only if the job has no higher epoch than the epoch that wrote them. */
#ifndef TITAN_STATE_CHECKPOINT_H
#define TITAN_STATE_CHECKPOINT_H

#include "base/sm.h"
#include "state/event.h"

enum checkpoint_state { CHECKPOINT_NONE, CHECKPOINT_COMMITTED, CHECKPOINT_EXPIRED };
extern const struct sm checkpoint_sm;

struct checkpoint {
    uint64_t job_id, step, epoch;
    const char *path;
    uint64_t bytes;
    uint32_t world_size;
    int64_t committed_at_ms;
};

/* TITAN_EREVOKED: the job already has a higher epoch, or a later epoch committed this step. If a step was trained again
 * after a recovery, its new checkpoint replaces its row. */
titan_status checkpoint_add(struct db *db, const struct checkpoint *c, const struct event *event,
                            struct titan_error *err) TITAN_MUST_USE;
/* Removes the checkpoint from the list. Then its files may be deleted. */
titan_status checkpoint_expire(struct db *db, uint64_t job_id, uint64_t step, const struct event *event,
                               struct titan_error *err) TITAN_MUST_USE;
/* Lists committed checkpoints, newest first. */
titan_status checkpoint_list(struct db *db, uint64_t job_id, bool (*each)(const struct checkpoint *c, void *data),
                             void *data, struct titan_error *err) TITAN_MUST_USE;

#endif
