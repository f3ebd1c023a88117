/* link.c - membership as an agent decides it (membership.h).
 *
 * One control thread per worker process owns the page's mutex and the socket. It must live as long as the process: the
 * kernel marks the mutex when the thread that holds it ends. So close() only tells it to go quiet.
 *
 * The training thread never touches the socket: it queues frames and wakes the control thread. While no agent is
 * there, frames wait, except progress, which is only worth something fresh. Connecting again begins with a hello that
 * says where this worker is; what an agent may not have passed on before it died is said again. */
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
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/frame.h"
#include "base/log.h"
#include "proto/worker_page.h"
#include "titan/internal/worker.pb-c.h"
#include "worker/comm/comm.h"

#define PAGE_BYTES 4096
#define NS_PER_MS INT64_C(1000000)
#define LEASE_FIRST_MS 30000         /* until an agent says otherwise */
#define LEASE_GRACE_MS 10000         /* from the end of the lease to the end of the process */
#define RETRY_MS 20                  /* between attempts to reach the agent, in the first second */
#define RETRY_SLOW_MS 200            /* later */
#define PROGRESS_QUEUE_MAX (1 << 16) /* bytes waiting beyond which progress is dropped */
#define FLUSH_WAIT_MS 1000           /* how long the last messages may take at exit */

/* A FormEpoch as it came; arrays and the descriptor are owned. */
struct form {
    uint64_t epoch, resume_step, source_epoch;
    unsigned char comm_id[16];
    int rank, world, leavers, holders, n_older, memfd;
    char **addresses, **older;
    int *nodes, *holder_ranks;
    enum state_source source;
    char checkpoint_path[PATH_MAX];
};

struct link {
    struct membership base;
    struct log log;
    char socket_path[PATH_MAX], page_path[PATH_MAX], address[320];
    uint64_t job_id, worker_id;
    struct worker_page *page;
    int wake; /* eventfd: frames are queued, or closing */

    /* Control thread only. */
    int fd;
    struct frame_reader in;
    struct frame_writer greeting;
    int64_t lease_until_ns, exit_at_ns, retry_at_ns, lost_at_ns;
    uint32_t lease_ms;

    pthread_mutex_t lock; /* all below */
    pthread_cond_t changed;
    struct frame_writer out;
    bool locked, connected, closing, stopped, lease_over;
    bool said_ready, said_failing;
    char stop_reason[256];
    unsigned stop_orders, pause_orders;
    uint64_t revoked_upto; /* epochs up to here never form */
    struct form *next, *current;
    struct quiesced quiesced;
    uint64_t last_step, finished_step;
    bool finished;
    struct {
        uint64_t step, bytes, epoch;
        int world;
        char path[PATH_MAX];
    } written; /* a checkpoint the coordinator has not confirmed; step 0 = none */

    pthread_mutex_t revoke_lock; /* held while the callback runs */
    void (*revoke_fn)(void *arg);
    void *revoke_arg;
    atomic_int revoked;
};

static struct link *self(struct membership *m)
{
    return (struct link *)m;
}

static void form_free(struct form *f)
{
    if (!f)
        return;
    for (int i = 0; f->addresses && i < f->world + f->leavers; i++)
        free(f->addresses[i]);
    free(f->addresses);
    for (int i = 0; f->older && i < f->n_older; i++)
        free(f->older[i]);
    free(f->older);
    free(f->nodes);
    free(f->holder_ranks);
    if (f->memfd >= 0)
        (void)close(f->memfd);
    free(f);
}

/* --- messages out ---------------------------------------------------------------------------------------------------
 */

static void pack(struct link *l, struct frame_writer *queue, const Titan__Internal__WorkerToAgent *message)
{
    struct titan_error err = {0};
    size_t len = titan__internal__worker_to_agent__get_packed_size(message);
    _cleanup_free_ uint8_t *bytes = malloc(len ? len : 1);
    if (!bytes)
        return;
    (void)titan__internal__worker_to_agent__pack(message, bytes);
    if (frame_put(queue, bytes, len, -1, &err) != TITAN_OK)
        tlog_warn(&l->log, "message to the agent lost", "reason=\"%s\"", err.msg);
}

static void wake(struct link *l)
{
    (void)eventfd_write(l->wake, 1);
}

