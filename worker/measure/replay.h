/* SPDX-License-Identifier: Apache-2.0 */
/* replay.h - runs a rank's step alone and times each of its operations. The rank's program is built as in a run and
 * runs on the device, step after step, with communicators without peers (echo.h). So each operation finds the caches as
 * they are in a step: neither warmed by the operation itself nor colder than in a run. The steps are ordered by their
 * operations' total time, and the middle half counts. An action's mean time and standard deviation are taken over these
 * steps. Each distinct operation gets the mean of these two values over its actions. */
#ifndef TITAN_WORKER_MEASURE_REPLAY_H
#define TITAN_WORKER_MEASURE_REPLAY_H

#include "base/recipe.h"
#include "worker/measure/board.h"

struct replay_options {
    const struct recipe *recipe; /* resolved; borrowed */
    int world, rank;
    int threads;    /* of the compute stream */
    double seconds; /* duration; at least four steps */
    bool first;     /* this process writes the board's host */
};

/* Adds operations with their times to the board, and transfers without times. Begins when all processes of board->ready
 * have arrived. */
titan_status replay_rank(const struct replay_options *options, struct board *board,
                         struct titan_error *err) TITAN_MUST_USE;

#endif
