/* SPDX-License-Identifier: Apache-2.0 */
/* agent_connection.c - membership that the node's agent decides (membership.h). It has the socket, the control thread
 * and the page; the state machine is in member.c. One control thread per worker process owns the page's mutex and the
 * socket. The thread must live as long as the process, because the kernel marks the mutex when the thread that holds it
 * ends. So close() only tells the thread to go quiet. The training thread never touches the socket. It queues its
 * messages and wakes the control thread. */
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
#define LAST_LINE_MS 100             /* time for the log to write the last line */
#define RETRY_SLOW_MS 200            /* after the first second */
#define PROGRESS_QUEUE_MAX (1 << 16) /* queued bytes; when more bytes are queued, only the newest progress is kept */
#define FLUSH_WAIT_MS 1000           /* how long the last messages may take at exit */

struct agent_connection {
    struct membership base;
    struct log log;
    struct listen_ports ports;
    char socket_path[PATH_MAX], host[256], address[320];
    struct worker_page *page;
    int wake; /* eventfd: frames are queued, or closing */

    /* Control thread only. */
    int fd;
    struct frame_reader in;
    int64_t retry_at, lost_at;
    bool received; /* the agent has sent data on this connection */

    pthread_mutex_t lock; /* protects all fields below */
    pthread_cond_t changed;
    struct member *member;
    struct frame_writer out;
    uint8_t *late; /* the newest progress, if the queue had no room for it; NULL = none */
    size_t late_len;
    bool locked, closing, failing;
    int offered_memfd, memfd; /* descriptors of the epoch on offer and of the current epoch */
    int next_world;           /* 0 = unknown */
    void (*expect_fn)(void *arg, int world);
    void *expect_arg;

    pthread_mutex_t revoke_lock; /* held while the callback runs; taken after lock */
    void (*revoke_fn)(void *arg);
    void *revoke_arg;
    atomic_int revoked;
};

static struct agent_connection *self(struct membership *m)
{
    return (struct agent_connection *)m;
}

static int64_t now_ms(void)
{
    return clock_mono_ns() / NS_PER_MS;
}

static void wake(struct agent_connection *c)
{
    (void)eventfd_write(c->wake, 1);
}

/* --- the state machine, and what it asks for ---------------------------------------------------------------------- */

/* Takes the lock, until leave(). */
static struct member *enter(struct agent_connection *c)
{
    (void)pthread_mutex_lock(&c->lock);
    return c->member;
}

/* Publishes the state in the page, wakes all threads that wait for a change, and releases the lock. */
static void leave(struct agent_connection *c)
{
    const struct member_state *s = member_state(c->member);

    atomic_store(&c->page->term, s->term);
    atomic_store(&c->page->epoch, s->epoch);
    atomic_store(&c->page->step, s->step);
    atomic_store(&c->page->phase, s->phase);
    (void)pthread_cond_broadcast(&c->changed);
    (void)pthread_mutex_unlock(&c->lock);
}

static void host_send(void *arg, const Titan__Internal__WorkerToAgent *message)
{
    struct agent_connection *c = arg;
    struct titan_error err = {0};
    const size_t len = titan__internal__worker_to_agent__get_packed_size(message);
    const bool progress = message->kind_case == TITAN__INTERNAL__WORKER_TO_AGENT__KIND_PROGRESS;
    _cleanup_free_ uint8_t *bytes = malloc(len + 1);
    _cleanup_free_ uint8_t *late = TAKE(c->late);

    if (!bytes)
        return;
    (void)titan__internal__worker_to_agent__pack(message, bytes);
    if (progress && c->out.bytes >= PROGRESS_QUEUE_MAX) {
        c->late = TAKE(bytes);
        c->late_len = len;
        return;
    }
    if (late && !progress) /* `late` belongs to a step before this message, so it goes first */
        (void)!frame_put(&c->out, late, c->late_len, -1, NULL);
    if (frame_put(&c->out, bytes, len, -1, &err) != TITAN_OK)
        tlog_warn(&c->log, "message to the agent lost", "reason=\"%s\"", err.msg);
    wake(c);
}