static void put_ready(struct link *l, struct frame_writer *queue)
{
    Titan__Internal__WorkerReady ready = TITAN__INTERNAL__WORKER_READY__INIT;
    Titan__Internal__WorkerToAgent message = TITAN__INTERNAL__WORKER_TO_AGENT__INIT;
    ready.job_id = l->job_id;
    ready.worker_id = l->worker_id;
    ready.address = l->address;
    ready.last_step = l->last_step;
    message.kind_case = TITAN__INTERNAL__WORKER_TO_AGENT__KIND_READY;
    message.ready = &ready;
    pack(l, queue, &message);
}

static void put_quiesced(struct link *l, struct frame_writer *queue)
{
    Titan__Internal__WorkerQuiesced quiesced = TITAN__INTERNAL__WORKER_QUIESCED__INIT;
    Titan__Internal__WorkerToAgent message = TITAN__INTERNAL__WORKER_TO_AGENT__INIT;
    quiesced.job_id = l->job_id;
    quiesced.worker_id = l->worker_id;
    quiesced.epoch = l->quiesced.epoch;
    quiesced.last_step = l->quiesced.last_step;
    quiesced.paused = l->quiesced.paused;
    quiesced.prepared = l->quiesced.prepared;
    quiesced.sealed_epoch = l->quiesced.sealed_epoch;
    quiesced.unsealed_epoch = l->quiesced.unsealed_epoch;
    message.kind_case = TITAN__INTERNAL__WORKER_TO_AGENT__KIND_QUIESCED;
    message.quiesced = &quiesced;
    pack(l, queue, &message);
}

static void put_checkpoint(struct link *l, struct frame_writer *queue)
{
    Titan__Internal__CheckpointWritten written = TITAN__INTERNAL__CHECKPOINT_WRITTEN__INIT;
    Titan__Internal__WorkerToAgent message = TITAN__INTERNAL__WORKER_TO_AGENT__INIT;
    written.job_id = l->job_id;
    written.worker_id = l->worker_id;
    written.epoch = l->written.epoch;
    written.step = l->written.step;
    written.path = l->written.path;
    written.bytes = l->written.bytes;
    written.world_size = (uint32_t)l->written.world;
    message.kind_case = TITAN__INTERNAL__WORKER_TO_AGENT__KIND_CHECKPOINT;
    message.checkpoint = &written;
    pack(l, queue, &message);
}

static void put_finished(struct link *l, struct frame_writer *queue)
{
    Titan__Internal__WorkerFinished finished = TITAN__INTERNAL__WORKER_FINISHED__INIT;
    Titan__Internal__WorkerToAgent message = TITAN__INTERNAL__WORKER_TO_AGENT__INIT;
    finished.job_id = l->job_id;
    finished.worker_id = l->worker_id;
    finished.epoch = l->current ? l->current->epoch : 0;
    finished.step = l->finished_step;
    message.kind_case = TITAN__INTERNAL__WORKER_TO_AGENT__KIND_FINISHED;
    message.finished = &finished;
    pack(l, queue, &message);
}

/* First words on a connection; lock held. What a dead agent may have kept to itself follows. */
static void greet(struct link *l)
{
    Titan__Internal__WorkerHello hello = TITAN__INTERNAL__WORKER_HELLO__INIT;
    Titan__Internal__WorkerToAgent message = TITAN__INTERNAL__WORKER_TO_AGENT__INIT;
    hello.job_id = l->job_id;
    hello.worker_id = l->worker_id;
    hello.token.data = l->page->token;
    hello.token.len = sizeof(l->page->token);
    hello.pid = getpid();
    hello.epoch = l->current ? l->current->epoch : 0;
    hello.rank = l->current ? (uint32_t)l->current->rank : 0;
    hello.step = atomic_load(&l->page->step);
    hello.phase = (Titan__Internal__WorkerPhase)atomic_load(&l->page->phase);
    hello.address = l->address;
    message.kind_case = TITAN__INTERNAL__WORKER_TO_AGENT__KIND_HELLO;
    message.hello = &hello;
    frame_writer_clear(&l->greeting);
    frame_rewind(&l->out);
    pack(l, &l->greeting, &message);
    if (!l->said_ready) {
        put_ready(l, &l->greeting);
        l->said_ready = true;
        return;
    }
    if (l->out.first)
        return; /* it is still in the queue */
    if (hello.phase == TITAN__INTERNAL__WORKER_PHASE__WORKER_QUIESCED)
        put_quiesced(l, &l->greeting);
    if (l->written.step)
        put_checkpoint(l, &l->greeting);
    if (l->finished)
        put_finished(l, &l->greeting);
}

