/* nccl.c - the communicator table on NCCL (2.28.9 or later; revoke and shrink are not older).
 *
 * Every communicator is non-blocking: a call that cannot finish at once says "in progress" and is polled, so each wait
 * here has a deadline or ends at a revoke. NCCL has no time-out of its own, and reports a lost peer only when asked:
 * stream_sync asks (comm_watch), and looks after the peers' connections (peers.h). When something fails, in this order:
 *   1. the failure is raised on every stream this communicator worked on, before anything is stopped (cuda.h: so that
 *      no update runs on what an aborted collective left behind);
 *   2. ncclCommRevoke ends the kernels in flight; where it is refused, ncclCommAbort does, on a thread of its own;
 *   3. close() aborts, on a thread of its own with a deadline. A driver call that never returns is left behind: only
 *      the end of the process frees it.
 * Sums are NCCL's: the order is fixed for given ranks, counts and topology, but not rank order, and bf16 is rounded at
 * every hop. */
#include <nccl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "worker/comm/comm.h"
#include "worker/comm/nccl/share.h"
#include "worker/device/cuda/cuda.h"

#if NCCL_VERSION_CODE < NCCL_VERSION(2, 28, 9)
#error "NCCL 2.28.9 or later is needed: ncclCommRevoke, and shrink without its earlier faults"
#endif

#define STREAMS_MAX 16
#define FORM_MS 30000      /* default time to form */
#define LOCK_MS 50         /* how long a revoke waits for a call in flight before it goes ahead */
#define LOOKS_PER_CHECK 20 /* of the peers, while a call is in progress */
#define QUIET_MS 1000      /* revoked, how long until quiescent */
#define FINALIZE_MS 500    /* close of a healthy communicator: to flush what peers still read */
#define ABORT_MS 1000      /* abort, until it is left behind */

struct comm {
    struct device *dev;
    int rank, world;
    ncclComm_t nccl;
    struct nccl_peers *peers; /* owned; NULL once shrunk: the child has them */
    pthread_mutex_t lock;     /* one NCCL call at a time */
    int failed;               /* atomic: 0 or titan_status */
    int stopped;              /* atomic: revoke or abort was called */
    bool aborted;             /* nccl is gone, or going on the abort thread */
    pthread_t abort_thread;
    pthread_mutex_t streams_lock; /* streams, reason */
    struct stream *streams[STREAMS_MAX];
    int n_streams;
    char reason[256];
    float *token; /* device memory: what a barrier sums */
};

/* --- waiting ---------------------------------------------------------------------------------------------------- */

/* Sleeps a little; longer the longer it has been called. */
static void pause_before_look(unsigned *looks)
{
    if ((*looks)++ < 1000)
        (void)sched_yield();
    else
        (void)nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
}

/* Done, or going on. */
static bool fine(ncclResult_t r)
{
    return r == ncclSuccess || r == ncclInProgress;
}

static titan_status status_of(ncclResult_t r)
{
    if (r == ncclSuccess)
        return TITAN_OK;
    if (r == ncclRemoteError || r == ncclSystemError)
        return TITAN_EPEER;
    return r == ncclInvalidArgument || r == ncclInvalidUsage ? TITAN_EBUG : TITAN_EDEVICE;
}

static titan_status nccl_fail(struct titan_error *err, ncclComm_t nccl, ncclResult_t r, const char *what)
{
    const char *detail = ncclGetLastError(nccl);
    return titan_fail(err, status_of(r), "NCCL: %s: %s%s%s", what, ncclGetErrorString(r),
                      detail && detail[0] ? "; " : "", detail ? detail : "");
}

/* Poll a communicator of which nobody else knows yet until it is ready. */
static titan_status wait_ready(ncclComm_t nccl, const atomic_int *abort_flag, int64_t deadline_ns, const char *what,
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
        pause_before_look(&looks);
    }
}

static int64_t deadline_after(uint32_t ms)
{
    return clock_mono_ns() + (int64_t)ms * 1000000;
}

static struct timespec wall_after(uint32_t ms)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_REALTIME, &t);
    t.tv_sec += ms / 1000;
    t.tv_nsec += (long)(ms % 1000) * 1000000;
    if (t.tv_nsec >= 1000000000) {
        t.tv_sec++;
        t.tv_nsec -= 1000000000;
    }
    return t;
}

