/* SPDX-License-Identifier: Apache-2.0 */
/* budget.c - the mix of checkpointing modes that fits a budget and recomputes least. */
#include "worker/plan/budget.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"

enum { MODES = CHECKPOINT_FULL + 1 };

/* What a program takes whose layers all have one mode, on the rank that has the most to keep (the first stage). */
struct measured {
    double bytes; /* bytes of activations at the peak */
    double time;  /* s of recomputation in a step */
};

static titan_status measure(const struct build_options *options, const struct cost *cost, enum checkpointing mode,
                            bool split_gate_up, struct measured *ret, struct titan_error *err)
{
    const int layers = model_all_layers(options->layout->model);
    _cleanup_free_ enum checkpointing *all = malloc((size_t)layers * sizeof *all);
    struct build_options with = *options;
    struct program *p = NULL;
    size_t bytes[MEMORY_COUNT];

    titan_assert(mode <= CHECKPOINT_FULL);
    if (!all)
        return titan_fail(err, TITAN_ENOMEM, "plan: out of memory");
    for (int l = 0; l < layers; l++)
        all[l] = mode;
    with.checkpointing = all;
    with.draft = true;
    with.split_gate_up = split_gate_up;
    TRY(program_build(&with, 0, &p, err));
    (void)program_peak(p, bytes, NULL);
    *ret = (struct measured){.bytes = (double)bytes[MEMORY_ACTIVATIONS]};
    for (int i = 0; i < p->n_actions; i++)
        if (p->actions[i].phase == PHASE_RECOMPUTE)
            ret->time += cost_action(cost, p, &p->actions[i]);
    program_close(p);
    return TITAN_OK;
}

/* Shares out `layers` layers over the modes, count[mode] layers each: the least time within `limit` bytes. Recomputing
 * everything always fits. m[1] has the measures for a mix with CHECKPOINT_OPS layers, m[0] for a mix without. */
static void best_mix(const struct measured (*m)[MODES], int layers, double limit, int ret[MODES])
{
    titan_assert(layers > 0);
    double best = m[0][CHECKPOINT_FULL].time;

    memset(ret, 0, MODES * sizeof *ret);
    ret[CHECKPOINT_FULL] = layers;
    for (int none = 0; none <= layers; none++)
        for (int products = 0; none + products <= layers; products++)
            for (int ops = 0; none + products + ops <= layers; ops++) {
                const int count[MODES] = {none, products, ops, layers - none - products - ops};
                struct measured sum = {0}; /* a layer's share is the same in any mix */
                for (int mode = 0; mode < MODES; mode++) {
                    const double share = (double)count[mode] / layers;
                    sum.bytes += share * m[ops > 0][mode].bytes;
                    sum.time += share * m[ops > 0][mode].time;
                }
                if (sum.bytes > limit * (1 + 1e-9) || sum.time >= best)
                    continue;
                best = sum.time;
                memcpy(ret, count, sizeof count);
            }
}

titan_status budget_choose(const struct build_options *options, const struct cost *cost, double budget,
                           enum checkpointing *ret, struct titan_error *err)
{
    const int layers = model_all_layers(options->layout->model);
    struct measured m[2][MODES];
    int count[MODES], given[MODES] = {0};

    titan_assert(cost->machine);
    for (int split_gate_up = 0; split_gate_up < 2; split_gate_up++)
        for (int mode = 0; mode < MODES; mode++)
            TRY(measure(options, cost, (enum checkpointing)mode, split_gate_up, &m[split_gate_up][mode], err));
    const double least = m[0][CHECKPOINT_FULL].bytes;
    best_mix(m, layers, least + budget * (m[0][CHECKPOINT_NONE].bytes - least), count);

    /* Each layer takes the mode that is furthest behind its share so far. */
    titan_assert(count[CHECKPOINT_NONE] + count[CHECKPOINT_PRODUCTS] + count[CHECKPOINT_OPS] + count[CHECKPOINT_FULL] ==
                 layers);
    for (int l = 0; l < layers; l++) {
        int next = CHECKPOINT_FULL;
        for (int mode = 0; mode < MODES; mode++)
            if ((int64_t)count[mode] * (l + 1) - (int64_t)given[mode] * layers >
                (int64_t)count[next] * (l + 1) - (int64_t)given[next] * layers)
                next = mode;
        given[next]++;
        ret[l] = (enum checkpointing)next;
    }
    return TITAN_OK;
}
