/* SPDX-License-Identifier: Apache-2.0 */
/* process_stat.c - see process_stat.h. */
#include "daemon/common/process_stat.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "base/cleanup.h"

#define FIELD_STATE 3
#define FIELD_STARTED 22

/* Parses "PID (NAME) STATE ppid ...". NAME may hold anything; the exit status is the last field. */
bool process_stat_read(pid_t pid, struct process_stat *ret)
{
    char path[64], text[1024];
    (void)snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    _cleanup_fd_ int fd = open(path, O_RDONLY | O_CLOEXEC);
    const ssize_t n = fd >= 0 ? read(fd, text, sizeof(text) - 1) : -1;
    text[n > 0 ? n : 0] = '\0';
    const char *at = strrchr(text, ')'), *last = strrchr(text, ' ');
    if (!at || at[1] != ' ' || !last)
        return false;
    at += 2;
    *ret = (struct process_stat){.state = *at, .status = atoi(last)};
    for (int field = FIELD_STATE; field < FIELD_STARTED && at; field++)
        at = (at = strchr(at, ' ')) ? at + 1 : NULL;
    ret->started = at ? strtoull(at, NULL, 10) : 0;
    return true;
}

bool process_stat_ending(const struct process_stat *s, int *ret_code, int *ret_signal)
{
    if (s->status == 0)
        return false;
    *ret_code = WIFSIGNALED(s->status) ? -1 : WEXITSTATUS(s->status);
    *ret_signal = WIFSIGNALED(s->status) ? WTERMSIG(s->status) : 0;
    return true;
}
