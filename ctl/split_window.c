/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/split_window.h"

#include <limits.h>
#include <string.h>

#include "base/error.h"

void split_window_add(struct split_window *w, const Titan__V1__MetricPoint *point)
{
    const Titan__V1__StepSplit *const s = point->split;
    if (!s)
        return;
    titan_assert(w->n <= SPLIT_WINDOW);
    if (w->epoch != point->epoch)
        w->n = 0;
    w->epoch = point->epoch;
    if (w->n == SPLIT_WINDOW)
        memmove(w->splits, w->splits + 1, (--w->n) * sizeof(*w->splits));
    w->splits[w->n++] =
        (struct step_split){.data = s->data_ms,
                            .compute = s->compute_ms,
                            .communication = s->communication_ms,
                            .checkpoint = s->checkpoint_ms,
                            .stragglers = s->straggler_ms,
                            .slowest_busy = s->slowest_busy_ms,
                            .slowest = point->world_size > 1 && s->slowest_rank <= INT_MAX ? (int)s->slowest_rank : -1};
}

bool split_window_mean(const struct split_window *w, struct split_mean *ret)
{
    struct split_mean best = {.split = {.slowest = -1}}, sums = best;
    double most = -1;
    if (w->n == 0)
        return false;
    for (size_t i = 0; i < w->n; i++) {
        const struct step_split *s = &w->splits[i];
        struct split_mean one = best;
        sums.split.data += s->data;
        sums.split.compute += s->compute;
        sums.split.communication += s->communication;
        sums.split.checkpoint += s->checkpoint;
        sums.split.stragglers += s->stragglers;
        if (s->slowest < 0 || s->slowest == best.split.slowest)
            continue;

        /* Total wait of the others for the rank, the steps in which it was the slowest, and its busy time. */
        double waited = 0, busy = 0;
        one.slowest_steps = 0;
        for (size_t k = 0; k < w->n; k++) {
            const struct step_split *its = &w->splits[k];
            if (its->slowest != s->slowest)
                continue;
            waited += its->stragglers;
            busy += its->slowest_busy;
            one.slowest_steps++;
        }
        titan_assert(one.slowest_steps > 0);
        one.split.slowest = s->slowest;
        one.split.slowest_busy = busy / one.slowest_steps;
        one.waited = waited / one.slowest_steps;
        if (waited > most) {
            most = waited;
            best = one;
        }
    }
    const double n = (double)w->n;
    *ret = best;
    ret->steps = (uint32_t)w->n;
    ret->split.data = sums.split.data / n;
    ret->split.compute = sums.split.compute / n;
    ret->split.communication = sums.split.communication / n;
    ret->split.checkpoint = sums.split.checkpoint / n;
    ret->split.stragglers = sums.split.stragglers / n;
    return true;
}
