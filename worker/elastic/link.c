/* SPDX-License-Identifier: Apache-2.0 */
/* link.c - membership as an agent decides it (membership.h): the socket, the control thread and the page around the
 * state machine in member.c.
 *
 * One control thread per worker process owns the page's mutex and the socket. It must live as long as the process: the
 * kernel marks the mutex when the thread that holds it ends. So close() only tells it to go quiet.
 *
 * The training thread never touches the socket: what it says is queued, and the control thread woken. */
#include "worker/elastic/membership.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/failpoint.h"
#include "base/flight.h"
#include "base/frame.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/slice.h"
#include "proto/ranges.h"
#include "proto/worker_page.h"
#include "titan/internal/worker.pb-c.h"
#include "worker/comm/comm.h"
#include "worker/elastic/member.h"

#define PAGE_BYTES 4096
#define NS_PER_MS INT64_C(1000000)
#define RETRY_MS 20                  /* between attempts to reach the agent, in the first second */
#define LAST_LINE_MS 100             /* for the log to take it */
#define RETRY_SLOW_MS 200            /* later */
#define PROGRESS_QUEUE_MAX (1 << 16) /* bytes waiting beyond which progress is dropped */
#define FLUSH_WAIT_MS 1000           /* how long the last messages may take at exit */

struct link {
    struct membership base;
    struct log log;
    char socket_path[PATH_MAX], address[320];
    struct worker_page *page;
    int wake; /* eventfd: frames are queued, or closing */

    /* Control thread only. */
    int fd;
    struct frame_reader in;
    int64_t retry_at, lost_at;
    bool heard; /* of the agent, since it is connected */

    pthread_mutex_t lock; /* all below */
    pthread_cond_t changed;
    struct member *member;
    struct frame_writer out;
    bool locked, closing, failing;
    int offered_memfd, memfd; /* of the epoch on offer, of the one it is in */
    int next_world;           /* 0: it is not known */
    void (*expect_fn)(void *arg, int world);
    void *expect_arg;

    pthread_mutex_t revoke_lock; /* held while the callback runs; taken after lock */
    void (*revoke_fn)(void *arg);
    void *revoke_arg;
    atomic_int revoked;
};

static struct link *self(struct membership *m)
{
    return (struct link *)m;
}

static int64_t now_ms(void)
{
    return clock_mono_ns() / NS_PER_MS;
}

static void wake(struct link *l)
{
    (void)eventfd_write(l->wake, 1);
}

/* --- the state machine, and what it asks for ---------------------------------------------------------------------- */

/* Lock held until leave(). */
static struct member *enter(struct link *l)
{
    (void)pthread_mutex_lock(&l->lock);
    return l->member;
}

/* All threads may look at what has changed. */
static void leave(struct link *l)
{
    const struct member_state *s = member_state(l->member);

    atomic_store(&l->page->term, s->term);
    atomic_store(&l->page->epoch, s->epoch);
    atomic_store(&l->page->step, s->step);
    atomic_store(&l->page->phase, s->phase);
    (void)pthread_cond_broadcast(&l->changed);
    (void)pthread_mutex_unlock(&l->lock);
}

static void host_send(void *arg, const Titan__Internal__WorkerToAgent *message)
{
    struct link *l = arg;
    struct titan_error err = {0};
    const size_t len = titan__internal__worker_to_agent__get_packed_size(message);
    _cleanup_free_ uint8_t *bytes = malloc(len + 1);

    if (message->kind_case == TITAN__INTERNAL__WORKER_TO_AGENT__KIND_PROGRESS && l->out.bytes >= PROGRESS_QUEUE_MAX)
        return; /* it is only worth something fresh */
    if (!bytes)
        return;
    (void)titan__internal__worker_to_agent__pack(message, bytes);
    if (frame_put(&l->out, bytes, len, -1, &err) != TITAN_OK)
        tlog_warn(&l->log, "message to the agent lost", "reason=\"%s\"", err.msg);
    wake(l);
}

static void host_expect(void *arg, int world)
{
    struct link *l = arg;

    l->next_world = world;
    if (l->expect_fn)
        l->expect_fn(l->expect_arg, world);
}

