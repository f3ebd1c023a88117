/* SPDX-License-Identifier: Apache-2.0 */
/* nccl.c - the communicator table on NCCL (2.28 or later; 2.28.9 has revoke).
 *
 * Every communicator is non-blocking: a call that cannot finish at once returns "in progress" and is polled. So each
 * wait here has a deadline or ends at a revoke. NCCL has no time-out of its own, and reports a lost peer only when
 * asked. The device's watcher thread asks (comm_watch), and also watches the peers' connections (peers.h). A failure is
 * handled in this order:
 *   1. The failure is raised on every stream this communicator worked on, before anything is stopped. So no update runs
 *      on the data of an aborted collective (cuda.h).
 *   2. ncclCommRevoke ends the kernels in flight. If it is refused or missing, ncclCommAbort ends them, on a thread of
 *      its own.
 *   3. close() waits only for the operations on its streams. On a GPU that others use, NCCL takes some 0.5 s to
 *      release a communicator. So a separate thread releases it, and settle() waits for these threads. A driver call
 *      that never returns is left behind: only the end of the process frees it.
 * A communicator and all its splits are a family, and fail as one: the failure is raised on the streams of the whole
 * family before the first of its communicators is stopped.
 * Sums are NCCL's: the order is fixed for given ranks, counts and topology, but is not rank order. bf16 is rounded at
 * every hop. */
#include "worker/comm/nccl/nccl.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/progress.h"
#include "worker/comm/nccl/share.h"

#if NCCL_VERSION_CODE < NCCL_VERSION(2, 28, 0)
#error "NCCL 2.28 or later is needed"
#endif

#define LOCK_MS 50      /* time a revoke waits for a call in flight before it goes ahead */
#define FINALIZE_MS 500 /* closing a healthy communicator: time to flush data that peers still read */
/* If less than 1/SPARE_PART of the memory is free, a new communicator waits for the release of old communicators. */
#define SPARE_PART 8

/* --- waiting ------------------------------------------------------------------------------------------------------ */

void nccl_pause(unsigned *looks)
{
    if ((*looks)++ < 1000)
        (void)sched_yield();
    else
        (void)nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
}

titan_status nccl_fail(struct titan_error *err, ncclComm_t nccl, ncclResult_t r, const char *what)
{
    titan_assert(r != ncclSuccess);
    const char *detail = ncclGetLastError(nccl);
    const titan_status status = r == ncclRemoteError || r == ncclSystemError        ? TITAN_EPEER
                                : r == ncclInvalidArgument || r == ncclInvalidUsage ? TITAN_EBUG
                                                                                    : TITAN_EDEVICE;
    return titan_fail(err, status, "NCCL: %s: %s%s%s", what, ncclGetErrorString(r), detail && detail[0] ? "; " : "",
                      detail ? detail : "");
}

titan_status nccl_wait_ready(ncclComm_t nccl, const atomic_int *abort_flag, int64_t deadline_ns, const char *what,
                             struct titan_error *err)
{
    unsigned looks = 0;
    for (;;) {
        ncclResult_t state = ncclInProgress;
        ncclResult_t r = ncclCommGetAsyncError(nccl, &state);
        if (r != ncclSuccess)
            return nccl_fail(err, nccl, r, what);
        if (state != ncclInProgress)
            return state == ncclSuccess ? TITAN_OK : nccl_fail(err, nccl, state, what);
        if (abort_flag && atomic_load(abort_flag))
            return titan_fail(err, TITAN_EREVOKED, "epoch revoked during %s", what);
        if (clock_mono_ns() >= deadline_ns)
            return titan_fail(err, TITAN_ETIMEDOUT, "NCCL: %s did not finish in time", what);
        nccl_pause(&looks);
    }
}

int64_t nccl_deadline(uint32_t ms)
{
    return clock_mono_ns() + (int64_t)ms * 1000000;
}

static struct timespec mono_after(uint32_t ms)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec += ms / 1000;
    t.tv_nsec += (long)(ms % 1000) * 1000000;
    if (t.tv_nsec >= 1000000000) {
        t.tv_sec++;
        t.tv_nsec -= 1000000000;
    }
    return t;
}

/* --- ending ------------------------------------------------------------------------------------------------------- */

