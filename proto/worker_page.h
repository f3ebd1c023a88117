/* SPDX-License-Identifier: Apache-2.0 */
/* worker_page.h - one page of memory shared by a worker and its node's agent. It is a memory file linked from
 * run/pages, so that the next agent finds it. The worker's control thread locks the robust mutex at start and never
 * unlocks it. When the process dies in any way, the kernel marks the lock EOWNERDEAD and wakes the waiting thread
 * before tearing down the address space (pidfd and socket EOF come after: 26 ms per resident GiB). */
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
    uint32_t slot; /* the node's slot of this worker */
    unsigned char token[16];
    pthread_mutex_t alive;   /* robust, process-shared; initialised by the agent, locked by the worker */
    _Atomic uint32_t locked; /* 1 once the worker holds `alive` */
    _Atomic uint32_t phase;  /* WorkerPhase */
    _Atomic uint64_t epoch;
    _Atomic uint64_t step;     /* last committed step */
    _Atomic uint64_t actions;  /* increases during work: program actions begun, messages moved, parts loaded */
    _Atomic uint32_t waiting;  /* 1 while no thread of the worker works: it waits or is idle (base/progress.h) */
    _Atomic uint64_t term;     /* highest term seen */
    _Atomic uint64_t busy_ns;  /* sum over steps of the time with a working thread; increased before `step` */
    _Atomic int32_t exit_code; /* -1 until the worker exits in order, or fails */
    char last_words[600];      /* reason of a failing exit, NUL-terminated */
    /* Written by the agent for the next agent; monotonic clock. */
    _Atomic int64_t contact_ms;     /* time of the coordinator's last message; 0 = unknown */
    _Atomic int64_t epoch_until_ms; /* end of the lease of the worker's epoch; 0 = no lease */
};
static_assert(sizeof(struct worker_page) <= 4096, "one page");

#endif
