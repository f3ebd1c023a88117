/* SPDX-License-Identifier: Apache-2.0 */
/* apart.h - work with files that a file server may never answer: on a thread of its own, which the caller leaves behind
 * when nothing moves any more.
 *
 * A job embeds struct apart as its first member and owns all that its thread touches: what is left behind goes on with
 * it, and the last of the two to let go frees it. */
#ifndef TITAN_WORKER_CHECKPOINT_APART_H
#define TITAN_WORKER_CHECKPOINT_APART_H

#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

/* What reads for long looks at and counts up. */
struct apart_watch {
    atomic_int stop; /* not zero: it is not wanted any more */
    _Atomic uint64_t moved;
};

struct apart {
    titan_status (*run)(struct apart *a, struct titan_error *err); /* on the thread */
    void (*clear)(struct apart *a);                                /* frees the job; on either thread */
    struct apart_watch watch;
    /* own */
    sem_t ended;
    _Atomic bool over; /* the same, in a way that the thread sanitizer knows */
    atomic_int holders;
    titan_status status;
    struct titan_error error;
};

/* job: from calloc, with run and clear set. */
void apart_init(struct apart *a);
/* Run it and return its status. TITAN_ETIMEDOUT: nothing has moved for still_ms (0: wait however long it takes);
 * TITAN_EREVOKED: *stop is not zero any more (NULL: never). The job may then run on, and is not looked at again. */
titan_status apart_run(struct apart *a, int still_ms, const atomic_int *stop, struct titan_error *err) TITAN_MUST_USE;
void apart_close(struct apart *a);

#endif