/* Communicators that are being released, each on a thread of its own. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t fewer;
    int n;
} endings = {.lock = PTHREAD_MUTEX_INITIALIZER, .fewer = PTHREAD_COND_INITIALIZER};

struct ending {
    int device;
    ncclComm_t nccl;
    struct comm *comm; /* the struct around nccl, freed with it; NULL: none */
    bool destroy;      /* the communicator is finalized: nothing is in flight */
};

/* Closes the window before an abort: NCCL 2.28 never frees the memory of a window that is open at an abort. */
static void *run_ending(void *arg)
{
    struct ending *e = arg;
    struct comm *c = e->comm;
    (void)cudaSetDevice(e->device);
    if (c && c->aborted) {
        (void)pthread_join(c->abort_thread, NULL);
    } else if (e->nccl) {
        if (c && c->window)
            (void)ncclCommWindowDeregister(e->nccl, c->window);
        (void)(e->destroy ? ncclCommDestroy(e->nccl) : ncclCommAbort(e->nccl));
    }
    if (c) {
        (void)cudaFree(c->token);
        (void)cudaFreeHost(c->counts);
        (void)pthread_mutex_destroy(&c->lock);
        (void)pthread_mutex_destroy(&c->streams_lock);
        (void)pthread_mutex_destroy(&c->family_lock);
        free(c);
    }
    free(e);
    (void)pthread_mutex_lock(&endings.lock);
    endings.n--;
    (void)pthread_cond_broadcast(&endings.fewer);
    (void)pthread_mutex_unlock(&endings.lock);
    return NULL;
}

/* Releases a communicator on a new thread. If no thread can be made, the communicator is left behind. */
static void end_beside(const struct ending *what)
{
    pthread_t thread;
    struct ending *e = malloc(sizeof *e);
    if (!e)
        return;
    *e = *what;
    (void)pthread_mutex_lock(&endings.lock);
    const bool begun = pthread_create(&thread, NULL, run_ending, e) == 0;
    endings.n += begun;
    (void)pthread_mutex_unlock(&endings.lock);
    if (begun)
        (void)pthread_detach(thread);
    else
        free(e);
}

void nccl_abort(struct device *dev, ncclComm_t nccl)
{
    if (nccl)
        end_beside(&(struct ending){.device = dev->index, .nccl = nccl});
}

void cuda_nccl_settle(struct device *dev)
{
    const struct timespec until = mono_after(NCCL_ABORT_MS);
    int late = 0;
    (void)dev;
    progress_wait_begin();
    (void)pthread_mutex_lock(&endings.lock);
    while (endings.n > 0 && late == 0)
        late = pthread_cond_clockwait(&endings.fewer, &endings.lock, CLOCK_MONOTONIC, &until);
    (void)pthread_mutex_unlock(&endings.lock);
    progress_wait_end();
}

static void *run_abort(void *arg)
{
    const struct comm *c = arg;
    (void)cudaSetDevice(c->dev->index);
    (void)ncclCommAbort(c->nccl);
    return NULL;
}

void nccl_comm_abort(struct comm *c)
{
    if (!c->aborted)
        c->aborted = pthread_create(&c->abort_thread, NULL, run_abort, c) == 0;
}

static ncclResult_t revoke(ncclComm_t nccl)
{
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 9)
    return ncclCommRevoke(nccl, NCCL_REVOKE_DEFAULT);
#else
    (void)nccl;
    return ncclInvalidUsage;
#endif
}

/* Ends the kernels in flight. Only the first call has an effect. */
static void stop(struct comm *c)
{
    if (__atomic_exchange_n(&c->stopped, 1, __ATOMIC_ACQ_REL) != 0)
        return;
    /* A call in flight on another thread may hang. Setting NCCL's abort flag ends such a call. */
    const struct timespec until = mono_after(LOCK_MS);
    if (!c->nccl)
        return;
    const bool locked = pthread_mutex_clocklock(&c->lock, CLOCK_MONOTONIC, &until) == 0;
    if (!nccl_fine(revoke(c->nccl)))
        nccl_comm_abort(c);
    if (locked)
        (void)pthread_mutex_unlock(&c->lock);
}

