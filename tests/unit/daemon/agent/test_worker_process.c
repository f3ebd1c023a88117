/* SPDX-License-Identifier: Apache-2.0 */
/* Workers' cgroups as under the shipped unit: systemd gives the user of a unit with Delegate= the folder and
 * cgroup.procs, and keeps cgroup.kill. And the end of a worker with a /proc that is closed to its agent. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "daemon/agent/shell/worker_cgroup.h"
#include "daemon/agent/shell/worker_process.h"
#include "tests/support/child.h"

#define NOBODY 65534

static char group[96], folder[64];

static void join(const char *cgroup)
{
    char path[128];
    (void)snprintf(path, sizeof(path), "%s/cgroup.procs", cgroup);
    FILE *file = fopen(path, "w");
    assert_true(file && fprintf(file, "%d", (int)getpid()) > 0);
    assert_int_equal(fclose(file), 0);
}

/* Of the child, as a user: exit status 0 when a worker gets its cgroup and ends with all it has started. */
static int as_user(void)
{
    char program[128], log[128], self[PATH_MAX];
    struct worker_process p = WORKER_PROCESS_NONE;
    struct titan_error err = {0};
    (void)snprintf(program, sizeof(program), "%s/worker", folder);
    (void)snprintf(log, sizeof(log), "%s/log", folder);
    const struct worker_command c = {.program = program,
                                     .socket = "s",
                                     .page = "p",
                                     .log = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644),
                                     .folder = open(folder, O_PATH | O_CLOEXEC),
                                     .directory = folder,
                                     .host = "h",
                                     .job_id = 1,
                                     .worker_id = 7};
    if (!worker_cgroup_home(self) || strcmp(self, group) != 0)
        return 1;
    if (worker_process_start(&c, &p, &err) != TITAN_OK)
        return 2;
    if (!p.cgroup[0] || strncmp(p.cgroup, group, strlen(group)) != 0)
        return 3;
    struct stat st = {0};
    while (stat(log, &st) != 0 || st.st_size == 0) /* its child has left the session */
        (void)poll(NULL, 0, 5);
    worker_process_kill(&p);
    struct pollfd gone = {.fd = p.pidfd, .events = POLLIN};
    (void)poll(&gone, 1, -1);
    struct worker_end end;
    if (worker_process_reap(&p, &end) != TITAN_OK || end.signal != SIGKILL)
        return 4;
    for (; rmdir(p.cgroup) != 0; (void)poll(NULL, 0, 5)) /* busy until the last one in it is gone */
        if (errno != EBUSY)
            return 5;
    return 0;
}

static void test_delegated(void **state)
{
    (void)state;
    const char *mount = access("/sys/fs/cgroup/cgroup.procs", F_OK) == 0 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/unified";
    char procs[128], program[128];
    (void)snprintf(group, sizeof(group), "%s/titan-delegated-%d", mount, (int)getpid());
    (void)snprintf(procs, sizeof(procs), "%s/cgroup.procs", group);
    if (geteuid() != 0 || mkdir(group, 0755) != 0 || access(procs, W_OK) != 0) {
        print_message("# no cgroups of version 2 to be had here\n");
        skip();
    }
    (void)snprintf(folder, sizeof(folder), "/tmp/titan-delegated-XXXXXX");
    assert_non_null(mkdtemp(folder));
    (void)snprintf(program, sizeof(program), "%s/worker", folder);
    /* What it starts before it is in its cgroup would be outside. */
    static const char script[] = "#!/bin/sh\n"
                                 "until grep -q titan-worker-7 /proc/self/cgroup; do :; done\n"
                                 "setsid sh -c 'echo escaped; exec sleep 1000' &\n"
                                 "exec sleep 1000\n";
    assert_int_equal(file_replace(program, script, sizeof(script) - 1, NULL), TITAN_OK);
    assert_int_equal(chmod(program, 0755) | chown(folder, NOBODY, NOBODY), 0);
    assert_int_equal(chown(group, NOBODY, NOBODY) | chown(procs, NOBODY, NOBODY), 0);
    pid_t child = child_fork();
    assert_true(child >= 0);
    if (child == 0) {
        join(group);
        _exit(setresgid(NOBODY, NOBODY, NOBODY) || setresuid(NOBODY, NOBODY, NOBODY) ? 9 : as_user());
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    for (; rmdir(group) != 0; (void)poll(NULL, 0, 5)) /* the kernel takes a moment with the child */
        assert_int_equal(errno, EBUSY);
    assert_int_equal(dir_remove(folder, NULL), TITAN_OK);
}

/* Of the child, as a user: exit status 0 when the end of a process, the status of which /proc hides, is known before it
 * is reaped. */
static int ending_of_sealed(int signal)
{
    struct worker_process p = WORKER_PROCESS_NONE;
    struct worker_end end = {.code = -1}, reaped;
    int ready[2];
    char byte;
    if (pipe(ready) != 0 || (p.pid = child_fork()) < 0)
        return 1;
    if (p.pid == 0) {
        if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) == 0 && write(ready[1], "", 1) == 1 && signal)
            (void)pause();
        _exit(0);
    }
    p.child = true;
    p.pidfd = pidfd_open(p.pid, 0);
    struct pollfd gone = {.fd = p.pidfd, .events = POLLIN};
    if (p.pidfd < 0 || read(ready[0], &byte, 1) != 1 || (signal && kill(p.pid, signal) != 0) || poll(&gone, 1, -1) != 1)
        return 2;
    if (!worker_process_ending(&p, &end) || end.signal != signal || end.code != (signal ? -1 : 0))
        return 3;
    return worker_process_reap(&p, &reaped) == TITAN_OK && reaped.signal == signal ? 0 : 4;
}

static void test_sealed(void **state)
{
    static const int signals[] = {SIGKILL, SIGTERM, 0};
    (void)state;
    for (size_t i = 0; i < sizeof(signals) / sizeof(*signals); i++) {
        int status = 0;
        const pid_t child = child_fork();
        if (child == 0)
            _exit(geteuid() == 0 && (setresgid(NOBODY, NOBODY, NOBODY) || setresuid(NOBODY, NOBODY, NOBODY))
                      ? 9
                      : ending_of_sealed(signals[i]));
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_delegated), cmocka_unit_test(test_sealed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
