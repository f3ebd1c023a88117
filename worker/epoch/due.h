/* SPDX-License-Identifier: Apache-2.0 */
/* due.h - after which steps a checkpoint is written. Every rank takes the same decision from the same numbers. */
#ifndef TITAN_WORKER_EPOCH_DUE_H
#define TITAN_WORKER_EPOCH_DUE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/recipe.h"

enum checkpoint_due {
    CHECKPOINT_NOT_DUE,
    CHECKPOINT_BEHIND, /* written while the next steps run */
    CHECKPOINT_WAITED, /* training waits until it is there */
};

/* Beside the commands in what the ranks agree on: one could not write its part of the checkpoint under way. */
enum { PART_FAILED = 8 };

/* What of a rank's commands (COMMAND_*, worker/elastic/membership.h) the ranks are to agree on: a checkpoint is one
 * that will be written, also by a recipe that writes none when it must be. */
unsigned checkpoint_heed(const struct recipe *r, unsigned commands);
/* agreed: the commands all ranks have agreed on in this step; last: the run has no step behind it. Copies in other
 * ranks' memory change nothing here: a command for a checkpoint counts on their end, too. */
enum checkpoint_due checkpoint_due(const struct recipe *r, uint64_t step, bool last, unsigned agreed);

#endif