static void host_expect(void *arg, int world)
{
    struct agent_connection *c = arg;

    c->next_world = world;
    if (c->expect_fn)
        c->expect_fn(c->expect_arg, world);
}

static void host_revoke(void *arg, uint64_t epoch)
{
    struct agent_connection *c = arg;

    (void)epoch;
    (void)!failpoint("agent_connection.revoke", NULL);
    (void)pthread_mutex_lock(&c->revoke_lock);
    atomic_store(&c->revoked, 1);
    if (c->revoke_fn)
        c->revoke_fn(c->revoke_arg);
    (void)pthread_mutex_unlock(&c->revoke_lock);
}

/* Ends the process. SIGKILL waits for no handlers or locks. An orderly exit would wait for a thread that hangs in the
 * kernel. */
static void host_end(void *arg, enum member_end why, const char *words)
{
    struct agent_connection *c = arg;

    tlog_error(&c->log, "ending this process", "reason=\"%s\"", words);
    if (!c->failing)
        (void)snprintf(c->page->last_words, sizeof c->page->last_words, "%s", words);
    log_flush(LAST_LINE_MS);
    if (why == MEMBER_END_UNQUIESCED)
        (void)kill(getpid(), SIGKILL);
    _exit(1); /* the worker itself has not failed, so the page gets no exit code */
}

static void host_note(void *arg, const char *sentence, const char *pairs)
{
    const struct agent_connection *c = arg;
    tlog_warn(&c->log, sentence, "%s", pairs);
}

static void replace_fd(int *fd, int with)
{
    if (*fd >= 0)
        (void)close(*fd);
    *fd = with;
}

/* Listens at host, to which peers connect. A node behind address translation does not own this address, so it listens
 * on all addresses. */
static titan_status listen_for_peers(struct agent_connection *c, const char *host, struct titan_error *err)
{
    _cleanup_fd_ int listener = -1;
    int port = 0;
    titan_status status = comm_listen(host, &c->ports, &listener, &port, err);
    if (status != TITAN_OK)
        status = comm_listen("0.0.0.0", &c->ports, &listener, &port, err);
    TRY(status);
    /* The descriptor keeps its number, because an epoch that is opening uses the number. */
    if (c->base.listener < 0)
        c->base.listener = TAKE_FD(listener);
    else if (dup3(listener, c->base.listener, O_CLOEXEC) < 0)
        return titan_fail_errno(err, "cannot listen on '%s'", host);
    bool bare_v6 = strchr(host, ':') && host[0] != '[';
    (void)snprintf(c->host, sizeof(c->host), "%s", host);
    (void)snprintf(c->address, sizeof(c->address), bare_v6 ? "[%s]:%d" : "%s:%d", host, port);
    return TITAN_OK;
}

/* --- control thread ----------------------------------------------------------------------------------------------- */

/* Drops messages that were not sent: the next registration reports all state that still holds. */
static void disconnect(struct agent_connection *c)
{
    if (c->fd < 0)
        return;
    replace_fd(&c->fd, -1);
    frame_reader_clear(&c->in);
    /* An agent that hangs up without a message does not want this worker, or has just ended. Then the next attempt is
     * not made at once. */
    if (c->received)
        c->lost_at = c->retry_at = now_ms();
    member_disconnected(enter(c));
    frame_writer_clear(&c->out);
    free(TAKE(c->late));
    leave(c);
    tlog_debug(&c->log, "agent lost", "%s", "");
}

/* Receives and handles the agent's messages until none is left. After an invalid message nothing more is read from this
 * connection. */
