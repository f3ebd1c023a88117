/* SPDX-License-Identifier: Apache-2.0 */
/* file_pool.h - work on files that may not come back: a file server that does not answer holds the thread that asks it,
 * uninterruptibly. So neither a loop nor libuv's threads, which others share and an exit waits for, open a path that
 * may be on one.
 *
 * A thread takes what waits: users by turns, in order what is of one. When it has been at one task for long, another
 * one takes the rest, up to FILE_THREADS_MAX, of which one user holds half at most, and fewer when others hold some. So
 * tasks of one user that are many, slow or hang keep no other from its turn; what is beyond its share of what may wait
 * is refused to it alone.
 *
 * A task that is not through after its deadline is given up: its owner is notified, and the thread, which cannot be
 * ended, frees it whenever it comes back. Nothing waits for such a thread, neither at the end. Of tasks with the same
 * key one at most is at work, so that a path that hangs holds one thread, however often it is asked for.
 */
#ifndef TITAN_DAEMON_COMMON_FILE_POOL_H
#define TITAN_DAEMON_COMMON_FILE_POOL_H

#include <stdatomic.h>
#include <uv.h>

#include "base/error.h"

#define FILE_THREADS_MAX 8 /* so many can hang */
/* Of what waits: of the daemon's own, of all users but one task each, of one user. */
#define FILE_BYTES_MAX ((size_t)64 << 20)
#define FILE_USER_BYTES_MAX ((size_t)16 << 20)
#define FILE_USER_TASKS_MAX 1024

struct file_pool;
struct file_task;

struct file_calls {
    void (*run)(struct file_task *k); /* on a thread */
    void (*done)(
        struct file_task *k); /* on the loop, after run; in order but for those that hang. The callee frees it */
    /* On the loop: it will not be done. started: a thread has it, and it is freed later; else the callee frees it.
     * Neither drops nor abandons another task. */
    void (*given_up)(struct file_task *k, bool started);
    void (*free)(struct file_task *k); /* on any thread, after run */
};

/* First in its owner's struct. */
struct file_task {
    /* Those of one key run one after the other, of one user in order; NULL = none. Lives as long as the task. */
    const char *key;
    const char *user; /* that wants it; NULL = the daemon. Looked at by file_pool_add() alone */
    /* The pool's. */
    const struct file_calls *calls;
    struct file_task *next;
    size_t bytes;
    int64_t since_ms;
    atomic_bool given_up;
    bool owner_notified, returned; /* of one that is given up: its owner knows; its thread has come back */
};

titan_status file_pool_open(uv_loop_t *loop, uint32_t deadline_ms, struct file_pool **ret,
                            struct titan_error *err) TITAN_MUST_USE;
/* TITAN_ELIMIT: too much of this user waits; TITAN_EAGAIN: all threads it may have hang; TITAN_ECANCELLED: the pool is
 * closed; TITAN_ENOMEM. k is the caller's then. */
titan_status file_pool_add(struct file_pool *p, struct file_task *k, const struct file_calls *calls, size_t bytes,
                           struct titan_error *err) TITAN_MUST_USE;
/* Not wanted any more. True: it had not been begun, and is the caller's again. False: it goes on as if not dropped. */
bool file_pool_drop(struct file_pool *p, struct file_task *k);
/* The same, but what has been begun is given up, without a call. True: it is the caller's again, and either had not
 * been begun or is through. */
bool file_pool_abandon(struct file_pool *p, struct file_task *k);
/* On its thread: false once it is given up, and the rest of it is better left undone. */
bool file_task_wanted(const struct file_task *k);
uint32_t file_pool_deadline_ms(const struct file_pool *p);
/* Everything that is not through is given up; then closed() is called on the loop. */
void file_pool_close(struct file_pool *p, void (*closed)(void *data), void *data);

/* Where there is no loop yet: run on a thread of its own, waited for. TITAN_OK: it is through, and the caller's again.
 * TITAN_ETIMEDOUT after wait_ms: it is freed by its thread, whenever that comes back. TITAN_ENOMEM: it was not run, and
 * is the caller's. Only run and free are called. */
titan_status file_task_await(struct file_task *k, const struct file_calls *calls, uint32_t wait_ms,
                             struct titan_error *err) TITAN_MUST_USE;

#endif
