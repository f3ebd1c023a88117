/* SPDX-License-Identifier: Apache-2.0 */
/* worker_process.c - start, kill and reap workers; see worker_process.h. */
#include "daemon/agent/shell/worker_process.h"

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
#include "base/flight.h"
#include "base/slice.h"
#include "daemon/agent/shell/worker_cgroup.h"
#include "daemon/common/process_stat.h"

#define ENV_MAX 128
#define OOM_BEFORE_US 500
#define OOM_MOST 1000 /* maximum of oom_score_adj, proc(5) */

extern char **environ;

/* The worker cannot open the agent's files. It gets descriptors of its page, its recorder and the folder of the agent's
 * socket. */
static titan_status start_as_user(const struct worker_command *c, char *env[ENV_MAX], struct worker_process *ret,
                                  struct titan_error *err)
{
    char door[PATH_MAX], flight[PATH_MAX];
    struct spawn_request request = {.kind = SPAWN_START,
                                    .worker_id = c->worker_id,
                                    .job_id = c->job_id,
                                    .uid = c->uid,
                                    .memory = c->limits.memory,
                                    .cpus = c->limits.cpus,
                                    .page = c->page,
                                    .host = c->host,
                                    .ports = c->ports ? c->ports : "",
                                    .directory = c->directory,
                                    .run = c->run};
    for (char **e = env; *e && request.n_env < SPAWN_ENV_MAX; e++)
        if (spawn_env_allowed(*e))
            request.env[request.n_env++] = *e;