static void host_revoke(void *arg, uint64_t epoch)
{
    struct link *l = arg;

    (void)epoch;
    (void)!failpoint("link.revoke", NULL);
    (void)pthread_mutex_lock(&l->revoke_lock);
    atomic_store(&l->revoked, 1);
    if (l->revoke_fn)
        l->revoke_fn(l->revoke_arg);
    (void)pthread_mutex_unlock(&l->revoke_lock);
}

/* A thread that hangs in the kernel would hold up an orderly exit: SIGKILL does not wait for handlers or locks. */
static void host_end(void *arg, enum member_end why, const char *words)
{
    struct link *l = arg;

    tlog_error(&l->log, "ending this process", "reason=\"%s\"", words);
    if (!l->failing)
        (void)snprintf(l->page->last_words, sizeof l->page->last_words, "%s", words);
    log_flush(LAST_LINE_MS);
    if (why == MEMBER_END_UNQUIESCED)
        (void)kill(getpid(), SIGKILL);
    _exit(1); /* no failure of its own: the page has no exit code */
}

static void host_note(void *arg, const char *sentence, const char *pairs)
{
    const struct link *l = arg;
    tlog_warn(&l->log, sentence, "%s", pairs);
}

static void replace_fd(int *fd, int with)
{
    if (*fd >= 0)
        (void)close(*fd);
    *fd = with;
}

/* --- control thread ----------------------------------------------------------------------------------------------- */

/* err is filled when the agent says what cannot be: nothing more is heard on this connection. */
static void dispatch(struct link *l, const uint8_t *data, size_t len, int fd, struct titan_error *err)
{
    Titan__Internal__AgentToWorker *m = titan__internal__agent_to_worker__unpack(NULL, len, data);
    _cleanup_fd_ int owned = fd;

    if (!m)
        return;
    if (range_check(&m->base, err) == TITAN_OK) {
        if (member_hear(enter(l), m, now_ms()))
            replace_fd(&l->offered_memfd, TAKE_FD(owned));
        leave(l);
    } else {
        tlog_warn(&l->log, "invalid message from the agent, ignored", "reason=\"%s\"", err->msg);
    }
    titan__internal__agent_to_worker__free_unpacked(m, NULL);
}

/* What was not sent is not kept: the next greeting says what still holds. */
static void disconnect(struct link *l)
{
    if (l->fd < 0)
        return;
    replace_fd(&l->fd, -1);
    frame_reader_clear(&l->in);
    /* One that hangs up without a word does not want us, or has just ended: it is asked again, but not at once. */
    if (l->heard)
        l->lost_at = l->retry_at = now_ms();
    member_disconnected(enter(l));
    frame_writer_clear(&l->out);
    leave(l);
    tlog_debug(&l->log, "agent lost", "%s", "");
}

static void try_connect(struct link *l)
{
    const int64_t now = now_ms();

    if (l->fd >= 0 || now < l->retry_at)
        return;
    l->retry_at = now + (now - l->lost_at < 1000 ? RETRY_MS : RETRY_SLOW_MS);
    if (frame_connect(l->socket_path, &l->fd, NULL) != TITAN_OK)
        return;
    l->heard = false;
    member_connected(enter(l), now);
    leave(l);
}

/* Send what is queued. Returns whether the socket is full. */
static bool flush(struct link *l)
{
    if (l->fd < 0)
        return false;
    (void)enter(l);
    titan_status status = frame_flush(&l->out, l->fd, NULL);
    leave(l);
    if (status != TITAN_OK && status != TITAN_EAGAIN)
        disconnect(l);
    return status == TITAN_EAGAIN;
}

static void receive(struct link *l)
{
    struct titan_error err = {0};
    titan_status status;
    do {
        status = frame_receive(&l->in, l->fd, &err);
        const uint8_t *data;
        size_t len;
        int fd;
        while (status == TITAN_OK && err.status == TITAN_OK &&
               frame_next(&l->in, FRAME_MAX, &data, &len, &fd, &err) == TITAN_OK)
            l->heard = true, dispatch(l, data, len, fd, &err);
    } while (status == TITAN_OK && err.status == TITAN_OK);
    if (status != TITAN_EAGAIN || err.status != TITAN_OK)
        disconnect(l);
}

