/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/child.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/cleanup.h"

pid_t child_fork(void)
{
    (void)fflush(NULL);
    const pid_t pid = fork();
    if (pid != 0)
        return pid;
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGSYS};
    for (size_t i = 0; i < ARRAY_SIZE(faults); i++)
        (void)signal(faults[i], SIG_DFL);
    (void)setenv("CMOCKA_TEST_ABORT", "1", 1);
    return 0;
}
