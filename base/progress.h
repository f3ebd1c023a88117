/* SPDX-License-Identifier: Apache-2.0 */
/* progress.h - does this process work, wait, or hang? Counters that another process reads (proto/worker_page.h).
 *
 * A thread works from progress_work_begin to progress_work_end, except while it waits: for a peer, for another thread
 * of this process, for a disk. `waiting` is 1 while no thread works, so that standing still is no fault of this
 * process. While it is 0, whatever works says so with progress_action: an operation or a part of one begun, a message
 * moved, a piece loaded. A process with `waiting` 0 and `actions` that stand still hangs, or is in one long operation.
 *
 * Cheap: an action is one relaxed addition. Begins and ends are one addition; only where the last thread stops working
 * or the first begins again, the clock is read and `waiting` is written. No system call. Pairs nest; threads that
 * have not begun to work may wait without effect. Any thread.
 *
 * None needs to be attached: the counters are then the process's own. A plug-in finds those of the program. */
#ifndef TITAN_BASE_PROGRESS_H
#define TITAN_BASE_PROGRESS_H

#include <stdatomic.h>
#include <stdint.h>

/* From now on these counters; they must stay for as long as the process. NULL: the process's own again. */
struct progress_counters {
    _Atomic uint64_t *actions;
    _Atomic uint32_t *waiting;
    _Atomic uint64_t *busy_ns;
};
void progress_attach(const struct progress_counters *counters);

void progress_action(void);
/* actions as counted by now. */
uint64_t progress_actions(void);

void progress_work_begin(void);
void progress_work_end(void);
void progress_wait_begin(void);
void progress_wait_end(void);

/* Time in which no thread worked, since the start; for differences. */
int64_t progress_idle_ns(void);
/* Add to busy_ns: what a step took without the idle part of it. */
void progress_busy(int64_t ns);

#endif
