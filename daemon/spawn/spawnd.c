/* SPDX-License-Identifier: Apache-2.0 */
/* spawnd.c - titan-spawnd: starts workers as the users of their jobs, and is their parent; docs/man/titan-spawnd.8.
 *
 * It has one thread, which waits only for its events. Everything slow (a name service, a folder on a file server) is
 * done by the child that becomes the worker. titan-spawnd knows a worker from its start until the agent has asked how
 * it ended and lets it be forgotten. A file for each worker in the state folder has what titan-spawnd needs after a
 * restart. The new titan-spawnd watches the worker too, but is not its parent. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <inttypes.h>
#include <linux/sched.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/log.h"
#include "base/notify.h"
#include "base/options.h"
#include "base/standard_streams.h"
#include "base/version.h"
#include "daemon/common/cgroup.h"
#include "daemon/common/process_stat.h"
#include "daemon/spawn/spawn_child.h"
#include "daemon/spawn/spawn_frames.h"
#include "daemon/spawn/spawn_scope.h"

#define DEFAULT_SOCKET "/run/titan-spawnd/spawnd.sock"
#define DEFAULT_STATE "/run/titan-spawnd"
#define UID_MIN 1000
#define CONNECTIONS_MAX 64
#define WORKERS_MAX 4096 /* includes ended workers whose end no agent has asked for; the oldest of these goes first */
#define RECORD_BYTES 256
#define SWEEP_MS 100
#define CGROUP_AUTO "auto"

struct source {
    enum { SOURCE_LISTENER, SOURCE_CONNECTION, SOURCE_REPORT, SOURCE_PROCESS } kind;
};

struct connection {
    struct source source; /* must be first */
    struct connection *next;
    int fd;
};

struct worker {
    struct source process, report; /* process must be first */
    struct worker *next;
    uint64_t id, job_id;
    uid_t uid;
    pid_t pid;
    uint64_t started;      /* from process_stat.started */
    int pidfd, report_fd;  /* report_fd: reports of the child until it is the worker; -1 = none */
    struct connection *by; /* the connection that asked for the start and gets the answer; NULL = gone */
    bool child, ended;
    int code, signal;
    uint64_t oom_kills, limit, peak;
    char cgroup[PATH_MAX]; /* "" = none */
};

struct spawnd {
    struct spawn_policy policy;
    struct log log;
    int epoll, listener, n_connections, n_workers;
    bool sweeps; /* cgroups of ended workers may be left */
    struct source listening;
    struct connection *connections;
    struct worker *workers;                 /* newest first */
    char state[PATH_MAX], cgroup[PATH_MAX]; /* cgroup: parent of the workers' cgroups; "" = none */
    char no_cgroup[SPAWN_TEXT];             /* why there is no cgroup */
    struct cgroup_holds holds;
};

