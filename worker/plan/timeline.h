/* SPDX-License-Identifier: Apache-2.0 */
/* timeline.h - actions on a time axis as trace events (JSON object format), for Perfetto and chrome://tracing. A rank
 * is a process, a stream is a thread. Simulated and real steps are written alike. */
#ifndef TITAN_WORKER_PLAN_TIMELINE_H
#define TITAN_WORKER_PLAN_TIMELINE_H

#include "base/buf.h"
#include "base/error.h"
#include "worker/program/program.h"

void timeline_begin(struct buf *out);
/* Call once for each rank, before its actions. name is written unchanged, so it must be without quotes or
 * backslashes. */
void timeline_name(struct buf *out, int pid, const char *name, const struct program *p);
/* start, end: times of every action of the program, s from `zero`. zero: s from the timeline's own zero. Actions that
 * take no time are left out. An event's name is its operation and its unit, or units: "MATMUL layers.7", "OPTIMISE
 * embedding to layers.7". */
void timeline_actions(struct buf *out, int pid, const struct program *p, double zero, const double *start,
                      const double *end);
void timeline_end(struct buf *out);
/* Reads a file that these functions have written, and leaves out its end, so that more events can be added. *ret_began:
 * begin of the file's first event, s. TITAN_EINVAL: the file is no timeline. */
titan_status timeline_reopen(const char *path, struct buf *out, double *ret_began,
                             struct titan_error *err) TITAN_MUST_USE;

#endif
