/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoints.h - an epoch's checkpoints: when they are written, what a failure means, and the checkpoints without
 * which a run must not end. */
#ifndef TITAN_WORKER_EPOCH_CHECKPOINTS_H
#define TITAN_WORKER_EPOCH_CHECKPOINTS_H

#include <stdatomic.h>
#include <stdbool.h>

#include "base/recipe.h"

struct checkpoint_writer;
struct epoch;

/* Written by checkpoints.c only. */
struct checkpoints {
    _Atomic(struct checkpoint_writer *) writer; /* the control thread cancels its waits; NULL: no checkpoints */
    uint64_t newest;                            /* step of the newest checkpoint given to the writer; 0 = none */
    bool put_off;                               /* a checkpoint was due at a skipped step, and is still due */
    bool under_way;           /* a checkpoint is given to the writer and not settled; the same on all ranks */
    int64_t waited_ns;        /* time that training waited for the current checkpoint */
    struct titan_error fault; /* why the newest checkpoint is missing, as far as this rank knows */
    bool unreported;          /* the other ranks must still learn of the fault */
};

titan_status checkpoints_open(struct epoch *e, struct titan_error *err) TITAN_MUST_USE;
/* Call after each committed step; last: the run's last step. Fails only if the epoch ends, or if the run's last
 * checkpoint cannot be written. *ret_stopped: the run's last checkpoint is missing, and the commands leave no time for
 * it. */
titan_status checkpoints_after_step(struct epoch *e, bool last, bool *ret_stopped,
                                    struct titan_error *err) TITAN_MUST_USE;
/* For a step's agreement: PART_FAILED (due.h), or 0. */
unsigned checkpoints_outcome(const struct epoch *e);
/* Call before the state changes: waits until a started checkpoint has copied the state. */
void checkpoints_await_copy(struct epoch *e);
/* Writes a checkpoint that the run needs to end or to give its slots back: all ranks retry together until it exists.
 * *ret_stopped as above. */
titan_status checkpoints_write_surely(struct epoch *e, bool *ret_stopped, struct titan_error *err) TITAN_MUST_USE;
/* How long the write or read of a checkpoint is retried. */
int checkpoints_retry_ms(const struct recipe *r);

/* Call when the epoch is over. Ends waits for peers. Any thread. */
void checkpoints_cancel(struct epoch *e);
/* Reports complete checkpoints. failed: the epoch has failed, so peers may never write their missing shards. */
void checkpoints_finish(struct epoch *e, bool failed);
void checkpoints_close(struct epoch *e);

#endif
