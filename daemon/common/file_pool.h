/* SPDX-License-Identifier: Apache-2.0 */
/* file_pool.h - file work that may never return. A dead file server blocks the calling thread uninterruptibly. So paths
 * that may be on a file server are opened neither on a loop nor on libuv's threads. Others share these threads, and an
 * exit waits for them.
 *
 * A thread takes waiting tasks: users by turns, each user's tasks in order. When the thread has been at one task for
 * long, another thread takes the other tasks, up to FILE_THREADS_MAX threads. One user holds at most half of the
 * threads, and fewer when others hold some. So many, slow or hanging tasks of one user delay no other user. Tasks
 * beyond a user's share of the queue are refused to that user alone.
 *
 * A task that misses its deadline is given up. Its owner is notified; the thread cannot be ended, and frees the task
 * whenever it returns. Nothing waits for such a thread, not even the exit. At most one task of a key runs at a time, so
 * a hanging path holds one thread, however often it is asked for. */
#ifndef TITAN_DAEMON_COMMON_FILE_POOL_H
#define TITAN_DAEMON_COMMON_FILE_POOL_H

#include <stdatomic.h>
#include <uv.h>

#include "base/error.h"

#define FILE_THREADS_MAX 8 /* this many threads can hang */
/* Limits on waiting tasks. The first holds for the daemon's tasks, and for all users' tasks beyond one per user. The
 * other two hold for one user's tasks. */
#define FILE_BYTES_MAX ((size_t)64 << 20)
#define FILE_USER_BYTES_MAX ((size_t)16 << 20)
#define FILE_USER_TASKS_MAX 1024

struct file_pool;
struct file_task;

struct file_calls {
    void (*run)(struct file_task *k); /* runs on a thread */
    /* Runs on the loop after run, in order except for hanging tasks; frees the task. NULL: it is freed. */
    void (*done)(struct file_task *k);
    /* Runs on the loop: the task will not be done. started: a thread has the task and frees it later; else the callee
     * frees it. The callee must neither drop nor abandon another task. NULL: a task that was not started is freed. */
    void (*given_up)(struct file_task *k, bool started);
    void (*free)(struct file_task *k); /* runs on any thread, after run; NULL: free() */
};

/* Must be the first member of its owner's struct. */
struct file_task {
    /* Tasks of one key run one at a time, each user's in order; NULL = no key. Must live as long as the task. */
    const char *key;
    const char *user; /* the user that wants it; NULL = the daemon. Only file_pool_add() reads it */
    /* Owned by the pool. */
    const struct file_calls *calls;
    struct file_task *next;
    size_t bytes;
    int64_t since_ms;
    atomic_bool given_up;
    bool owner_notified, returned; /* after giving up: the owner has been notified; the thread has returned */
};

titan_status file_pool_open(uv_loop_t *loop, uint32_t deadline_ms, struct file_pool **ret,
                            struct titan_error *err) TITAN_MUST_USE;
/* TITAN_ELIMIT: too many tasks of this user wait; TITAN_EAGAIN: all threads that the user may have hang;
 * TITAN_ECANCELLED: the pool is closed; TITAN_ENOMEM. On an error the caller keeps k. */
titan_status file_pool_add(struct file_pool *p, struct file_task *k, const struct file_calls *calls, size_t bytes,
                           struct titan_error *err) TITAN_MUST_USE;
/* Drops a task that is no longer wanted. True: the task had not begun, and the caller owns it again. False: the task
 * goes on. */
bool file_pool_drop(struct file_pool *p, struct file_task *k);
/* Like file_pool_drop(), but gives up a task that has begun, without a call of given_up(). True: the task had not begun
 * or has run, and the caller owns it again. */
bool file_pool_abandon(struct file_pool *p, struct file_task *k);
/* Call it on the task's thread. False: the task is given up, and the rest should be skipped. */
bool file_task_wanted(const struct file_task *k);
uint32_t file_pool_deadline_ms(const struct file_pool *p);
/* Gives up all unfinished tasks, then calls closed() on the loop. */
void file_pool_close(struct file_pool *p, void (*closed)(void *data), void *data);

/* Runs the task on its own thread and waits. For use before there is a loop. Only run and free are called. TITAN_OK:
 * the task has run, and the caller owns it again. TITAN_ETIMEDOUT: wait_ms have passed, and the thread frees the task
 * whenever it returns. TITAN_ENOMEM: the task did not run, and the caller owns it. */
titan_status file_task_await(struct file_task *k, const struct file_calls *calls, uint32_t wait_ms,
                             struct titan_error *err) TITAN_MUST_USE;

#endif
