/* SPDX-License-Identifier: Apache-2.0 */
/* publish.h - reports to the coordinator, the log and the metrics file.
 *
 * A committed step is published when every rank has its report, because then no death can undo the step. Ranks know
 * this as soon as the next step's first collective of all ranks ends. */
#ifndef TITAN_WORKER_EPOCH_PUBLISH_H
#define TITAN_WORKER_EPOCH_PUBLISH_H

#include <stdatomic.h>
#include <stdbool.h>

#include "worker/epoch/tensorboard.h"
#include "worker/metrics/metrics.h"

struct trainer;
struct epoch;

/* Lives as long as the process. Written by publish.c only; `tensorboard` is written by tensorboard.c only. */
struct publisher {
    struct metrics metrics;
    struct tensorboard tensorboard;
    struct step_report kept[2]; /* committed steps that may be unpublished; step 0 = none */
};

/* Lives as long as an epoch. Written by publish.c only. */
struct published {
    struct step_report reports[2]; /* of the last two steps committed here; step 0 = none */
    atomic_bool pending;           /* the newer of the two reports is not yet published */
    bool awaits_evaluation;        /* the newer report will be published together with its evaluation */
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

/* Opens the metrics file of this epoch's rank. */
void publish_open(struct epoch *e);
void publish_close(struct epoch *e); /* the epoch is over */
/* The state is installed and steps begin; at: end of each phase, in nanoseconds. */
void publish_ready(struct epoch *e, const int64_t at[OPENING_COUNT]);
/* The current step (epoch.h) is committed and counted in the state, but not yet published. */
void publish_note_step(struct epoch *e);
/* Call after a step that was not finite and made no update. Writes a line to the log. TITAN_EINVAL: too many such steps
 * in a row. */
titan_status publish_skipped_step(const struct epoch *e, struct titan_error *err) TITAN_MUST_USE;
/* Is the current step's time split into its parts? */
bool publish_splits_step(const struct epoch *e);
/* Call when every rank has the last step's report. Once per step; any thread, one at a time. Does nothing if the step's
 * evaluation is still to come. */
void publish_step(struct epoch *e);
/* Publishes the step without its evaluation, which will not come in this epoch. */
void publish_step_alone(struct epoch *e);
/* Call when every rank has the newest evaluation. Publishes it with its step, or alone if the step is published
 * already. The metrics file gets an evaluation once. The coordinator ignores a repeated evaluation of a step. */
void publish_evaluation(struct epoch *e);
bool publish_is_pending(const struct epoch *e);

/* publish_keep: keeps the last epoch's newest steps. publish_kept: publishes them in this epoch, because the last
 * epoch's rank 0 may have died before it did. If all ranks died, the loaded checkpoint has the report of its step. */
void publish_keep(struct trainer *t, const struct epoch *last);
void publish_kept(struct epoch *e);

#endif
