/* SPDX-License-Identifier: Apache-2.0 */
/* publish.h - telling the coordinator, the log and the metrics file what has happened.
 *
 * A committed step is published when every rank has its report: then no death takes it back. Ranks know that of a step
 * when the first collective of all ranks in the next one ends. */
#ifndef TITAN_WORKER_EPOCH_PUBLISH_H
#define TITAN_WORKER_EPOCH_PUBLISH_H

#include <stdatomic.h>
#include <stdbool.h>

#include "worker/epoch/tensorboard.h"
#include "worker/metrics/metrics.h"

struct trainer;
struct epoch;

/* As long as the process. Written by publish.c and, what is for TensorBoard, by tensorboard.c only. */
struct publisher {
    struct metrics metrics;
    struct tensorboard tensorboard;
    struct step_report kept[2]; /* committed steps that may not be published; step 0: none */
};

/* As long as an epoch. Written by publish.c only. */
struct published {
    struct step_report reports[2]; /* of the last two steps committed here; step 0: none */
    atomic_bool pending;           /* the newer one is yet to be published */
    bool awaits_evaluation;        /* and is published with its evaluation */
};

/* When each phase of the opening ended. */
enum opening {
    OPENING_BEGAN,
    OPENING_CONNECTED,
    OPENING_PLANNED,
    OPENING_GROUPED,
    OPENING_FILLED,
    OPENING_PREPARED,
    OPENING_COUNT
};

void publisher_init(struct publisher *p);
void publisher_close(struct publisher *p);

/* The metrics file of this epoch's rank. */
void publish_open(struct epoch *e);
void publish_close(struct epoch *e); /* the epoch is over */
/* The state is installed and steps begin; at: in nanoseconds. */
void publish_ready(struct epoch *e, const int64_t at[OPENING_COUNT]);
/* The step under way (epoch.h) is committed and counted in the state; it is not published yet. */
void publish_note_step(struct epoch *e);
/* It was not finite and there was no update: a line in the log. TITAN_EINVAL: too many in a row. */
titan_status publish_skipped_step(const struct epoch *e, struct titan_error *err) TITAN_MUST_USE;
/* Will the step under way be split up into what its time went to? */
bool publish_splits_step(const struct epoch *e);
/* Every rank has the last step's report. Once a step; any thread, one at a time. Nothing happens where its evaluation
 * is yet to come. */
void publish_step(struct epoch *e);
/* The same where that will not come now. */
void publish_step_alone(struct epoch *e);
/* Every rank has the evaluator's newest evaluation: it is published with its step, or by itself where that is published
 * already. What the metrics file has is not written again; the coordinator takes one of a step once. */
void publish_evaluation(struct epoch *e);
bool publish_is_pending(const struct epoch *e);

/* The last epoch's rank 0 may have died before it published its last steps: keep them, and publish them in this epoch.
 * Where all have died, the checkpoint that is loaded has that of its step. */
void publish_keep(struct trainer *t, const struct epoch *last);
void publish_kept(struct epoch *e);

#endif
