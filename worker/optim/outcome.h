/* SPDX-License-Identifier: Apache-2.0 */
/* outcome.h - the results of a step: loss, tokens, gradient norm and commands, from the statistics (program/program.h)
 * that are summed over all ranks.
 * Every rank has the same statistics and computes the same outcome. Sums run in one fixed tree over microbatches, and
 * (canonical) over blocks of parameters in their global order. So they do not depend on the data-parallel and
 * expert-parallel degrees. */
#ifndef TITAN_WORKER_OPTIM_OUTCOME_H
#define TITAN_WORKER_OPTIM_OUTCOME_H

#include "base/step_split.h"
#include "worker/program/program.h"

struct step_outcome {
    double tokens;   /* counted tokens of the global batch */
    double loss;     /* mean over these tokens */
    double loss_max; /* largest mean loss of a rank's own samples, over ranks that read different samples */
    /* Norm of the mean gradient, before clipping. Where replicas send each other parts of their directions, each has a
     * mean gradient of its own: root of the mean over replicas of their squared norms. */
    double grad_norm;
    unsigned commands; /* bits that any rank was given */
    bool finite;       /* loss, norm and sums of tensors are finite */
    double expert_tokens_min, expert_tokens_max,
        expert_tokens_mean; /* tokens of an expert, over all layers; 0 = no experts */
    double dropped;         /* rows whose expert had no room */
    double further_rounds;  /* further rounds of experts, over all ranks, layers and microbatches */
    double room_needed;     /* room, in even shares of rows, that needs no further rounds; 0 = not counted */
    double balance_loss;    /* of routers, mean over layers: 1 with even loads; 0 = no such loss */
    double mtp_loss;        /* mean loss of the modules of multi-token prediction; 0 = no modules */
    struct step_split split;
    uint64_t memory_bytes; /* measured; the most of any rank; 0 = unknown */
    int bad_unit;          /* unit where the first value that is not finite arose, forward or backward; -1 = none */
};

/* Sums over the steps of an evaluation. */
struct evaluation_sums {
    double loss; /* nats, summed over tokens */
    double tokens, bytes;
};

/* Computes the outcome. TITAN_ECONFLICT: the counted number of tokens is impossible. */
titan_status outcome_read(const struct program *program, const struct layout *layout, const double *statistics,
                          struct step_outcome *ret, struct titan_error *err) TITAN_MUST_USE;
/* Reads the sums of a finite step's tensors, summed over all ranks. A sum that is not finite makes the step not
 * finite. */
void outcome_add_sums(const struct model *model, const double *sums, struct step_outcome *outcome);
/* Norms of each unit (statistics.units numbers): of the unit's mean gradient before clipping, and of its masters before
 * the step's update. */
void outcome_unit_norms(const struct program *program, const struct layout *layout, const double *statistics,
                        double *ret_gradients, double *ret_masters);
/* Bits that any rank was given. */
unsigned outcome_commands(const struct step_statistics *r, const double *statistics);
/* Factor that brings a gradient of this norm down to max_norm (0: no clipping). */
double optim_clip_factor(double grad_norm, double max_norm);
/* Adds the losses and tokens of one more step, sample after sample. Empty places add nothing. So the sums are the same
 * for any number of ranks that share the samples. */
void outcome_add(const struct step_statistics *r, const double *statistics, struct evaluation_sums *to);

#endif