/* --- ending ------------------------------------------------------------------------------------------------------- */

struct ending {
    ncclComm_t nccl;
    int device;
    bool destroy; /* finalized: nothing in flight */
};

static void *run_ending(void *arg)
{
    struct ending *e = arg;
    (void)cudaSetDevice(e->device);
    (void)(e->destroy ? ncclCommDestroy(e->nccl) : ncclCommAbort(e->nccl));
    free(e);
    return NULL;
}

/* False when not even a thread could be had; the communicator then stays as it is. */
static bool ending_start(struct device *dev, ncclComm_t nccl, bool destroy, pthread_t *ret)
{
    struct ending *e = malloc(sizeof *e);
    if (!e)
        return false;
    *e = (struct ending){.nccl = nccl, .device = dev->index, .destroy = destroy};
    if (pthread_create(ret, NULL, run_ending, e) == 0)
        return true;
    free(e);
    return false;
}

/* Give it ABORT_MS, then leave it behind: false. */
static bool ending_join(pthread_t thread)
{
    const struct timespec until = wall_after(ABORT_MS);
    if (pthread_timedjoin_np(thread, NULL, &until) == 0)
        return true;
    (void)pthread_detach(thread);
    return false;
}

static bool end_now(struct device *dev, ncclComm_t nccl, bool destroy)
{
    pthread_t thread;
    return !nccl || (ending_start(dev, nccl, destroy, &thread) && ending_join(thread));
}

/* End the kernels in flight; once. */
static void stop(struct comm *c)
{
    if (__atomic_exchange_n(&c->stopped, 1, __ATOMIC_ACQ_REL) != 0)
        return;
    /* A call in flight on another thread may be what hangs: setting the abort flag is what frees it. */
    const struct timespec until = wall_after(LOCK_MS);
    const bool locked = pthread_mutex_timedlock(&c->lock, &until) == 0;
    ncclResult_t r = ncclCommRevoke(c->nccl, NCCL_REVOKE_DEFAULT);
    if (!fine(r))
        c->aborted = ending_start(c->dev, c->nccl, false, &c->abort_thread);
    if (locked)
        (void)pthread_mutex_unlock(&c->lock);
}

/* Any thread. The first failure stays. */
static void fail(struct comm *c, titan_status status, const char *reason)
{
    (void)pthread_mutex_lock(&c->streams_lock);
    if (__atomic_load_n(&c->failed, __ATOMIC_ACQUIRE) == 0) {
        (void)snprintf(c->reason, sizeof c->reason, "%s", reason);
        __atomic_store_n(&c->failed, (int)status, __ATOMIC_RELEASE);
    }
    for (int i = 0; i < c->n_streams; i++)
        stream_raise(c->streams[i], (titan_status)c->failed, c->reason);
    (void)pthread_mutex_unlock(&c->streams_lock);
    if (__atomic_load_n(&c->stopped, __ATOMIC_ACQUIRE) == 0)
        nccl_peers_tell(c->peers);
    stop(c);
}

static void comm_revoke(struct comm *c)
{
    fail(c, TITAN_EREVOKED, "epoch revoked");
}

/* Has a peer vanished, or does NCCL know of a failure? The latter is skipped while the owner is inside a call. */
static void comm_check(struct comm *c)
{
    if (__atomic_load_n(&c->failed, __ATOMIC_ACQUIRE) != 0)
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
        if (!fine(r))
            st = nccl_fail(&err, c->nccl, r, "a collective failed");
        (void)pthread_mutex_unlock(&c->lock);
    }
    if (st != TITAN_OK)
        fail(c, st, err.msg);
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

static titan_status comm_async_error(struct comm *c, struct titan_error *err)
{
    comm_check(c);
    titan_status st = (titan_status)__atomic_load_n(&c->failed, __ATOMIC_ACQUIRE);
    if (st == TITAN_OK)
        return st;
    (void)pthread_mutex_lock(&c->streams_lock);
    (void)titan_fail(err, st, "%s", c->reason);
    (void)pthread_mutex_unlock(&c->streams_lock);
    return st;
}

/* --- forming ------------------------------------------------------------------------------------------------------ */

static ncclConfig_t make_config(void)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    return config;
}