/* --- orders in ------------------------------------------------------------------------------------------------------
 */

/* The current epoch is over; lock not held. Every wait on its communicator ends. */
static void revoke_current(struct link *l)
{
    (void)pthread_mutex_lock(&l->revoke_lock);
    atomic_store(&l->revoked, 1);
    if (l->revoke_fn)
        l->revoke_fn(l->revoke_arg);
    (void)pthread_mutex_unlock(&l->revoke_lock);
}

/* Members, then leavers, in rank order. */
static const Titan__Internal__Member *form_rank(const Titan__Internal__FormEpoch *m, int rank)
{
    const size_t r = (size_t)rank;
    return r < m->n_members ? m->members[r] : m->leavers[r - m->n_members];
}

static bool form_members(const struct link *l, const Titan__Internal__FormEpoch *m, struct form *f)
{
    f->rank = -1;
    f->world = (int)m->n_members;
    f->leavers = (int)m->n_leavers;
    const int all = f->world + f->leavers;
    f->addresses = calloc((size_t)all, sizeof(char *));
    f->nodes = calloc((size_t)all, sizeof(int));
    if (!f->addresses || !f->nodes)
        return false;
    for (int i = 0; i < all; i++) {
        f->addresses[i] = strdup(form_rank(m, i)->address);
        if (!f->addresses[i])
            return false;
        while (strcmp(form_rank(m, f->nodes[i])->node, form_rank(m, i)->node) != 0)
            f->nodes[i]++;
        if (form_rank(m, i)->worker_id == l->worker_id)
            f->rank = i;
    }
    f->holders = (int)m->n_state_holders;
    f->holder_ranks = calloc(m->n_state_holders + 1, sizeof(int));
    if (!f->holder_ranks)
        return false;
    for (int h = 0; h < f->holders; h++) {
        f->holder_ranks[h] = -1;
        for (int i = 0; i < all; i++)
            if (form_rank(m, i)->worker_id == m->state_holders[h])
                f->holder_ranks[h] = i;
    }
    return f->rank >= 0;
}

static bool form_older(const Titan__Internal__FormEpoch *m, struct form *f)
{
    f->older = calloc(m->n_older_checkpoints + 1, sizeof(char *));
    for (size_t i = 0; f->older && i < m->n_older_checkpoints; i++) {
        f->older[i] = strdup(m->older_checkpoints[i]);
        if (!f->older[i])
            return false;
        f->n_older++;
    }
    return f->older;
}

/* NULL for an order that cannot be followed. Takes memfd. */
static struct form *form_make(const struct link *l, const Titan__Internal__FormEpoch *m, int memfd)
{
    static const enum state_source sources[] = {[TITAN__INTERNAL__STATE_SOURCE__STATE_INIT] = STATE_FROM_INIT,
                                                [TITAN__INTERNAL__STATE_SOURCE__STATE_CHECKPOINT] =
                                                    STATE_FROM_CHECKPOINT,
                                                [TITAN__INTERNAL__STATE_SOURCE__STATE_MEMORY] = STATE_FROM_MEMORY};
    struct form *f = calloc(1, sizeof(*f));
    if (!f) {
        if (memfd >= 0)
            (void)close(memfd);
        return NULL;
    }
    f->memfd = memfd;
    f->epoch = m->epoch;
    f->resume_step = m->resume_step;
    f->source_epoch = m->source_epoch;
    size_t path_len = strlen(m->checkpoint_path);
    if (m->n_members == 0 || m->n_members > COMM_WORLD_MAX || m->n_leavers > COMM_WORLD_MAX - m->n_members ||
        m->n_state_holders > COMM_WORLD_MAX || m->comm_id.len != sizeof(f->comm_id) ||
        (size_t)m->source >= ARRAY_SIZE(sources) || path_len >= PATH_MAX || !form_members(l, m, f) ||
        !form_older(m, f)) {
        form_free(f);
        return NULL;
    }
    memcpy(f->comm_id, m->comm_id.data, sizeof(f->comm_id));
    memcpy(f->checkpoint_path, m->checkpoint_path, path_len + 1);
    f->source = sources[m->source];
    return f;
}

