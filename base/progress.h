/* SPDX-License-Identifier: Apache-2.0 */
/* progress.h - does this process work, wait, or hang? Another process reads these counters (proto/worker_page.h).
 *
 * A thread works between progress_work_begin and progress_work_end, except while it waits for a peer, another thread of
 * this process, or a disk. `waiting` is 1 while no thread works: a standstill is then not this process's fault. While
 * `waiting` is 0, working threads call progress_action for each operation or part begun, message moved, or piece
 * loaded. A process with `waiting` 0 and constant `actions` hangs, or is in one long operation.
 *
 * An action, a begin and an end cost one relaxed addition each. Only the last thread to stop and the first to resume
 * read the clock and write `waiting`. No system call. Pairs nest; a wait in a thread that is not working has no effect.
 * Any thread.
 *
 * Without progress_attach the counters are private to the process. A plug-in uses the counters of the program. */
#ifndef TITAN_BASE_PROGRESS_H
#define TITAN_BASE_PROGRESS_H

#include <stdatomic.h>
#include <stdint.h>

/* From now on use these counters; they must live as long as the process. NULL: the process's own counters again. */
struct progress_counters {
    _Atomic uint64_t *actions;
    _Atomic uint32_t *waiting;
    _Atomic uint64_t *busy_ns;
};
void progress_attach(const struct progress_counters *counters);

void progress_action(void);
/* The current value of actions. */
uint64_t progress_actions(void);

void progress_work_begin(void);
void progress_work_end(void);
void progress_wait_begin(void);
void progress_wait_end(void);

/* Time since the start in which no thread worked; use differences. */
int64_t progress_idle_ns(void);
/* Adds to busy_ns: the duration of a step without its idle part. */
void progress_busy(int64_t ns);

#endif
