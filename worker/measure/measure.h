/* SPDX-License-Identifier: Apache-2.0 */
/* measure.h - `titan-worker measure`: a cost table of this machine for the operations and transfers of a recipe.
 *
 * As many processes as the run has ranks, but no more than cores, replay the ranks' programs at once (replay.h): what
 * workers of one machine take from each other is in the times. Then processes of each group's size carry out the
 * transfers (transfers.h); those of more than MEASURE_MEMBERS_MAX members, and all of a GPU's, are left to the model.
 */
#ifndef TITAN_WORKER_MEASURE_MEASURE_H
#define TITAN_WORKER_MEASURE_MEASURE_H

#include "base/buf.h"
#include "base/recipe.h"

#define MEASURE_MEMBERS_MAX 16

struct measure_options {
    const struct recipe *recipe; /* resolved; borrowed */
    int world, threads;          /* threads of each worker */
    const char *table;           /* path; NULL: the device's place in the cache folder */
    double seconds;              /* for each program class */
};

/* Rows are added to the table that lies there, in place of those of the same operations; *out gets a line about it.
 * Before the process has threads. TITAN_EINVAL: what lies there is of another machine, or damaged. */
titan_status measure_costs(const struct measure_options *options, struct buf *out,
                           struct titan_error *err) TITAN_MUST_USE;

#endif
