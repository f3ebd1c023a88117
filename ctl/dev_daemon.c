/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/dev_daemon.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/flight.h"

enum { READY_MS = 20000, STOP_MS = 30000 };

/* --- folder ------------------------------------------------------------------------------------------------------- */

void dev_daemon_folders(char *out, size_t cap)
{
    const char *tmp = getenv("TMPDIR");
    (void)snprintf(out, cap, "%s", tmp && *tmp ? tmp : "/tmp");
}

/* --- process ------------------------------------------------------------------------------------------------------ */

/* The data that the child needs to become titand. */
struct titand_start {
    char titand[PATH_MAX + 16], notify[PATH_MAX]; /* the program; the socket it reports to */
    const char *device;
    int64_t slots;
    int log;
    pid_t parent;
};

/* Runs in the child; async-signal-safe up to exec except setenv, which is safe in a single-threaded process. */
static void become_titand(const struct dev_daemon *d, const struct titand_start *s)
{
    char number[32];
    (void)setpgid(0, 0); /* a group of its own: only titanctl gets Ctrl-C */
    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != s->parent)
        _exit(1);
    int null = open("/dev/null", O_RDONLY);
    if (null >= 0)
        (void)dup2(null, STDIN_FILENO);
    (void)dup2(s->log, STDOUT_FILENO);
    (void)dup2(s->log, STDERR_FILENO);
    (void)signal(SIGINT, SIG_DFL);
    (void)signal(SIGPIPE, SIG_DFL);
    (void)setenv("NOTIFY_SOCKET", s->notify, 1);
    (void)unsetenv("RUNTIME_DIRECTORY");
    const char *argv[12] = {"titand", "dev", "--state-dir", d->state_dir, "--device", s->device};
    int n = 6;
    if (s->slots > 0) {
        (void)snprintf(number, sizeof(number), "%lld", (long long)s->slots);
        argv[n++] = "--slots";
        argv[n++] = number;
    }
    if (geteuid() == 0)
        argv[n++] = "--allow-root"; /* a private run, as the calling user */
    titan_assert(n < (int)ARRAY_SIZE(argv));
    (void)execv(s->titand, (char *const *)(uintptr_t)argv);
    (void)dprintf(STDERR_FILENO, "titand: cannot start %s: %s\n", s->titand, strerror(errno));
    _exit(127);
}

static titan_status await_ready(struct dev_daemon *d, int notify, const char *log_path, struct titan_error *err)
{
    titan_assert(d->pid > 0 && d->pidfd >= 0);
    for (;;) {
        struct pollfd fds[] = {{.fd = notify, .events = POLLIN}, {.fd = d->pidfd, .events = POLLIN}};
        int rc = poll(fds, 2, READY_MS);
        if (rc < 0 && errno == EINTR)
            return titan_fail(err, TITAN_ECANCELLED, "interrupted");
        if (rc <= 0)
            return titan_fail(err, TITAN_ETIMEDOUT, "titand is not ready after %d s; its log is %s", READY_MS / 1000,
                              log_path);
        if (fds[0].revents) {
            char text[1024];
            ssize_t n = recv(notify, text, sizeof(text) - 1, 0);
            text[MAX(n, 0)] = '\0';
            if (strstr(text, "READY=1"))
                return TITAN_OK;
        }
        if (fds[1].revents) {
            int wait_status = 0;
            (void)waitpid(d->pid, &wait_status, 0);

            /* titand has ended. The last line of its log is the reason. */
            _cleanup_(buf_free) struct buf log = BUF_INIT;
            int code = WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : -1;
            titan_status status = code == 2   ? TITAN_EINVAL
                                  : code == 5 ? TITAN_EPERM
                                  : code == 6 ? TITAN_ECONFLICT
                                              : TITAN_EIO;
            d->pid = 0;
            if (file_read(log_path, 64 << 20, &log, NULL) != TITAN_OK || log.len == 0)
                return titan_fail(err, status, "titand ended at its start");
            while (log.len > 0 && log.data[log.len - 1] == '\n')
                log.data[--log.len] = '\0';
            const char *line = strrchr(log.data, '\n');
            line = line ? line + 1 : log.data;
            return titan_fail(err, status, "%s", line);
        }
    }
}

