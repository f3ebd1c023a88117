/* SPDX-License-Identifier: Apache-2.0 */
/* slice.h - how soon a thread is run once it has something to do.
 *
 * Linux's scheduler runs the thread with the earliest deadline among those that have had no more than their share. A
 * thread's deadline is its request divided by its weight from when it wakes, and a request is as long as the slice it
 * has asked for. A thread that works little and often asks for short slices, and is run before others of the same
 * priority that compute, without getting more of the processor than they do: it is preempted sooner as well.
 *
 * sched_setattr() with SCHED_OTHER takes the slice in sched_runtime and keeps it between 0.1 and 100 ms:
 *   Linux 6.12 and later  does so, and a short slice preempts a longer one at wake-up (the feature PREEMPT_SHORT)
 *   6.6 to 6.11           has these deadlines, but one slice for all; the value is ignored
 *   before 6.6            has none; the value is ignored
 * What is ignored is no error. Policy, priority and niceness stay as they are. Threads and processes started later
 * inherit the slice. */
#ifndef TITAN_BASE_SLICE_H
#define TITAN_BASE_SLICE_H

#include <stdint.h>

#define SLICE_SHORT_NS (100 * 1000)

/* The calling thread's slice; 0 = the kernel's own. Best effort: where it cannot be had nothing changes. */
void slice_set(int64_t ns);
/* What the calling thread has; 0 where the kernel does not say (before 6.12). */
int64_t slice_get(void);

#endif
