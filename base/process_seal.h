/* SPDX-License-Identifier: Apache-2.0 */
/* process_seal.h - limits the access of the user's other processes to this process. */
#ifndef TITAN_BASE_PROCESS_SEAL_H
#define TITAN_BASE_PROCESS_SEAL_H

/* "1": debuggers may attach, and the process leaves a core file if the limit permits. titand dev sets the variable by
 * default; agents pass it to their workers. */
#define PROCESS_SEAL_OPEN "TITAN_DUMPABLE"

/* Permanent. Programs that this process starts gain no rights (no_new_privs). No other process of the user can read or
 * write this process's memory, descriptors or environment, or attach to this process (PR_SET_DUMPABLE, which exec()
 * resets). Root then owns /proc/self: open any file there for writing before this call. */
void process_seal(void);

#endif