/* An epoch that was revoked before the training thread took it: nobody else will say that this worker is out of it.
 * Lock held. */
static void quiet_without_entering(struct link *l, uint64_t epoch)
{
    l->quiesced.epoch = epoch; /* what it holds is as it was */
    l->quiesced.paused = false;
    atomic_store(&l->page->phase, TITAN__INTERNAL__WORKER_PHASE__WORKER_QUIESCED);
    put_quiesced(l, &l->out);
}

static void on_form(struct link *l, const Titan__Internal__FormEpoch *m, int memfd)
{
    struct form *f = form_make(l, m, memfd);
    if (!f) {
        tlog_warn(&l->log, "order to form an epoch refused", "epoch=%" PRIu64, m->epoch);
        return;
    }
    (void)pthread_mutex_lock(&l->lock);
    uint64_t newest = l->next ? l->next->epoch : l->current ? l->current->epoch : 0;
    bool fresh = f->epoch > newest && f->epoch > l->revoked_upto;
    if (fresh) {
        form_free(l->next);
        l->next = NULL;
    } else if (f->epoch > newest) {
        quiet_without_entering(l, f->epoch);
    }
    bool in_epoch = l->current != NULL;
    (void)pthread_mutex_unlock(&l->lock);
    if (!fresh) {
        form_free(f);
        return;
    }
    /* A later epoch ends the one before it: first that, then the offer, or the revoke could hit the new one. */
    if (in_epoch)
        revoke_current(l);
    (void)pthread_mutex_lock(&l->lock);
    l->next = f;
    (void)pthread_cond_broadcast(&l->changed);
    (void)pthread_mutex_unlock(&l->lock);
}

static void on_revoke_order(struct link *l, uint64_t epoch)
{
    (void)pthread_mutex_lock(&l->lock);
    if (epoch > l->revoked_upto)
        l->revoked_upto = epoch;
    if (l->next && l->next->epoch <= epoch) {
        quiet_without_entering(l, l->next->epoch);
        form_free(l->next);
        l->next = NULL;
    }
    /* With a later epoch on offer the current one is revoked already, and may be left at any moment. */
    bool current = l->current && l->current->epoch <= epoch && !l->next;
    (void)pthread_mutex_unlock(&l->lock);
    if (current)
        revoke_current(l);
}

static void on_pause(struct link *l, const Titan__Internal__PauseJob *m)
{
    (void)pthread_mutex_lock(&l->lock);
    if (l->current && l->current->epoch == m->epoch)
        l->pause_orders |= 1u | (m->checkpoint ? 4u : 0);
    (void)pthread_mutex_unlock(&l->lock);
}

static void stop_locked(struct link *l, bool checkpoint, const char *reason)
{
    l->stop_orders |= 2u | (checkpoint ? 4u : 0);
    if (!l->stopped)
        (void)snprintf(l->stop_reason, sizeof(l->stop_reason), "%s", reason);
    l->stopped = true;
    (void)pthread_cond_broadcast(&l->changed);
}

static void on_stop(struct link *l, const Titan__Internal__WorkerStop *m)
{
    (void)pthread_mutex_lock(&l->lock);
    stop_locked(l, m->checkpoint, m->reason && *m->reason ? m->reason : "told to stop");
    (void)pthread_mutex_unlock(&l->lock);
}

static void on_committed(struct link *l, uint64_t step)
{
    (void)pthread_mutex_lock(&l->lock);
    if (l->written.step && l->written.step <= step)
        l->written.step = 0;
    (void)pthread_mutex_unlock(&l->lock);
}

static void on_lease(struct link *l, uint32_t lease_ms)
{
    l->lease_ms = lease_ms ? lease_ms : LEASE_FIRST_MS;
    l->lease_until_ns = clock_mono_ns() + l->lease_ms * NS_PER_MS;
}

