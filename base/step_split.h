/* SPDX-License-Identifier: Apache-2.0 */
/* step_split.h - where a step's time went, over all ranks.
 *
 * A step's time runs from the previous step's agreement to the last rank's arrival at this step's agreement. A rank is
 * busy while it does not wait for others; the slowest rank was busy longest. Communication is the time that the slowest
 * rank waited; the other ranks' additional waiting is for the slowest. */
#ifndef TITAN_BASE_STEP_SPLIT_H
#define TITAN_BASE_STEP_SPLIT_H

#include "base/json.h"

/* Times in milliseconds. If they were not measured, they are NaN, and the rank is -1. */
struct step_split {
    double data, compute, communication, checkpoint, stragglers; /* means over ranks; the five add up to the step */
    double slowest_busy;
    int slowest; /* rank */
};

struct step_split step_split_none(void);
double step_split_total(const struct step_split *s);
/* Writes and reads the members of a line of metrics.jsonl; a line without all members was not measured. */
void step_split_print(const struct step_split *s, struct json_writer *w);
struct step_split step_split_parse(const struct json *line);

#endif