/* Stores the first failure and raises it on every stream that the communicator works on. */
static void mark(struct comm *c, titan_status status, const char *reason)
{
    titan_assert(status != TITAN_OK);
    (void)pthread_mutex_lock(&c->streams_lock);
    if (comm_failed(c) == TITAN_OK) {
        (void)snprintf(c->reason, sizeof c->reason, "%s", reason);
        __atomic_store_n(&c->failed, (int)status, __ATOMIC_RELEASE);
    }
    for (int i = 0; i < c->n_streams; i++)
        stream_raise(c->streams[i], (titan_status)c->failed, c->reason);
    (void)pthread_mutex_unlock(&c->streams_lock);
}

void nccl_comm_fail(struct comm *c, titan_status status, const char *reason)
{
    titan_assert(status != TITAN_OK);
    struct comm *root = c->root;
    (void)pthread_mutex_lock(&root->family_lock);
    mark(root, status, reason);
    for (struct comm *m = root->family; m; m = m->next)
        mark(m, status, reason);
    if (__atomic_load_n(&root->stopped, __ATOMIC_ACQUIRE) == 0)
        nccl_peers_notify(root->peers);
    stop(root);
    for (struct comm *m = root->family; m; m = m->next)
        stop(m);
    (void)pthread_mutex_unlock(&root->family_lock);
}

void nccl_comm_revoke(struct comm *c)
{
    nccl_comm_fail(c, TITAN_EREVOKED, "epoch revoked");
}

/* Fails the family if a peer has vanished or NCCL reports a failure. NCCL is not asked while the owner is inside a
 * call. */
static void comm_check(struct comm *c)
{
    if (comm_failed(c) != TITAN_OK || !c->nccl)
        return;
    struct titan_error err;
    titan_status st = TITAN_OK;
    const int lost = nccl_peers_lost(c->peers);
    if (lost >= 0) {
        st = titan_fail(&err, TITAN_EPEER, "rank %d has ended or failed", lost);
    } else if (pthread_mutex_trylock(&c->lock) == 0) {
        ncclResult_t state = ncclSuccess;
        ncclResult_t r = ncclCommGetAsyncError(c->nccl, &state);
        if (r == ncclSuccess)
            r = state;
        if (!nccl_fine(r))
            st = nccl_fail(&err, c->nccl, r, "a collective failed");
        (void)pthread_mutex_unlock(&c->lock);
    }
    if (st != TITAN_OK)
        nccl_comm_fail(c, st, err.msg);
}

static void comm_forget(struct comm *c, const struct stream *s)
{
    (void)pthread_mutex_lock(&c->streams_lock);
    for (int i = 0; i < c->n_streams; i++) {
        if (c->streams[i] == s)
            c->streams[i--] = c->streams[--c->n_streams];
    }
    (void)pthread_mutex_unlock(&c->streams_lock);
}

/* --- forming ------------------------------------------------------------------------------------------------------ */

ncclConfig_t nccl_config(const struct comm_tuning *tuning)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    if (tuning && tuning->ctas_most > 0)
        config.maxCTAs = tuning->ctas_most;
    if (tuning && tuning->policy != COMM_POLICY_DEFAULT)
        config.CTAPolicy = tuning->policy == COMM_POLICY_ZERO ? NCCL_CTA_POLICY_ZERO : NCCL_CTA_POLICY_EFFICIENCY;
    return config;
}

static void comm_tune(struct comm *parent, const struct comm_tuning *tuning)
{
    titan_assert(tuning->ctas_most >= 0);
    parent->tuning = *tuning;
}

