/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoints.h - an epoch's checkpoints: when one is written, what its failure means, and the one a run must not end
 * without. */
#ifndef TITAN_WORKER_EPOCH_CHECKPOINTS_H
#define TITAN_WORKER_EPOCH_CHECKPOINTS_H

#include <stdatomic.h>
#include <stdbool.h>

#include "base/recipe.h"

struct checkpoint_writer;
struct epoch;

/* Written by checkpoints.c only. */
struct checkpoints {
    _Atomic(struct checkpoint_writer *) writer; /* the control thread stops its waiting; NULL: the recipe writes none */
    uint64_t newest;                            /* step of the newest one handed to the writer; 0: none */
    bool put_off;                               /* one is due since a step that was skipped */
    bool under_way;                             /* handed to the writer and not settled; alike on all ranks */
    int64_t waited_ns;                          /* what training stood still for it */
    struct titan_error fault;                   /* why the newest one is not there, as this rank knows */
    bool unreported;                            /* the other ranks are to hear of it */
};

titan_status checkpoints_open(struct epoch *e, struct titan_error *err) TITAN_MUST_USE;
/* After each committed step; last: of the run. Fails for the epoch's end only, or without the run's last checkpoint.
 * *ret_stopped: the run's last one is missing, and the commands leave no time for it. */
titan_status checkpoints_after_step(struct epoch *e, bool last, bool *ret_stopped,
                                    struct titan_error *err) TITAN_MUST_USE;
/* For a step's agreement: PART_FAILED (due.h), or 0. */
unsigned checkpoints_outcome(const struct epoch *e);
/* Before the state changes: one that was started has copied it. */
void checkpoints_await_copy(struct epoch *e);
/* A checkpoint without which this run is not to end, or not to give its slots back: all ranks try together until it is
 * there. *ret_stopped as above. */
titan_status checkpoints_write_surely(struct epoch *e, bool *ret_stopped, struct titan_error *err) TITAN_MUST_USE;
/* How long a checkpoint is tried again, written or read. */
int checkpoints_retry_ms(const struct recipe *r);

/* The epoch is over: stop waiting for peers. Any thread. */
void checkpoints_cancel(struct epoch *e);
/* What is complete is reported. failed: a shard that is not written yet may never come. */
void checkpoints_finish(struct epoch *e, bool failed);
void checkpoints_close(struct epoch *e);

#endif