static void receive(struct agent_connection *c)
{
    struct titan_error err = {0};
    titan_status status = TITAN_OK;
    const uint8_t *data;
    size_t len;
    int fd;

    while (status == TITAN_OK && err.status == TITAN_OK) {
        if (frame_next(&c->in, FRAME_MAX, &data, &len, &fd, &err) != TITAN_OK) {
            if (err.status == TITAN_OK)
                status = frame_receive(&c->in, c->fd, &err);
            continue;
        }
        _cleanup_fd_ int owned = fd;
        c->received = true;
        Titan__Internal__AgentToWorker *m = titan__internal__agent_to_worker__unpack(NULL, len, data);
        if (!m)
            continue;
        if (range_check(&m->base, &err) == TITAN_OK) {
            const char *host = m->kind_case == TITAN__INTERNAL__AGENT_TO_WORKER__KIND_LEASE ? m->lease->host : "";
            const bool moved = *host && strcmp(host, c->host) != 0;
            struct titan_error why = {0};
            /* The node's address may have changed since this process, or the previous agent, was started. */
            if (moved && listen_for_peers(c, host, &why) == TITAN_OK) {
                tlog_info(&c->log, "the node has another address", "address=%s", c->address);
                member_moved(enter(c), c->address);
                leave(c);
            } else if (moved) {
                tlog_warn(&c->log, "no listener at the node's new address; peers may not reach this worker",
                          "host=\"%s\" reason=\"%s\"", host, why.msg);
            }
            if (member_hear(enter(c), m, now_ms()))
                replace_fd(&c->offered_memfd, TAKE_FD(owned));
            leave(c);
        } else {
            tlog_warn(&c->log, "invalid message from the agent, ignored", "reason=\"%s\"", err.msg);
        }
        titan__internal__agent_to_worker__free_unpacked(m, NULL);
    }
    if (status != TITAN_EAGAIN || err.status != TITAN_OK)
        disconnect(c);
}

static void connection_free(struct agent_connection *c)
{
    replace_fd(&c->fd, -1);
    replace_fd(&c->wake, -1);
    replace_fd(&c->memfd, -1);
    replace_fd(&c->offered_memfd, -1);
    replace_fd(&c->base.listener, -1);
    frame_reader_clear(&c->in);
    frame_writer_clear(&c->out);
    free(c->late);
    member_close(c->member);
    (void)pthread_mutex_destroy(&c->lock);
    (void)pthread_mutex_destroy(&c->revoke_lock);
    (void)pthread_cond_destroy(&c->changed);
    free(c);
}

static void *control_main(void *arg)
{
    struct agent_connection *c = arg;
    /* This thread has little to do, but other processes wait for its answers to commands, and for its end. Even a
     * killed thread ends only when the scheduler runs it. So it asks for a short time slice. */
    slice_set(SLICE_SHORT_NS);
    int rc = pthread_mutex_lock(&c->page->alive);
    atomic_store(&c->page->locked, rc == 0);
    (void)enter(c);
    c->locked = true;
    leave(c);
    for (bool closing = false; !closing;) {
        const int64_t now = now_ms();
        if (c->fd < 0 && now >= c->retry_at) {
            c->retry_at = now + (now - c->lost_at < 1000 ? RETRY_MS : RETRY_SLOW_MS);
            if (frame_connect(c->socket_path, &c->fd, NULL) == TITAN_OK) {
                c->received = false;
                member_connected(enter(c), now);
                leave(c);
            }
        }
        titan_status flushed = TITAN_OK; /* TITAN_EAGAIN: the socket is full */
        if (c->fd >= 0) {
            (void)enter(c);
            flushed = frame_flush(&c->out, c->fd, NULL);
            leave(c);
        }
        if (flushed != TITAN_OK && flushed != TITAN_EAGAIN)
            disconnect(c);

        /* Waits for messages or a deadline. */
        int64_t until = member_deadline(enter(c));
        leave(c);
        if (c->fd < 0)
            until = MIN(until, c->retry_at);
        struct pollfd fds[2] = {{.fd = c->wake, .events = POLLIN},
                                {.fd = c->fd, .events = (short)(POLLIN | (flushed == TITAN_EAGAIN ? POLLOUT : 0))}};
        const int64_t left = until - now_ms();
        int n = poll(fds, 2, left <= 0 ? 0 : (int)MIN(left, INT64_C(60000)));
        eventfd_t count;
        if (n > 0 && fds[0].revents)
            (void)eventfd_read(c->wake, &count);
        /* The tick comes before commands are read, so that a command is judged by the training thread's progress just
         * before it. */
        member_tick(enter(c), now_ms(), atomic_load(&c->page->actions));
        leave(c);
        if (n > 0 && fds[1].revents)
            receive(c);
        (void)enter(c);
        closing = c->closing;
        leave(c);
    }
    connection_free(c);
    /* This thread holds the page's mutex until the process ends. The agent sees by this mutex that the process has
     * ended. */
    for (;;)
        (void)pause();
    return NULL;
}

