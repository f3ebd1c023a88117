/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/state/skipped.h"

void skipped_count(struct skipped_steps *s, uint64_t step, bool skipped)
{
    s->in_a_row = skipped ? s->in_a_row + 1 : 0;
    if (!skipped)
        return;
    s->total++;
    if (skipped_since(s, step) == 0)
        s->first = step;
    s->last = step;
}

uint64_t skipped_since(const struct skipped_steps *s, uint64_t step)
{
    return s->first != 0 && step - s->last <= SKIPPED_GAP ? s->first : 0;
}

bool skipped_possible(const struct skipped_steps *s, uint64_t step)
{
    return s->total <= step && s->in_a_row <= s->total && s->first <= s->last && s->last <= step &&
           (s->first == 0) == (s->last == 0);
}
