/* SPDX-License-Identifier: Apache-2.0 */
/* spawn_scope.c - see spawn_scope.h. */
#include "daemon/spawn/spawn_scope.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "daemon/common/cgroup.h"

#define SLICE "titan.slice"
#define UNIT "titan-workers"
#define SCOPE "/" SLICE "/" UNIT ".scope"
#define WAIT_MS 10000
#define ANSWER_BYTES 256
#define INIT_SCOPE "/init.scope" /* systemd's own scope, in the folder of all its units */

static bool has_processes(const char *folder)
{
    char path[PATH_MAX + 64];
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    (void)snprintf(path, sizeof(path), "%s/cgroup.procs", folder);
    return file_read(path, 65536, &text, NULL) == TITAN_OK && text.len > 0;
}

/* Starts argv detached: it outlives this process, and nothing waits for its end. It runs in cgroup main_group ("" =
 * this process's cgroup). Its output goes to out (-1 = nowhere). */
static titan_status launch(char *const argv[], const char *main_group, int out, struct titan_error *err)
{
    titan_assert(argv[0][0] == '/');
    const pid_t pid = fork();
    if (pid < 0)
        return titan_fail_errno(err, "cannot start a process");
    if (pid == 0) {
        const int nothing = open("/dev/null", O_RDWR);
        if (fork() != 0)
            _exit(0);
        (void)setsid();
        if ((main_group[0] && !cgroup_write(main_group, "cgroup.procs", "0")) || dup2(nothing, 0) < 0 ||
            dup2(out >= 0 ? out : nothing, 1) < 0 || dup2(1, 2) < 0 || close_range(3, ~0U, 0) != 0)
            _exit(1);
        (void)execv(argv[0], argv);
        (void)dprintf(2, "cannot start '%s': %m", argv[0]);
        _exit(1);
    }
    (void)waitpid(pid, NULL, 0);
    return TITAN_OK;
}

/* Makes the scope. The holder closes the pipe once it runs; a failed systemd-run closes the pipe by ending. */
static titan_status make_scope(char *self, const char *folder, struct titan_error *err)
{
    static char slice[] = "--slice=" SLICE, unit[] = "--unit=" UNIT;
    char *argv[] = {"/usr/bin/systemd-run",
                    "--scope",
                    "--quiet",
                    "--collect",
                    slice,
                    unit,
                    "--description=Titan workers",
                    "-p",
                    "Delegate=yes",
                    "-p",
                    "TimeoutStopSec=30s",
                    self,
                    "--hold",
                    NULL};
    char answer[ANSWER_BYTES] = "";
    size_t len = 0;
    int pipe[2];
    if (pipe2(pipe, O_CLOEXEC) != 0)
        return titan_fail_errno(err, "cannot make a pipe");
    _cleanup_fd_ int in = pipe[0];
    const titan_status status = launch(argv, "", pipe[1], err);
    (void)close(pipe[1]);
    TRY(status);
    const int64_t end = clock_mono_ms() + WAIT_MS;
    for (ssize_t n = 1; n > 0;) {
        const int64_t left = end - clock_mono_ms();
        struct pollfd ready = {.fd = in, .events = POLLIN};
        if (left <= 0 || poll(&ready, 1, (int)left) == 0)
            return titan_fail(err, TITAN_ETIMEDOUT, "systemd has not made " UNIT ".scope within %d s", WAIT_MS / 1000);
        char more[ANSWER_BYTES];
        n = read(in, more, sizeof(more));
        for (ssize_t i = 0; i < n && len + 1 < sizeof(answer); i++)
            answer[len++] = more[i] == '\n' ? ' ' : more[i];
    }
    titan_assert(len < sizeof(answer));
    answer[len] = '\0';
    return has_processes(folder) ? TITAN_OK
                                 : titan_fail(err, TITAN_EPERM, "systemd does not make " UNIT ".scope: %s", answer);
}

titan_status spawn_scope_open(char out[PATH_MAX], struct titan_error *err)
{
    static const char *const mounts[] = {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"};
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    char main_group[PATH_MAX + 8], self[PATH_MAX];
    if (access("/run/systemd/system", F_OK) != 0)
        return titan_fail(err, TITAN_ENOTFOUND, "systemd does not run here");

    /* Finds the folder of systemd's units. */
    TRY(file_read("/proc/1/cgroup", 65536, &text, err));
    const char *line = text.data ? strstr(text.data, "0::/") : NULL, *mount = NULL;
    for (size_t i = 0; line && i < ARRAY_SIZE(mounts) && !mount; i++) {
        char controllers[64];
        (void)snprintf(controllers, sizeof(controllers), "%s/cgroup.controllers", mounts[i]);
        mount = access(controllers, F_OK) == 0 ? mounts[i] : NULL;
    }
    if (!mount)
        return titan_fail(err, TITAN_ENOTFOUND, "systemd has no cgroups of version 2 here");
    const int len = (int)strcspn(line + 3, "\n"), init = (int)strlen(INIT_SCOPE);
    const bool in_init = len >= init && strncmp(line + 3 + len - init, INIT_SCOPE, (size_t)init) == 0;
    const ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
    if (n <= 0)
        return titan_fail_errno(err, "cannot find this program");
    self[n] = '\0';
    if (snprintf(out, PATH_MAX, "%s%.*s" SCOPE, mount, in_init ? len - init : 0, line + 3) >= PATH_MAX - 64)
        return titan_fail(err, TITAN_EINVAL, "the path of systemd's cgroups is too long");
    if (access(out, F_OK) != 0)
        return make_scope(self, out, err);

    (void)snprintf(main_group, sizeof(main_group), "%s/" CGROUP_MAIN, out);
    char *argv[] = {self, "--hold", NULL};
    return has_processes(out) || has_processes(main_group) ? TITAN_OK : launch(argv, main_group, -1, err);
}

void spawn_scope_hold(void)
{
    const int score = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (score >= 0)
        (void)!write(score, "-1000", 5);
    (void)signal(SIGTERM, SIG_DFL);
    (void)signal(SIGHUP, SIG_IGN);
    (void)!chdir("/");
    (void)close_range(0, ~0U, 0);
    for (;;)
        (void)pause();
}