static void dispatch(struct link *l, const uint8_t *data, size_t len, int fd)
{
    Titan__Internal__AgentToWorker *m = titan__internal__agent_to_worker__unpack(NULL, len, data);
    if (m && m->kind_case == TITAN__INTERNAL__AGENT_TO_WORKER__KIND_FORM) {
        on_form(l, m->form, fd);
        fd = -1;
    } else if (m) {
        switch (m->kind_case) {
        case TITAN__INTERNAL__AGENT_TO_WORKER__KIND_LEASE:
            on_lease(l, m->lease->lease_ms);
            break;
        case TITAN__INTERNAL__AGENT_TO_WORKER__KIND_REVOKE:
            on_revoke_order(l, m->revoke->epoch);
            break;
        case TITAN__INTERNAL__AGENT_TO_WORKER__KIND_PAUSE:
            on_pause(l, m->pause);
            break;
        case TITAN__INTERNAL__AGENT_TO_WORKER__KIND_STOP:
            on_stop(l, m->stop);
            break;
        case TITAN__INTERNAL__AGENT_TO_WORKER__KIND_CHECKPOINT_COMMITTED:
            on_committed(l, m->checkpoint_committed->step);
            break;
        default: /* of a newer agent */
            break;
        }
    }
    if (fd >= 0)
        (void)close(fd);
    if (m)
        titan__internal__agent_to_worker__free_unpacked(m, NULL);
}

/* --- control thread -------------------------------------------------------------------------------------------------
 */

static void disconnect(struct link *l)
{
    if (l->fd < 0)
        return;
    (void)close(l->fd);
    l->fd = -1;
    frame_reader_clear(&l->in);
    l->lost_at_ns = l->retry_at_ns = clock_mono_ns();
    (void)pthread_mutex_lock(&l->lock);
    l->connected = false;
    (void)pthread_mutex_unlock(&l->lock);
    tlog_debug(&l->log, "agent lost", "%s", "");
}

static void try_connect(struct link *l, int64_t now)
{
    if (l->fd >= 0 || now < l->retry_at_ns)
        return;
    int64_t retry_ms = now - l->lost_at_ns < 1000 * NS_PER_MS ? RETRY_MS : RETRY_SLOW_MS;
    l->retry_at_ns = now + retry_ms * NS_PER_MS;
    if (frame_connect(l->socket_path, &l->fd, NULL) != TITAN_OK)
        return;
    (void)pthread_mutex_lock(&l->lock);
    greet(l);
    l->connected = true;
    (void)pthread_mutex_unlock(&l->lock);
}

/* Send greeting, then queue. Returns whether the socket is full. */
static bool flush(struct link *l)
{
    if (l->fd < 0)
        return false;
    titan_status status = frame_flush(&l->greeting, l->fd, NULL);
    if (status == TITAN_OK) {
        (void)pthread_mutex_lock(&l->lock);
        status = frame_flush(&l->out, l->fd, NULL);
        (void)pthread_cond_broadcast(&l->changed);
        (void)pthread_mutex_unlock(&l->lock);
    }
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
        while (status == TITAN_OK && frame_next(&l->in, FRAME_MAX, &data, &len, &fd, &err) == TITAN_OK)
            dispatch(l, data, len, fd);
    } while (status == TITAN_OK && err.status == TITAN_OK);
    if (status != TITAN_EAGAIN || err.status != TITAN_OK)
        disconnect(l);
}

/* The agent has been silent for the lease: stop with a checkpoint; if that does not end us, end hard. */
static void check_lease(struct link *l, int64_t now)
{
    if (now < l->lease_until_ns)
        return;
    if (!l->exit_at_ns) {
        tlog_warn(&l->log, "no agent for the whole lease, stopping", "lease_ms=%u", l->lease_ms);
        l->exit_at_ns = now + LEASE_GRACE_MS * NS_PER_MS;
        (void)pthread_mutex_lock(&l->lock);
        l->lease_over = true;
        stop_locked(l, true, "no agent for the whole lease");
        (void)pthread_mutex_unlock(&l->lock);
    } else if (now >= l->exit_at_ns) {
        tlog_error(&l->log, "still running after the lease, exiting", "%s", "");
        (void)snprintf(l->page->last_words, sizeof(l->page->last_words), "no agent for the whole lease");
        atomic_store(&l->page->exit_code, 1);
        _exit(1);
    }
}

