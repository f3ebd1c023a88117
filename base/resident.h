/* SPDX-License-Identifier: Apache-2.0 */
/* resident.h - keeps a process's pages in memory.
 *
 * When a cgroup or a machine runs out of memory, the kernel first takes pages of files, and a program's code is in
 * pages of files. A page returns by a page fault. In a cgroup at its limit the fault waits until the kernel has killed
 * a process: the daemon that should report the kill stands still for seconds. mlockall() with MCL_ONFAULT keeps the
 * pages that the process has touched, and takes no other pages. */
#ifndef TITAN_BASE_RESIDENT_H
#define TITAN_BASE_RESIDENT_H

#include <stdbool.h>

/* Locks all current and future mappings, of any thread; children do not inherit the lock. False, and nothing changed:
 * RLIMIT_MEMLOCK is finite, and the process may not raise it and lacks CAP_IPC_LOCK. Under a finite limit a later
 * allocation would fail. */
bool resident_set(void);
/* Returns memory that a burst of work has freed. Locked pages cannot be returned, so the call unlocks them briefly. One
 * thread calls it every few seconds. The call acts only if 16 MiB more are free than after the last time, in a process
 * that has grown by 32 MiB. */
void resident_trim(bool resident);

#endif
