/* SPDX-License-Identifier: Apache-2.0 */
/* spawn_child.c - see spawn_child.h. */
#include "daemon/spawn/spawn_child.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <inttypes.h>
#include <linux/posix_acl.h>
#include <linux/posix_acl_xattr.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "daemon/spawn/spawn_filter.h"

#define GROUPS_MAX 1024
#define PASSWD_BYTES 65536
#define OOM_BEFORE_US 500 /* the OOM killer takes a worker before its agent */
#define OOM_MOST 1000     /* maximum of oom_score_adj, proc(5) */
#define OWN_ENV 5         /* HOME, USER, LOGNAME, PATH, NULL */
#define OWN_PATH "PATH=/usr/local/bin:/usr/bin:/bin"

struct user {
    char name[256], home[PATH_MAX];
    gid_t gid;
};

/* --- before it is the user ---------------------------------------------------------------------------------------- */

titan_status spawn_policy_check(const struct spawn_policy *p, const struct spawn_request *r, struct titan_error *err)
{
    if (r->kind != SPAWN_START)
        return TITAN_OK;
    if (r->uid < p->uid_min)
        return titan_fail(err, TITAN_EPERM, "uid %u is below %u: workers run as no user of the system (--min-uid)",
                          r->uid, p->uid_min);
    if (r->uid == p->agent)
        return titan_fail(err, TITAN_EPERM, "uid %u is titand's: workers run as other users", r->uid);
    if (r->memory > p->memory)
        return titan_fail(err, TITAN_EINVAL, "a limit of %" PRIu64 " bytes of memory, this node has %" PRIu64,
                          r->memory, p->memory);
    if (r->cpus > p->cpus * 1000)
        return titan_fail(err, TITAN_EINVAL, "a limit of %g processors, this node has %u", r->cpus / 1000.0, p->cpus);
    /* Only root may have installed the program, because the agent must not choose what root starts. */
    struct stat st;
    if (lstat(p->worker, &st) != 0)
        return titan_fail_errno(err, "worker program '%s'", p->worker);
    if (!S_ISREG(st.st_mode) || st.st_uid != 0 || (st.st_mode & (S_IWGRP | S_IWOTH)))
        return titan_fail(err, TITAN_EPERM, "worker program '%s' is not a file that root alone can change", p->worker);
    return TITAN_OK;
}

static titan_status find_user(const struct spawn_policy *p, uid_t uid, struct user *ret, struct titan_error *err)
{
    static char memory[PASSWD_BYTES];
    static gid_t groups[GROUPS_MAX];
    titan_assert(uid != 0);
    struct passwd entry, *found = NULL;
    int n = GROUPS_MAX;
    const int rc = getpwuid_r(uid, &entry, memory, sizeof(memory), &found);
    if (!found)
        return titan_fail(err, rc ? TITAN_EAGAIN : TITAN_EPERM, "uid %u has no name on this node%s%s", uid,
                          rc ? ": " : "", rc ? strerror(rc) : "");
    (void)snprintf(ret->name, sizeof(ret->name), "%s", entry.pw_name);
    (void)snprintf(ret->home, sizeof(ret->home), "%s", entry.pw_dir);
    ret->gid = entry.pw_gid;
    if (ret->gid == 0)
        return titan_fail(err, TITAN_EPERM, "user %s is of root's group", ret->name);
    if (getgrouplist(ret->name, ret->gid, groups, &n) < 0)
        return titan_fail(err, TITAN_ELIMIT, "user %s is in more than %d groups", ret->name, GROUPS_MAX);
    bool member = p->group == SPAWN_NO_GROUP;
    for (int i = 0; i < n; i++) {
        if (groups[i] == 0)
            return titan_fail(err, TITAN_EPERM, "user %s is of root's group", ret->name);
        member = member || groups[i] == p->group;
    }
    if (!member)
        return titan_fail(err, TITAN_EPERM, "user %s is not in the group %u of those that run workers (--group)",
                          ret->name, p->group);
    if (setgroups((size_t)n, groups) != 0)
        return titan_fail_errno(err, "cannot take the groups of %s", ret->name);
    return TITAN_OK;
}

/* --- as the user -------------------------------------------------------------------------------------------------- */

