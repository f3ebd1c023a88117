/* SPDX-License-Identifier: Apache-2.0 */
/* process_seal.h - what other processes of the same user may do with this one. */
#ifndef TITAN_BASE_PROCESS_SEAL_H
#define TITAN_BASE_PROCESS_SEAL_H

/* "1": the process stays open to debuggers, and leaves a core file where the limit permits. titand dev sets it, unless
 * it is set; workers get it from their agent. */
#define PROCESS_SEAL_OPEN "TITAN_DUMPABLE"

/* For good: no program that it starts gains a right (no_new_privs), and no process of the same user reads or writes its
 * memory, descriptors or environment, or attaches to it (PR_SET_DUMPABLE, which an exec() resets). What lies in
 * /proc/self is root's from here on: a file of that which is to be written has to be open. */
void process_seal(void);

#endif