/* Takes nccl: on failure it is aborted. peers become the communicator's on success. */
static titan_status comm_make(struct device *dev, ncclComm_t nccl, struct nccl_peers *peers, int rank, int world,
                              struct comm **ret, struct titan_error *err)
{
    struct comm *c = calloc(1, sizeof *c);
    if (!c) {
        (void)end_now(dev, nccl, false);
        return titan_fail(err, TITAN_ENOMEM, "no memory for a communicator");
    }
    *c = (struct comm){.dev = dev, .rank = rank, .world = world, .nccl = nccl, .peers = peers};
    (void)pthread_mutex_init(&c->lock, NULL);
    (void)pthread_mutex_init(&c->streams_lock, NULL);
    const struct comm_watch watch = {.check = comm_check, .forget = comm_forget, .comm = c};
    cudaError_t e = cudaMalloc((void **)&c->token, sizeof(float));
    titan_status st = e == cudaSuccess ? TITAN_OK : cuda_fail(err, e, "memory for barriers");
    if (st == TITAN_OK && !device_watch(dev, &watch))
        st = titan_fail(err, TITAN_ELIMIT, "more than %d communicators are open on one GPU", CUDA_COMMS_MAX);
    if (st != TITAN_OK) {
        (void)end_now(dev, nccl, false);
        (void)cudaFree(c->token);
        free(c);
        return st;
    }
    *ret = c;
    return TITAN_OK;
}

/* Agree on an id and form; peers get the connections. */
static titan_status form(const struct comm_config *config, const atomic_int *abort_flag, struct nccl_peers *peers,
                         ncclComm_t *ret, struct titan_error *err)
{
    const int64_t deadline_ns = deadline_after(config->timeout_ms ? config->timeout_ms : FORM_MS);
    ncclUniqueId id;
    _Static_assert(sizeof id <= NCCL_SHARE_MAX, "the id fits");
    memset(&id, 0, sizeof id);
    if (config->rank == 0) {
        ncclResult_t r = ncclGetUniqueId(&id);
        if (r != ncclSuccess)
            return nccl_fail(err, NULL, r, "making a communicator id");
    }
    TRY(nccl_share(config, abort_flag, deadline_ns, &id, sizeof id, peers, err));

    ncclConfig_t nccl_config = make_config();
    ncclComm_t nccl = NULL;
    ncclResult_t r = ncclCommInitRankConfig(&nccl, config->world, id, config->rank, &nccl_config);
    titan_status st = fine(r) ? wait_ready(nccl, abort_flag, deadline_ns, "forming the communicator", err)
                              : nccl_fail(err, NULL, r, "forming the communicator");
    if (st != TITAN_OK) {
        (void)end_now(config->device->dev, nccl, false);
        return st;
    }
    *ret = nccl;
    return TITAN_OK;
}

static titan_status comm_open(const struct comm_config *config, const atomic_int *abort_flag, struct comm **ret,
                              struct titan_error *err)
{
    struct device *dev = config->device->dev;
    struct nccl_peers *peers = NULL;
    ncclComm_t nccl = NULL;
    TRY(cuda_enter(dev, err));
    TRY(nccl_peers_open(config->world, &peers, err));
    titan_status st = form(config, abort_flag, peers, &nccl, err);
    if (st == TITAN_OK)
        st = comm_make(dev, nccl, peers, config->rank, config->world, ret, err);
    if (st != TITAN_OK)
        nccl_peers_close(peers, false);
    return st;
}

static void comm_close(struct comm *c)
{
    if (!c)
        return;
    device_unwatch(c->dev, c);
    (void)cudaSetDevice(c->dev->index);
    bool flushed = false;
    if (__atomic_load_n(&c->failed, __ATOMIC_ACQUIRE) == 0) {
        /* Peers may still read what this rank has sent; aborting now would break their last collective. */
        struct titan_error err;
        ncclResult_t r = ncclCommFinalize(c->nccl);
        flushed = fine(r) && wait_ready(c->nccl, NULL, deadline_after(FINALIZE_MS), "closing", &err) == TITAN_OK;
        if (!flushed)
            fail(c, TITAN_EREVOKED, "communicator closed");
    }
    const bool ended = c->aborted ? ending_join(c->abort_thread) : end_now(c->dev, c->nccl, flushed);
    nccl_peers_close(c->peers, flushed);
    if (ended) /* releasing memory waits for the GPU: not while a kernel is left behind */
        (void)cudaFree(c->token);
    (void)pthread_mutex_destroy(&c->lock);
    (void)pthread_mutex_destroy(&c->streams_lock);
    free(c);
}