    file_parent(c->socket, door);
    flight_path(c->page, flight);
    _cleanup_fd_ int door_fd = open(door, O_PATH | O_DIRECTORY | O_CLOEXEC);
    _cleanup_fd_ int page_fd = open(c->page, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    _cleanup_fd_ int flight_fd = open(flight, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (door_fd < 0 || page_fd < 0)
        return titan_fail_errno(err, "cannot open '%s' and '%s'", door, c->page);
    const struct spawn_fds fds = {
        flight_fd >= 0 ? SPAWN_FDS : SPAWN_FLIGHT,
        {[SPAWN_FOLDER] = c->folder, [SPAWN_DOOR] = door_fd, [SPAWN_PAGE] = page_fd, [SPAWN_FLIGHT] = flight_fd}};
    struct worker_process p = WORKER_PROCESS_NONE;
    p.worker_id = c->worker_id;
    (void)snprintf(p.spawnd, sizeof(p.spawnd), "%s", c->spawnd);
    TRY(spawn_client_start(c->spawnd, &request, &fds, &p.pid, &p.pidfd, err));
    *ret = p;
    return TITAN_OK;
}

/* Starts the worker in a process group of its own, not in a session. Linux gives each session an equal share of the
 * CPUs (autogroup). Many such autogroups on few CPUs delay the agent by a tenth of a second and more. Returns an
 * errno. */
static int spawn(const struct worker_command *c, char *argv[], char *env[ENV_MAX], pid_t *ret)
{
    posix_spawnattr_t attr;
    posix_spawn_file_actions_t files;
    (void)posix_spawnattr_init(&attr);
    (void)posix_spawn_file_actions_init(&files);
    /* The worker's signals are as after a fresh login, but it blocks the signals that stop a node. All processes of a
     * node may get these (scancel, KillMode). The agent then answers them, and ends workers by message or SIGKILL. */
    sigset_t stops, all;
    (void)sigemptyset(&stops);
    (void)sigaddset(&stops, SIGTERM);
    (void)sigaddset(&stops, SIGINT);
    (void)sigaddset(&stops, SIGUSR1); /* under `titanctl run` SIGUSR1 asks for a checkpoint */
    (void)sigfillset(&all);
    (void)sigdelset(&all, SIGKILL);
    (void)sigdelset(&all, SIGSTOP);
    int rc = posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    rc = rc ? rc : posix_spawnattr_setsigmask(&attr, &stops);
    rc = rc ? rc : posix_spawnattr_setsigdefault(&attr, &all);
    rc = rc ? rc : posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    rc = rc ? rc : posix_spawn_file_actions_adddup2(&files, c->log, 1);
    rc = rc ? rc : posix_spawn_file_actions_adddup2(&files, c->log, 2);
    rc = rc ? rc : posix_spawn_file_actions_addfchdir_np(&files, c->folder);
    rc = rc ? rc : posix_spawn_file_actions_addclosefrom_np(&files, 3);
    int64_t slice = slice_get();
    slice_set(0); /* a worker computes */
    rc = rc ? rc : posix_spawn(ret, c->program, &files, &attr, argv, env);
    slice_set(slice);
    (void)posix_spawn_file_actions_destroy(&files);
    (void)posix_spawnattr_destroy(&attr);
    return rc;
}

titan_status worker_process_start(const struct worker_command *c, struct worker_process *ret, struct titan_error *err)
{
    static const char *const allowed[] = {
        "PATH=",  "HOME=", "LANG=", "LC_",   "TZ=",           "TMPDIR=",        "LD_LIBRARY_PATH=", "OMP_",
        "TITAN_", "NCCL_", "DNNL_", "CUDA_", "ASAN_OPTIONS=", "UBSAN_OPTIONS=", "LSAN_OPTIONS="};
    char job[24], worker[24], cuda[160];
    titan_assert((c->log > 2 || c->spawnd) && c->folder > 2); /* 0 to 2 are set up for the worker */
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

    /* env points into this process's environment and to cuda. CUDA and NVML must number GPUs alike. */
    char *env[ENV_MAX];
    int n = 0;
    for (char **e = environ; *e && n < ENV_MAX - 3; e++) {
        bool passes = false;
        for (size_t i = 0; i < ARRAY_SIZE(allowed); i++)
            passes |= !strncmp(*e, allowed[i], strlen(allowed[i]));
        if (passes && !(c->cuda_devices && !strncmp(*e, "CUDA_VISIBLE_DEVICES=", 21)))
            env[n++] = *e;
    }
    if (c->cuda_devices)
        env[n++] = cuda;
    if (c->cuda_devices && !getenv("CUDA_DEVICE_ORDER"))
        env[n++] = (char *)"CUDA_DEVICE_ORDER=PCI_BUS_ID";
    env[n] = NULL;
    if (c->spawnd)
        return start_as_user(c, env, ret, err);

    struct worker_process p = WORKER_PROCESS_NONE;
    p.child = true;
    TRY(worker_cgroup_make(c->worker_id, &c->limits, p.cgroup, err));
    errno = spawn(c, argv, env, &p.pid);
    if (errno) {
        titan_status status = titan_fail_errno(err, "cannot start '%s' in '%s'", c->program, c->directory);
        p.pid = 0;
        worker_process_clear(&p);
        return status;
    }
    p.pidfd = pidfd_open(p.pid, 0);
    if (p.pidfd < 0) {
        titan_status status = titan_fail_errno(err, "cannot watch process %d", (int)p.pid);
        (void)kill(-p.pid, SIGKILL);
        (void)waitpid(p.pid, NULL, 0);
        worker_process_clear(&p);
        return status;
    }
    (void)fcntl(p.pidfd, F_SETFD, FD_CLOEXEC);
    titan_assert(p.pid > 1);
    if (p.cgroup[0] && !worker_cgroup_enter(p.cgroup, p.pid)) {
        titan_status status = titan_fail_errno(err, "cannot move worker into cgroup '%s'", p.cgroup);
        if (c->limits.memory || c->limits.cpus) {
            worker_process_undo(&p);
            return status;
        }
        (void)rmdir(p.cgroup);
        p.cgroup[0] = '\0';
    }

    /* When memory runs out, the kernel must kill a worker rather than its agent. The worker inherits the agent's score,
     * so the kernel could take either. Raising the worker's score needs no privilege. */
    struct buf own = BUF_INIT;
    char score_path[48], score[24];
    if (file_read("/proc/self/oom_score_adj", 64, &own, NULL) == TITAN_OK && own.data) {
        const long raised = strtol(own.data, NULL, 10) + OOM_BEFORE_US;
        (void)snprintf(score_path, sizeof(score_path), "/proc/%d/oom_score_adj", (int)p.pid);
        (void)snprintf(score, sizeof(score), "%ld", raised < OOM_MOST ? raised : OOM_MOST);
        _cleanup_fd_ int fd = open(score_path, O_WRONLY | O_CLOEXEC);
        (void)!write(fd, score, strlen(score));
    }
    buf_free(&own);

    *ret = p;
    return TITAN_OK;
}

titan_status worker_process_adopt(const struct worker_found *w, struct worker_process *ret, struct titan_error *err)
{
    struct worker_process p = WORKER_PROCESS_NONE;
    p.pid = w->pid;
    p.worker_id = w->worker_id;
    if (w->pid <= 1 || (p.pidfd = pidfd_open(w->pid, 0)) < 0)
        return titan_fail(err, TITAN_ENOTFOUND, "process %d is gone", (int)w->pid);

    /* By now the pid may belong to another process. The worker's command line names its page. It is read after the
     * descriptor was opened, so both are of the same process. */
    char path[64];
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    bool is_worker = false;
    (void)snprintf(path, sizeof(path), "/proc/%d/cmdline", (int)w->pid);
    if (file_read(path, 65536, &text, NULL) == TITAN_OK)
        for (size_t i = 0; i < text.len && !is_worker; i += strlen(text.data + i) + 1)
            is_worker = !strcmp(text.data + i, w->page);
    if (!is_worker) {
        (void)close(p.pidfd);
        return titan_fail(err, TITAN_ENOTFOUND, "process %d is not the worker of '%s'", (int)w->pid, w->page);
    }

    /* A worker of another user can write any pid and job into its page, so titan-spawnd is asked. While titan-spawnd
     * does not answer, the agent believes the page; the coordinator knows the worker's job. */
    if (pidfd_send_signal(p.pidfd, 0, NULL, 0) != 0 && errno == EPERM) {
        struct spawn_reply reply;
        (void)snprintf(p.spawnd, sizeof(p.spawnd), "%s", w->spawnd);
        if (!w->spawnd[0] ||
            (spawn_client_ask(w->spawnd, SPAWN_LOOP_MS, w->worker_id, false, &reply, NULL) == TITAN_OK &&
             (reply.state == SPAWN_UNKNOWN || reply.pid != w->pid || reply.job_id != w->job_id))) {
            (void)close(p.pidfd);
            return titan_fail(err, TITAN_ENOTFOUND,
                              "process %d is another user's, and not titan-spawnd's for worker %" PRIu64
                              " of job %" PRIu64,
                              (int)w->pid, w->worker_id, w->job_id);
        }
    }
    (void)fcntl(p.pidfd, F_SETFD, FD_CLOEXEC);
    if (!p.spawnd[0])
        worker_cgroup_find(w->worker_id, p.cgroup);
    *ret = p;
    return TITAN_OK;
}

bool worker_process_kill(const struct worker_process *p)
{
    if (p->pid <= 1)
        return true;
    if (p->spawnd[0])
        return spawn_client_signal(p->spawnd, p->worker_id, SIGKILL, NULL) == TITAN_OK;
    if (p->cgroup[0])
        worker_cgroup_kill(p->cgroup);
    (void)kill(-p->pid, SIGKILL);
    return true;
}

int worker_process_stat(const struct worker_process *p)
{
    char path[64];
    (void)snprintf(path, sizeof(path), "/proc/%d/stat", (int)p->pid);
    return open(path, O_RDONLY | O_CLOEXEC);
}

/* "PID (NAME) STATE ppid ..."; NAME may contain anything. User and system time are fields 14 and 15, resident pages
 * field 24 (proc(5)). */
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

static bool end_of(const struct spawn_reply *reply, struct worker_end *ret)
{
    const bool known = reply->state >= SPAWN_ENDING && (reply->code >= 0 || reply->signal > 0);
    if (known)
        *ret = (struct worker_end){.code = reply->code,
                                   .signal = reply->signal,
                                   .oom_kills = reply->oom_kills,
                                   .limit = reply->limit,
                                   .peak = reply->peak};
    return known;
}

/* Gets the status of a dead child. how: WNOWAIT leaves the child unreaped. */
static bool wait_status(const struct worker_process *p, int how, struct worker_end *ret)
{
    siginfo_t info = {0};
    if (!p->child || p->pid <= 1 || waitid(P_PIDFD, (id_t)p->pidfd, &info, WEXITED | WNOHANG | how) != 0 ||
        info.si_pid != p->pid)
        return false;
    ret->code = info.si_code == CLD_EXITED ? info.si_status : -1;
    ret->signal = info.si_code == CLD_EXITED ? 0 : info.si_status;
    return true;
}

bool worker_process_ending(const struct worker_process *p, struct worker_end *ret)
{
    struct spawn_reply reply;
    struct process_stat stat;
    if (p->spawnd[0])
        return spawn_client_ask(p->spawnd, SPAWN_LOOP_MS, p->worker_id, false, &reply, NULL) == TITAN_OK &&
               end_of(&reply, ret);
    return wait_status(p, WNOWAIT, ret) ||
           (process_stat_read(p->pid, &stat) && process_stat_ending(&stat, &ret->code, &ret->signal));
}

bool worker_process_departed(const char *spawnd, uint64_t worker_id, struct worker_end *ret)
{
    struct spawn_reply reply;
    return spawn_client_ask(spawnd, SPAWN_WAIT_MS, worker_id, false, &reply, NULL) == TITAN_OK && end_of(&reply, ret);
}

titan_status worker_process_reap(struct worker_process *p, struct worker_end *ret)
{
    struct pollfd poll_fd = {.fd = p->pidfd, .events = POLLIN};
    struct spawn_reply reply;
    if (p->pidfd < 0 || poll(&poll_fd, 1, 0) != 1)
        return TITAN_EAGAIN;
    titan_assert(p->pid > 1);
    *ret = (struct worker_end){.code = -1};
    if (p->spawnd[0]) {
        if (spawn_client_ask(p->spawnd, SPAWN_LOOP_MS, p->worker_id, true, &reply, NULL) == TITAN_OK)
            (void)end_of(&reply, ret);
        p->pid = 0;
        return TITAN_OK;
    }
    /* The pid is not reused before the reap, so the group still belongs to the worker. */
    (void)worker_process_kill(p);
    (void)wait_status(p, 0, ret);
    p->pid = 0;
    return TITAN_OK;
}

void worker_process_undo(struct worker_process *p)
{
    (void)worker_process_kill(p);
    if (p->pidfd >= 0)
        (void)waitid(P_PIDFD, (id_t)p->pidfd, &(siginfo_t){0}, WEXITED);
    worker_process_clear(p);
}

void worker_process_sweep(uint64_t worker_id)
{
    char cgroup[PATH_MAX];
    worker_cgroup_find(worker_id, cgroup);
    if (!cgroup[0])
        return;
    worker_cgroup_kill(cgroup);
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
