/* SPDX-License-Identifier: Apache-2.0 */
/* process_stat.h - a process in /proc/PID/stat (proc(5)). Any thread. */
#ifndef TITAN_DAEMON_COMMON_PROCESS_STAT_H
#define TITAN_DAEMON_COMMON_PROCESS_STAT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct process_stat {
    char state;       /* 'R', 'S', 'Z', ... */
    uint64_t started; /* ticks since the machine's start; with the pid it identifies one process */
    /* The status that wait() will return, valid when the process begins to end. The kernel also shows 0 to hide it.
     * Without CAP_SYS_PTRACE it does so for processes of other users and processes that are not dumpable. */
    int status;
};

bool process_stat_read(pid_t pid, struct process_stat *ret);
/* True: the process is ending. *ret_code is the exit code, or -1 with the signal in *ret_signal. False also for exit
 * code 0, which looks like a hidden status. */
bool process_stat_ending(const struct process_stat *s, int *ret_code, int *ret_signal);

#endif
