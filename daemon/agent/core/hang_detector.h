/* SPDX-License-Identifier: Apache-2.0 */
/* hang_detector.h - does a worker get on? Judged from samples of its page and its process (agent_core.h), each against
 * its own step time.
 *
 * A worker hangs when it waits for no other and nothing moves for longer than max(floor, 1.5 x p99.9 of its own time
 * for a step), where time it waited for others does not count; or when its process is stopped in two samples. A step
 * during which it was found hanging does not count as its step time. Of the time between two samples at most
 * WATCH_GAP_MS count: beyond it the agent has stood still, and most likely the machine. Nor does time count in which
 * threads of the worker would have run and had no processor: the machine does something else. */
#ifndef TITAN_DAEMON_AGENT_CORE_HANG_DETECTOR_H
#define TITAN_DAEMON_AGENT_CORE_HANG_DETECTOR_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/agent/agent_core.h"

/* Times in milliseconds, in quarters of an octave; the oldest fade. */
#define TAIL_BUCKETS 96
struct tail {
    uint32_t counts[TAIL_BUCKETS], total;
};
#define WATCH_GAP_MS (4 * AGENT_SAMPLE_MS)
#define TAIL_TRUSTED 20 /* fewer say nothing about the tail */
void tail_add(struct tail *t, uint64_t ms);
/* Upper end of the bucket the p99.9 is in; 0 = too few. */
uint64_t tail_p999(const struct tail *t);

struct watch {
    struct tail steps;
    uint64_t actions, step, epoch;
    int64_t seen_at;      /* of the last sample */
    int64_t still_since;  /* nothing has moved since, though it waits for no other */
    int64_t moved_at;     /* when anything last moved, waiting or not; later by what it had no processor for */
    uint64_t cpu_ms;      /* of the last sample */
    uint64_t ran_ms;      /* processor time not set off against time yet */
    uint64_t own_ms;      /* outside of waits, since the last step */
    bool seen;            /* there was one */
    bool first, reported; /* no step finished in this epoch yet; said to hang since the last */
    unsigned stopped;     /* samples in a row that found the process stopped */
    int64_t reported_at;
};
enum watch_verdict { WATCH_WELL, WATCH_HANGS, WATCH_STOPPED };
struct watch_limits {
    uint32_t floor_ms, unknown_ms;
};
/* Not WATCH_WELL once when it begins to hang and each second after; *ret_ms is for how long. */
enum watch_verdict watch_sample(struct watch *w, const struct agent_sample *s, const struct watch_limits *limits,
                                int64_t now, uint32_t *ret_ms);
/* How long it may stand still: floor_ms or more, and unknown_ms or more while its step time is not known. */
uint64_t watch_patience(const struct watch *w, const struct watch_limits *limits);
bool watch_hangs(const struct watch *w); /* reported, and has not moved since */

#endif