/* --- shrinking ---------------------------------------------------------------------------------------------------- */

struct shrink_call {
    ncclComm_t parent, child;
    int *excluded; /* a copy: NCCL sorts it */
    int n, device;
    ncclConfig_t config;
    ncclResult_t result;
    int done; /* atomic */
};

static void *run_shrink(void *arg)
{
    struct shrink_call *call = arg;
    (void)cudaSetDevice(call->device);
    call->result =
        ncclCommShrink(call->parent, call->excluded, call->n, &call->child, &call->config, NCCL_SHRINK_ABORT);
    __atomic_store_n(&call->done, 1, __ATOMIC_RELEASE);
    return NULL;
}

static void shrink_free(struct shrink_call *call)
{
    free(call->excluded);
    free(call);
}

/* Wait for the helper; false = given up. */
static bool shrink_wait(struct shrink_call *call, const atomic_int *abort_flag, int64_t deadline_ns)
{
    unsigned looks = 0;
    while (!__atomic_load_n(&call->done, __ATOMIC_ACQUIRE)) {
        if ((abort_flag && atomic_load(abort_flag)) || clock_mono_ns() >= deadline_ns)
            return false;
        pause_before_look(&looks);
    }
    return true;
}

/* The call may block inside NCCL, so it has its own thread; aborting the parent is what frees it. */
static titan_status shrink_run(struct comm *parent, struct shrink_call *call, const atomic_int *abort_flag,
                               int64_t deadline_ns, ncclComm_t *ret, struct titan_error *err)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, run_shrink, call) != 0) {
        shrink_free(call);
        return titan_fail(err, TITAN_ENOMEM, "no thread to shrink the communicator");
    }
    if (!shrink_wait(call, abort_flag, deadline_ns)) {
        if (!parent->aborted)
            parent->aborted = ending_start(parent->dev, parent->nccl, false, &parent->abort_thread);
        bool freed = shrink_wait(call, NULL, deadline_after(ABORT_MS));
        (void)(freed ? pthread_join(thread, NULL) : pthread_detach(thread));
        if (freed) { /* otherwise the stuck thread keeps the call */
            (void)end_now(parent->dev, call->child, false);
            shrink_free(call);
        }
        return abort_flag && atomic_load(abort_flag)
                   ? titan_fail(err, TITAN_EREVOKED, "epoch revoked while shrinking")
                   : titan_fail(err, TITAN_ETIMEDOUT, "NCCL: shrinking did not finish in time");
    }
    (void)pthread_join(thread, NULL);
    ncclComm_t child = call->child;
    ncclResult_t r = call->result;
    shrink_free(call);
    titan_status st = fine(r) ? wait_ready(child, abort_flag, deadline_ns, "shrinking the communicator", err)
                              : nccl_fail(err, parent->nccl, r, "shrinking the communicator");
    if (st != TITAN_OK) {
        (void)end_now(parent->dev, child, false);
        return st;
    }
    *ret = child;
    return TITAN_OK;
}

