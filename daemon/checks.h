/* SPDX-License-Identifier: Apache-2.0 */
/* checks.h - work that may not come back: a recipe or a configuration names paths, and a file server that does not
 * answer holds whoever asks it, uninterruptibly.
 *
 * A thread takes what waits, in order. When it has been at one entry for long, another one takes the rest, up to
 * CHECKS_THREADS_MAX; an entry that is not through after its deadline is given up: its owner is told, and the thread,
 * which cannot be ended, frees it whenever it comes back. Nobody waits for such a thread, neither at the end. */
#ifndef TITAN_DAEMON_CHECKS_H
#define TITAN_DAEMON_CHECKS_H

#include <uv.h>

#include "base/error.h"

#define CHECKS_THREADS_MAX 4                /* so many can hang */
#define CHECKS_BYTES_MAX ((size_t)64 << 20) /* of what waits */

struct checks;

/* First in its owner's struct. */
struct check {
    struct check *next;
    size_t bytes;
    int64_t since_ms;
    bool given_up; /* the thread that has it frees it */
};

struct checks_calls {
    const char *what;              /* "submits": what each is of, for messages */
    void (*run)(struct check *k);  /* on a thread */
    void (*done)(struct check *k); /* on the loop, after run; in order but for those that hang */
    /* On the loop: it will not be done. started: a thread has it, and will free it; else the callee does. */
    void (*given_up)(struct check *k, bool started);
    void (*free)(struct check *k); /* on a thread */
};

titan_status checks_open(uv_loop_t *loop, const struct checks_calls *calls, uint32_t deadline_ms, struct checks **ret,
                         struct titan_error *err) TITAN_MUST_USE;
/* TITAN_ELIMIT: too much waits; TITAN_EAGAIN: all threads hang. k is the caller's then. */
titan_status checks_add(struct checks *c, struct check *k, size_t bytes, struct titan_error *err) TITAN_MUST_USE;
/* Nobody wants it any more. True: it had not been begun, and is the caller's again. */
bool checks_drop(struct checks *c, struct check *k);
/* Everything that is not through is given up; then closed() is called on the loop. */
void checks_close(struct checks *c, void (*closed)(void *data), void *data);

#endif