/* Makes the log folders as the user, so that the user can also remove the group's files. */
static titan_status open_log(const struct spawn_request *r, int folder, int *ret, struct titan_error *err)
{
    char name[64];
    struct stat st;
    titan_assert(geteuid() == r->uid);
    (void)umask(0007);
    if ((mkdirat(folder, "logs", 0770) != 0 && errno != EEXIST) ||
        (mkdirat(folder, "flight", 0770) != 0 && errno != EEXIST))
        return titan_fail_errno(err, "cannot make folders in '%s'", r->directory);
    _cleanup_fd_ int logs = openat(folder, "logs", O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    (void)snprintf(name, sizeof(name), "worker-%" PRIu64 ".log", r->worker_id);
    const int log =
        logs < 0 ? -1 : openat(logs, name, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0660);
    if (log < 0 || fstat(log, &st) != 0)
        return titan_fail_errno(err, "cannot open log '%s/logs/%s'", r->directory, name);
    if (!S_ISREG(st.st_mode) || fcntl(log, F_SETFL, O_APPEND) != 0)
        return titan_fail(err, TITAN_EINVAL, "log '%s/logs/%s' is no file", r->directory, name);
    (void)umask(0027);
    *ret = log;
    return TITAN_OK;
}

/* Sets descriptors 0 to 2, then the worker's descriptors. All other descriptors close; report closes at exec. The
 * descriptors first move to high numbers, so that no move overwrites another descriptor. */
static titan_status set_descriptors(const struct spawn_fds *fds, int log, int *report, struct titan_error *err)
{
    int high[SPAWN_FDS + 3], n = 0;
    titan_assert(log > 2 && fds->n >= SPAWN_FLIGHT);
    const int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
    const int wanted[] = {
        nothing, log, log, fds->fd[SPAWN_DOOR], fds->fd[SPAWN_PAGE], fds->n == SPAWN_FDS ? fds->fd[SPAWN_FLIGHT] : -1};
    enum { FIRST_FREE = 64 };
    for (size_t i = 0; i < ARRAY_SIZE(wanted) && wanted[i] >= 0; i++)
        if ((high[n++] = fcntl(wanted[i], F_DUPFD_CLOEXEC, FIRST_FREE)) < 0)
            return titan_fail_errno(err, "cannot set up descriptors");
    const int out = fcntl(*report, F_DUPFD_CLOEXEC, FIRST_FREE);
    if (n < 5 || out < 0)
        return titan_fail_errno(err, "cannot set up descriptors");
    *report = out;
    for (int i = 0; i < n; i++)
        if (dup2(high[i], i) != i)
            return titan_fail_errno(err, "cannot set up descriptors");
    *report = dup3(out, n, O_CLOEXEC);
    if (*report < 0 || close_range((unsigned)n + 1, ~0U, 0) != 0)
        return titan_fail_errno(err, "cannot set up descriptors");
    return TITAN_OK;
}

static titan_status execute(const struct spawn_policy *p, const struct spawn_request *r, const struct user *u,
                            bool flight, struct titan_error *err)
{
    static char job[24], worker[24], home[PATH_MAX + 8], name[300], logname[300];
    char *argv[] = {(char *)(uintptr_t)p->worker,
                    "serve",
                    "--socket",
                    "/proc/self/fd/3/agent.sock",
                    "--page",
                    (char *)(uintptr_t)r->page,
                    "--page-fd",
                    "4",
                    "--job",
                    job,
                    "--worker",
                    worker,
                    "--host",
                    (char *)(uintptr_t)r->host,
                    "--dir",
                    (char *)(uintptr_t)r->directory,
                    "--run",
                    (char *)(uintptr_t)r->run,
                    NULL,
                    NULL,
                    NULL,
                    NULL,
                    NULL};
    size_t n_args = ARRAY_SIZE(argv) - 5;
    if (flight) {
        argv[n_args++] = "--flight-fd";
        argv[n_args++] = "5";
    }
    if (*r->ports) {
        argv[n_args++] = "--ports";
        argv[n_args++] = (char *)(uintptr_t)r->ports;
    }
    char *env[SPAWN_ENV_MAX + OWN_ENV];
    size_t n = 0;
    titan_assert(r->n_env <= SPAWN_ENV_MAX);
    (void)snprintf(job, sizeof(job), "%" PRIu64, r->job_id);
    (void)snprintf(worker, sizeof(worker), "%" PRIu64, r->worker_id);
    (void)snprintf(home, sizeof(home), "HOME=%s", u->home);
    (void)snprintf(name, sizeof(name), "USER=%s", u->name);
    (void)snprintf(logname, sizeof(logname), "LOGNAME=%s", u->name);
    env[n++] = home;
    env[n++] = name;
    env[n++] = logname;
    env[n++] = OWN_PATH;
    for (size_t i = 0; i < r->n_env; i++)
        env[n++] = (char *)(uintptr_t)r->env[i];
    env[n] = NULL;
    (void)execve(p->worker, argv, env);
    return titan_fail_errno(err, "cannot start '%s'", p->worker);
}

static titan_status start(const struct spawn_policy *p, const struct spawn_request *r, const struct spawn_fds *fds,
                          int *report, struct titan_error *err)
{
    const int folder = fds->fd[SPAWN_FOLDER];
    struct user u;
    int log = -1;
    if (setpgid(0, 0) != 0)
        return titan_fail_errno(err, "cannot lead a process group");

    /* Raises this process's OOM score while it still owns its files in /proc. */
    char text[24] = "";
    const int fd = open("/proc/self/oom_score_adj", O_RDWR | O_CLOEXEC);
    if (fd >= 0 && read(fd, text, sizeof(text) - 1) > 0) {
        const long own = strtol(text, NULL, 10), score = own < 0 ? 0 : MIN(own + OOM_BEFORE_US, (long)OOM_MOST);
        (void)snprintf(text, sizeof(text), "%ld", score);
        (void)!pwrite(fd, text, strlen(text), 0);
    }
    if (fd >= 0)
        (void)close(fd);
    TRY(find_user(p, r->uid, &u, err));

    /* A folder that the agent has just made belongs to the agent. It is given to the user, and keeps its group, through
     * which titand reads it. */
    struct stat st;
    if (fstat(folder, &st) != 0 || !S_ISDIR(st.st_mode))
        return titan_fail(err, TITAN_EINVAL, "job's folder '%s' is no folder", r->directory);
    if (st.st_uid != r->uid && st.st_uid != p->agent)
        return titan_fail(err, TITAN_EPERM, "job's folder '%s' belongs to uid %u, the job to uid %u", r->directory,
                          st.st_uid, r->uid);
    if (st.st_uid != r->uid && fchownat(folder, "", r->uid, (gid_t)-1, AT_EMPTY_PATH) != 0)
        return titan_fail_errno(err, "job's folder '%s' cannot be given to uid %u", r->directory, r->uid);

    (void)setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});

    /* Becomes the user for good, and verifies this by trying to return. */
    uid_t real, effective, saved;
    gid_t real_gid, effective_gid, saved_gid;
    titan_assert(r->uid != 0 && u.gid != 0);
    if (setresgid(u.gid, u.gid, u.gid) != 0 || setresuid(r->uid, r->uid, r->uid) != 0)
        return titan_fail_errno(err, "cannot become %s", u.name);
    if (getresuid(&real, &effective, &saved) != 0 || getresgid(&real_gid, &effective_gid, &saved_gid) != 0 ||
        real != r->uid || effective != r->uid || saved != r->uid || real_gid != u.gid || effective_gid != u.gid ||
        saved_gid != u.gid || setuid(0) == 0 || seteuid(0) == 0 || setgid(0) == 0)
        return titan_fail(err, TITAN_EPERM, "root could be regained from %s", u.name);
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
        return titan_fail_errno(err, "cannot give up new privileges");

    /* Checks as the user that the path leads to the job's folder. */
    struct stat open_one, named;
    titan_assert(geteuid() == r->uid);
    if (fstat(folder, &open_one) != 0 || stat(r->directory, &named) != 0 || open_one.st_dev != named.st_dev ||
        open_one.st_ino != named.st_ino)
        return titan_fail(err, TITAN_EPERM,
                          "uid %u does not get to the job's folder '%s': each folder on the way needs x for all users "
                          "(storage.jobs_dir)",
                          r->uid, r->directory);
    TRY(open_log(r, folder, &log, err));
    if (fchdir(folder) != 0)
        return titan_fail_errno(err, "cannot work in '%s'", r->directory);

    /* Sets a default ACL: the folder's group may change new files, so titand can remove them with the job. An earlier
     * job may have shared the folder and has a longer list. On a file system without ACLs this is left to the user. */
    const struct {
        struct posix_acl_xattr_header head;
        struct posix_acl_xattr_entry entries[3];
    } list = {{htole32(POSIX_ACL_XATTR_VERSION)},
              {{htole16(ACL_USER_OBJ), htole16(7), htole32(ACL_UNDEFINED_ID)},
               {htole16(ACL_GROUP_OBJ), htole16(7), htole32(ACL_UNDEFINED_ID)},
               {htole16(ACL_OTHER), 0, htole32(ACL_UNDEFINED_ID)}}};
    (void)setxattr(".", "system.posix_acl_default", &list, sizeof(list), XATTR_CREATE);

    /* Resets signals as after a fresh login, except signals that stop a node (daemon/agent/shell/worker_process.c). */
    sigset_t stops;
    for (int i = 1; i < NSIG; i++)
        (void)signal(i, SIG_DFL);
    (void)sigemptyset(&stops);
    (void)sigaddset(&stops, SIGTERM);
    (void)sigaddset(&stops, SIGINT);
    (void)sigaddset(&stops, SIGUSR1);
    (void)sigprocmask(SIG_SETMASK, &stops, NULL);
    TRY(set_descriptors(fds, log, report, err));
    TRY(spawn_filter_set(err));
    return execute(p, r, &u, fds->n == SPAWN_FDS, err);
}

void spawn_child_run(const struct spawn_policy *p, const struct spawn_request *r, const struct spawn_fds *fds,
                     int report)
{
    struct titan_error err = {0};
    (void)!start(p, r, fds, &report, &err);
    (void)!write(report, err.msg, strlen(err.msg));
    _exit(-err.status);
}
