/* SPDX-License-Identifier: Apache-2.0 */
/* outcome.h - what the statistics of a step (program/program.h), summed over all ranks, say: loss, tokens, gradient
 * norm, commands.
 *
 * Every rank has the same statistics and computes the same outcome. Sums run in one fixed tree over microbatches, and
 * (canonical) over blocks of parameters in their global order, so they do not depend on the data-parallel and
 * expert-parallel degrees. */
#ifndef TITAN_WORKER_OPTIM_OUTCOME_H
#define TITAN_WORKER_OPTIM_OUTCOME_H

#include "base/step_split.h"
#include "worker/program/program.h"

struct step_outcome {
    double tokens;     /* counted in the global batch */
    double loss;       /* mean over them */
    double loss_max;   /* of the ranks that read different samples, each the mean over its own */
    double grad_norm;  /* of the mean gradient, before clipping */
    unsigned commands; /* bits any rank was given */
    bool finite;       /* loss and norm are */
    double expert_tokens_min, expert_tokens_max,
        expert_tokens_mean; /* tokens of an expert, over all layers; 0: there are none */
    double dropped;         /* rows for experts that had no room for them */
    double further_rounds;  /* of experts, of all ranks, layers and microbatches */
    double room_needed;     /* even shares of rows with which there were none; 0: not counted */
    double balance_loss;    /* of routers, the mean over layers: 1 with even loads; 0: there is none */
    double mtp_loss;        /* the mean of the losses of modules of multi-token prediction; 0: there are none */
    struct step_split split;
    uint64_t memory_bytes; /* measured, the most of any rank; 0: not known */
    int bad_unit;          /* where the first value that is not finite arose, forward or backward; -1: none */
};

/* Of the steps of an evaluation. */
struct evaluation_sums {
    double loss; /* nats, over tokens */
    double tokens, bytes;
};

/* TITAN_ECONFLICT: as many tokens as the ranks have counted cannot be. */
titan_status outcome_read(const struct program *program, const struct layout *layout, const double *statistics,
                          struct step_outcome *ret, struct titan_error *err) TITAN_MUST_USE;
/* Norms of each unit (statistics.units numbers): of its mean gradient before clipping, and of its masters as the step
 * found them. */
void outcome_unit_norms(const struct program *program, const struct layout *layout, const double *statistics,
                        double *ret_gradients, double *ret_masters);
/* Bits that any rank was given. */
unsigned outcome_commands(const struct step_statistics *r, const double *statistics);
/* Factor that brings a gradient of this norm down to max_norm (0: no clipping). */
double optim_clip_factor(double grad_norm, double max_norm);
/* Losses and tokens of one more step, sample after sample: what holds nothing adds nothing, so the sums are the same
 * however many ranks share the samples out. */
void outcome_add(const struct step_statistics *r, const double *statistics, struct evaluation_sums *to);

#endif
