/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/agent/shell/site_hooks.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/pidfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/slowest.h"
#include "daemon/common/thread.h"
#include "proto/ranges.h"

#define CHECKS "node-check.d"
#define FAILED_MS 30000 /* longest period while a hook fails */
#define STACK_BYTES (256 << 10)
#define OUTPUT_MAX 4096 /* kept of the end of a hook's output */
#define LINE_MAX_BYTES 200
#define LEAVES_MS 5000 /* how long a killed hook may take to end; it may hang in the kernel */
#define HOOKS_MAX 256

static const struct log hooks_log = {.subsystem = "hooks"};

struct site_hooks {
    uv_loop_t *loop;
    struct site_hooks_options options;
    char dir[PATH_MAX], node[256], device[16];
    uv_async_t ended;
    uv_timer_t timer;
    int stop;     /* an eventfd: the thread is to end */
    bool runs;    /* a thread runs the hooks; the fields below are its own meanwhile */
    bool started; /* the hooks have run once */
    char problem[SITE_HOOKS_TEXT];
    char output[OUTPUT_MAX + 1]; /* of the hook that failed, at its end */

    char last[SITE_HOOKS_TEXT]; /* the loop's: the problem before */
    bool closing;
    int open;
    void (*done)(void *);
    void *done_data;
};

/* --- on a thread -------------------------------------------------------------------------------------------------- */

