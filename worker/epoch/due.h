/* SPDX-License-Identifier: Apache-2.0 */
/* due.h - after which steps a checkpoint is written. Every rank takes the same decision from the same numbers. */
#ifndef TITAN_WORKER_EPOCH_DUE_H
#define TITAN_WORKER_EPOCH_DUE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/recipe.h"

enum checkpoint_due {
    CHECKPOINT_NOT_DUE,
    CHECKPOINT_PUT_OFF, /* to the next step that counts */
    CHECKPOINT_BEHIND,  /* written while the next steps run */
    CHECKPOINT_WAITED,  /* training waits until it is there */
};

/* Beside the commands in what the ranks agree on: one could not write its part of the checkpoint under way. */
enum { PART_FAILED = 8 };

/* What of a rank's commands (COMMAND_*, worker/elastic/membership.h) the ranks are to agree on: a checkpoint is one
 * that will be written, also by a recipe that writes none when it must be. */
unsigned checkpoint_heed(const struct recipe *r, unsigned commands);
/* A committed step. */
struct due_step {
    uint64_t number;
    bool last;       /* the run has no step behind it */
    bool skipped;    /* the state is that of the step before: only a command or the run's end has it written again */
    bool put_off;    /* one is due since a step that was skipped */
    unsigned agreed; /* the commands all ranks have agreed on in it */
};
/* Copies in other ranks' memory change nothing here: a command for a checkpoint counts on their end, too. */
enum checkpoint_due checkpoint_due(const struct recipe *r, const struct due_step *step);

#endif
