/* SPDX-License-Identifier: Apache-2.0 */
/* due.h - decides after which steps a checkpoint is written. Every rank decides by the same numbers, with the same
 * result. */
#ifndef TITAN_WORKER_EPOCH_DUE_H
#define TITAN_WORKER_EPOCH_DUE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/recipe.h"

enum checkpoint_due {
    CHECKPOINT_NOT_DUE,
    CHECKPOINT_PUT_OFF, /* until the next step that counts */
    CHECKPOINT_BEHIND,  /* written while the next steps run */
    CHECKPOINT_WAITED,  /* training waits until it is written */
};

/* Shares the mask of agreed commands: a rank could not write its part of the current checkpoint. */
enum { PART_FAILED = 8 };

/* The part of a rank's commands (COMMAND_*, worker/elastic/membership.h) that the ranks must agree on. A command for a
 * checkpoint counts only if the checkpoint will be written. In a recipe without checkpoints, this needs
 * COMMAND_MUST. */
unsigned checkpoint_heed(const struct recipe *r, unsigned commands);
/* A committed step. */
struct due_step {
    uint64_t number;
    bool last;       /* the run's last step */
    bool skipped;    /* the state is that of the previous step, so it is written only by command or at the run's end */
    bool put_off;    /* a checkpoint was due at a skipped step, and is still due */
    unsigned agreed; /* commands that all ranks agreed on in this step */
};
/* Decides whether a checkpoint is due after the step. It does not matter that other ranks' memory has copies: a command
 * for a checkpoint prepares for the end of these ranks, too. */
enum checkpoint_due checkpoint_due(const struct recipe *r, const struct due_step *step);

#endif
