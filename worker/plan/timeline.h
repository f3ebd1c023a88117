/* SPDX-License-Identifier: Apache-2.0 */
/* timeline.h - actions on a time axis as trace events (JSON object format), which Perfetto and chrome://tracing open: a
 * process a rank, a thread a stream. What is simulated and what has run are written alike. */
#ifndef TITAN_WORKER_PLAN_TIMELINE_H
#define TITAN_WORKER_PLAN_TIMELINE_H

#include "base/buf.h"
#include "base/error.h"
#include "worker/program/program.h"

void timeline_begin(struct buf *out);
/* Once for each rank, before its actions. name: as it is, without quotes or backslashes. */
void timeline_name(struct buf *out, int pid, const char *name, const struct program *p);
/* start, end: s from zero, which is s from the timeline's, of every action of the program; what ends when it begins is
 * left out. An event is called by its operation and its unit, or units: "MATMUL layers.7", "OPTIMISE embedding to
 * layers.7". */
void timeline_actions(struct buf *out, int pid, const struct program *p, double zero, const double *start,
                      const double *end);
void timeline_end(struct buf *out);
/* A file that these have written, without its end: more can be added. *ret_began: of its first event, in s. What is no
 * such file is TITAN_EINVAL. */
titan_status timeline_reopen(const char *path, struct buf *out, double *ret_began,
                             struct titan_error *err) TITAN_MUST_USE;

#endif