static void wait_for_something(struct link *l, bool full)
{
    int64_t now = clock_mono_ns();
    int64_t until = l->exit_at_ns ? l->exit_at_ns : l->lease_until_ns;
    if (l->fd < 0 && l->retry_at_ns < until)
        until = l->retry_at_ns;
    int64_t ms = until <= now ? 0 : (until - now) / NS_PER_MS + 1;
    struct pollfd fds[2] = {{.fd = l->wake, .events = POLLIN},
                            {.fd = l->fd, .events = (short)(POLLIN | (full ? POLLOUT : 0))}};
    int n = poll(fds, 2, (int)MIN(ms, INT64_C(60000)));
    eventfd_t count;
    if (n > 0 && fds[0].revents)
        (void)eventfd_read(l->wake, &count);
    if (n > 0 && fds[1].revents)
        receive(l);
}

static void link_free(struct link *l)
{
    if (l->fd >= 0)
        (void)close(l->fd);
    if (l->wake >= 0)
        (void)close(l->wake);
    if (l->base.listener >= 0)
        (void)close(l->base.listener);
    frame_reader_clear(&l->in);
    frame_writer_clear(&l->greeting);
    frame_writer_clear(&l->out);
    form_free(l->next);
    form_free(l->current);
    (void)pthread_mutex_destroy(&l->lock);
    (void)pthread_mutex_destroy(&l->revoke_lock);
    (void)pthread_cond_destroy(&l->changed);
    free(l);
}

static void *control_main(void *arg)
{
    struct link *l = arg;
    int rc = pthread_mutex_lock(&l->page->alive);
    atomic_store(&l->page->locked, rc == 0);
    (void)pthread_mutex_lock(&l->lock);
    l->locked = true;
    (void)pthread_cond_broadcast(&l->changed);
    (void)pthread_mutex_unlock(&l->lock);
    on_lease(l, 0);
    for (bool closing = false; !closing;) {
        int64_t now = clock_mono_ns();
        try_connect(l, now);
        bool full = flush(l);
        check_lease(l, now);
        wait_for_something(l, full);
        (void)pthread_mutex_lock(&l->lock);
        closing = l->closing;
        (void)pthread_mutex_unlock(&l->lock);
    }
    link_free(l);
    /* The mutex in the page is held until the process ends: that is how the agent knows. */
    for (;;)
        (void)pause();
    return NULL;
}

/* --- what the training thread calls ---------------------------------------------------------------------------------
 */

static void view_fill(const struct form *f, struct epoch_view *ret)
{
    *ret = (struct epoch_view){.epoch = f->epoch,
                               .rank = f->rank,
                               .world = f->world,
                               .leavers = f->leavers,
                               .addresses = (const char *const *)f->addresses,
                               .nodes = f->nodes,
                               .memfd = f->memfd,
                               .source = f->source,
                               .resume_step = f->resume_step,
                               .n_older = f->n_older,
                               .older_checkpoints = (const char *const *)f->older,
                               .source_epoch = f->source_epoch,
                               .holders = f->holders,
                               .holder_ranks = f->holder_ranks};
    memcpy(ret->comm_id, f->comm_id, sizeof(ret->comm_id));
    memcpy(ret->checkpoint_path, f->checkpoint_path, sizeof(ret->checkpoint_path));
}

static titan_status link_next(struct membership *m, struct epoch_view *ret, struct titan_error *err)
{
    struct link *l = self(m);
    (void)pthread_mutex_lock(&l->lock);
    while (!l->next && !l->stopped)
        (void)pthread_cond_wait(&l->changed, &l->lock);
    if (l->stopped) {
        titan_status status = titan_fail(err, TITAN_ECANCELLED, "%s", l->stop_reason);
        (void)pthread_mutex_unlock(&l->lock);
        return status;
    }
    form_free(l->current);
    l->current = TAKE(l->next);
    l->pause_orders = 0;
    atomic_store(&l->page->epoch, l->current->epoch);
    atomic_store(&l->page->phase, TITAN__INTERNAL__WORKER_PHASE__WORKER_FORMING);
    view_fill(l->current, ret);
    /* Under the lock: a revoke of this epoch cannot slip in between and be wiped out. */
    atomic_store(&l->revoked, 0);
    (void)pthread_mutex_unlock(&l->lock);
    return TITAN_OK;
}

static void link_on_revoke(struct membership *m, void (*fn)(void *arg), void *arg)
{
    struct link *l = self(m);
    (void)pthread_mutex_lock(&l->revoke_lock);
    l->revoke_fn = fn;
    l->revoke_arg = arg;
    (void)pthread_mutex_unlock(&l->revoke_lock);
}

