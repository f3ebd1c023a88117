/* SPDX-License-Identifier: Apache-2.0 */
/* worker_process.c - start, kill and reap workers; see worker_process.h. */
#include "daemon/agent/worker_process.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/slice.h"

#define ENV_MAX 128
#define OOM_BEFORE_US 500
#define OOM_MOST 1000 /* proc(5) */

extern char **environ;

static bool env_allowed(const char *entry)
{
    static const char *const allowed[] = {
        "PATH=",  "HOME=", "LANG=", "LC_",   "TZ=",           "TMPDIR=",        "LD_LIBRARY_PATH=", "OMP_",
        "TITAN_", "NCCL_", "DNNL_", "CUDA_", "ASAN_OPTIONS=", "UBSAN_OPTIONS=", "LSAN_OPTIONS="};
    for (size_t i = 0; i < ARRAY_SIZE(allowed); i++)
        if (!strncmp(entry, allowed[i], strlen(allowed[i])))
            return true;
    return false;
}

/* Pointers into environ and extra; the array is the caller's. A GPU's number is to mean the same to CUDA and NVML. */
static void env_build(char *out[ENV_MAX], char *cuda_devices)
{
    int n = 0;
    for (char **e = environ; *e && n < ENV_MAX - 3; e++)
        if (env_allowed(*e) && !(cuda_devices && !strncmp(*e, "CUDA_VISIBLE_DEVICES=", 21)))
            out[n++] = *e;
    if (cuda_devices)
        out[n++] = cuda_devices;
    if (cuda_devices && !getenv("CUDA_DEVICE_ORDER"))
        out[n++] = (char *)"CUDA_DEVICE_ORDER=PCI_BUS_ID";
    out[n] = NULL;
}

bool worker_process_home(char out[PATH_MAX])
{
    struct buf text = BUF_INIT;
    bool found = false;
    if (file_read("/proc/self/cgroup", 65536, &text, NULL) == TITAN_OK && text.data) {
        const char *line = !strncmp(text.data, "0::", 3) ? text.data : strstr(text.data, "\n0::");
        line = line && *line == '\n' ? line + 1 : line;
        static const char *const mounts[] = {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"};
        for (size_t i = 0; line && !found && i < ARRAY_SIZE(mounts); i++) {
            int len = (int)strcspn(line + 3, "\n");
            char kill[PATH_MAX];
            (void)snprintf(out, PATH_MAX, "%s%.*s", mounts[i], len, line + 3);
            /* cgroup.kill is what we want those inside for (Linux 5.14); absent in the root and in v1 hierarchies. Ours
             * need not be writable: of a unit with Delegate= it is root's, and only what is made inside is the user's.
             */
            found = snprintf(kill, sizeof(kill), "%s/cgroup.kill", out) < (int)sizeof(kill) && !access(kill, F_OK);
        }
    }
    buf_free(&text);
    if (!found)
        out[0] = '\0';
    return found;
}

static bool write_text(const char *folder, const char *name, const char *text)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof(path), "%s/%s", folder, name) >= (int)sizeof(path))
        return false;
    _cleanup_fd_ int fd = open(path, O_WRONLY | O_CLOEXEC);
    return fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
}

static void cgroup_name(uint64_t worker_id, char out[PATH_MAX])
{
    char self[PATH_MAX];
    if (!worker_process_home(self) || snprintf(out, PATH_MAX, "%s/titan-worker-%" PRIu64, self, worker_id) >= PATH_MAX)
        out[0] = '\0';
}

/* Best effort: without it the process group alone holds the worker together. */
static void cgroup_enter(struct worker_process *p, uint64_t worker_id)
{
    char pid[32];
    cgroup_name(worker_id, p->cgroup);
    if (!p->cgroup[0])
        return;
    (void)snprintf(pid, sizeof(pid), "%d", (int)p->pid);
    if ((mkdir(p->cgroup, 0755) < 0 && errno != EEXIST) || !write_text(p->cgroup, "cgroup.procs", pid)) {
        (void)rmdir(p->cgroup);
        p->cgroup[0] = '\0';
    }
}

