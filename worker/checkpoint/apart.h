/* SPDX-License-Identifier: Apache-2.0 */
/* apart.h - file work that a file server may never complete: it runs on its own thread. If the thread makes no
 * progress, the caller abandons it.
 *
 * A job embeds struct apart as its first member and owns all data of its thread, because an abandoned thread keeps the
 * job. Thread and caller each hold the job; the last to release the job frees it. */
#ifndef TITAN_WORKER_CHECKPOINT_APART_H
#define TITAN_WORKER_CHECKPOINT_APART_H

#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

/* Long reads poll `stop` and add to `moved`. */
struct apart_watch {
    atomic_int stop; /* not zero: the job is cancelled */
    _Atomic uint64_t moved;
};

struct apart {
    titan_status (*run)(struct apart *a, struct titan_error *err); /* on the thread */
    void (*clear)(struct apart *a);                                /* frees the job; on either thread */
    struct apart_watch watch;
    /* internal */
    sem_t ended;
    _Atomic bool over; /* the same as `ended`, in a form that the thread sanitizer understands */
    atomic_int holders;
    titan_status status;
    struct titan_error error;
};

/* job: from calloc, with run and clear set. */
void apart_init(struct apart *a);
/* The limits at which a caller abandons a job. */
struct apart_limit {
    int still_ms;           /* TITAN_ETIMEDOUT: no progress for so long; 0 = wait without limit */
    const atomic_int *stop; /* TITAN_EREVOKED: *stop became non-zero; NULL = never */
};
/* Runs the job and returns its status. After a limit the job may still run, and must not be used again. */
titan_status apart_run(struct apart *a, const struct apart_limit *limit, struct titan_error *err) TITAN_MUST_USE;
void apart_close(struct apart *a);

#endif