static const atomic_int *link_revoked(struct membership *m)
{
    return &self(m)->revoked;
}

static unsigned link_orders(struct membership *m)
{
    struct link *l = self(m);
    (void)pthread_mutex_lock(&l->lock);
    unsigned orders = l->stop_orders | l->pause_orders;
    (void)pthread_mutex_unlock(&l->lock);
    return orders;
}

static void link_quiesced(struct membership *m, const struct quiesced *q)
{
    struct link *l = self(m);
    (void)pthread_mutex_lock(&l->lock);
    l->quiesced = *q;
    l->last_step = q->last_step;
    atomic_store(&l->page->step, q->last_step);
    atomic_store(&l->page->phase, TITAN__INTERNAL__WORKER_PHASE__WORKER_QUIESCED);
    put_quiesced(l, &l->out);
    (void)pthread_mutex_unlock(&l->lock);
    wake(l);
}

static void link_state_ready(struct membership *m, const struct state_ready *r)
{
    struct link *l = self(m);
    Titan__Internal__StateReady ready = TITAN__INTERNAL__STATE_READY__INIT;
    Titan__Internal__WorkerToAgent message = TITAN__INTERNAL__WORKER_TO_AGENT__INIT;
    ready.job_id = l->job_id;
    ready.worker_id = l->worker_id;
    ready.epoch = r->epoch;
    ready.rung = (Titan__Internal__StateRung)r->rung;
    ready.step = r->step;
    ready.bytes_moved = r->bytes_moved;
    ready.params_hash = r->params_hash;
    ready.rolled_forward = r->rolled_forward;
    ready.connect_ms = r->connect_ms;
    ready.plan_ms = r->plan_ms;
    ready.state_ms = r->state_ms;
    ready.prepare_ms = r->prepare_ms;
    ready.damaged_checkpoint = (char *)r->damaged_checkpoint;
    message.kind_case = TITAN__INTERNAL__WORKER_TO_AGENT__KIND_STATE_READY;
    message.state_ready = &ready;
    (void)pthread_mutex_lock(&l->lock);
    pack(l, &l->out, &message);
    (void)pthread_mutex_unlock(&l->lock);
    wake(l);
}

static void link_progress(struct membership *m, const struct step_report *r)
{
    struct link *l = self(m);
    Titan__Internal__WorkerProgress progress = TITAN__INTERNAL__WORKER_PROGRESS__INIT;
    Titan__Internal__WorkerToAgent message = TITAN__INTERNAL__WORKER_TO_AGENT__INIT;
    progress.job_id = l->job_id;
    progress.worker_id = l->worker_id;
    progress.epoch = r->epoch;
    progress.step = r->step;
    progress.loss = r->loss;
    progress.grad_norm = r->grad_norm;
    progress.learning_rate = r->learning_rate;
    progress.tokens_per_second = r->tokens_per_second;
    progress.mfu = r->mfu;
    progress.step_ms = r->step_ms;
    progress.tokens = r->tokens;
    progress.world_size = (uint32_t)r->world;
    progress.memory_bytes = r->memory_bytes;
    progress.skipped_steps = r->skipped_steps;
    progress.at_ms = clock_wall_ms();
    message.kind_case = TITAN__INTERNAL__WORKER_TO_AGENT__KIND_PROGRESS;
    message.progress = &progress;
    atomic_store(&l->page->step, r->step);
    atomic_store(&l->page->phase, TITAN__INTERNAL__WORKER_PHASE__WORKER_TRAINING);
    (void)atomic_fetch_add(&l->page->actions, 1);
    (void)pthread_mutex_lock(&l->lock);
    l->last_step = r->step;
    if (l->connected && l->out.bytes < PROGRESS_QUEUE_MAX)
        pack(l, &l->out, &message);
    (void)pthread_mutex_unlock(&l->lock);
    wake(l);
}

static void link_checkpoint_written(struct membership *m, uint64_t step, const char *path, uint64_t bytes, int world)
{
    struct link *l = self(m);
    (void)pthread_mutex_lock(&l->lock);
    l->written.step = step;
    l->written.bytes = bytes;
    l->written.world = world;
    l->written.epoch = l->current ? l->current->epoch : 0;
    (void)snprintf(l->written.path, sizeof(l->written.path), "%s", path);
    put_checkpoint(l, &l->out);
    (void)pthread_mutex_unlock(&l->lock);
    wake(l);
}