/* When memory ends the kernel is to take a worker, not its agent, which the worker would be as likely as without this:
 * a score is inherited. To raise one needs no privilege. */
static void oom_before_us(pid_t pid)
{
    struct buf own = BUF_INIT;
    char folder[32], score[24];
    if (file_read("/proc/self/oom_score_adj", 64, &own, NULL) == TITAN_OK && own.data) {
        const long raised = strtol(own.data, NULL, 10) + OOM_BEFORE_US;
        (void)snprintf(folder, sizeof(folder), "/proc/%d", (int)pid);
        (void)snprintf(score, sizeof(score), "%ld", raised < OOM_MOST ? raised : OOM_MOST);
        (void)write_text(folder, "oom_score_adj", score);
    }
    buf_free(&own);
}

/* A process group and not a session: Linux gives each session an equal share of the CPUs (autogroup), and that many
 * groups on few CPUs keep the agent waiting for a tenth of a second and more. */
static int spawn_attributes(posix_spawnattr_t *attr)
{
    /* Signals as after a fresh login, but for those that stop a node: where all of its processes get them (scancel,
     * KillMode) they are the agent's to answer, which ends a worker by message or SIGKILL. */
    sigset_t stops, all;
    (void)sigemptyset(&stops);
    (void)sigaddset(&stops, SIGTERM);
    (void)sigaddset(&stops, SIGINT);
    (void)sigfillset(&all);
    (void)sigdelset(&all, SIGKILL);
    (void)sigdelset(&all, SIGSTOP);
    int rc = posix_spawnattr_setflags(attr, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    rc = rc ? rc : posix_spawnattr_setsigmask(attr, &stops);
    return rc ? rc : posix_spawnattr_setsigdefault(attr, &all);
}

static int spawn_files(posix_spawn_file_actions_t *files, const struct worker_command *c)
{
    int rc = posix_spawn_file_actions_addopen(files, 0, "/dev/null", O_RDONLY, 0);
    rc = rc ? rc : posix_spawn_file_actions_adddup2(files, c->log, 1);
    rc = rc ? rc : posix_spawn_file_actions_adddup2(files, c->log, 2);
    rc = rc ? rc : posix_spawn_file_actions_addfchdir_np(files, c->folder);
    return rc ? rc : posix_spawn_file_actions_addclosefrom_np(files, 3);
}

titan_status worker_process_start(const struct worker_command *c, struct worker_process *ret, struct titan_error *err)
{
    char job[24], worker[24], cuda[160];
    titan_assert(c->program && c->directory && c->socket && c->page && c->log > 2 && c->folder > 2);
    (void)snprintf(job, sizeof(job), "%" PRIu64, c->job_id);
    (void)snprintf(worker, sizeof(worker), "%" PRIu64, c->worker_id);
    if (c->cuda_devices)
        (void)snprintf(cuda, sizeof(cuda), "CUDA_VISIBLE_DEVICES=%s", c->cuda_devices);
    char *argv[] = {(char *)c->program,
                    "serve",
                    "--socket",
                    (char *)c->socket,
                    "--page",
                    (char *)c->page,
                    "--job",
                    job,
                    "--worker",
                    worker,
                    "--host",
                    (char *)c->host,
                    "--dir",
                    (char *)c->directory,
                    "--run",
                    (char *)c->run,
                    c->ports ? "--ports" : NULL,
                    (char *)c->ports,
                    NULL};
    char *env[ENV_MAX];
    env_build(env, c->cuda_devices ? cuda : NULL);

    posix_spawnattr_t attr;
    posix_spawn_file_actions_t files;
    (void)posix_spawnattr_init(&attr);
    (void)posix_spawn_file_actions_init(&files);
    struct worker_process p = WORKER_PROCESS_NONE;
    p.child = true;
    int rc = spawn_attributes(&attr);
    rc = rc ? rc : spawn_files(&files, c);
    int64_t slice = slice_get();
    slice_set(0); /* a worker computes */
    rc = rc ? rc : posix_spawn(&p.pid, c->program, &files, &attr, argv, env);
    slice_set(slice);
    (void)posix_spawn_file_actions_destroy(&files);
    (void)posix_spawnattr_destroy(&attr);
    if (rc) {
        errno = rc;
        return titan_fail_errno(err, "cannot start '%s' in '%s'", c->program, c->directory);
    }
    p.pidfd = pidfd_open(p.pid, 0);
    if (p.pidfd < 0) {
        titan_status status = titan_fail_errno(err, "cannot watch process %d", (int)p.pid);
        (void)kill(-p.pid, SIGKILL);
        (void)waitpid(p.pid, NULL, 0);
        return status;
    }
    (void)fcntl(p.pidfd, F_SETFD, FD_CLOEXEC);
    titan_assert(p.pid > 1);
    cgroup_enter(&p, c->worker_id);
    oom_before_us(p.pid);
    *ret = p;
    return TITAN_OK;
}

/* A pid may have been given to another process since: the worker's command line names its page. */
static bool is_worker(pid_t pid, const char *page)
{
    char path[64];
    (void)snprintf(path, sizeof(path), "/proc/%d/cmdline", (int)pid);
    struct buf text = BUF_INIT;
    bool found = false;
    if (file_read(path, 65536, &text, NULL) == TITAN_OK)
        for (size_t i = 0; i < text.len && !found; i += strlen(text.data + i) + 1)
            found = !strcmp(text.data + i, page);
    buf_free(&text);
    return found;
}

titan_status worker_process_adopt(pid_t pid, const char *page, uint64_t worker_id, struct worker_process *ret,
                                  struct titan_error *err)
{
    struct worker_process p = WORKER_PROCESS_NONE;
    p.pid = pid;
    if (pid <= 1 || (p.pidfd = pidfd_open(pid, 0)) < 0)
        return titan_fail(err, TITAN_ENOTFOUND, "process %d is gone", (int)pid);
    /* Looked at after the descriptor was opened: both speak of the same process. */
    if (!is_worker(pid, page)) {
        (void)close(p.pidfd);
        return titan_fail(err, TITAN_ENOTFOUND, "process %d is not the worker of '%s'", (int)pid, page);
    }
    (void)fcntl(p.pidfd, F_SETFD, FD_CLOEXEC);
    cgroup_name(worker_id, p.cgroup);
    if (p.cgroup[0] && access(p.cgroup, F_OK) < 0)
        p.cgroup[0] = '\0';
    *ret = p;
    return TITAN_OK;
}

void worker_process_kill(const struct worker_process *p)
{
    if (p->pid <= 1)
        return;
    if (p->cgroup[0])
        (void)write_text(p->cgroup, "cgroup.kill", "1");
    (void)kill(-p->pid, SIGKILL);
}

int worker_process_stat(const struct worker_process *p)
{
    char path[64];
    (void)snprintf(path, sizeof(path), "/proc/%d/stat", (int)p->pid);
    return open(path, O_RDONLY | O_CLOEXEC);
}

/* "PID (NAME) STATE ppid ...", where NAME may hold anything; user and system time are the 14th and 15th field, resident
 * pages the 24th (proc(5)). */
char worker_process_state(int stat_fd, uint64_t *ret_rss, uint64_t *ret_cpu_ms)
{
    char text[1024];
    ssize_t n = stat_fd >= 0 ? pread(stat_fd, text, sizeof(text) - 1, 0) : -1;
    text[n > 0 ? n : 0] = '\0';
    const char *at = strrchr(text, ')');
    if (!at || at[1] != ' ')
        return 0;
    at += 2;
    char state = *at;
    uint64_t ticks = 0;
    for (int field = 3; field < 24 && at; field++) {
        if (field == 14 || field == 15)
            ticks += strtoull(at, NULL, 10);
        at = (at = strchr(at, ' ')) ? at + 1 : NULL;
    }
    long pages = at ? strtol(at, NULL, 10) : 0;
    *ret_rss = pages > 0 ? (uint64_t)pages * (uint64_t)sysconf(_SC_PAGESIZE) : 0;
    *ret_cpu_ms = ticks * 1000 / (uint64_t)sysconf(_SC_CLK_TCK);
    return state;
}

bool worker_process_runnable(const struct worker_process *p)
{
    char path[64], text[512];
    (void)snprintf(path, sizeof(path), "/proc/%d/task", (int)p->pid);
    DIR *dir = p->pid > 1 ? opendir(path) : NULL;
    bool found = false;
    for (struct dirent *e; dir && !found && (e = readdir(dir));) {
        (void)snprintf(path, sizeof(path), "/proc/%d/task/%.20s/stat", (int)p->pid, e->d_name);
        _cleanup_fd_ int fd = e->d_name[0] == '.' ? -1 : open(path, O_RDONLY | O_CLOEXEC);
        const ssize_t n = fd >= 0 ? read(fd, text, sizeof(text) - 1) : -1;
        text[n > 0 ? n : 0] = '\0';
        const char *at = strrchr(text, ')');
        found = at && at[1] == ' ' && at[2] == 'R';
    }
    if (dir)
        (void)closedir(dir);
    return found;
}

/* The last field of its stat is the status that wait() will give, set as soon as the process begins to end (proc(5)).
 */
bool worker_process_ending(const struct worker_process *p, int *ret_code, int *ret_signal)
{
    char text[1024];
    int fd = worker_process_stat(p);
    ssize_t n = fd >= 0 ? read(fd, text, sizeof(text) - 1) : -1;
    if (fd >= 0)
        (void)close(fd);
    text[n > 0 ? n : 0] = '\0';
    const char *name_end = strrchr(text, ')'), *last = strrchr(text, ' ');
    if (!name_end || name_end[1] != ' ' || !last)
        return false;
    int status = atoi(last);
    if (status == 0 && name_end[2] != 'Z')
        return false;
    *ret_code = WIFSIGNALED(status) ? -1 : WEXITSTATUS(status);
    *ret_signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    return true;
}

titan_status worker_process_reap(struct worker_process *p, int *ret_code, int *ret_signal)
{
    struct pollfd poll_fd = {.fd = p->pidfd, .events = POLLIN};
    if (p->pidfd < 0 || poll(&poll_fd, 1, 0) != 1)
        return TITAN_EAGAIN;
    /* Its pid is not free before it is reaped, so the group still is its own. */
    worker_process_kill(p);
    siginfo_t info = {0};
    titan_assert(p->pid > 1);
    int code = -1, signal = 0;
    if (p->child && waitid(P_PIDFD, (id_t)p->pidfd, &info, WEXITED | WNOHANG) == 0 && info.si_pid == p->pid) {
        code = info.si_code == CLD_EXITED ? info.si_status : -1;
        signal = info.si_code == CLD_EXITED ? 0 : info.si_status;
    }
    p->pid = 0;
    if (ret_code)
        *ret_code = code;
    if (ret_signal)
        *ret_signal = signal;
    return TITAN_OK;
}

void worker_process_undo(struct worker_process *p)
{
    worker_process_kill(p);
    if (p->pidfd >= 0)
        (void)waitid(P_PIDFD, (id_t)p->pidfd, &(siginfo_t){0}, WEXITED);
    worker_process_clear(p);
}

void worker_process_sweep(uint64_t worker_id)
{
    char cgroup[PATH_MAX];
    cgroup_name(worker_id, cgroup);
    if (!cgroup[0] || access(cgroup, F_OK) < 0)
        return;
    (void)write_text(cgroup, "cgroup.kill", "1");
    (void)rmdir(cgroup);
}

void worker_process_clear(struct worker_process *p)
{
    if (p->pidfd >= 0)
        (void)close(p->pidfd);
    if (p->cgroup[0])
        (void)rmdir(p->cgroup);
    *p = WORKER_PROCESS_NONE;
}
