/* SPDX-License-Identifier: Apache-2.0 */
/* window.c - memory that peers access directly: NCCL's memory, registered with a communicator. */
#include <stdlib.h>

#include "base/clock.h"
#include "base/progress.h"
#include "worker/comm/nccl/nccl.h"

#define CLOSE_MS 500

titan_status nccl_memory_alloc(struct device *dev, size_t bytes, void **ret, struct titan_error *err)
{
    void *ptr = NULL;

    TRY(cuda_enter(dev, err));
    ncclResult_t r = ncclMemAlloc(&ptr, bytes ? bytes : 1);
    if (r != ncclSuccess) {
        cuda_nccl_settle(dev);
        r = ncclMemAlloc(&ptr, bytes ? bytes : 1);
    }
    if (r != ncclSuccess || !ptr) {
        (void)cudaGetLastError();
        return titan_fail(err, TITAN_EUNSUPPORTED, "NCCL has no memory for windows: %s", ncclGetErrorString(r));
    }
    const cudaError_t e = cuda_clear(dev, ptr, bytes);
    if (e != cudaSuccess) {
        (void)ncclMemFree(ptr);
        return cuda_fail(err, e, "clearing GPU memory");
    }
    *ret = ptr;
    return TITAN_OK;
}

/* First waits for the release of failed communicators, because their windows on this memory may still be open. */
void nccl_memory_release(struct device *dev, void *ptr)
{
    if (!ptr || cuda_enter(dev, NULL) != TITAN_OK)
        return;
    cuda_nccl_settle(dev);
    (void)ncclMemFree(ptr);
}

/* Waits until NCCL has finished the call, the communicator fails, or the deadline passes. The caller holds the lock. */
static ncclResult_t settle(const struct comm *c, ncclResult_t r, int64_t deadline_ns)
{
    unsigned looks = 0;
    bool busy = nccl_fine(r); /* NCCL 2.28 returns success while it still works */

    while (busy && comm_failed(c) == TITAN_OK && clock_mono_ns() < deadline_ns) {
        ncclResult_t state = ncclInProgress;
        r = ncclCommGetAsyncError(c->nccl, &state);
        if (r == ncclSuccess)
            r = state;
        busy = r == ncclInProgress;
        if (busy)
            nccl_pause(&looks);
    }
    return r;
}

/* NCCL may fill in the window's handle while it works, so the handle is a field of the communicator. */
titan_status nccl_window_open(struct comm *c, void *base, size_t bytes, struct titan_error *err)
{
    titan_assert(base && bytes > 0 && !c->window);
    if (comm_failed(c) != TITAN_OK)
        return titan_fail(err, comm_failed(c), "%s", c->reason);
    if (!c->nccl)
        return titan_fail(err, TITAN_EUNSUPPORTED, "a member alone needs no window");
    TRY(cuda_enter(c->dev, err));
    (void)pthread_mutex_lock(&c->lock);
    progress_wait_begin();
    ncclResult_t r = ncclCommWindowRegister(c->nccl, base, bytes, &c->window, NCCL_WIN_COLL_SYMMETRIC);
    const bool begun = nccl_fine(r);
    r = settle(c, r, INT64_MAX);
    progress_wait_end();
    (void)pthread_mutex_unlock(&c->lock);
    if (comm_failed(c) != TITAN_OK)
        return titan_fail(err, comm_failed(c), "%s", c->reason);
    if (r == ncclSuccess && c->window)
        return TITAN_OK;
    c->window = NULL;
    if (begun && r != ncclSuccess) { /* NCCL stays at work on a failed call: the communicator is lost */
        (void)titan_fail(err, TITAN_EINVAL, "NCCL registers no window: %s", ncclGetErrorString(r));
        titan_error_hint(err, "set nccl.windows = false");
        nccl_comm_fail(c, TITAN_EINVAL, err ? err->msg : "NCCL registers no window");
        return TITAN_EINVAL;
    }
    return titan_fail(err, TITAN_EUNSUPPORTED, "NCCL registers no window: %s",
                      r == ncclSuccess ? "no direct access between these GPUs" : ncclGetErrorString(r));
}

/* The watcher watches the communicator meanwhile. A failed communicator may already be freed on another thread; its
 * window is closed when its family ends. */
void nccl_window_close(struct comm *c)
{
    if (!c->window)
        return;
    (void)pthread_mutex_lock(&c->lock);
    progress_wait_begin();
    if (comm_failed(c) == TITAN_OK && cuda_enter(c->dev, NULL) == TITAN_OK) {
        (void)settle(c, ncclCommWindowDeregister(c->nccl, c->window), nccl_deadline(CLOSE_MS));
        c->window = NULL;
    }
    progress_wait_end();
    (void)pthread_mutex_unlock(&c->lock);
}
