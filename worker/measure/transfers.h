/* SPDX-License-Identifier: Apache-2.0 */
/* transfers.h - measures collectives and messages between processes of this machine. */
#ifndef TITAN_WORKER_MEASURE_TRANSFERS_H
#define TITAN_WORKER_MEASURE_TRANSFERS_H

#include "worker/measure/board.h"

struct transfers_options {
    int rank, members;
    int memfd; /* their segment (comm_shm_segment), new for these members; borrowed */
};

/* One member's part: carries out every transfer of the board for `members` members over shared memory, each on other
 * buffers than the last, and adds the times to the row's. Members take the rows in the same order. */
titan_status transfers_take(const struct transfers_options *options, struct board *board,
                            struct titan_error *err) TITAN_MUST_USE;

#endif
