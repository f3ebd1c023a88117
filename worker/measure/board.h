/* SPDX-License-Identifier: Apache-2.0 */
/* board.h - results of measuring processes, in memory shared with their parent. */
#ifndef TITAN_WORKER_MEASURE_BOARD_H
#define TITAN_WORKER_MEASURE_BOARD_H

#include <pthread.h>
#include <stdatomic.h>

#include "worker/plan/cost_table.h"
#include "worker/program/ops.h"

#define BOARD_ROWS 16384

struct board_row {
    struct cost_row cost; /* the times of a transfer are not set until its members have measured them */
    double count;         /* number of actions in the mean of an operation's seconds */
    enum op op;
    enum dtype dt;
    atomic_llong ns, processor_ns; /* of a transfer: sums over its members */
};

struct board {
    pthread_barrier_t ready; /* for the processes that measure at the same time */
    struct cost_host host;   /* written by the first process */
    atomic_int failed;       /* a process failed; err is the first failure */
    struct titan_error err;
    atomic_int n; /* number of rows; if it is more than BOARD_ROWS, rows were dropped */
    struct board_row rows[BOARD_ROWS];
};

#endif