static bool watch(const struct spawnd *s, int fd, struct source *source)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = source};
    titan_assert(fd >= 0);
    return epoll_ctl(s->epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

/* Removes fd from epoll before closing it, because children that are not yet workers hold copies of fd, and epoll
 * watches the copies too. */
static void forget_fd(const struct spawnd *s, int *fd)
{
    if (*fd < 0)
        return;
    (void)epoll_ctl(s->epoll, EPOLL_CTL_DEL, *fd, NULL);
    (void)close(TAKE_FD(*fd));
}

static struct worker *worker_find(const struct spawnd *s, uint64_t id)
{
    struct worker *w = s->workers;
    while (w && w->id != id)
        w = w->next;
    return w;
}

/* --- a worker's cgroup -------------------------------------------------------------------------------------------- */

/* Limits that workers' cgroups can have now. why: the reason why limits are missing, and the remedy; "" = no limit is
 * missing. */
static struct cgroup_holds cgroup_held(const struct spawnd *s, char why[SPAWN_TEXT])
{
    const struct cgroup_holds none = {.memory = false};
    why[0] = '\0';
    if (!s->cgroup[0]) {
        (void)snprintf(why, SPAWN_TEXT, "titan-spawnd has no cgroup on this node%.220s", s->no_cgroup);
        return none;
    }
    if (access(s->cgroup, F_OK) != 0) {
        (void)snprintf(why, SPAWN_TEXT, "titan-spawnd's cgroup '%.120s' is gone: systemctl restart titan-spawnd",
                       s->cgroup);
        return none;
    }
    if (!s->holds.memory || !s->holds.cpus)
        (void)snprintf(why, SPAWN_TEXT, "titan-spawnd's cgroup '%.120s' has no controller of %s", s->cgroup,
                       s->holds.memory ? "processors"
                       : s->holds.cpus ? "memory"
                                       : "memory and processors");
    return s->holds;
}

static void cgroup_count(struct worker *w)
{
    (void)cgroup_number(w->cgroup, "memory.events", "oom_kill ", &w->oom_kills);
    (void)cgroup_number(w->cgroup, "memory.max", "", &w->limit);
    (void)cgroup_number(w->cgroup, "memory.peak", "", &w->peak);
}

static void cgroup_close(struct spawnd *s, struct worker *w)
{
    if (!w->cgroup[0])
        return;
    s->sweeps = true;
    cgroup_count(w);
    (void)cgroup_write(w->cgroup, "cgroup.kill", "1");
}

/* --- what the next titan-spawnd needs ----------------------------------------------------------------------------- */

static void record_path(const struct spawnd *s, uint64_t id, char out[PATH_MAX])
{
    (void)snprintf(out, PATH_MAX, "%.4000s/w%" PRIu64, s->state, id);
}

static void record_write(const struct spawnd *s, const struct worker *w)
{
    char path[PATH_MAX], text[RECORD_BYTES];
    struct titan_error err = {0};
    record_path(s, w->id, path);
    const int len = snprintf(text, sizeof(text), "titan-spawnd 1 %" PRIu64 " %u %d %" PRIu64 " %d %d %d\n", w->job_id,
                             w->uid, (int)w->pid, w->started, w->ended, w->code, w->signal);
    if (file_replace_private(path, text, (size_t)len, &err) != TITAN_OK)
        tlog_warn(&s->log, "worker not recorded: the next titan-spawnd will not know it",
                  "worker=%" PRIu64 " reason=\"%s\"", w->id, err.msg);
}

static void worker_free(struct spawnd *s, struct worker *w)
{
    char path[PATH_MAX];
    struct worker **at = &s->workers;
    titan_assert(s->n_workers > 0);
    while (*at != w) {
        titan_assert(*at); /* w is in the list */
        at = &(*at)->next;
    }
    *at = w->next;
    s->n_workers--;
    forget_fd(s, &w->pidfd);
    forget_fd(s, &w->report_fd);
    record_path(s, w->id, path);
    (void)unlink(path);
    free(w);
}

static struct worker *worker_new(struct spawnd *s, uint64_t id)
{
    struct worker *oldest = NULL;
    titan_assert(id > 0 && s->n_workers <= WORKERS_MAX);
    for (struct worker *w = s->workers; w; w = w->next)
        oldest = w->ended ? w : oldest;
    if (s->n_workers >= WORKERS_MAX && oldest)
        worker_free(s, oldest);
    struct worker *w = s->n_workers < WORKERS_MAX ? calloc(1, sizeof(*w)) : NULL;
    if (!w)
        return NULL;
    *w = (struct worker){.process = {SOURCE_PROCESS},
                         .report = {SOURCE_REPORT},
                         .next = s->workers,
                         .id = id,
                         .pidfd = -1,
                         .report_fd = -1,
                         .code = -1};
    s->workers = w;
    s->n_workers++;
    return w;
}

/* --- ends --------------------------------------------------------------------------------------------------------- */

/* Signals the worker, its group and its cgroup, if the pid is still the worker's. */
static bool worker_signal(const struct worker *w, int signal)
{
    if (w->ended)
        return false;
    titan_assert(w->pid > 1 && w->pidfd >= 0); /* never signal all processes */
    const bool sent = pidfd_send_signal(w->pidfd, signal, NULL, 0) == 0;
    if (signal == SIGKILL && w->cgroup[0])
        (void)cgroup_write(w->cgroup, "cgroup.kill", "1");
    return kill(-w->pid, signal) == 0 || sent;
}

/* Handles the end of a worker. Its pid stays taken until the reap, so its group is killed first. Another process reaps
 * a worker that is not our child. How such a worker ended is known only if its end was seen. */
static void worker_ended(struct spawnd *s, struct worker *w)
{
    siginfo_t info = {0};
    struct process_stat stat;
    titan_assert(!w->ended && w->pid > 1);
    (void)epoll_ctl(s->epoll, EPOLL_CTL_DEL, w->pidfd, NULL);
    if (w->child) {
        (void)kill(-w->pid, SIGKILL);
        if (waitid(P_PIDFD, (id_t)w->pidfd, &info, WEXITED | WNOHANG) == 0 && info.si_pid == w->pid) {
            w->code = info.si_code == CLD_EXITED ? info.si_status : -1;
            w->signal = info.si_code == CLD_EXITED ? 0 : info.si_status;
        }
    } else if (process_stat_read(w->pid, &stat) && stat.started == w->started) {
        (void)process_stat_ending(&stat, &w->code, &w->signal);
    }
    cgroup_close(s, w);
    w->ended = true;
    record_write(s, w);
    tlog_info(&s->log, "worker ended", "job=%" PRIu64 " worker=%" PRIu64 " pid=%d code=%d signal=%d", w->job_id, w->id,
              (int)w->pid, w->code, w->signal);
}

/* --- answers ------------------------------------------------------------------------------------------------------ */

static void connection_close(struct spawnd *s, struct connection *c)
{
    struct connection **at = &s->connections;
    titan_assert(s->n_connections > 0);
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    s->n_connections--;
    for (struct worker *w = s->workers; w; w = w->next)
        if (w->by == c) { /* no agent would know that the worker runs */
            w->by = NULL;
            (void)worker_signal(w, SIGKILL);
        }
    forget_fd(s, &c->fd);
    free(c);
}

static struct spawn_reply reply_of(uint32_t kind, uint64_t worker_id)
{
    titan_assert(kind >= SPAWN_STARTED && kind <= SPAWN_HELD);
    return (struct spawn_reply){.version = SPAWN_VERSION, .kind = kind, .worker_id = worker_id, .code = -1};
}

static void answer(struct spawnd *s, struct connection *c, const struct spawn_reply *reply, int fd)
{
    struct titan_error err = {0};
    const struct spawn_fds fds = {fd >= 0, {fd}};
    if (spawn_send(c->fd, reply, sizeof(*reply), &fds, &err) == TITAN_OK)
        return;
    tlog_warn(&s->log, "answer lost", "reason=\"%s\"", err.msg);
    connection_close(s, c);
}

static void refuse(struct spawnd *s, struct connection *c, uint64_t worker_id, titan_status status, const char *why)
{
    struct spawn_reply reply = reply_of(SPAWN_REFUSED, worker_id);
    reply.code = status;
    (void)snprintf(reply.text, sizeof(reply.text), "%s", why);
    tlog_warn(&s->log, "refused", "worker=%" PRIu64 " reason=\"%s\"", worker_id, why);
    answer(s, c, &reply, -1);
}

/* --- starts ------------------------------------------------------------------------------------------------------- */

/* Forks a child into the worker's cgroup, with a pidfd. With clone3() the child is never in another cgroup. */
static pid_t fork_into(const char *cgroup, int *ret_pidfd)
{
    _cleanup_fd_ int folder = cgroup[0] ? open(cgroup, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    struct clone_args how = {.flags = CLONE_PIDFD | (folder >= 0 ? CLONE_INTO_CGROUP : 0),
                             .pidfd = (uint64_t)(uintptr_t)ret_pidfd,
                             .exit_signal = SIGCHLD,
                             .cgroup = (uint64_t)(folder >= 0 ? folder : 0)};
    pid_t pid = (pid_t)syscall(SYS_clone3, &how, sizeof(how));
    if (pid >= 0 || errno != ENOSYS) /* ENOSYS comes from a filter of namespaces (RestrictNamespaces=) */
        return pid;
    pid = fork();
    if (pid <= 0)
        return pid;
    char text[24];
    (void)snprintf(text, sizeof(text), "%d", (int)pid);
    if ((cgroup[0] && !cgroup_write(cgroup, "cgroup.procs", text)) || (*ret_pidfd = pidfd_open(pid, 0)) < 0) {
        const int failed = errno;
        (void)kill(pid, SIGKILL);
        (void)waitpid(pid, NULL, 0);
        errno = failed;
        return -1;
    }
    (void)fcntl(*ret_pidfd, F_SETFD, FD_CLOEXEC);
    return pid;
}

static titan_status start(struct spawnd *s, struct connection *c, const struct spawn_request *r,
                          const struct spawn_fds *fds, struct titan_error *err)
{
    int report[2];
    struct process_stat stat = {0};
    titan_assert(r->kind == SPAWN_START && fds->n <= SPAWN_FDS);
    TRY(spawn_policy_check(&s->policy, r, err));
    if (worker_find(s, r->worker_id))
        return titan_fail(err, TITAN_EEXIST, "worker %" PRIu64 " is there already", r->worker_id);
    struct worker *w = worker_new(s, r->worker_id);
    if (!w)
        return titan_fail(err, TITAN_ELIMIT, "%d workers at a time", WORKERS_MAX);
    w->job_id = r->job_id;
    w->uid = r->uid;
    char why[SPAWN_TEXT];
    const struct cgroup_limits limits = {.memory = r->memory, .cpus = r->cpus};
    const bool limited = r->memory || r->cpus;
    const struct cgroup_holds held = cgroup_held(s, why);
    titan_status status = TITAN_OK;
    if ((r->memory && !held.memory) || (r->cpus && !held.cpus)) {
        status = titan_fail(err, TITAN_EINVAL, "the job limits its %s: %s", r->memory ? "memory" : "processors", why);
    } else if (s->cgroup[0]) {
        (void)snprintf(w->cgroup, sizeof(w->cgroup), "%.4000s/" CGROUP_WORKER "%" PRIu64, s->cgroup, w->id);
        if (mkdir(w->cgroup, 0755) == 0 || errno == EEXIST) {
            status = cgroup_limit(w->cgroup, &limits, err);
        } else {
            status = titan_fail_errno(err, "cannot make cgroup '%s'", w->cgroup);
            status = limited ? status : TITAN_OK;
            w->cgroup[0] = '\0';
        }
    }
    if (status == TITAN_OK && pipe2(report, O_CLOEXEC) != 0)
        status = titan_fail_errno(err, "cannot make a pipe");
    if (status != TITAN_OK) {
        worker_free(s, w);
        return status;
    }
    w->pid = fork_into(w->cgroup, &w->pidfd);
    if (w->pid == 0)
        spawn_child_run(&s->policy, r, fds, report[1]);
    const int failed = errno;
    (void)close(report[1]);
    w->report_fd = report[0];
    w->child = w->pid > 0;
    if (!w->child || !watch(s, w->pidfd, &w->process) || !watch(s, w->report_fd, &w->report)) {
        if (w->child) {
            (void)worker_signal(w, SIGKILL);
            (void)waitid(P_PIDFD, (id_t)w->pidfd, &(siginfo_t){0}, WEXITED);
        }
        w->pidfd = w->child ? w->pidfd : -1;
        errno = failed;
        status = titan_fail_errno(err, "cannot start a process");
        worker_free(s, w);
        return status;
    }
    w->by = c;
    w->started = process_stat_read(w->pid, &stat) ? stat.started : 0;
    return TITAN_OK;
}

/* --- requests ----------------------------------------------------------------------------------------------------- */

static void on_connection(struct spawnd *s, struct connection *c)
{
    static char data[SPAWN_FRAME_MAX];
    struct titan_error err = {0};
    struct spawn_request r;
    struct spawn_fds fds;
    size_t len;
    if (spawn_receive(c->fd, data, sizeof(data), &len, &fds, &err) != TITAN_OK) {
        connection_close(s, c);
        return;
    }
    titan_status status = spawn_request_parse(data, len, fds.n, &r, &err);
    if (status == TITAN_OK && r.kind == SPAWN_START)
        status = start(s, c, &r, &fds, &err);
    while (fds.n > 0)
        (void)close(fds.fd[--fds.n]);
    struct worker *w = worker_find(s, r.worker_id);
    if (status != TITAN_OK) {
        refuse(s, c, r.worker_id, status, err.msg);
    } else if (r.kind == SPAWN_ASK) {
        struct spawn_reply reply = reply_of(SPAWN_END, r.worker_id);
        struct process_stat stat;
        if (w && !w->ended && poll(&(struct pollfd){.fd = w->pidfd, .events = POLLIN}, 1, 0) == 1)
            worker_ended(s, w);
        if (w) {
            reply.job_id = w->job_id;
            reply.uid = w->uid;
            reply.pid = w->pid;
            reply.code = w->code;
            reply.signal = w->signal;
            reply.state = w->ended ? SPAWN_ENDED : SPAWN_RUNNING;
            if (!w->ended && process_stat_read(w->pid, &stat) && stat.started == w->started &&
                process_stat_ending(&stat, &reply.code, &reply.signal))
                reply.state = SPAWN_ENDING;
            if (reply.state == SPAWN_ENDING && w->cgroup[0])
                cgroup_count(w);
            reply.oom_kills = w->oom_kills;
            reply.limit = w->limit;
            reply.peak = w->peak;
            if (w->ended && r.forget)
                worker_free(s, w);
        }
        answer(s, c, &reply, -1);
    } else if (r.kind == SPAWN_LIMITS) {
        struct spawn_reply reply = reply_of(SPAWN_HELD, 0);
        const struct cgroup_holds held = cgroup_held(s, reply.text);
        reply.held = (held.memory ? SPAWN_HELD_MEMORY : 0) | (held.cpus ? SPAWN_HELD_CPUS : 0);
        answer(s, c, &reply, -1);
    } else if (r.kind == SPAWN_SIGNAL) {
        const struct spawn_reply reply = reply_of(SPAWN_DONE, r.worker_id);
        if (w)
            (void)worker_signal(w, r.signal);
        if (w)
            answer(s, c, &reply, -1);
        else
            refuse(s, c, r.worker_id, TITAN_ENOTFOUND, "no such worker");
    }
}

/* --- begin and go on ---------------------------------------------------------------------------------------------- */

/* Adopts the workers of an earlier titan-spawnd: each runs and is watched, or is gone. */
static titan_status adopt_all(struct spawnd *s, struct titan_error *err)
{
    DIR *dir = opendir(s->state);
    if (!dir)
        return titan_fail_errno(err, "state folder '%s'", s->state);
    for (struct dirent *e; (e = readdir(dir));) {
        _cleanup_(buf_free) struct buf text = BUF_INIT;
        char *end;
        const uint64_t id = e->d_name[0] == 'w' ? strtoull(e->d_name + 1, &end, 10) : 0;
        if (!id || *end || file_read_at(dirfd(dir), e->d_name, O_NOFOLLOW, RECORD_BYTES, &text, NULL) != TITAN_OK ||
            !text.data)
            continue;
        int pid, ended, code, signal;
        unsigned uid;
        uint64_t job_id, started;
        struct process_stat stat;
        if (sscanf(text.data, "titan-spawnd 1 %" SCNu64 " %u %d %" SCNu64 " %d %d %d", &job_id, &uid, &pid, &started,
                   &ended, &code, &signal) != 7 ||
            pid <= 1 || worker_find(s, id))
            continue;
        struct worker *w = worker_new(s, id);
        if (!w)
            continue;
        w->job_id = job_id;
        w->uid = uid;
        w->pid = pid;
        w->started = started;
        w->code = code;
        w->signal = signal;
        w->ended = true;
        if (s->cgroup[0])
            (void)snprintf(w->cgroup, sizeof(w->cgroup), "%.4000s/" CGROUP_WORKER "%" PRIu64, s->cgroup, id);
        if (!ended && (w->pidfd = pidfd_open(pid, 0)) >= 0) {
            (void)fcntl(w->pidfd, F_SETFD, FD_CLOEXEC);
            /* Reads the process's status after its descriptor was opened, so both are of the same process. */
            w->ended = !process_stat_read(pid, &stat) || stat.started != started || !watch(s, w->pidfd, &w->process);
        }
        if (w->ended)
            cgroup_close(s, w);
        tlog_info(&s->log, w->ended ? "worker of an earlier titan-spawnd has ended" : "worker adopted",
                  "job=%" PRIu64 " worker=%" PRIu64 " uid=%u pid=%d", job_id, id, uid, pid);
    }
    (void)closedir(dir);
    return TITAN_OK;
}

static titan_status run(struct spawnd *s, struct titan_error *err)
{
    (void)notify("READY=1");
    tlog_info(&s->log, "titan-spawnd up", "agent_uid=%u uid_min=%u workers=%d cgroup=\"%s\"", s->policy.agent,
              s->policy.uid_min, s->n_workers, s->cgroup);
    for (;;) {
        struct epoll_event event;
        titan_assert(s->n_connections <= CONNECTIONS_MAX);
        /* Takes one event at a time, because its handler may free the next event's object. */
        const int n = epoll_wait(s->epoll, &event, 1, s->sweeps ? SWEEP_MS : -1);
        if (n < 0 && errno != EINTR)
            return titan_fail_errno(err, "cannot wait for events");
        if (n == 0) { /* removes cgroups of ended workers, until none has a process */
            DIR *dir = s->cgroup[0] ? opendir(s->cgroup) : NULL;
            s->sweeps = false;
            for (struct dirent *e; dir && (e = readdir(dir));) {
                uint64_t id;
                const bool named = sscanf(e->d_name, CGROUP_WORKER "%" SCNu64, &id) == 1;
                const struct worker *w = named ? worker_find(s, id) : NULL;
                if (strncmp(e->d_name, CGROUP_WORKER, strlen(CGROUP_WORKER)) == 0 && (!w || w->ended))
                    s->sweeps |= unlinkat(dirfd(dir), e->d_name, AT_REMOVEDIR) != 0 && errno == EBUSY;
            }
            if (dir)
                (void)closedir(dir);
        }
        if (n <= 0)
            continue;
        struct source *const source = event.data.ptr;
        if (source->kind == SOURCE_LISTENER) {
            struct ucred peer;
            socklen_t size = sizeof(peer);
            struct sockaddr_un from;
            socklen_t from_size = sizeof(from);
            _cleanup_fd_ int fd =
                accept4(s->listener, (struct sockaddr *)&from, &from_size, SOCK_CLOEXEC | SOCK_NONBLOCK);
            if (fd < 0)
                continue;
            if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.uid != s->policy.agent) {
                tlog_warn(&s->log, "connection refused: it is not titand's user", "uid=%u pid=%d", peer.uid,
                          (int)peer.pid);
                continue;
            }
            struct connection *c = s->n_connections < CONNECTIONS_MAX ? calloc(1, sizeof(*c)) : NULL;
            if (!c || !watch(s, fd, &c->source)) {
                free(c);
                continue;
            }
            *c = (struct connection){.source = {SOURCE_CONNECTION}, .next = s->connections, .fd = TAKE_FD(fd)};
            s->connections = c;
            s->n_connections++;
        } else if (source->kind == SOURCE_CONNECTION) {
            on_connection(s, (struct connection *)(void *)source);
        } else if (source->kind == SOURCE_REPORT) {
            /* The child has become the worker, or reports why not. */
            struct worker *w = (struct worker *)(void *)((char *)source - offsetof(struct worker, report));
            char text[SPAWN_TEXT] = "";
            titan_assert(w->report_fd >= 0 && w->child);
            struct connection *const c = TAKE(w->by);
            const ssize_t len = read(w->report_fd, text, sizeof(text) - 1);
            forget_fd(s, &w->report_fd);
            struct spawn_reply reply = reply_of(SPAWN_STARTED, w->id);
            reply.job_id = w->job_id;
            reply.uid = w->uid;
            reply.pid = w->pid;
            if (len == 0) {
                record_write(s, w);
                tlog_info(&s->log, "worker started", "job=%" PRIu64 " worker=%" PRIu64 " uid=%u pid=%d", w->job_id,
                          w->id, w->uid, (int)w->pid);
                if (c)
                    answer(s, c, &reply, w->pidfd);
                continue;
            }
            siginfo_t end = {0};
            /* The child's end may have been seen before its report. */
            if (!w->ended && waitid(P_PIDFD, (id_t)w->pidfd, &end, WEXITED) == 0 && end.si_code == CLD_EXITED)
                w->code = end.si_status;
            if (c)
                refuse(s, c, w->id, w->code > 0 ? (titan_status)-w->code : TITAN_EIO, text);
            w->ended = true;
            worker_free(s, w);
        } else {
            worker_ended(s, (struct worker *)(void *)source);
        }
    }
}

static const struct option_spec options[] = {
    {"user", 0, "NAME", "titand's user: the only one that may ask (default: titan)", WORD_NONE},
    {"socket", 0, "PATH", "where it asks (default: " DEFAULT_SOCKET "; systemd's, where that has opened one)",
     WORD_FILE},
    {"worker", 0, "PATH", "the worker program, root's (default: titan-worker beside titan-spawnd)", WORD_FILE},
    {"min-uid", 0, "N", "workers run as no user below (default: 1000)", WORD_NONE},
    {"group", 0, "NAME", "workers run as its members only (default: as all)", WORD_NONE},
    {"cgroup", 0, "PATH",
     "a cgroup (version 2) to make those of workers in, or auto: titan-workers.scope, which systemd makes; without one "
     "nothing is limited",
     WORD_FILE},
    {"hold", 0, NULL, "hold titan-workers.scope; titan-spawnd starts it itself", WORD_NONE},
    {"state", 0, "DIR", "what the next titan-spawnd needs to know of workers (default: " DEFAULT_STATE ")", WORD_FILE},
    {"help", 'h', NULL, "say how it is used", WORD_NONE},
    {"version", 'V', NULL, "print titan-spawnd's version", WORD_NONE},
    {NULL},
};
static const struct command *const no_commands[] = {NULL};
static const struct command_table titan_spawnd = {
    .name = "titan-spawnd", .noun = "argument", .commands = no_commands, .options = options};

static titan_status configure(struct spawnd *s, const struct args *args, struct titan_error *err)
{
    char folder[PATH_MAX];
    gid_t groups[64];
    int n_groups = ARRAY_SIZE(groups);
    const char *user = args_text(args, "user", "titan"), *group = args_text(args, "group", NULL),
               *worker = args_text(args, "worker", NULL);
    int64_t uid_min;
    TRY(args_int(args, "min-uid", (struct int_range){1, UINT32_MAX - 1}, UID_MIN, &uid_min, err));
    s->policy.uid_min = (uid_t)uid_min;
    const struct passwd *found = getpwnam(user);
    if (!found)
        return titan_fail(err, TITAN_ENOTFOUND, "--user: this machine has no user '%s'", user);
    s->policy.agent = found->pw_uid;
    /* Loads the name services' libraries now; otherwise each start would load them, in its child. */
    (void)getgrouplist(user, found->pw_gid, groups, &n_groups);
    s->policy.group = SPAWN_NO_GROUP;
    const struct group *members = group ? getgrnam(group) : NULL;
    if (group && !members)
        return titan_fail(err, TITAN_ENOTFOUND, "--group: this machine has no group '%s'", group);
    if (members)
        s->policy.group = members->gr_gid;
    if (!worker)
        TRY(file_self_dir(folder, sizeof(folder), err));
    (void)snprintf(s->policy.worker, PATH_MAX, "%.4000s%s", worker ? worker : folder, worker ? "" : "/titan-worker");
    (void)snprintf(s->cgroup, sizeof(s->cgroup), "%s", args_text(args, "cgroup", ""));
    (void)snprintf(s->state, sizeof(s->state), "%s", args_text(args, "state", DEFAULT_STATE));
    s->policy.memory = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    s->policy.cpus = (uint32_t)sysconf(_SC_NPROCESSORS_ONLN);
    if (geteuid() != 0)
        return titan_fail(err, TITAN_EPERM, "titan-spawnd is root's: it starts workers as other users");
    return TITAN_OK;
}

static titan_status begin(struct spawnd *s, const struct args *args, struct titan_error *err)
{
    TRY(configure(s, args, err));
    TRY(dir_make(s->state, err));
    if ((s->epoll = epoll_create1(EPOLL_CLOEXEC)) < 0)
        return titan_fail_errno(err, "cannot make an epoll");

    /* Without a cgroup, workers without limits still run. The kernel hands controllers on only if all processes are in
     * leaves. So processes in the folder move to main/. */
    struct titan_error why = {0};
    char main_group[PATH_MAX + 8], procs[PATH_MAX + 32];
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    (void)snprintf(s->no_cgroup, sizeof(s->no_cgroup), " (--cgroup)");
    if (strcmp(s->cgroup, CGROUP_AUTO) == 0 && spawn_scope_open(s->cgroup, &why) != TITAN_OK) {
        s->cgroup[0] = '\0';
        (void)snprintf(s->no_cgroup, sizeof(s->no_cgroup), ": %.200s", why.msg);
        tlog_warn(&s->log, "workers have no cgroups, and cannot be limited", "reason=\"%s\"", why.msg);
    }
    if (s->cgroup[0]) {
        (void)snprintf(main_group, sizeof(main_group), "%s/" CGROUP_MAIN, s->cgroup);
        (void)snprintf(procs, sizeof(procs), "%s/cgroup.procs", s->cgroup);
        (void)mkdir(main_group, 0755);
        if (file_read(procs, 65536, &text, NULL) == TITAN_OK && text.data)
            for (char *save = NULL, *pid = strtok_r(text.data, "\n", &save); pid; pid = strtok_r(NULL, "\n", &save))
                (void)cgroup_write(main_group, "cgroup.procs", pid);
        s->holds = cgroup_hand_on(s->cgroup);
        if (!s->holds.memory || !s->holds.cpus)
            tlog_warn(&s->log, "a controller is not to be had", "cgroup=\"%s\" memory=%d cpu=%d", s->cgroup,
                      s->holds.memory, s->holds.cpus);
    }
    s->sweeps = true; /* an earlier titan-spawnd may have left cgroups */
    TRY(adopt_all(s, err));

    const char *path = args_text(args, "socket", DEFAULT_SOCKET);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (notify_sockets(&s->listener) != 1) { /* systemd has not opened a socket */
        if (snprintf(address.sun_path, sizeof(address.sun_path), "%s", path) >= (int)sizeof(address.sun_path))
            return titan_fail(err, TITAN_EINVAL, "socket '%s' is too long a path", path);
        s->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        (void)unlink(path);
        if (s->listener < 0 || bind(s->listener, (struct sockaddr *)&address, sizeof(address)) != 0 ||
            chmod(path, 0600) != 0 || chown(path, s->policy.agent, (gid_t)-1) != 0 ||
            listen(s->listener, CONNECTIONS_MAX) != 0)
            return titan_fail_errno(err, "cannot listen on '%s'", path);
    }
    if (!watch(s, s->listener, &s->listening))
        return titan_fail_errno(err, "cannot watch the socket");

    return run(s, err);
}

static int complain(const struct titan_error *err)
{
    (void)fprintf(stderr, "titan-spawnd: %s%s%s%s\n", err->msg, err->hint[0] ? " (" : "", err->hint,
                  err->hint[0] ? ")" : "");
    return titan_status_exit(err->status);
}

int main(int argc, char **argv)
{
    static struct spawnd s;
    static struct args args;
    struct titan_error err = {0};
    (void)signal(SIGPIPE, SIG_IGN);
    standard_streams_open();
    log_init(&s.log, "spawnd", "%s", "");
    if (args_parse(&titan_spawnd, argc, argv, &args, &err) != TITAN_OK)
        return complain(&err);
    if (args_has(&args, "help")) {
        _cleanup_(buf_free) struct buf text = BUF_INIT;
        buf_puts(&text, "usage: titan-spawnd [OPTION]...\n\noptions\n");
        help_put_options(options, &text);
        (void)fputs(text.data, stdout);
        return standard_streams_flush("titan-spawnd") ? 0 : 1;
    }
    if (args_has(&args, "version")) {
        (void)printf("titan-spawnd %s\n", titan_version);
        return standard_streams_flush("titan-spawnd") ? 0 : 1;
    }
    if (args_has(&args, "hold"))
        spawn_scope_hold();
    return begin(&s, &args, &err) == TITAN_OK ? 0 : complain(&err);
}
