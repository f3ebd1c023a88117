/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/epoch/due.h"

#include <string.h>

#include "worker/elastic/membership.h"

unsigned checkpoint_heed(const struct recipe *r, unsigned commands)
{
    const bool writes = recipe_writes_checkpoints(r) || commands & COMMAND_MUST;

    return commands & (COMMAND_PAUSE | COMMAND_STOP | (writes ? COMMAND_CHECKPOINT : 0));
}

enum checkpoint_due checkpoint_due(const struct recipe *r, const struct due_step *step)
{
    const bool commanded = step->agreed & COMMAND_CHECKPOINT;

    if (!recipe_writes_checkpoints(r) && !commanded)
        return CHECKPOINT_NOT_DUE;
    if (step->last || commanded)
        return CHECKPOINT_WAITED;
    if (step->number % (uint64_t)r->checkpoint.interval != 0 && !step->put_off &&
        !(step->number == 1 && r->checkpoint.enable_first_step_checkpoint))
        return CHECKPOINT_NOT_DUE;
    if (step->skipped)
        return CHECKPOINT_PUT_OFF;
    return strcmp(r->checkpoint.async_mode, "disabled") == 0 ? CHECKPOINT_WAITED : CHECKPOINT_BEHIND;
}