titan_status dev_daemon_start(struct dev_daemon *d, const char *state_dir, const char *device, int64_t slots,
                              struct titan_error *err)
{
    char dir[PATH_MAX], log_path[PATH_MAX + 16], folders[PATH_MAX - 32];
    struct titand_start start = {.device = device, .slots = slots, .parent = getpid()};
    titan_assert(slots >= 0);
    memset(d, 0, sizeof(*d));
    d->pidfd = -1;
    TRY(file_self_dir(dir, sizeof(dir), err));
    (void)snprintf(start.titand, sizeof(start.titand), "%s/titand", dir);
    if (state_dir) {
        TRY(dir_make(state_dir, err));
        if (!realpath(state_dir, d->state_dir))
            return titan_fail_errno(err, "state directory %s", state_dir);
    } else {
        dev_daemon_folders(folders, sizeof(folders));
        (void)snprintf(dir, sizeof(dir), "%s/" DEV_DAEMON_FOLDER "XXXXXX", folders);
        if (!mkdtemp(dir))
            return titan_fail_errno(err, "cannot make the folder %s", dir);
        d->own_dir = true;
        if (!realpath(dir, d->state_dir))
            return titan_fail_errno(err, "%s", dir);
    }
    (void)snprintf(d->server, sizeof(d->server), "unix:%s/titan.sock", d->state_dir);
    (void)snprintf(log_path, sizeof(log_path), "%s/titand.log", d->state_dir);

    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if ((size_t)snprintf(start.notify, sizeof(start.notify), "%s/ready.sock", d->state_dir) >=
        sizeof(address.sun_path)) {
        titan_status status =
            titan_fail(err, TITAN_EINVAL, "state directory %.64s...: too long a path for a socket in it", d->state_dir);
        titan_error_hint(err, "choose a shorter one with --state-dir");
        return status;
    }
    memcpy(address.sun_path, start.notify, strlen(start.notify) + 1);
    (void)unlink(start.notify);
    _cleanup_fd_ int ready = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (ready < 0 || bind(ready, (struct sockaddr *)&address, sizeof(address)) != 0)
        return titan_fail_errno(err, "socket %s", start.notify);

    _cleanup_fd_ int log = open(log_path, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (log < 0)
        return titan_fail_errno(err, "%s", log_path);
    start.log = log;
    d->pid = fork();
    if (d->pid < 0) {
        d->pid = 0;
        return titan_fail_errno(err, "cannot start titand");
    }
    if (d->pid == 0)
        become_titand(d, &start);
    d->pidfd = (int)syscall(SYS_pidfd_open, d->pid, 0);
    if (d->pidfd < 0)
        return titan_fail_errno(err, "cannot watch titand");
    titan_status status = await_ready(d, ready, log_path, err);
    (void)unlink(start.notify);
    return status;
}

/* Does a job's folder have more than logs, metrics and the run file? *ret_any: there are folders of jobs. */
static bool has_products(const char *jobs, bool *ret_any)
{
    static const char *const plain[] = {".", "..", "flight", "logs", "metrics.jsonl", "recipe.toml"};
    bool found = false;
    DIR *all = opendir(jobs);
    *ret_any = false;
    for (const struct dirent *e; all && (e = readdir(all));) {
        char path[PATH_MAX + 512];
        if (e->d_name[0] == '.')
            continue;
        *ret_any = true;
        (void)snprintf(path, sizeof(path), "%s/%s", jobs, e->d_name);
        DIR *job = opendir(path);
        for (const struct dirent *f; job && !found && (f = readdir(job));) {
            found = true;
            for (size_t i = 0; i < ARRAY_SIZE(plain); i++)
                found = found && strcmp(f->d_name, plain[i]) != 0;
        }
        if (job)
            (void)closedir(job);
    }
    if (all)
        (void)closedir(all);
    return found;
}

bool dev_daemon_stop(struct dev_daemon *d, bool keep_jobs)
{
    if (d->pid > 0) {
        struct pollfd gone = {.fd = d->pidfd, .events = POLLIN};
        (void)kill(d->pid, SIGTERM);
        if (d->pidfd < 0 || poll(&gone, 1, STOP_MS) <= 0)
            (void)kill(d->pid, SIGKILL);
        while (waitpid(d->pid, NULL, 0) < 0 && errno == EINTR)
            ;
        d->pid = 0;
    }
    if (d->pidfd >= 0)
        (void)close(d->pidfd);
    d->pidfd = -1;
    if (!d->own_dir)
        return true;

    /* Removes the workers' pages, which a killed titand leaves in memory. */
    char pages[PATH_MAX], link[PATH_MAX + 16];
    (void)snprintf(link, sizeof(link), "%s/run/pages", d->state_dir);
    ssize_t n = readlink(link, pages, sizeof(pages) - 1);
    pages[MAX(n, 0)] = '\0';
    if (strncmp(pages, PAGES_FOLDERS, strlen(PAGES_FOLDERS)) == 0)
        (void)!dir_remove(pages, NULL);
    char jobs[PATH_MAX + 8];
    bool any = false;
    (void)snprintf(jobs, sizeof(jobs), "%s/jobs", d->state_dir);
    const bool stays = has_products(jobs, &any) || (keep_jobs && any);
    DIR *dir = opendir(d->state_dir);
    for (const struct dirent *entry; dir && (entry = readdir(dir));) {
        char path[PATH_MAX + 256];
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0 ||
            (stays && strcmp(entry->d_name, "jobs") == 0))
            continue;
        (void)snprintf(path, sizeof(path), "%s/%s", d->state_dir, entry->d_name);
        if (unlink(path) != 0)
            (void)!dir_remove(path, NULL);
    }
    if (dir)
        (void)closedir(dir);
    if (!stays)
        (void)rmdir(d->state_dir);
    return stays;
}
