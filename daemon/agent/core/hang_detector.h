/* SPDX-License-Identifier: Apache-2.0 */
/* hang_detector.h - does a worker make progress? Samples of its page and process (agent_core.h) are judged against its
 * own step time.
 *
 * A worker hangs in two cases. Either it waits for no other worker and nothing moves for longer than max(floor, 1.5 x
 * p99.9 of its own step time, without waits for others). Or two samples find its process stopped. The time of a step
 * with a hang does not count as step time. Between two samples at most WATCH_GAP_MS count, because in a longer gap the
 * agent stood still, most likely with the machine. Time in which the worker's threads were runnable without a processor
 * does not count either, because the machine was busy. */
#ifndef TITAN_DAEMON_AGENT_CORE_HANG_DETECTOR_H
#define TITAN_DAEMON_AGENT_CORE_HANG_DETECTOR_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/agent/agent_core.h"

/* Histogram of milliseconds, in quarters of an octave; old counts fade. */
#define TAIL_BUCKETS 96
struct tail {
    uint32_t counts[TAIL_BUCKETS], total;
};
#define WATCH_GAP_MS (4 * AGENT_SAMPLE_MS)
#define TAIL_TRUSTED 20 /* fewer samples give no tail */
void tail_add(struct tail *t, uint64_t ms);
/* Upper end of the p99.9's bucket; 0 = too few samples. */
uint64_t tail_p999(const struct tail *t);

struct watch {
    struct tail steps;
    uint64_t actions, step, epoch;
    int64_t seen_at;      /* time of the last sample */
    int64_t still_since;  /* since then nothing moved, and the worker waits for no other */
    int64_t moved_at;     /* last movement, also during a wait; time without a processor moves it ahead */
    uint64_t cpu_ms;      /* processor time at the last sample */
    uint64_t ran_ms;      /* processor time not yet credited */
    uint64_t own_ms;      /* time outside of waits since the last step */
    bool seen;            /* there was a sample */
    bool first, reported; /* first: no step finished in this epoch; reported: the hang is reported */
    unsigned stopped;     /* consecutive samples that found the process stopped */
    int64_t reported_at;
};
enum watch_verdict { WATCH_WELL, WATCH_HANGS, WATCH_STOPPED };
struct watch_limits {
    uint32_t floor_ms, unknown_ms;
};
/* Returns another verdict than WATCH_WELL once when the hang begins, then each second. *ret_ms: duration of the
 * hang. */
enum watch_verdict watch_sample(struct watch *w, const struct agent_sample *s, const struct watch_limits *limits,
                                int64_t now, uint32_t *ret_ms);
/* How long a worker may stand still: at least floor_ms, and at least unknown_ms while its step time is unknown. */
uint64_t watch_patience(const struct watch *w, const struct watch_limits *limits);
bool watch_hangs(const struct watch *w); /* a hang is reported, and nothing has moved since */

#endif