/* --- what the training thread calls ------------------------------------------------------------------------------- */

static void connection_opened(struct membership *m)
{
    struct agent_connection *c = self(m);
    member_opened(enter(c));
    leave(c);
}

static titan_status connection_next(struct membership *m, struct epoch_view *ret, struct titan_error *err)
{
    struct agent_connection *c = self(m);
    struct member *member = enter(c);
    enum member_answer answer;
    titan_status status = TITAN_OK;

    titan_assert(!c->revoke_fn); /* the previous epoch is closed */
    while ((answer = member_next(member, ret)) == MEMBER_WAIT)
        (void)pthread_cond_wait(&c->changed, &c->lock);
    if (answer == MEMBER_STOPPED) {
        status = titan_fail(err, TITAN_ECANCELLED, "%s", member_stop_reason(member));
    } else {
        replace_fd(&c->memfd, TAKE_FD(c->offered_memfd));
        ret->memfd = c->memfd;
        atomic_store(&c->revoked, 0); /* under the lock, so that a revoke of this epoch comes either before or after */
    }
    leave(c);
    return status;
}

static void connection_on_revoke(struct membership *m, void (*fn)(void *arg), void *arg)
{
    struct agent_connection *c = self(m);
    (void)pthread_mutex_lock(&c->revoke_lock);
    c->revoke_fn = fn;
    c->revoke_arg = arg;
    (void)pthread_mutex_unlock(&c->revoke_lock);
}

static void connection_on_next_world(struct membership *m, void (*fn)(void *arg, int world), void *arg)
{
    struct agent_connection *c = self(m);
    (void)enter(c);
    c->expect_fn = fn;
    c->expect_arg = arg;
    if (fn && c->next_world > 0)
        fn(arg, c->next_world);
    leave(c);
}

static const atomic_int *connection_revoked(struct membership *m)
{
    return &self(m)->revoked;
}

static unsigned connection_commands(struct membership *m)
{
    struct agent_connection *c = self(m);
    const unsigned commands = member_commands(enter(c));
    leave(c);
    return commands;
}

static void connection_quiesced(struct membership *m, const struct quiesced *q)
{
    struct agent_connection *c = self(m);
    member_quiesced(enter(c), q);
    leave(c);
    (void)!failpoint("agent_connection.quiesced", NULL);
}

static void connection_state_ready(struct membership *m, const struct state_ready *ready)
{
    struct agent_connection *c = self(m);
    member_state_ready(enter(c), ready);
    leave(c);
}

static void connection_progress(struct membership *m, const struct step_report *r)
{
    struct agent_connection *c = self(m);
    member_progress(enter(c), r, r->at_ms);
    leave(c);
}

static void connection_evaluated(struct membership *m, const struct evaluation_report *r)
{
    struct agent_connection *c = self(m);
    member_evaluated(enter(c), r);
    leave(c);
}

static void connection_checkpoint_written(struct membership *m, const struct checkpoint_report *report)
{
    struct agent_connection *c = self(m);
    member_checkpoint_written(enter(c), report);
    leave(c);
}

