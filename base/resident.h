/* SPDX-License-Identifier: Apache-2.0 */
/* resident.h - a process's pages stay where they are.
 *
 * Where a cgroup or a machine runs out of memory the kernel takes pages of files first, and a program's own code is
 * such pages: they come back by a page fault, which in a cgroup at its limit waits for memory until the kernel has
 * killed a process. A daemon that was to report that stands still itself, for seconds. mlockall() with MCL_ONFAULT
 * keeps what has been touched once, and takes nothing that has not. */
#ifndef TITAN_BASE_RESIDENT_H
#define TITAN_BASE_RESIDENT_H

#include <stdbool.h>

/* For all that is mapped now and later, by any thread; children do not inherit it. False and nothing changed where that
 * may not be: with a finite RLIMIT_MEMLOCK, unless the process may raise it or has CAP_IPC_LOCK. Under a finite limit
 * an allocation would fail later instead. */
bool resident_set(void);
/* Give back what a burst of work has left free: pages that are locked cannot be, so they are not for a moment. Called
 * every few seconds by one thread; does something when 16 MiB more are free than after the last time, in a process that
 * has grown by 32 MiB. */
void resident_trim(bool resident);

#endif