titan_status nccl_comm_make(const struct comm *like, struct comm **ret, struct titan_error *err)
{
    struct comm *const c = calloc(1, sizeof *c), *const root = like->root;

    titan_assert(like->rank >= 0 && like->rank < like->world);
    if (!c) {
        nccl_abort(like->dev, like->nccl);
        return titan_fail(err, TITAN_ENOMEM, "no memory for a communicator");
    }
    *c = *like;
    c->root = root ? root : c;
    (void)pthread_mutex_init(&c->lock, NULL);
    (void)pthread_mutex_init(&c->streams_lock, NULL);
    (void)pthread_mutex_init(&c->family_lock, NULL);
    cudaError_t e = cudaSuccess;
    if (c->nccl) /* more than one member */
        e = cudaMalloc((void **)&c->token, sizeof(float));
    if (c->nccl && e == cudaSuccess)
        e = cudaHostAlloc((void **)&c->counts, 2 * (size_t)c->world * sizeof(*c->counts), cudaHostAllocPortable);
    titan_status st = e == cudaSuccess ? TITAN_OK : cuda_fail(err, e, "memory of a communicator");
    const struct comm_watch watch = {.check = comm_check, .forget = comm_forget, .comm = c};
    if (st == TITAN_OK)
        st = cuda_device_watch(c->dev, &watch, err);
    if (st != TITAN_OK) {
        end_beside(&(struct ending){.device = c->dev->index, .nccl = c->nccl, .comm = c});
        return st;
    }
    *ret = c;
    if (!root)
        return TITAN_OK;
    /* Joins the family, and fails at once if the family has failed. */
    (void)pthread_mutex_lock(&root->family_lock);
    c->next = root->family;
    root->family = c;
    st = comm_failed(root);
    if (st != TITAN_OK) {
        mark(c, st, root->reason);
        stop(c);
    }
    (void)pthread_mutex_unlock(&root->family_lock);
    return TITAN_OK;
}

/* Agrees on an id and forms the communicator. `peers` gets the connections. */
static titan_status form(const struct comm_config *config, const atomic_int *abort_flag, struct nccl_peers *peers,
                         ncclComm_t *ret, struct titan_error *err)
{
    const int64_t deadline_ns = nccl_deadline(config->timeout_ms ? config->timeout_ms : NCCL_FORM_MS);
    ncclUniqueId id;
    _Static_assert(sizeof id <= NCCL_SHARE_MAX, "the id fits");
    memset(&id, 0, sizeof id);
    if (config->rank == 0) {
        ncclResult_t r = ncclGetUniqueId(&id);
        if (r != ncclSuccess)
            return nccl_fail(err, NULL, r, "making a communicator id");
    }
    const struct nccl_agreement agreement = {.config = config,
                                             .abort_flag = abort_flag,
                                             .deadline_ns = deadline_ns,
                                             .data = &id,
                                             .bytes = sizeof id,
                                             .peers = peers};
    TRY(nccl_share(&agreement, err));

    ncclConfig_t options = nccl_config(NULL);
    ncclComm_t nccl = NULL;
    ncclResult_t r = ncclCommInitRankConfig(&nccl, config->world, id, config->rank, &options);
    titan_status st = nccl_fine(r) ? nccl_wait_ready(nccl, abort_flag, deadline_ns, "forming the communicator", err)
                                   : nccl_fail(err, NULL, r, "forming the communicator");
    if (st != TITAN_OK) {
        nccl_abort(config->device->dev, nccl);
        return st;
    }
    *ret = nccl;
    return TITAN_OK;
}

static titan_status comm_open(const struct comm_config *config, const atomic_int *abort_flag, struct comm **ret,
                              struct titan_error *err)
{
    struct comm like = {
        .dev = config->device->dev, .rank = config->rank, .world = config->world, .timeout_ms = config->timeout_ms};
    size_t free_bytes = 0, total = 0;
    TRY(cuda_enter(like.dev, err));
    /* If memory is short, this first waits for communicators that are being released, because NCCL would not report
     * that memory was short. */
    if (cudaMemGetInfo(&free_bytes, &total) == cudaSuccess && free_bytes < total / SPARE_PART)
        cuda_nccl_settle(like.dev);
    TRY(nccl_peers_open(config->world, &like.peers, err));
    progress_wait_begin();
    titan_status st = form(config, abort_flag, like.peers, &like.nccl, err);
    progress_wait_end();
    if (st == TITAN_OK)
        st = nccl_comm_make(&like, ret, err);
    if (st != TITAN_OK)
        nccl_peers_close(like.peers, false);
    return st;
}