static void connection_checkpoint_failed(struct membership *m, uint64_t step, const char *path, const char *reason,
                                         bool reading)
{
    struct agent_connection *c = self(m);
    member_checkpoint_failed(enter(c), step, path, reason, reading);
    leave(c);
}

static void connection_finished(struct membership *m, uint64_t step)
{
    struct agent_connection *c = self(m);
    member_finished(enter(c), step);
    leave(c);
}

/* Waits until the last message is in the agent's socket, at most a second. */
static void wait_flushed(struct agent_connection *c)
{
    struct timespec until;
    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += FLUSH_WAIT_MS / 1000;
    const struct member_state *s = member_state(enter(c));
    int rc = 0;
    while (s->connected && c->out.first && rc == 0)
        rc = pthread_cond_clockwait(&c->changed, &c->lock, CLOCK_MONOTONIC, &until);
    leave(c);
}

/* Writes the failure's words into the page, where the agent finds them when this process is gone. Returns the exit
 * code. */
static int leave_words(struct worker_page *page, const struct titan_error *err)
{
    const int code = titan_error_short(err) ? TITAN_EXIT_SHORT : titan_status_exit(err->status);
    (void)snprintf(page->last_words, sizeof(page->last_words), "%s%s%s%s", err->msg, err->hint[0] ? " (" : "",
                   err->hint, err->hint[0] ? ")" : "");
    atomic_store(&page->exit_code, code);
    return code;
}

static void connection_failing(struct membership *m, const struct titan_error *err)
{
    struct agent_connection *c = self(m);
    struct member *member = enter(c);
    const int code = leave_words(c->page, err);
    c->failing = true;
    member_failing(member, code, c->page->last_words);
    leave(c);
    wait_flushed(c);
}

static void connection_close(struct membership *m)
{
    struct agent_connection *c = self(m);
    wait_flushed(c);
    struct member *member = enter(c);
    if (!c->failing && member_state(member)->lease_over) /* in all other cases the agent gave the reason itself */
        (void)snprintf(c->page->last_words, sizeof(c->page->last_words), "%s", member_stop_reason(member));
    if (!c->failing)
        atomic_store(&c->page->exit_code, 0);
    c->closing = true;
    /* The wake is under the lock, because the control thread frees everything once it has seen `closing`. */
    wake(c);
    leave(c);
}

static const struct membership_ops connection_ops = {
    .opened = connection_opened,
    .next = connection_next,
    .on_revoke = connection_on_revoke,
    .on_next_world = connection_on_next_world,
    .revoked = connection_revoked,
    .commands = connection_commands,
    .quiesced = connection_quiesced,
    .state_ready = connection_state_ready,
    .progress = connection_progress,
    .evaluated = connection_evaluated,
    .checkpoint_written = connection_checkpoint_written,
    .checkpoint_failed = connection_checkpoint_failed,
    .finished = connection_finished,
    .failing = connection_failing,
    .close = connection_close,
};

static titan_status page_map(struct agent_connection *c, const struct agent_connection_options *o,
                             struct titan_error *err)
{
    _cleanup_fd_ int fd = o->page_fd > 0 ? o->page_fd : open(o->page, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) < 0)
        return titan_fail_errno(err, "cannot open page '%s'", o->page);
    if (st.st_size != PAGE_BYTES)
        return titan_fail(err, TITAN_EINVAL, "'%s' is not a worker's page", o->page);
    void *p = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        return titan_fail_errno(err, "cannot map page '%s'", o->page);
    c->page = p;
    if (c->page->magic != WORKER_PAGE_MAGIC || c->page->job_id != o->job_id || c->page->worker_id != o->worker_id ||
        atomic_load(&c->page->locked))
        return titan_fail(err, TITAN_EINVAL, "page '%s' is not the one of worker %" PRIu64 " of job %" PRIu64, o->page,
                          o->worker_id, o->job_id);
    return TITAN_OK;
}

#define STARTED_WAIT_MS 1000

