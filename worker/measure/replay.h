/* SPDX-License-Identifier: Apache-2.0 */
/* replay.h - a rank's step alone: what each of its operations takes.
 *
 * The rank's program is built as a run builds it and runs on the device, step after step, with communicators that have
 * no peers (echo.h). So each operation meets the caches as a step leaves them, neither warmed by itself nor colder than
 * in a run. Of the steps the middle half counts, by what all operations took together. Of every action it is the mean
 * over them and the standard deviation, of every distinct operation the means of both over its actions. */
#ifndef TITAN_WORKER_MEASURE_REPLAY_H
#define TITAN_WORKER_MEASURE_REPLAY_H

#include "base/recipe.h"
#include "worker/measure/board.h"

struct replay_options {
    const struct recipe *recipe; /* resolved; borrowed */
    int world, rank;
    int threads;    /* of the compute stream */
    double seconds; /* to go on for; four steps at least */
    bool first;     /* writes the board's host */
};

/* Operations onto the board with their times, transfers without. Begins when all processes of board->ready are there.
 */
titan_status replay_rank(const struct replay_options *options, struct board *board,
                         struct titan_error *err) TITAN_MUST_USE;

#endif
