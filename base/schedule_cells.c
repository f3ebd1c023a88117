/* SPDX-License-Identifier: Apache-2.0 */
/* schedule_cells.c - appends cells to a schedule, and maps stages to ranks. */
#include "base/schedule_family.h"

void schedule_put(struct schedule *s, int rank, enum cell_kind kind, int stage, int microbatch)
{
    titan_assert(rank >= 0 && rank < s->ranks && stage >= 0 && stage < s->stages && microbatch >= 0);
    if (microbatch < s->microbatches)
        s->cells[rank][s->n_cells[rank]++] = (struct cell){.kind = kind, .stage = stage, .microbatch = microbatch};
}

int schedule_rank_of(const struct schedule *s, int stage)
{
    titan_assert(stage >= 0 && stage < s->stages);
    if (s->v_order && stage >= s->ranks)
        return 2 * s->ranks - 1 - stage;
    return stage % s->ranks;
}