/* The time first: a command is judged with what was known of the training thread just before it. */
static void wait_for_something(struct link *l, bool full)
{
    const int64_t now = now_ms();
    int64_t until = member_deadline(enter(l));
    leave(l);
    if (l->fd < 0)
        until = MIN(until, l->retry_at);
    struct pollfd fds[2] = {{.fd = l->wake, .events = POLLIN},
                            {.fd = l->fd, .events = (short)(POLLIN | (full ? POLLOUT : 0))}};
    int n = poll(fds, 2, until <= now ? 0 : (int)MIN(until - now, INT64_C(60000)));
    eventfd_t count;
    if (n > 0 && fds[0].revents)
        (void)eventfd_read(l->wake, &count);
    member_tick(enter(l), now_ms(), atomic_load(&l->page->actions));
    leave(l);
    if (n > 0 && fds[1].revents)
        receive(l);
}

static void link_free(struct link *l)
{
    replace_fd(&l->fd, -1);
    replace_fd(&l->wake, -1);
    replace_fd(&l->memfd, -1);
    replace_fd(&l->offered_memfd, -1);
    replace_fd(&l->base.listener, -1);
    frame_reader_clear(&l->in);
    frame_writer_clear(&l->out);
    member_close(l->member);
    (void)pthread_mutex_destroy(&l->lock);
    (void)pthread_mutex_destroy(&l->revoke_lock);
    (void)pthread_cond_destroy(&l->changed);
    free(l);
}

static void *control_main(void *arg)
{
    struct link *l = arg;
    /* It has little to do, but others wait for it: for its answers to commands, and for its end, which a thread that is
     * killed comes to only when it is run. */
    slice_set(SLICE_SHORT_NS);
    int rc = pthread_mutex_lock(&l->page->alive);
    atomic_store(&l->page->locked, rc == 0);
    (void)enter(l);
    l->locked = true;
    leave(l);
    for (bool closing = false; !closing;) {
        try_connect(l);
        wait_for_something(l, flush(l));
        (void)enter(l);
        closing = l->closing;
        leave(l);
    }
    link_free(l);
    /* The mutex in the page is held until the process ends: that is how the agent knows. */
    for (;;)
        (void)pause();
    return NULL;
}

/* --- what the training thread calls ------------------------------------------------------------------------------- */

static void link_opened(struct membership *m)
{
    struct link *l = self(m);
    member_opened(enter(l));
    leave(l);
}

static titan_status link_next(struct membership *m, struct epoch_view *ret, struct titan_error *err)
{
    struct link *l = self(m);
    struct member *member = enter(l);
    enum member_answer answer;
    titan_status status = TITAN_OK;

    titan_assert(!l->revoke_fn); /* the epoch before is closed */
    while ((answer = member_next(member, ret)) == MEMBER_WAIT)
        (void)pthread_cond_wait(&l->changed, &l->lock);
    if (answer == MEMBER_STOPPED) {
        status = titan_fail(err, TITAN_ECANCELLED, "%s", member_stop_reason(member));
    } else {
        replace_fd(&l->memfd, TAKE_FD(l->offered_memfd));
        ret->memfd = l->memfd;
        atomic_store(&l->revoked, 0); /* under the lock: a revoke of this epoch comes before or after */
    }
    leave(l);
    return status;
}

static void link_on_revoke(struct membership *m, void (*fn)(void *arg), void *arg)
{
    struct link *l = self(m);
    (void)pthread_mutex_lock(&l->revoke_lock);
    l->revoke_fn = fn;
    l->revoke_arg = arg;
    (void)pthread_mutex_unlock(&l->revoke_lock);
}

static void link_on_next_world(struct membership *m, void (*fn)(void *arg, int world), void *arg)
{
    struct link *l = self(m);
    (void)enter(l);
    l->expect_fn = fn;
    l->expect_arg = arg;
    if (fn && l->next_world > 0)
        fn(arg, l->next_world);
    leave(l);
}

static const atomic_int *link_revoked(struct membership *m)
{
    return &self(m)->revoked;
}

static unsigned link_commands(struct membership *m)
{
    struct link *l = self(m);
    const unsigned commands = member_commands(enter(l));
    leave(l);
    return commands;
}

static void link_quiesced(struct membership *m, const struct quiesced *q)
{
    struct link *l = self(m);
    member_quiesced(enter(l), q);
    leave(l);
    (void)!failpoint("link.quiesced", NULL);
}

static void link_state_ready(struct membership *m, const struct state_ready *ready)
{
    struct link *l = self(m);
    member_state_ready(enter(l), ready);
    leave(l);
}

