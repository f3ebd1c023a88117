/* SPDX-License-Identifier: Apache-2.0 */
/* measure.h - `titan-worker measure`: a cost table of this machine for the operations and transfers of a recipe.
 *
 * One process per rank, but at most one per core, replays the ranks' programs (replay.h). They run at the same time, so
 * the times include contention between workers of one machine. Then groups of processes measure the transfers that have
 * as many members as the group (transfers.h). The cost model estimates transfers of more than MEASURE_MEMBERS_MAX
 * members, and all transfers of GPUs. */
#ifndef TITAN_WORKER_MEASURE_MEASURE_H
#define TITAN_WORKER_MEASURE_MEASURE_H

#include "base/buf.h"
#include "base/recipe.h"

#define MEASURE_MEMBERS_MAX 16

struct measure_options {
    const struct recipe *recipe; /* resolved; borrowed */
    int world, threads;          /* threads: per worker */
    const char *table;           /* path of the table; NULL: the device's place in the cache folder */
    double seconds;              /* per program class */
};

/* Adds rows to the existing table, where they replace rows of the same operations. *out gets a line of report. Call
 * before the process has threads. TITAN_EINVAL: the existing table is from another machine, or damaged. */
titan_status measure_costs(const struct measure_options *options, struct buf *out,
                           struct titan_error *err) TITAN_MUST_USE;

#endif
