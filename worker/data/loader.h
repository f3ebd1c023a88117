/* SPDX-License-Identifier: Apache-2.0 */
/* loader.h - the tokens of one rank's microbatches of a step: a function of the step's number and of what was read
 * before. One thread. */
#ifndef TITAN_WORKER_DATA_LOADER_H
#define TITAN_WORKER_DATA_LOADER_H

#include <stdbool.h>
#include <stdio.h>

#include "worker/data/batch.h"
#include "worker/data/dataset.h"

struct loader_options {
    const struct dataset *data; /* borrowed */
    struct sequence_cut cut;    /* of a microbatch */
    int cp_rank;
    int64_t share, first; /* how many of the global batch's microbatches are this rank's; the first of them */
    int64_t global_batch; /* samples of a step */
    uint64_t steps_read, samples_read; /* so many steps have read so many samples, whatever their batch was */
    bool documents;                    /* attention stays within documents */
    FILE *log; /* a line for each sample: step, number in the step, hash of its tokens; NULL: none. Borrowed */
    /* Where an evaluation's steps end: samples of a step from its global_batch on, and those of all steps from this
     * number on, hold nothing that counts. 0: a training step, with all samples there. */
    uint64_t samples;
    const uint16_t *token_bytes; /* [vocabulary]: bytes of text behind each; NULL: they are not counted */
};

struct loader {
    struct loader_options opt;
    int32_t *tokens;           /* [slot][BATCH_ROWS][N]: what the program loads */
    double *counts;            /* [slot] counted tokens */
    uint64_t bytes;            /* behind all of these */
    int32_t *inputs, *targets; /* of one microbatch, whole sequences */
    int32_t *starts;           /* likewise; NULL: one document each */
};

/* *ret is empty before; loader_close leaves it so, also after a failure. */
titan_status loader_open(const struct loader_options *options, struct loader *ret,
                         struct titan_error *err) TITAN_MUST_USE;
void loader_close(struct loader *l);
/* Fills tokens and counts; steps count from 1. TITAN_ECORRUPT as dataset_sample(). */
titan_status loader_load(struct loader *l, uint64_t step, struct titan_error *err) TITAN_MUST_USE;

#endif