/* All survivors call this with the same list; the parent is closed by the caller afterwards, as always. */
static titan_status comm_shrink(struct comm *parent, const int *excluded, int n, const struct comm_config *config,
                                const atomic_int *abort_flag, struct comm **ret, struct titan_error *err)
{
    struct device *dev = parent->dev;
    const int64_t deadline_ns = deadline_after(config->timeout_ms ? config->timeout_ms : FORM_MS);
    if (n < 1 || n >= parent->world)
        return titan_fail(err, TITAN_EINVAL, "%d of %d members excluded", n, parent->world);
    if (__atomic_load_n(&parent->failed, __ATOMIC_ACQUIRE) == 0)
        comm_revoke(parent);
    TRY(cuda_enter(dev, err));
    if (parent->aborted || wait_ready(parent->nccl, abort_flag, deadline_after(QUIET_MS), "revoking", err) != TITAN_OK)
        return titan_fail(err, TITAN_EUNSUPPORTED, "the old communicator did not come to rest; a new one is needed");

    struct shrink_call *call = calloc(1, sizeof *call);
    if (!call)
        return titan_fail(err, TITAN_ENOMEM, "no memory to shrink the communicator");
    call->excluded = malloc((size_t)n * sizeof *excluded);
    if (!call->excluded) {
        free(call);
        return titan_fail(err, TITAN_ENOMEM, "no memory to shrink the communicator");
    }
    memcpy(call->excluded, excluded, (size_t)n * sizeof *excluded);
    call->parent = parent->nccl;
    call->n = n;
    call->device = dev->index;
    call->config = make_config();
    ncclComm_t child = NULL;
    TRY(shrink_run(parent, call, abort_flag, deadline_ns, &child, err));

    int rank = -1, world = -1;
    ncclResult_t r = ncclCommUserRank(child, &rank);
    if (r == ncclSuccess)
        r = ncclCommCount(child, &world);
    if (r != ncclSuccess || rank != config->rank || world != config->world) {
        (void)end_now(dev, child, false);
        return titan_fail(err, TITAN_EBUG, "shrinking gave rank %d of %d, the epoch says %d of %d", rank, world,
                          config->rank, config->world);
    }
    if (parent->peers)
        nccl_peers_shrink(parent->peers, excluded, n); /* first: the child must not hear what ended its parent */
    TRY(comm_make(dev, child, parent->peers, rank, world, ret, err));
    parent->peers = NULL;
    return TITAN_OK;
}

/* --- collectives ----------------------------------------------------------------------------------------------------
 */

static bool nccl_type(enum dtype dt, ncclDataType_t *ret)
{
    switch (dt) {
    case DTYPE_F32:
        *ret = ncclFloat32;
        return true;
    case DTYPE_BF16:
        *ret = ncclBfloat16;
        return true;
    case DTYPE_F64:
        *ret = ncclFloat64;
        return true;
    case DTYPE_I32:
        *ret = ncclInt32;
        return true;
    case DTYPE_U8:
        *ret = ncclUint8;
        return true;
    }
    return false;
}

/* Before an operation. *ret_go: do it, with c->lock held; otherwise the answer is the operation's. */
static titan_status begin(struct comm *c, struct stream *s, bool *ret_go)
{
    *ret_go = false;
    (void)pthread_mutex_lock(&c->streams_lock);
    int i = 0;
    while (i < c->n_streams && c->streams[i] != s)
        i++;
    if (i == c->n_streams && i < STREAMS_MAX)
        c->streams[c->n_streams++] = s;
    (void)pthread_mutex_unlock(&c->streams_lock);
    if (i == STREAMS_MAX)
        return TITAN_ELIMIT;
    titan_status st = (titan_status)__atomic_load_n(&c->failed, __ATOMIC_ACQUIRE);
    if (st != TITAN_OK) {
        stream_raise(s, st, c->reason);
        (void)stream_latch(s, NULL);
        return st;
    }
    if (stream_skips(s))
        return TITAN_OK;
    (void)pthread_mutex_lock(&c->lock);
    *ret_go = true;
    return TITAN_OK;
}

/* After it: the first collective of a kind connects to peers in the background, and nothing may be launched until it
 * has; a revoke ends that wait. Then the latch. */
static titan_status finish(struct comm *c, struct stream *s, const char *what, ncclResult_t r)
{
    unsigned looks = 0;
    int lost = -1;
    struct titan_error err;
    titan_status st = TITAN_OK;
    while (r == ncclInProgress && lost < 0 && __atomic_load_n(&c->failed, __ATOMIC_ACQUIRE) == 0) {
        ncclResult_t state = ncclInProgress;
        r = ncclCommGetAsyncError(c->nccl, &state);
        if (r == ncclSuccess)
            r = state;
        if (r == ncclInProgress)
            pause_before_look(&looks);
        if (looks % LOOKS_PER_CHECK == LOOKS_PER_CHECK - 1)
            lost = nccl_peers_lost(c->peers);
    }
    if (lost >= 0)
        st = titan_fail(&err, TITAN_EPEER, "rank %d has ended or failed", lost);
    if (!fine(r) && __atomic_load_n(&c->failed, __ATOMIC_ACQUIRE) == 0)
        st = nccl_fail(&err, c->nccl, r, what);
    (void)pthread_mutex_unlock(&c->lock);
    if (st != TITAN_OK)
        fail(c, st, err.msg);
    titan_status latched = stream_latch(s, NULL);
    st = (titan_status)__atomic_load_n(&c->failed, __ATOMIC_ACQUIRE);
    return st != TITAN_OK ? st : latched;
}

