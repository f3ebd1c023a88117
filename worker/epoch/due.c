/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/epoch/due.h"

#include <string.h>

#include "worker/elastic/membership.h"

unsigned checkpoint_heed(const struct recipe *r, unsigned orders)
{
    const bool writes = recipe_writes_checkpoints(r) || orders & ORDER_MUST;

    return orders & (ORDER_PAUSE | ORDER_STOP | (writes ? ORDER_CHECKPOINT : 0));
}

enum checkpoint_due checkpoint_due(const struct recipe *r, uint64_t step, bool last, unsigned agreed)
{
    const bool ordered = agreed & ORDER_CHECKPOINT;

    if (!recipe_writes_checkpoints(r) && !ordered)
        return CHECKPOINT_NOT_DUE;
    if (last || ordered)
        return CHECKPOINT_WAITED;
    if (step % (uint64_t)r->checkpoint.interval != 0 && !(step == 1 && r->checkpoint.enable_first_step_checkpoint))
        return CHECKPOINT_NOT_DUE;
    return strcmp(r->checkpoint.async_mode, "disabled") == 0 ? CHECKPOINT_WAITED : CHECKPOINT_BEHIND;
}
