/* SPDX-License-Identifier: Apache-2.0 */
/* derive.c - splits: communicators of some members of an existing communicator.
 *
 * The call may block inside NCCL, so it runs on its own thread; an abort of the parent ends the call. After the call
 * has returned, NCCL may still be at work. The parent stays "in progress" until the child is complete. Only then does
 * NCCL fill in the child's slot, so the slot lives until then. */
#include <stdlib.h>

#include "base/clock.h"
#include "base/progress.h"
#include "worker/comm/nccl/nccl.h"

/* Time for a cancelled call to return by itself, before its communicator is aborted. */
#define GRACE_MS 50

struct derive_call {
    const char *what;
    ncclComm_t parent, child;
    int colour, key, device;
    ncclConfig_t config;
    ncclResult_t result;
    int stage; /* atomic */
};
enum { CALL_NOT_BEGUN, CALL_RUNS, CALL_CANCELLED, CALL_RETURNED };

static void *run_derive(void *arg)
{
    struct derive_call *call = arg;
    int none = CALL_NOT_BEGUN;
    if (!__atomic_compare_exchange_n(&call->stage, &none, CALL_RUNS, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        return NULL;
    (void)cudaSetDevice(call->device);
    call->result = ncclCommSplit(call->parent, call->colour, call->key, &call->child, &call->config);
    __atomic_store_n(&call->stage, CALL_RETURNED, __ATOMIC_RELEASE);
    return NULL;
}

static bool derive_returned(const struct derive_call *call)
{
    return __atomic_load_n(&call->stage, __ATOMIC_ACQUIRE) == CALL_RETURNED;
}

static bool await_return(const struct derive_call *call, uint32_t ms)
{
    const int64_t deadline_ns = nccl_deadline(ms);
    unsigned looks = 0;
    while (!derive_returned(call) && clock_mono_ns() < deadline_ns)
        nccl_pause(&looks);
    return derive_returned(call);
}

/* Waits until NCCL has finished. The family's failure or the loss of one of its peers ends the wait, but not the
 * call. */
static titan_status derive_wait(struct derive_call *call, struct comm *family, const atomic_int *abort_flag,
                                int64_t deadline_ns, struct titan_error *err)
{
    for (unsigned looks = 0;;) {
        const bool returned = derive_returned(call);
        if (returned && nccl_fine(call->result)) {
            ncclResult_t state = ncclSuccess;
            const ncclResult_t r = ncclCommGetAsyncError(call->parent, &state);
            call->result = r == ncclSuccess ? state : r;
        }
        if (returned && call->result != ncclInProgress) /* NCCL has finished: call->result is the outcome */
            return TITAN_OK;
        if (abort_flag && atomic_load(abort_flag))
            return titan_fail(err, TITAN_EREVOKED, "epoch revoked during %s", call->what);
        titan_status st = comm_failed(family);
        if (st != TITAN_OK)
            return titan_fail(err, st, "the communicator failed during %s", call->what);
        int lost = looks % NCCL_LOOKS_PER_CHECK == 0 ? nccl_peers_lost(family->root->peers) : -1;
        if (lost >= 0)
            return titan_fail(err, TITAN_EPEER, "rank %d has ended or failed during %s", lost, call->what);
        if (clock_mono_ns() >= deadline_ns)
            return titan_fail(err, TITAN_ETIMEDOUT, "NCCL: %s did not finish in time", call->what);
        nccl_pause(&looks);
    }
}

/* Runs the call, and owns it from here on. If the call fails, the parent fails. The parent's other calls wait for this
 * call. *ret is NULL for a member without a child. */
static titan_status derive(struct comm *parent, struct derive_call *call, const atomic_int *abort_flag,
                           int64_t deadline_ns, ncclComm_t *ret, struct titan_error *err)
{
    pthread_t thread;
    call->parent = parent->nccl;
    call->device = parent->dev->index;
    call->config = nccl_config(&parent->tuning);
    (void)pthread_mutex_lock(&parent->lock);
    titan_status st = TITAN_OK;
    bool started = pthread_create(&thread, NULL, run_derive, call) == 0;
    if (started)
        st = derive_wait(call, parent, abort_flag, deadline_ns, err);
    bool began = started;
    if (started && st != TITAN_OK) {
        /* Cancels a call that has not begun; otherwise waits up to GRACE_MS for its return. This must run before any
         * thread may abort the parent, because no call may begin after an abort. */
        int stage = CALL_NOT_BEGUN;
        began = !__atomic_compare_exchange_n(&call->stage, &stage, CALL_CANCELLED, false, __ATOMIC_ACQ_REL,
                                             __ATOMIC_ACQUIRE);
        if (began)
            (void)await_return(call, GRACE_MS);
    }
    (void)pthread_mutex_unlock(&parent->lock);
    if (!started) {
        st = titan_fail(err, TITAN_ENOMEM, "no thread for %s", call->what);
        free(call);
        return st;
    }
    if (st != TITAN_OK) {
        /* This call must come first, because it waits for any thread that is stopping the parent. */
        nccl_comm_fail(parent, st, err ? err->msg : call->what);
        if (began)
            nccl_comm_abort(parent);
        if (began && !await_return(call, NCCL_ABORT_MS)) { /* the call does not end even now, so it keeps its memory */
            (void)pthread_detach(thread);
            return st;
        }
        (void)pthread_join(thread, NULL);
        /* A call that is still in progress keeps its memory, because NCCL may yet fill in the child's slot. */
        if (!began || call->result != ncclInProgress) {
            nccl_abort(parent->dev, call->child);
            free(call);
        }
        return st;
    }
    (void)pthread_join(thread, NULL);
    ncclComm_t child = __atomic_load_n(&call->child, __ATOMIC_ACQUIRE);
    if (call->result != ncclSuccess)
        st = nccl_fail(err, parent->nccl, call->result, call->what);
    else if (child)
        st = nccl_wait_ready(child, abort_flag, deadline_ns, call->what, err);
    free(call);
    if (st != TITAN_OK) {
        nccl_abort(parent->dev, child);
        return st;
    }
    *ret = child;
    return TITAN_OK;
}

titan_status nccl_comm_split(struct comm *parent, const int *members, int n, const atomic_int *abort_flag,
                             struct comm **ret, struct titan_error *err)
{
    struct titan_error local = {0};
    struct comm child = {
        .dev = parent->dev, .rank = -1, .world = n, .root = parent->root, .timeout_ms = parent->timeout_ms};
    bool valid = true;
    for (int i = 0; i < n; i++) {
        valid &= members[i] >= 0 && members[i] < parent->world && (i == 0 || members[i] > members[i - 1]);
        if (members[i] == parent->rank)
            child.rank = i;
    }
    if (!valid || child.rank < 0)
        return titan_fail(err, TITAN_EINVAL, "rank %d of %d: members of a group are ranks, ascending, with the own one",
                          parent->rank, parent->world);
    titan_status st = comm_failed(parent);
    if (st != TITAN_OK)
        return titan_fail(err, st, "%s", parent->reason);
    TRY(cuda_enter(parent->dev, err));

    /* NCCL groups members by colour; here the colour is the first member's rank. A member whose group has no other
     * members takes part in the call, but gets no communicator. */
    struct derive_call *call = parent->nccl ? calloc(1, sizeof *call) : NULL;
    if (parent->nccl && !call)
        st = titan_fail(&local, TITAN_ENOMEM, "no memory to split the communicator");
    if (call) {
        const uint32_t timeout_ms = parent->timeout_ms ? parent->timeout_ms : NCCL_FORM_MS;
        call->what = "splitting the communicator";
        call->colour = n > 1 ? members[0] : NCCL_SPLIT_NOCOLOR;
        call->key = child.rank;
        progress_wait_begin();
        st = derive(parent, call, abort_flag, nccl_deadline(timeout_ms), &child.nccl, &local);
        progress_wait_end();
    }
    if (call && st == TITAN_OK && n > 1) {
        int rank = -1, world = -1;
        ncclResult_t r = child.nccl ? ncclCommUserRank(child.nccl, &rank) : ncclInternalError;
        if (r == ncclSuccess)
            r = ncclCommCount(child.nccl, &world);
        if (r != ncclSuccess || rank != child.rank || world != n) {
            nccl_abort(parent->dev, child.nccl);
            st = titan_fail(&local, TITAN_EBUG, "splitting gave rank %d of %d, not %d of %d", rank, world, child.rank,
                            n);
        }
    }
    if (st == TITAN_OK)
        st = nccl_comm_make(&child, ret, &local);
    if (st != TITAN_OK) {
        nccl_comm_fail(parent, st, local.msg);
        if (err)
            *err = local;
    }
    return st;
}
