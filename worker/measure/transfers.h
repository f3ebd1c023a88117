/* SPDX-License-Identifier: Apache-2.0 */
/* transfers.h - how long collectives and messages take between processes of this machine. */
#ifndef TITAN_WORKER_MEASURE_TRANSFERS_H
#define TITAN_WORKER_MEASURE_TRANSFERS_H

#include "worker/measure/board.h"

struct transfers_options {
    int rank, members;
    int memfd; /* their segment (comm_shm_segment), new for these members; borrowed */
};

/* One member's part: every transfer of the board between so many is carried out over shared memory, on buffers that
 * are not the last one's, and its times are added to the row's. Members come to the rows in the same order. */
titan_status transfers_take(const struct transfers_options *options, struct board *board,
                            struct titan_error *err) TITAN_MUST_USE;

#endif
