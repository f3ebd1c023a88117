/* SPDX-License-Identifier: Apache-2.0 */
/* snapshot.c - touches and pins a checkpoint's memory ahead, on threads. */
#include "worker/state/snapshot.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "base/cleanup.h"
#include "base/progress.h"

#define HUGE_PAGE_BYTES ((size_t)2 << 20)
#define PAGE_BYTES 4096
#define THREADS_MAX 4
#define CORES_A_THREAD 4 /* training uses the other cores */
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

struct snapshot {
    const struct device_handle *device;
    uint64_t (*available)(void);
    char *memory;
    size_t bytes;
    size_t pieces;
    bool pins;           /* pieces are pinned: the device copies into them */
    bool *pinned;        /* per piece; written by the piece's thread until the threads are joined */
    atomic_size_t next;  /* the next piece, which no thread has begun */
    atomic_size_t taken; /* pieces that are touched, and pinned if `pins` */
    atomic_bool stop;
    pthread_t threads[THREADS_MAX];
    int n_threads; /* to be joined */
};

uint64_t snapshot_available(void)
{
    char line[128];
    unsigned long long kib = 0;
    FILE *f = fopen("/proc/meminfo", "re");

    if (!f)
        return 0;
    while (fgets(line, sizeof line, f) && sscanf(line, "MemAvailable: %llu kB", &kib) != 1)
        ;
    (void)fclose(f);
    return (uint64_t)kib << 10;
}

static void *take_pieces(void *arg)
{
    struct snapshot *m = arg;

    for (size_t i; !atomic_load(&m->stop) && (i = atomic_fetch_add(&m->next, 1)) < m->pieces;) {
        char *const piece = m->memory + i * SNAPSHOT_PIECE_BYTES;
        const size_t bytes = MIN(SNAPSHOT_PIECE_BYTES, m->bytes - i * SNAPSHOT_PIECE_BYTES);
        if (m->available() < bytes * THREADS_MAX + SNAPSHOT_KEPT_FREE) { /* each other thread takes a piece, too */
            atomic_store(&m->stop, true);
            break;
        }
        /* Touches the pages. Without MADV_POPULATE_WRITE, writes zeros: fresh memory has zeros anyway. */
        if (madvise(piece, bytes, MADV_POPULATE_WRITE) != 0)
            for (size_t at = 0; at < bytes; at += PAGE_BYTES)
                *(volatile char *)(piece + at) = 0;
        if (m->pins)
            m->pinned[i] = m->device->ops->pin_host(m->device->dev, piece, bytes, NULL) == TITAN_OK;
        if (m->pins && !m->pinned[i])
            atomic_store(&m->stop, true);
        else
            (void)atomic_fetch_add(&m->taken, 1);
    }
    return NULL;
}

titan_status snapshot_open(const struct device_handle *device, size_t bytes, uint64_t (*available)(void),
                           struct snapshot **ret, struct titan_error *err)
{
    struct snapshot *m = calloc(1, sizeof *m);

    if (!m)
        return titan_fail(err, TITAN_ENOMEM, "checkpoint: out of memory");
    m->device = device;
    m->available = available;
    m->bytes = (bytes / HUGE_PAGE_BYTES + 1) * HUGE_PAGE_BYTES;
    m->pieces = (m->bytes + SNAPSHOT_PIECE_BYTES - 1) / SNAPSHOT_PIECE_BYTES;
    m->pins = device && !device->info.host_memory && device->ops->pin_host;
    m->memory = aligned_alloc(HUGE_PAGE_BYTES, m->bytes);
    m->pinned = calloc(m->pieces, sizeof *m->pinned);
    if (!m->memory || !m->pinned) {
        snapshot_close(m);
        return titan_fail(err, TITAN_ENOMEM, "checkpoint: no memory for a snapshot of %.1f MiB",
                          (double)bytes / 1048576.0);
    }
    (void)madvise(m->memory, m->bytes, MADV_HUGEPAGE);
    cpu_set_t cores;
    int threads = 0;
    if (device) {
        const bool known = m->pins && sched_getaffinity(0, sizeof cores, &cores) == 0;
        const int n = known ? MIN(CPU_COUNT(&cores) / CORES_A_THREAD, THREADS_MAX) : 1;
        threads = (int)MIN((size_t)MAX(n, 1), m->pieces);
    }
    sigset_t every, old;
    sigfillset(&every);
    (void)pthread_sigmask(SIG_SETMASK, &every, &old); /* the main thread gets all signals */
    while (m->n_threads < threads && pthread_create(&m->threads[m->n_threads], NULL, take_pieces, m) == 0)
        m->n_threads++;
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    titan_assert(m->n_threads <= THREADS_MAX);
    *ret = m;
    return TITAN_OK;
}

void *snapshot_memory(const struct snapshot *m)
{
    return m->memory;
}

static void join(struct snapshot *m)
{
    while (m->n_threads > 0)
        (void)pthread_join(m->threads[--m->n_threads], NULL);
}

bool snapshot_ready(struct snapshot *m)
{
    join(m);
    return atomic_load(&m->taken) == m->pieces;
}

void snapshot_unpin(struct snapshot *m)
{
    if (!m)
        return;
    atomic_store(&m->stop, true);
    join(m);
    for (size_t i = 0; m->pinned && i < m->pieces; i++) {
        if (m->pinned[i])
            m->device->ops->unpin_host(m->device->dev, m->memory + i * SNAPSHOT_PIECE_BYTES);
        m->pinned[i] = false;
    }
}

void snapshot_close(struct snapshot *m)
{
    if (!m)
        return;
    titan_assert(m->n_threads == 0);
    free(m->memory);
    free(m->pinned);
    free(m);
}
