/* SPDX-License-Identifier: Apache-2.0 */
/* transfers.h - measures collectives and messages between processes of this machine. */
#ifndef TITAN_WORKER_MEASURE_TRANSFERS_H
#define TITAN_WORKER_MEASURE_TRANSFERS_H

#include "worker/measure/board.h"

struct transfers_options {
    int rank, members;
    int memfd; /* the members' segment (comm_shm_segment), new for these members; borrowed */
};

/* Runs one member's part of the measurement. It carries out every transfer of the board that has `members` members,
 * over shared memory, and adds its times to the row. Each transfer uses other buffers than the transfer before. Members
 * take the rows in the same order. */
titan_status transfers_take(const struct transfers_options *options, struct board *board,
                            struct titan_error *err) TITAN_MUST_USE;

#endif