static void fail(struct site_hooks *h, const char *name, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static void fail(struct site_hooks *h, const char *name, const char *fmt, ...)
{
    char why[SITE_HOOKS_TEXT - 80];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(why, sizeof(why), fmt, ap);
    va_end(ap);
    (void)snprintf(h->problem, sizeof(h->problem), "hook %.64s: %s", name, why);
    range_fit_text(h->problem, sizeof(h->problem));
}

/* May nobody but root and the agent's user have written this? */
static bool trusted(const struct stat *st)
{
    return (st->st_uid == 0 || st->st_uid == geteuid()) && !(st->st_mode & (S_IWGRP | S_IWOTH));
}

/* Appends to the output; its beginning goes when there is no room. */
static void take_output(struct site_hooks *h, size_t *len, int fd)
{
    char bytes[1024];
    for (ssize_t n; (n = read(fd, bytes, sizeof(bytes))) > 0;) {
        const size_t over = *len + (size_t)n > OUTPUT_MAX ? *len + (size_t)n - OUTPUT_MAX : 0;
        memmove(h->output, h->output + over, *len - over);
        *len -= over;
        memcpy(h->output + *len, bytes, (size_t)n);
        *len += (size_t)n;
    }
    h->output[*len] = '\0';
}

/* The last line of the output that is not blank; "" without one. */
static void last_line(const char *output, size_t len, char line[LINE_MAX_BYTES])
{
    static const char blank[] = " \t\r\n";
    while (len > 0 && (strchr(blank, output[len - 1]) || !output[len - 1]))
        len--;
    size_t begin = len;
    while (begin > 0 && output[begin - 1] != '\n')
        begin--;
    while (begin < len && strchr(blank, output[begin]) && output[begin])
        begin++;
    (void)snprintf(line, LINE_MAX_BYTES, "%.*s", (int)MIN(len - begin, (size_t)LINE_MAX_BYTES - 1), output + begin);
}

static int start(const struct site_hooks *h, const char *path, int out, pid_t *ret)
{
    char node[280], slots[32], device[32];
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attr;
    sigset_t none, all;
    (void)snprintf(node, sizeof(node), "TITAN_NODE=%s", h->node);
    (void)snprintf(slots, sizeof(slots), "TITAN_SLOTS=%u", h->options.slots);
    (void)snprintf(device, sizeof(device), "TITAN_DEVICE=%s", h->device);
    char *argv[] = {(char *)path, NULL};
    char *env[] = {"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                   "TITAN_HOOK=node-check",
                   h->started ? "TITAN_REASON=idle" : "TITAN_REASON=start",
                   node,
                   slots,
                   device,
                   NULL};
    (void)sigemptyset(&none);
    (void)sigfillset(&all);
    (void)sigdelset(&all, SIGKILL);
    (void)sigdelset(&all, SIGSTOP);
    int rc = posix_spawn_file_actions_init(&files);
    if (rc)
        return rc;
    (void)posix_spawnattr_init(&attr);
    (void)posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    (void)posix_spawnattr_setpgroup(&attr, 0);
    (void)posix_spawnattr_setsigmask(&attr, &none);
    (void)posix_spawnattr_setsigdefault(&attr, &all);
    rc = posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    rc = rc ? rc : posix_spawn_file_actions_adddup2(&files, out, 1);
    rc = rc ? rc : posix_spawn_file_actions_adddup2(&files, out, 2);
    rc = rc ? rc : posix_spawn_file_actions_addchdir_np(&files, "/");
    rc = rc ? rc : posix_spawn(ret, path, &files, &attr, argv, env);
    (void)posix_spawn_file_actions_destroy(&files);
    (void)posix_spawnattr_destroy(&attr);
    return rc;
}

/* Runs one hook to its end. Sets the problem if it has not passed. */
static void run_hook(struct site_hooks *h, const char *name, const char *path)
{
    const int64_t until = clock_mono_ms() + h->options.timeout_ms;
    int ends[2];
    pid_t pid = 0;
    size_t len = 0;
    bool late = false, stopped = false, over = false, closed = false;
    char line[LINE_MAX_BYTES];
    h->output[0] = '\0';
    if (pipe2(ends, O_CLOEXEC) != 0) {
        fail(h, name, "no pipe: %s", strerror(errno));
        return;
    }
    _cleanup_fd_ int in = ends[0], out = ends[1];
    (void)fcntl(in, F_SETFL, O_NONBLOCK);
    const int rc = start(h, path, out, &pid);
    if (rc) {
        fail(h, name, "it does not start: %s", strerror(rc));
        return;
    }
    (void)close(TAKE_FD(out));
    _cleanup_fd_ int process = pidfd_open(pid, 0);
    (void)fcntl(process, F_SETFD, FD_CLOEXEC);
    struct pollfd fds[] = {{process, POLLIN, 0}, {h->stop, POLLIN, 0}, {in, POLLIN, 0}};
    siginfo_t end = {0};
    while (process >= 0 && !over && !late && !stopped) {
        const int64_t left = until - clock_mono_ms();
        (void)poll(fds, ARRAY_SIZE(fds), left > 0 ? (int)MIN(left, (int64_t)INT_MAX) : 0);
        take_output(h, &len, in);
        closed |= fds[2].revents & POLLHUP; /* before the hook's end */
        fds[2].fd = closed ? -1 : in;
        over = fds[0].revents & POLLIN;
        stopped = !over && fds[1].revents & POLLIN;
        late = !over && left <= 0;
    }
    (void)kill(-pid, SIGKILL); /* the hook, or what it has left */
    if (!over)
        over = poll(fds, 1, LEAVES_MS) > 0;
    if (over)
        (void)waitid(P_PID, (id_t)pid, &end, WEXITED);
    take_output(h, &len, in);
    last_line(h->output, len, line);
    if (stopped)
        fail(h, name, "the agent ends");
    else if (late)
        fail(h, name, "it did not end within %u s%s%s", (h->options.timeout_ms + 999) / 1000, *line ? ": " : "", line);
    else if (process < 0 || !over)
        fail(h, name, "it cannot be watched");
    else if (end.si_code != CLD_EXITED)
        fail(h, name, "ended by signal %d%s%s", end.si_status, *line ? ": " : "", line);
    else if (end.si_status != 0 && *line)
        fail(h, name, "%s", line);
    else if (end.si_status != 0)
        fail(h, name, "exit code %d, without a word", end.si_status);
}

static int wanted(const struct dirent *e)
{
    const size_t len = strlen(e->d_name);
    return e->d_name[0] != '.' && e->d_name[len - 1] != '~';
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static void *run_all(void *arg)
{
    struct site_hooks *h = arg;
    char folder[PATH_MAX + 32], path[PATH_MAX + 320];
    struct dirent **list = NULL;
    struct stat st;
    h->problem[0] = h->output[0] = '\0';
    (void)snprintf(folder, sizeof(folder), "%s/" CHECKS, h->dir);
    const int n = scandir(folder, &list, wanted, by_name);
    if (n < 0 && errno != ENOENT)
        fail(h, CHECKS, "folder '%.200s': %s", folder, strerror(errno));
    const char *const folders[] = {h->dir, folder};
    for (size_t i = 0; n > 0 && i < ARRAY_SIZE(folders) && !h->problem[0]; i++)
        if (stat(folders[i], &st) != 0 || !trusted(&st))
            fail(h, CHECKS, "not run: folder '%.200s' is to be root's, and no other's to write to", folders[i]);
    if (n > HOOKS_MAX)
        fail(h, CHECKS, "not run: folder '%.200s' has more than %d files", folder, HOOKS_MAX);
    for (int i = 0; i < n; i++) {
        const char *name = list[i]->d_name;
        (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
        if (!h->problem[0] && stat(path, &st) == 0 && S_ISREG(st.st_mode) && (st.st_mode & 0111)) {
            if (trusted(&st))
                run_hook(h, name, path);
            else
                fail(h, name, "not run: it is to be root's, and no other's to write to");
        }
        free(list[i]);
    }
    free(list);
    (void)uv_async_send(&h->ended); /* h is the loop's again */
    return NULL;
}

/* --- on the loop -------------------------------------------------------------------------------------------------- */

static void on_handle_closed(uv_handle_t *handle)
{
    struct site_hooks *h = handle->data;
    if (--h->open > 0)
        return;
    (void)close(h->stop);
    void (*done)(void *) = h->done;
    void *data = h->done_data;
    free(h);
    if (done)
        done(data);
}

static void close_handles(struct site_hooks *h)
{
    uv_close((uv_handle_t *)&h->ended, on_handle_closed);
    uv_close((uv_handle_t *)&h->timer, on_handle_closed);
}

static void on_timer(uv_timer_t *timer);

static void run(struct site_hooks *h)
{
    titan_assert(!h->runs && !h->closing);
    h->runs = true;
    if (thread_start(STACK_BYTES, run_all, h) == 0)
        return;
    fail(h, CHECKS, "not run: no thread");
    (void)uv_async_send(&h->ended);
}

static void on_ended(uv_async_t *async)
{
    HANDLER("hooks");
    struct site_hooks *h = async->data;
    h->runs = false;
    h->started = true;
    if (h->closing) {
        close_handles(h);
        return;
    }
    if (strcmp(h->problem, h->last) != 0 && h->problem[0])
        tlog_warn(&hooks_log, "the node gets no workers: a hook fails", "reason=\"%s\" output=\"%s\"", h->problem,
                  h->output);
    else if (h->last[0] && !h->problem[0])
        tlog_info(&hooks_log, "all hooks pass again", "%s", "");
    memcpy(h->last, h->problem, sizeof(h->last));
    const uint32_t period = h->options.period_ms;
    (void)uv_timer_start(&h->timer, on_timer, h->last[0] ? MIN(period, (uint32_t)FAILED_MS) : period, 0);
    h->options.checked(h->last, h->options.data);
}

static void on_timer(uv_timer_t *timer)
{
    struct site_hooks *h = timer->data;
    if (h->options.idle(h->options.data))
        run(h);
    else
        (void)uv_timer_start(&h->timer, on_timer, h->options.period_ms, 0);
}

titan_status site_hooks_open(uv_loop_t *loop, const struct site_hooks_options *o, struct site_hooks **ret,
                             struct titan_error *err)
{
    titan_assert(o->dir[0] == '/' && o->timeout_ms > 0 && o->period_ms > 0);
    struct site_hooks *h = calloc(1, sizeof(*h));
    if (!h)
        return titan_fail(err, TITAN_ENOMEM, "no memory for the agent");
    h->stop = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (h->stop < 0) {
        const titan_status status = titan_fail_errno(err, "hooks");
        free(h);
        return status;
    }
    h->loop = loop;
    h->options = *o;
    (void)snprintf(h->dir, sizeof(h->dir), "%s", o->dir);
    (void)snprintf(h->node, sizeof(h->node), "%s", o->node);
    (void)snprintf(h->device, sizeof(h->device), "%s", o->device);
    (void)uv_async_init(loop, &h->ended, on_ended);
    (void)uv_timer_init(loop, &h->timer);
    h->ended.data = h->timer.data = h;
    h->open = 2;
    run(h);
    *ret = h;
    return TITAN_OK;
}

void site_hooks_close(struct site_hooks *h, void (*done)(void *), void *data)
{
    if (!h) {
        if (done)
            done(data);
        return;
    }
    const uint64_t one = 1;
    h->closing = true;
    h->done = done;
    h->done_data = data;
    if (h->runs)
        (void)!write(h->stop, &one, sizeof(one));
    else
        close_handles(h);
}