static void link_progress(struct membership *m, const struct step_report *r)
{
    struct link *l = self(m);
    member_progress(enter(l), r, r->at_ms);
    leave(l);
}

static void link_evaluated(struct membership *m, const struct evaluation_report *r)
{
    struct link *l = self(m);
    member_evaluated(enter(l), r);
    leave(l);
}

static void link_checkpoint_written(struct membership *m, uint64_t step, const char *path, uint64_t bytes, int world)
{
    struct link *l = self(m);
    member_checkpoint_written(enter(l), step, path, bytes, world);
    leave(l);
}

static void link_checkpoint_failed(struct membership *m, uint64_t step, const char *path, const char *reason,
                                   bool reading)
{
    struct link *l = self(m);
    member_checkpoint_failed(enter(l), step, path, reason, reading);
    leave(l);
}

static void link_finished(struct membership *m, uint64_t step)
{
    struct link *l = self(m);
    member_finished(enter(l), step);
    leave(l);
}

/* Until what was said last is in the agent's socket; not for longer than a second. */
static void wait_flushed(struct link *l)
{
    struct timespec until;
    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += FLUSH_WAIT_MS / 1000;
    const struct member_state *s = member_state(enter(l));
    int rc = 0;
    while (s->connected && l->out.first && rc == 0)
        rc = pthread_cond_clockwait(&l->changed, &l->lock, CLOCK_MONOTONIC, &until);
    leave(l);
}

static void link_failing(struct membership *m, const struct titan_error *err)
{
    struct link *l = self(m);
    const int code = titan_status_exit(err->status);
    struct member *member = enter(l);

    (void)snprintf(l->page->last_words, sizeof(l->page->last_words), "%s%s%s%s", err->msg, err->hint[0] ? " (" : "",
                   err->hint, err->hint[0] ? ")" : "");
    atomic_store(&l->page->exit_code, code);
    l->failing = true;
    member_failing(member, code, l->page->last_words);
    leave(l);
    wait_flushed(l);
}

static void link_close(struct membership *m)
{
    struct link *l = self(m);
    wait_flushed(l);
    struct member *member = enter(l);
    if (!l->failing && member_state(member)->lease_over) /* else it was its agent that said why */
        (void)snprintf(l->page->last_words, sizeof(l->page->last_words), "%s", member_stop_reason(member));
    if (!l->failing)
        atomic_store(&l->page->exit_code, 0);
    l->closing = true;
    /* Written under the lock: the control thread frees everything once it has seen closing. */
    wake(l);
    leave(l);
}

static const struct membership_ops link_ops = {
    .opened = link_opened,
    .next = link_next,
    .on_revoke = link_on_revoke,
    .on_next_world = link_on_next_world,
    .revoked = link_revoked,
    .commands = link_commands,
    .quiesced = link_quiesced,
    .state_ready = link_state_ready,
    .progress = link_progress,
    .evaluated = link_evaluated,
    .checkpoint_written = link_checkpoint_written,
    .checkpoint_failed = link_checkpoint_failed,
    .finished = link_finished,
    .failing = link_failing,
    .close = link_close,
};

static titan_status page_map(struct link *l, const struct link_options *o, struct titan_error *err)
{
    _cleanup_fd_ int fd = open(o->page, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) < 0)
        return titan_fail_errno(err, "cannot open page '%s'", o->page);
    if (st.st_size != PAGE_BYTES)
        return titan_fail(err, TITAN_EINVAL, "'%s' is not a worker's page", o->page);
    void *p = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        return titan_fail_errno(err, "cannot map page '%s'", o->page);
    l->page = p;
    if (l->page->magic != WORKER_PAGE_MAGIC || l->page->job_id != o->job_id || l->page->worker_id != o->worker_id ||
        atomic_load(&l->page->locked))
        return titan_fail(err, TITAN_EINVAL, "page '%s' is not the one of worker %" PRIu64 " of job %" PRIu64, o->page,
                          o->worker_id, o->job_id);
    return TITAN_OK;
}

/* An older agent makes none, a full disk neither: then nothing is recorded. */
static void recorder_start(const struct link *l, const struct link_options *o)
{
    char path[PATH_MAX];
    struct titan_error err = {0};
    flight_path(o->page, path);
    if (flight_attach(path, &err) != TITAN_OK)
        tlog_debug(&l->log, "no flight recorder", "reason=\"%s\"", err.msg);
}

#define STARTED_WAIT_MS 1000

