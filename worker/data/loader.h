/* SPDX-License-Identifier: Apache-2.0 */
/* loader.h - loads the tokens of one rank's microbatches of a step. They depend only on the step's number and the
 * number of samples that were read before. One thread. */
#ifndef TITAN_WORKER_DATA_LOADER_H
#define TITAN_WORKER_DATA_LOADER_H

#include <stdbool.h>
#include <stdio.h>

#include "worker/data/batch.h"
#include "worker/data/dataset.h"

struct loader_options {
    const struct dataset *data; /* borrowed */
    struct sequence_cut cut;    /* the cut of a microbatch */
    int cp_rank;
    /* share: number of this rank's microbatches of the global batch; first: its first microbatch */
    int64_t share, first;
    int64_t global_batch;              /* samples per step */
    uint64_t steps_read, samples_read; /* samples of the first steps_read steps, with any batch size */
    bool documents;                    /* attention stays within documents */
    FILE *log; /* borrowed; gets a line per sample: step, number in the step, hash of the tokens; NULL = no log */
    /* Number of samples of an evaluation. Samples behind this number are not counted, and neither are samples behind
     * global_batch in a step. 0: training, where all samples are counted. */
    uint64_t samples;
    const uint16_t *token_bytes; /* [vocabulary]: bytes of text per token; NULL = not counted */
};

struct loader {
    struct loader_options opt;
    int32_t *tokens;           /* [slot][batch_rows][N], as the program loads them */
    double *counts;            /* [slot] counted tokens */
    uint64_t bytes;            /* text bytes of all counted tokens */
    int32_t *inputs, *targets; /* inputs and targets of one microbatch, whole sequences */
    int32_t *starts;           /* begins of documents, in the same layout; NULL: each sequence is one document */
};

/* *ret must be zeroed; loader_close zeroes it, also after a failure. */
titan_status loader_open(const struct loader_options *options, struct loader *ret,
                         struct titan_error *err) TITAN_MUST_USE;
void loader_close(struct loader *l);
/* Fills tokens and counts; steps count from 1. TITAN_ECORRUPT as dataset_sample(). */
titan_status loader_load(struct loader *l, uint64_t step, struct titan_error *err) TITAN_MUST_USE;

#endif
