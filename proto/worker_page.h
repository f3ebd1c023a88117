/* SPDX-License-Identifier: Apache-2.0 */
/* worker_page.h - one page of memory shared by a worker and its node's agent (a file in memory that run/pages leads
 * to, so that the next agent finds it). The worker's control thread locks the robust mutex at start and never unlocks
 * it: when the process dies, however, the kernel marks the lock EOWNERDEAD and wakes the waiting thread, without
 * waiting for the address space to be torn down (pidfd and socket EOF do wait: 26 ms per resident GiB). */
#ifndef TITAN_PROTO_WORKER_PAGE_H
#define TITAN_PROTO_WORKER_PAGE_H

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#define WORKER_PAGE_MAGIC UINT64_C(0x32656761506e7454) /* "TtnPage2" */

struct worker_page {
    uint64_t magic;
    uint64_t job_id, worker_id;
    int64_t pid;
    uint32_t slot; /* which of the node's slots it takes */
    unsigned char token[16];
    pthread_mutex_t alive;   /* robust, process-shared; set up by the agent, locked by the worker */
    _Atomic uint32_t locked; /* 1 once the worker holds it */
    _Atomic uint32_t phase;  /* WorkerPhase */
    _Atomic uint64_t epoch;
    _Atomic uint64_t step;     /* last committed */
    _Atomic uint64_t actions;  /* counts up while it works: program actions begun, messages moved, parts loaded */
    _Atomic uint32_t waiting;  /* 1 while no thread of it works: it waits for a peer, the coordinator or a disk, or is
                                  idle; standing still is not its fault (base/progress.h) */
    _Atomic uint64_t term;     /* highest seen */
    _Atomic uint64_t busy_ns;  /* time in steps in which a thread of it worked, summed; added before step goes up */
    _Atomic int32_t exit_code; /* -1 until the worker leaves in order, or fails */
    char last_words[600];      /* reason of a failing exit, NUL-terminated */
    /* By the agent, for the next one; monotonic. */
    _Atomic int64_t contact_ms;     /* when the coordinator was heard; 0 = not said */
    _Atomic int64_t epoch_until_ms; /* the end of the lease of its epoch; 0 = it has none */
};
static_assert(sizeof(struct worker_page) <= 4096, "one page");

#endif