static void link_finished(struct membership *m, uint64_t step)
{
    struct link *l = self(m);
    (void)pthread_mutex_lock(&l->lock);
    l->finished = true;
    l->finished_step = l->last_step = step;
    atomic_store(&l->page->step, step);
    atomic_store(&l->page->phase, TITAN__INTERNAL__WORKER_PHASE__WORKER_DONE);
    put_finished(l, &l->out);
    (void)pthread_mutex_unlock(&l->lock);
    wake(l);
}

/* Until what was said last is in the agent's socket; not for longer than a second. */
static void wait_flushed(struct link *l)
{
    struct timespec until;
    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += FLUSH_WAIT_MS / 1000;
    (void)pthread_mutex_lock(&l->lock);
    int rc = 0;
    while (l->connected && l->out.first && rc == 0)
        rc = pthread_cond_clockwait(&l->changed, &l->lock, CLOCK_MONOTONIC, &until);
    (void)pthread_mutex_unlock(&l->lock);
}

static void link_failing(struct membership *m, const struct titan_error *err)
{
    struct link *l = self(m);
    Titan__Internal__WorkerFailing failing = TITAN__INTERNAL__WORKER_FAILING__INIT;
    Titan__Internal__WorkerToAgent message = TITAN__INTERNAL__WORKER_TO_AGENT__INIT;
    int code = titan_status_exit(err->status);
    failing.job_id = l->job_id;
    failing.worker_id = l->worker_id;
    failing.exit_code = code;
    (void)snprintf(l->page->last_words, sizeof(l->page->last_words), "%s%s%s%s", err->msg, err->hint[0] ? " (" : "",
                   err->hint, err->hint[0] ? ")" : "");
    failing.reason = l->page->last_words;
    message.kind_case = TITAN__INTERNAL__WORKER_TO_AGENT__KIND_FAILING;
    message.failing = &failing;
    atomic_store(&l->page->exit_code, code);
    (void)pthread_mutex_lock(&l->lock);
    l->said_failing = true;
    pack(l, &l->out, &message);
    (void)pthread_mutex_unlock(&l->lock);
    wake(l);
    wait_flushed(l);
}

static void link_close(struct membership *m)
{
    struct link *l = self(m);
    wait_flushed(l);
    (void)pthread_mutex_lock(&l->lock);
    if (!l->said_failing)
        atomic_store(&l->page->exit_code, 0);
    l->closing = true;
    /* Written under the lock: the control thread frees everything once it has seen closing. */
    wake(l);
    (void)pthread_mutex_unlock(&l->lock);
}

static const struct membership_ops link_ops = {
    .next = link_next,
    .on_revoke = link_on_revoke,
    .revoked = link_revoked,
    .orders = link_orders,
    .quiesced = link_quiesced,
    .state_ready = link_state_ready,
    .progress = link_progress,
    .checkpoint_written = link_checkpoint_written,
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
    l->fd = -1;
    l->job_id = o->job_id;
    l->worker_id = o->worker_id;
    (void)pthread_mutex_init(&l->lock, NULL);
    (void)pthread_mutex_init(&l->revoke_lock, NULL);
    (void)pthread_cond_init(&l->changed, NULL);
    log_init(&l->log, "link", "job=%" PRIu64 " worker=%" PRIu64, l->job_id, l->worker_id);
    (void)snprintf(l->socket_path, PATH_MAX, "%s", o->socket);
    (void)snprintf(l->page_path, PATH_MAX, "%s", o->page);
    (void)snprintf(l->base.job_dir, PATH_MAX, "%s", o->job_dir);
    l->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    titan_status status = l->wake < 0 ? titan_fail_errno(err, "cannot create an eventfd") : TITAN_OK;
    status = status == TITAN_OK ? page_map(l, o, err) : status;
    status = status == TITAN_OK ? listen_for_peers(l, o->host, err) : status;
    status = status == TITAN_OK ? control_start(l, err) : status;
    if (status != TITAN_OK) {
        if (l->page)
            (void)munmap(l->page, PAGE_BYTES);
        link_free(l);
        return status;
    }
    *ret = &l->base;
    return TITAN_OK;
}