/* Waits for the operations on the communicator's streams. The caller may close these streams next. */
static void drain_streams(struct comm *c, int64_t deadline_ns)
{
    unsigned looks = 0;
    (void)pthread_mutex_lock(&c->streams_lock);
    for (int i = 0; i < c->n_streams && clock_mono_ns() < deadline_ns;)
        if (cudaStreamQuery(c->streams[i]->native) == cudaErrorNotReady)
            nccl_pause(&looks);
        else
            i++;
    c->n_streams = 0;
    (void)pthread_mutex_unlock(&c->streams_lock);
}

static void comm_close(struct comm *c)
{
    if (!c)
        return;
    titan_assert(!c->family);
    cuda_device_unwatch(c->dev, c);
    (void)cudaSetDevice(c->dev->index);
    progress_wait_begin(); /* NCCL waits for data that peers still read */
    struct comm *const root = c->root;
    if (comm_failed(c) != TITAN_OK) {
        /* Makes sure that no other thread calls NCCL for a failed family any more. The owner is here, in close(). The
         * watcher lets go of the family before the lock is taken, because the watcher may want the lock. Once the lock
         * is held, the thread that failed the family has stopped all members. */
        const int64_t deadline_ns = nccl_deadline(NCCL_ABORT_MS);
        for (struct comm *m = root; m; m = m == root ? root->family : m->next)
            cuda_device_unwatch(m->dev, m);
        (void)pthread_mutex_lock(&root->family_lock);
        for (struct comm *m = root; m; m = m == root ? root->family : m->next)
            drain_streams(m, deadline_ns);
        (void)pthread_mutex_unlock(&root->family_lock);
    }
    if (c != root) { /* leaves the family */
        (void)pthread_mutex_lock(&root->family_lock);
        struct comm **at = &root->family;
        while (*at != c)
            at = &(*at)->next;
        *at = c->next;
        (void)pthread_mutex_unlock(&root->family_lock);
    }
    bool flushed = false;
    if (comm_failed(c) == TITAN_OK && c->nccl) {
        /* Peers may still read data that this rank has sent. So aborting now would break their last collective. */
        struct titan_error err;
        nccl_window_close(c);
        ncclResult_t r = ncclCommFinalize(c->nccl);
        flushed =
            nccl_fine(r) && nccl_wait_ready(c->nccl, NULL, nccl_deadline(FINALIZE_MS), "closing", &err) == TITAN_OK;
        if (!flushed) {
            mark(c, TITAN_EREVOKED, "communicator closed");
            nccl_peers_notify(c->peers);
            stop(c);
            drain_streams(c, nccl_deadline(NCCL_ABORT_MS));
        }
    }
    progress_wait_end();
    nccl_peers_close(c->peers, flushed);
    end_beside(&(struct ending){.device = c->dev->index, .nccl = c->nccl, .comm = c, .destroy = flushed});
}

/* An NCCL that is older than the build's version is unusable: NCCL guarantees nothing for it. */
const char *cuda_nccl_unusable(void)
{
    static char why[128];
    int version = 0;
    const ncclResult_t r = ncclGetVersion(&version);
    if (r == ncclSuccess && version >= NCCL_VERSION_CODE)
        return NULL;
    (void)snprintf(why, sizeof why,
                   "NCCL %d.%d.%d is older than %d.%d.%d, which this plug-in was built with: update NCCL",
                   version / 10000, version / 100 % 100, version % 100, NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH);
    return why;
}

const struct comm_ops comm_nccl = {
    .abi = TITAN_COMM_ABI,
    .name = "nccl",
    .open = comm_open,
    .close = comm_close,
    .settle = cuda_nccl_settle,
    .revoke = nccl_comm_revoke,
    .split = nccl_comm_split,
    .tune = comm_tune,
    .memory_alloc = nccl_memory_alloc,
    .memory_release = nccl_memory_release,
    .window_open = nccl_window_open,
    .window_close = nccl_window_close,
    .group_begin = nccl_group_begin,
    .group_end = nccl_group_end,
    .all_gather = nccl_all_gather,
    .reduce_scatter = nccl_reduce_scatter,
    .all_reduce = nccl_all_reduce,
    .broadcast = nccl_broadcast,
    .all_to_all = nccl_all_to_all,
    .all_to_all_v = nccl_all_to_all_v,
    .shift = nccl_shift,
    .send = nccl_send,
    .recv = nccl_recv,
    .barrier = nccl_barrier,
};