static titan_status control_start(struct agent_connection *c, struct titan_error *err)
{
    pthread_attr_t attr;
    pthread_t thread;
    sigset_t all, old;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &old);
    (void)pthread_attr_init(&attr);
    (void)pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    int rc = pthread_create(&thread, &attr, control_main, c);
    (void)pthread_attr_destroy(&attr);
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc) {
        errno = rc;
        return titan_fail_errno(err, "cannot start the control thread");
    }
    (void)pthread_mutex_lock(&c->lock);
    while (!c->locked)
        (void)pthread_cond_wait(&c->changed, &c->lock);
    (void)pthread_mutex_unlock(&c->lock);
    return TITAN_OK;
}

titan_status membership_agent_open(const struct agent_connection_options *o, struct membership **ret,
                                   struct titan_error *err)
{
    struct agent_connection *c = calloc(1, sizeof(*c));
    if (!c)
        return titan_fail(err, TITAN_ENOMEM, "no memory for the connection to the agent");
    c->base.ops = &connection_ops;
    c->base.listener = -1;
    c->fd = c->memfd = c->offered_memfd = -1;
    (void)pthread_mutex_init(&c->lock, NULL);
    (void)pthread_mutex_init(&c->revoke_lock, NULL);
    (void)pthread_cond_init(&c->changed, NULL);
    log_init(&c->log, "worker", "job=%" PRIu64 " worker=%" PRIu64, o->job_id, o->worker_id);
    (void)snprintf(c->socket_path, PATH_MAX, "%s", o->socket);
    c->ports = o->ports;
    (void)snprintf(c->base.job_dir, PATH_MAX, "%s", o->job_dir);
    (void)snprintf(c->base.run_id, sizeof(c->base.run_id), "%s", o->run);
    (void)snprintf(c->base.run_name, sizeof(c->base.run_name), "job %" PRIu64, o->job_id);
    c->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    titan_status status = c->wake < 0 ? titan_fail_errno(err, "cannot create an eventfd") : TITAN_OK;
    status = status == TITAN_OK ? page_map(c, o, err) : status;
    const bool own_page = status == TITAN_OK;
    /* The agent moves a started process into its cgroup and then names the process in the page. All that this process
     * starts from now on is in that cgroup, too. */
    for (int i = 0; own_page && i < STARTED_WAIT_MS && __atomic_load_n(&c->page->pid, __ATOMIC_ACQUIRE) != getpid();
         i++)
        (void)nanosleep(&(struct timespec){.tv_nsec = NS_PER_MS}, NULL);
    status = status == TITAN_OK ? listen_for_peers(c, o->host, err) : status;
    if (status == TITAN_OK) {
        const struct member_host host = {.arg = c,
                                         .send = host_send,
                                         .expect = host_expect,
                                         .revoke = host_revoke,
                                         .end = host_end,
                                         .note = host_note};
        struct member_options options = {
            .job_id = o->job_id, .worker_id = o->worker_id, .pid = getpid(), .address = c->address};
        memcpy(options.token, c->page->token, sizeof options.token);
        c->member = member_open(&options, &host, now_ms());
        if (!c->member)
            status = titan_fail(err, TITAN_ENOMEM, "no memory for the connection to the agent");
    }
    status = status == TITAN_OK ? control_start(c, err) : status;
    if (status != TITAN_OK) {
        if (own_page && err)
            (void)leave_words(c->page, err);
        if (c->page)
            (void)munmap(c->page, PAGE_BYTES);
        connection_free(c);
        return status;
    }
    progress_attach(&(struct progress_counters){
        .actions = &c->page->actions, .waiting = &c->page->waiting, .busy_ns = &c->page->busy_ns});
    /* With an older agent or a full disk there is no flight recorder, and nothing is recorded. */
    char path[PATH_MAX];
    struct titan_error why = {0};
    flight_path(o->page, path);
    if (flight_attach(path, o->flight_fd, &why) != TITAN_OK)
        tlog_debug(&c->log, "no flight recorder", "reason=\"%s\"", why.msg);
    *ret = &c->base;
    return TITAN_OK;
}