/* The agent moves a process into its cgroup after it has started it, and names it in the page then: what this process
 * starts from now on is in that group, too. */
static void wait_until_started(const struct link *l)
{
    for (int i = 0; i < STARTED_WAIT_MS && __atomic_load_n(&l->page->pid, __ATOMIC_ACQUIRE) != getpid(); i++)
        (void)nanosleep(&(struct timespec){.tv_nsec = NS_PER_MS}, NULL);
}

/* Peers connect to host; a host behind address translation does not own that address and listens on all. */
static titan_status listen_for_peers(struct link *l, const char *host, struct titan_error *err)
{
    int port = 0;
    titan_status status = comm_listen(host, &l->base.listener, &port, err);
    if (status != TITAN_OK)
        status = comm_listen("0.0.0.0", &l->base.listener, &port, err);
    bool bare_v6 = strchr(host, ':') && host[0] != '[';
    (void)snprintf(l->address, sizeof(l->address), bare_v6 ? "[%s]:%d" : "%s:%d", host, port);
    return status;
}

static titan_status member_start(struct link *l, const struct link_options *o, struct titan_error *err)
{
    const struct member_host host = {
        .arg = l, .send = host_send, .expect = host_expect, .revoke = host_revoke, .end = host_end, .note = host_note};
    struct member_options options = {
        .job_id = o->job_id, .worker_id = o->worker_id, .pid = getpid(), .address = l->address};

    memcpy(options.token, l->page->token, sizeof options.token);
    l->member = member_open(&options, &host, now_ms());
    return l->member ? TITAN_OK : titan_fail(err, TITAN_ENOMEM, "no memory for the link to the agent");
}

static titan_status control_start(struct link *l, struct titan_error *err)
{
    pthread_attr_t attr;
    pthread_t thread;
    sigset_t all, old;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &old);
    (void)pthread_attr_init(&attr);
    (void)pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    int rc = pthread_create(&thread, &attr, control_main, l);
    (void)pthread_attr_destroy(&attr);
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc) {
        errno = rc;
        return titan_fail_errno(err, "cannot start the control thread");
    }
    (void)pthread_mutex_lock(&l->lock);
    while (!l->locked)
        (void)pthread_cond_wait(&l->changed, &l->lock);
    (void)pthread_mutex_unlock(&l->lock);
    return TITAN_OK;
}

titan_status membership_link_open(const struct link_options *o, struct membership **ret, struct titan_error *err)
{
    struct link *l = calloc(1, sizeof(*l));
    if (!l)
        return titan_fail(err, TITAN_ENOMEM, "no memory for the link to the agent");
    l->base.ops = &link_ops;
    l->base.listener = -1;
    l->fd = l->memfd = l->offered_memfd = -1;
    (void)pthread_mutex_init(&l->lock, NULL);
    (void)pthread_mutex_init(&l->revoke_lock, NULL);
    (void)pthread_cond_init(&l->changed, NULL);
    log_init(&l->log, "link", "job=%" PRIu64 " worker=%" PRIu64, o->job_id, o->worker_id);
    (void)snprintf(l->socket_path, PATH_MAX, "%s", o->socket);
    (void)snprintf(l->base.job_dir, PATH_MAX, "%s", o->job_dir);
    (void)snprintf(l->base.run_id, sizeof(l->base.run_id), "%s", o->run);
    (void)snprintf(l->base.run_name, sizeof(l->base.run_name), "job %" PRIu64, o->job_id);
    l->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    titan_status status = l->wake < 0 ? titan_fail_errno(err, "cannot create an eventfd") : TITAN_OK;
    status = status == TITAN_OK ? page_map(l, o, err) : status;
    if (status == TITAN_OK)
        wait_until_started(l);
    status = status == TITAN_OK ? listen_for_peers(l, o->host, err) : status;
    status = status == TITAN_OK ? member_start(l, o, err) : status;
    status = status == TITAN_OK ? control_start(l, err) : status;
    if (status != TITAN_OK) {
        if (l->page)
            (void)munmap(l->page, PAGE_BYTES);
        link_free(l);
        return status;
    }
    progress_attach(&(struct progress_counters){
        .actions = &l->page->actions, .waiting = &l->page->waiting, .busy_ns = &l->page->busy_ns});
    recorder_start(l, o);
    *ret = &l->base;
    return TITAN_OK;
}
