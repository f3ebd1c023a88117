/* SPDX-License-Identifier: Apache-2.0 */
/* step_split.h - where the time of a step went, over all its ranks.
 *
 * A step's time runs from the agreement before it to the last rank's arrival at its own. A rank is busy while it does
 * not wait for others; the slowest is the one that was busy longest. What that one waited all the same is
 * communication; what the others waited beyond it is for the slowest. */
#ifndef TITAN_BASE_STEP_SPLIT_H
#define TITAN_BASE_STEP_SPLIT_H

#include "base/json.h"

/* Milliseconds. NaN, and -1 for the rank, where it was not measured. */
struct step_split {
    double data, compute, communication, checkpoint, stragglers; /* means over ranks; their sum is the step's time */
    double slowest_busy;
    int slowest; /* rank */
};

struct step_split step_split_none(void);
double step_split_total(const struct step_split *s);
/* As members of a line of metrics.jsonl; one that does not have them all was not measured. */
void step_split_print(const struct step_split *s, struct json_writer *w);
struct step_split step_split_parse(const struct json *line);

#endif