#define COLLECTIVE(c, s, what, call)                                                                                   \
    do {                                                                                                               \
        bool go_;                                                                                                      \
        titan_status begun_ = begin(c, s, &go_);                                                                       \
        if (!go_)                                                                                                      \
            return begun_;                                                                                             \
        return finish(c, s, what, (call));                                                                             \
    } while (0)

static titan_status all_gather(struct comm *c, void *recv, const void *send, size_t count, enum dtype dt,
                               struct stream *s)
{
    ncclDataType_t type;
    if (!nccl_type(dt, &type))
        return TITAN_EINVAL;
    COLLECTIVE(c, s, "all-gather", ncclAllGather(send, recv, count, type, c->nccl, s->native));
}

static titan_status reduce_scatter(struct comm *c, void *recv, const void *send, size_t count, enum dtype dt,
                                   struct stream *s)
{
    ncclDataType_t type;
    if (!nccl_type(dt, &type))
        return TITAN_EINVAL;
    COLLECTIVE(c, s, "reduce-scatter", ncclReduceScatter(send, recv, count, type, ncclSum, c->nccl, s->native));
}

static titan_status all_reduce(struct comm *c, void *data, size_t count, enum dtype dt, struct stream *s)
{
    ncclDataType_t type;
    if (!nccl_type(dt, &type))
        return TITAN_EINVAL;
    COLLECTIVE(c, s, "all-reduce", ncclAllReduce(data, data, count, type, ncclSum, c->nccl, s->native));
}

static titan_status broadcast(struct comm *c, void *data, size_t bytes, int root, struct stream *s)
{
    if (root < 0 || root >= c->world)
        return TITAN_EINVAL;
    COLLECTIVE(c, s, "broadcast", ncclBroadcast(data, data, bytes, ncclUint8, root, c->nccl, s->native));
}

/* Sends and receives of one group run together, so the order among them does not matter. */
static ncclResult_t exchange(struct comm *c, char *recv, const char *send, size_t bytes, struct stream *s)
{
    ncclResult_t r = ncclGroupStart();
    for (int peer = 0; peer < c->world && fine(r); peer++) {
        r = ncclSend(send + (size_t)peer * bytes, bytes, ncclUint8, peer, c->nccl, s->native);
        if (fine(r))
            r = ncclRecv(recv + (size_t)peer * bytes, bytes, ncclUint8, peer, c->nccl, s->native);
    }
    ncclResult_t end = ncclGroupEnd();
    return fine(r) ? end : r;
}

static titan_status all_to_all(struct comm *c, void *recv, const void *send, size_t bytes, struct stream *s)
{
    COLLECTIVE(c, s, "all-to-all", exchange(c, recv, send, bytes, s));
}

static titan_status send_to(struct comm *c, const void *data, size_t bytes, int to, struct stream *s)
{
    if (to < 0 || to >= c->world)
        return TITAN_EINVAL;
    COLLECTIVE(c, s, "send", ncclSend(data, bytes, ncclUint8, to, c->nccl, s->native));
}

static titan_status recv_from(struct comm *c, void *data, size_t bytes, int from, struct stream *s)
{
    if (from < 0 || from >= c->world)
        return TITAN_EINVAL;
    COLLECTIVE(c, s, "receive", ncclRecv(data, bytes, ncclUint8, from, c->nccl, s->native));
}

static titan_status barrier(struct comm *c, struct stream *s)
{
    COLLECTIVE(c, s, "barrier", ncclAllReduce(c->token, c->token, 1, ncclFloat32, ncclSum, c->nccl, s->native));
}

const struct comm_ops comm_nccl = {
    .abi = TITAN_COMM_ABI,
    .name = "nccl",
    .open = comm_open,
    .close = comm_close,
    .revoke = comm_revoke,
    .async_error = comm_async_error,
    .shrink = comm_shrink,
    .all_gather = all_gather,
    .reduce_scatter = reduce_scatter,
    .all_reduce = all_reduce,
    .broadcast = broadcast,
    .all_to_all = all_to_all,
    .send = send_to,
    .recv = recv_from,
    .barrier = barrier,
};
