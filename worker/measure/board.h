/* SPDX-License-Identifier: Apache-2.0 */
/* board.h - what measuring processes write down, in memory that they share with the one that started them. */
#ifndef TITAN_WORKER_MEASURE_BOARD_H
#define TITAN_WORKER_MEASURE_BOARD_H

#include <pthread.h>
#include <stdatomic.h>

#include "worker/plan/cost_table.h"
#include "worker/program/ops.h"

#define BOARD_ROWS 16384

struct board_row {
    struct cost_row cost; /* a transfer's times are open until its members have taken them */
    double count;         /* actions that an operation's seconds are the mean of */
    enum op op;
    enum dtype dt;
    atomic_llong ns, processor_ns; /* a transfer's: sums over its members */
};

struct board {
    pthread_barrier_t ready; /* of the processes that measure at once */
    struct cost_host host;   /* written by the first of them */
    atomic_int failed;       /* a process has failed, err is the first one's */
    struct titan_error err;
    atomic_int n; /* rows; beyond BOARD_ROWS: there was no room */
    struct board_row rows[BOARD_ROWS];
};

#endif
