/* SPDX-License-Identifier: Apache-2.0 */
/* slice.h - how soon a woken thread runs.
 *
 * Linux's scheduler runs the thread with the earliest deadline among the threads that have not exceeded their share. A
 * thread's deadline is its wake-up time plus its request divided by its weight; the request is the slice. A thread that
 * works little and often asks for a short slice. The thread then runs before computing threads of the same priority,
 * and gets no more of the processor than they do: it is also preempted sooner.
 *
 * sched_setattr() with SCHED_OTHER takes the slice in sched_runtime, limited to 0.1 to 100 ms:
 *   Linux 6.12 and later  uses it, and a short slice preempts a longer one at wake-up (the feature PREEMPT_SHORT)
 *   6.6 to 6.11           has these deadlines with one slice for all; the value is ignored
 *   before 6.6            has no such deadlines; the value is ignored
 * An ignored value is no error. Policy, priority and niceness stay unchanged. Threads and processes started later
 * inherit the slice. */
#ifndef TITAN_BASE_SLICE_H
#define TITAN_BASE_SLICE_H

#include <stdint.h>

#define SLICE_SHORT_NS (100 * 1000)

/* Sets the calling thread's slice; 0 = the kernel's default. Best effort: nothing changes without kernel support. */
void slice_set(int64_t ns);
/* The calling thread's slice; 0 when the kernel does not report one (before 6.12). */
int64_t slice_get(void);

#endif
