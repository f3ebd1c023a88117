/* SPDX-License-Identifier: Apache-2.0 */
/* file_pool.c - see file_pool.h. */
#include "daemon/common/file_pool.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/slowest.h"
#include "daemon/common/thread.h"

#define LOOK_MS 100     /* time between checks for hanging tasks */
#define PATIENCE_MS 500 /* when a thread has been at one task for this long, another thread takes the other tasks */
#define STACK (1 << 20)

/* One user's tasks and threads; freed when no task waits and no thread works for it. */
struct lot {
    struct lot *next;
    struct file_task *waiting, **last;
    size_t bytes;          /* total of the waiting tasks */
    unsigned n, n_threads; /* waiting tasks; working threads */
    char user[];           /* "" = the daemon */
};

struct thread {
    struct file_pool *owner;
    bool alive;
    struct file_task *at; /* task under way; NULL = idle */
    struct lot *lot;      /* user of the task */
};

struct file_pool {
    uv_loop_t *loop;
    uint32_t deadline_ms;
    uv_async_t wake;
    uv_timer_t timer;
    int handles;
    void (*closed)(void *);
    void *data;

    pthread_mutex_t lock; /* protects the following fields */
    pthread_cond_t more;
    struct lot *lots; /* ordered by turns */
    struct file_task *finished, **last_finished;
    size_t bytes; /* total of the waiting tasks, without the daemon's tasks */
    struct thread threads[FILE_THREADS_MAX];
    unsigned refs; /* living threads, plus one for the loop */
    bool closing;
};

bool file_task_wanted(const struct file_task *k)
{
    return !atomic_load(&k->given_up);
}

uint32_t file_pool_deadline_ms(const struct file_pool *p)
{
    return p->deadline_ms;
}

static void task_free(struct file_task *k)
{
    if (k->calls->free)
        k->calls->free(k);
    else
        free(k);
}

/* --- the threads -------------------------------------------------------------------------------------------------- */

/* Needs the lock, and releases it. The last reference frees the pool. */
static void release(struct file_pool *p)
{
    titan_assert(p->refs > 0);
    bool last = --p->refs == 0;
    pthread_mutex_unlock(&p->lock);
    if (!last)
        return;
    titan_assert(!p->lots);
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->more);
    free(p);
}

/* Unlinks *at from its list; *tail is the list's end. Needs the lock, like all functions up to thread_main(). */
static struct file_task *unlink_task(struct file_task **at, struct file_task ***tail)
{
    titan_assert(*at && *tail && !**tail);
    struct file_task *k = *at;
    *at = k->next;
    if (!k->next)
        *tail = at;
    k->next = NULL;
    return k;
}

static struct file_task *take(struct file_pool *p, struct lot *lot, struct file_task **at)
{
    struct file_task *k = unlink_task(at, &lot->last);
    titan_assert(lot->n > 0 && lot->bytes >= k->bytes);
    lot->n--;
    lot->bytes -= k->bytes;
    if (*lot->user)
        p->bytes -= k->bytes;
    return k;
}

static void lot_unlink(struct file_pool *p, struct lot *lot)
{
    struct lot **at = &p->lots;
    while (*at != lot)
        at = &(*at)->next;
    *at = lot->next;
}

static void lot_append(struct file_pool *p, struct lot *lot)
{
    struct lot **at = &p->lots;
    while (*at)
        at = &(*at)->next;
    lot->next = NULL;
    *at = lot;
}

/* Moves the user behind all others, after its turn. */
static void turn_over(struct file_pool *p, struct lot *lot)
{
    lot_unlink(p, lot);
    lot_append(p, lot);
}

static void lot_trim(struct file_pool *p, struct lot *lot)
{
    titan_assert(!lot->waiting == !lot->n);
    if (lot->waiting || lot->n_threads)
        return;
    lot_unlink(p, lot);
    free(lot);
}

/* Finds the first user with a task that may begin, and this task; NULL = none. A user gets another thread only while
 * more threads are free than the user holds. So one user holds at most half of all threads, and other users find free
 * threads. */
static struct lot *next_lot(const struct file_pool *p, struct file_task ***ret)
{
    const struct file_task *at[FILE_THREADS_MAX];
    unsigned busy = 0;
    for (size_t i = 0; i < FILE_THREADS_MAX; i++)
        if (p->threads[i].alive && p->threads[i].at)
            at[busy++] = p->threads[i].at;
    for (struct lot *lot = p->lots; lot; lot = lot->next) {
        titan_assert(lot->n_threads <= busy);
        if (!lot->waiting || FILE_THREADS_MAX - busy <= lot->n_threads)
            continue;
        for (*ret = &lot->waiting; **ret; *ret = &(**ret)->next) {
            const char *key = (**ret)->key;
            bool taken = false;
            for (size_t i = 0; i < busy && key; i++)
                taken |= at[i]->key && !strcmp(at[i]->key, key);
            if (!taken)
                return lot;
        }
    }
    return NULL;
}

static void *thread_main(void *arg)
{
    struct thread *t = arg;
    struct file_pool *p = t->owner;
    pthread_mutex_lock(&p->lock);
    for (;;) {
        struct file_task **first = NULL;
        while (!(t->lot = next_lot(p, &first)) && !p->closing)
            pthread_cond_wait(&p->more, &p->lock);
        if (p->closing)
            break;
        struct file_task *k = t->at = take(p, t->lot, first);
        t->lot->n_threads++;
        turn_over(p, t->lot);
        k->since_ms = clock_mono_ms();
        pthread_mutex_unlock(&p->lock);
        titan_assert(k->calls && k->calls->run && t->alive);
        k->calls->run(k);
        pthread_mutex_lock(&p->lock);
        t->at = NULL;
        t->lot->n_threads--;
        turn_over(p, t->lot); /* the user goes behind users that came meanwhile */
        lot_trim(p, t->lot);
        if (atomic_load(&k->given_up)) {
            k->returned = true;
            if (!k->owner_notified) /* give_up() frees it */
                continue;
            pthread_mutex_unlock(&p->lock);
            task_free(k);
            pthread_mutex_lock(&p->lock);
            continue;
        }
        *p->last_finished = k;
        p->last_finished = &k->next;
        (void)uv_async_send(&p->wake);
    }
    t->alive = false;
    release(p);
    return NULL;
}

/* Needs the lock. Wakes or starts a thread for the next task, unless a working thread will soon take it. */
static void call_thread(struct file_pool *p, int64_t now)
{
    struct file_task **first;
    struct thread *unused = NULL;
    bool idle = false, one_works = false;
    titan_assert(p->refs > 0 && p->refs <= FILE_THREADS_MAX + 1);
    for (size_t i = 0; i < FILE_THREADS_MAX; i++) {
        struct thread *t = &p->threads[i];
        idle |= t->alive && !t->at;
        one_works |= t->alive && t->at && now - t->at->since_ms < PATIENCE_MS;
        if (!t->alive && !unused)
            unused = t;
    }
    if (one_works || !next_lot(p, &first))
        return;
    if (!idle && unused) {
        *unused = (struct thread){.owner = p, .alive = true};
        idle = unused->alive = thread_start(STACK, thread_main, unused) == 0;
        p->refs += unused->alive;
    }
    if (idle)
        pthread_cond_signal(&p->more);
}

static bool any_waits(const struct file_pool *p)
{
    const struct lot *lot = p->lots;
    while (lot && !lot->waiting)
        lot = lot->next;
    return lot;
}

/* --- the loop ----------------------------------------------------------------------------------------------------- */

static void deliver(struct file_pool *p)
{
    for (;;) {
        pthread_mutex_lock(&p->lock);
        struct file_task *k = p->finished ? unlink_task(&p->finished, &p->last_finished) : NULL;
        pthread_mutex_unlock(&p->lock);
        if (!k)
            return;
        titan_assert(!k->next && !atomic_load(&k->given_up));
        if (k->calls->done)
            k->calls->done(k);
        else
            task_free(k);
    }
}

static void on_wake(uv_async_t *wake)
{
    HANDLER("files");
    struct file_pool *p = wake->data;
    if (!p->handles)
        deliver(p);
}

/* Gives up tasks whose time is over (since_ms <= before_ms). A thread may return a task while its owner is notified;
 * then the task is freed here. */
static void give_up(struct file_pool *p, int64_t before_ms)
{
    struct file_task *started[FILE_THREADS_MAX], *unstarted = NULL, **tail = &unstarted;
    size_t n = 0;
    pthread_mutex_lock(&p->lock);
    for (size_t i = 0; i < FILE_THREADS_MAX; i++) {
        struct file_task *k = p->threads[i].alive ? p->threads[i].at : NULL;
        if (k && !atomic_load(&k->given_up) && k->since_ms <= before_ms) {
            atomic_store(&k->given_up, true);
            started[n++] = k;
        }
    }
    for (struct lot *lot = p->lots, *after; lot; lot = after) {
        after = lot->next;
        for (; lot->waiting && lot->waiting->since_ms <= before_ms; tail = &(*tail)->next)
            *tail = take(p, lot, &lot->waiting);
        lot_trim(p, lot);
    }
    pthread_mutex_unlock(&p->lock);
    for (size_t i = 0; i < n; i++) {
        struct file_task *k = started[i];
        titan_assert(!k->owner_notified);
        if (k->calls->given_up)
            k->calls->given_up(k, true);
        pthread_mutex_lock(&p->lock);
        k->owner_notified = true;
        const bool returned = k->returned;
        pthread_mutex_unlock(&p->lock);
        if (returned)
            task_free(k);
    }
    for (struct file_task *k = unstarted, *next; k; k = next) {
        next = k->next;
        if (k->calls->given_up)
            k->calls->given_up(k, false);
        else
            task_free(k);
    }
}

static void on_timer(uv_timer_t *timer)
{
    struct file_pool *p = timer->data;
    int64_t now = clock_mono_ms();
    give_up(p, now - p->deadline_ms);
    pthread_mutex_lock(&p->lock);
    bool busy = any_waits(p);
    call_thread(p, now);
    for (size_t i = 0; i < FILE_THREADS_MAX; i++)
        busy |= p->threads[i].alive && p->threads[i].at && !atomic_load(&p->threads[i].at->given_up);
    pthread_mutex_unlock(&p->lock);
    if (!busy)
        uv_timer_stop(timer);
}

titan_status file_pool_open(uv_loop_t *loop, uint32_t deadline_ms, struct file_pool **ret, struct titan_error *err)
{
    struct file_pool *p = calloc(1, sizeof(*p));
    if (!p)
        return titan_fail(err, TITAN_ENOMEM, "out of memory");
    p->loop = loop;
    p->deadline_ms = deadline_ms;
    p->refs = 1;
    p->last_finished = &p->finished;
    if (uv_async_init(loop, &p->wake, on_wake) != 0) {
        free(p);
        return titan_fail(err, TITAN_ELIMIT, "no descriptor for the threads that open files");
    }
    (void)uv_timer_init(loop, &p->timer);
    p->wake.data = p->timer.data = p;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->more, NULL);
    *ret = p;
    return TITAN_OK;
}

/* Needs the lock. */
static titan_status add(struct file_pool *p, struct file_task *k, struct titan_error *err)
{
    if (p->handles)
        return titan_fail(err, TITAN_ECANCELLED, "no more files are opened: the daemon stops");
    const char *user = k->user ? k->user : "";
    struct lot *lot = p->lots;
    while (lot && strcmp(lot->user, user) != 0)
        lot = lot->next;
    if (!lot) {
        lot = calloc(1, sizeof(*lot) + strlen(user) + 1);
        if (!lot)
            return titan_fail(err, TITAN_ENOMEM, "out of memory");
        lot->last = &lot->waiting;
        memcpy(lot->user, user, strlen(user) + 1);
        lot_append(p, lot);
    }

    /* Can no task of this user begin before a hanging thread returns? */
    unsigned hang = 0, own = 0;
    for (size_t i = 0; i < FILE_THREADS_MAX; i++) {
        const struct thread *t = &p->threads[i];
        const bool hangs = t->alive && t->at && atomic_load(&t->at->given_up);
        hang += hangs;
        own += hangs && t->lot == lot;
    }

    /* A user without waiting tasks may always add one, however many tasks of other users wait. */
    titan_status status = TITAN_OK;
    if (hang && FILE_THREADS_MAX - hang <= own) {
        status =
            titan_fail(err, TITAN_EAGAIN, "%u earlier paths do not answer; no more is opened before one does", hang);
    } else if (!*user && lot->bytes + k->bytes > FILE_BYTES_MAX) {
        status = titan_fail(err, TITAN_ELIMIT, "work of %zu MiB waits for files already", FILE_BYTES_MAX >> 20);
    } else if (*user && (lot->n >= FILE_USER_TASKS_MAX || lot->bytes + k->bytes > FILE_USER_BYTES_MAX ||
                         (lot->waiting && p->bytes + k->bytes > FILE_BYTES_MAX))) {
        status = titan_fail(err, TITAN_ELIMIT, "too many requests of this user wait for files (%u)", lot->n);
        titan_error_hint(err, "wait until some are answered, then repeat this one");
    }
    if (status == TITAN_OK) {
        *lot->last = k;
        lot->last = &k->next;
        lot->n++;
        lot->bytes += k->bytes;
        if (*lot->user)
            p->bytes += k->bytes;
    }
    lot_trim(p, lot);
    return status;
}

titan_status file_pool_add(struct file_pool *p, struct file_task *k, const struct file_calls *calls, size_t bytes,
                           struct titan_error *err)
{
    titan_assert(calls->run);
    int64_t now = clock_mono_ms();
    k->calls = calls;
    k->next = NULL;
    k->bytes = bytes;
    k->since_ms = now;
    k->owner_notified = k->returned = false;
    atomic_store(&k->given_up, false);
    pthread_mutex_lock(&p->lock);
    titan_status status = add(p, k, err);
    if (status == TITAN_OK)
        call_thread(p, now);
    pthread_mutex_unlock(&p->lock);
    if (status == TITAN_OK && !uv_is_active((uv_handle_t *)&p->timer))
        (void)uv_timer_start(&p->timer, on_timer, LOOK_MS, LOOK_MS);
    return status;
}

/* Needs the lock. */
static bool take_waiting(struct file_pool *p, const struct file_task *k)
{
    for (struct lot *lot = p->lots; lot; lot = lot->next)
        for (struct file_task **at = &lot->waiting; *at; at = &(*at)->next)
            if (*at == k) {
                (void)take(p, lot, at);
                lot_trim(p, lot);
                return true;
            }
    return false;
}

bool file_pool_drop(struct file_pool *p, struct file_task *k)
{
    pthread_mutex_lock(&p->lock);
    bool dropped = take_waiting(p, k);
    pthread_mutex_unlock(&p->lock);
    return dropped;
}

bool file_pool_abandon(struct file_pool *p, struct file_task *k)
{
    pthread_mutex_lock(&p->lock);
    bool ours = take_waiting(p, k);
    for (struct file_task **at = &p->finished; *at && !ours; at = &(*at)->next)
        if (*at == k) {
            (void)unlink_task(at, &p->last_finished);
            ours = true;
            break;
        }
    if (!ours) {
        titan_assert(!atomic_load(&k->given_up));
        k->owner_notified = true;
        atomic_store(&k->given_up, true);
    }
    pthread_mutex_unlock(&p->lock);
    return ours;
}

static void on_closed(uv_handle_t *handle)
{
    struct file_pool *p = handle->data;
    titan_assert(p->handles > 0);
    if (--p->handles > 0)
        return;
    void (*closed)(void *) = p->closed;
    void *data = p->data;
    pthread_mutex_lock(&p->lock);
    titan_assert(!any_waits(p) && !p->finished);
    release(p);
    if (closed)
        closed(data);
}

void file_pool_close(struct file_pool *p, void (*closed)(void *data), void *data)
{
    titan_assert(p->handles == 0 && !p->closing);
    p->closed = closed;
    p->data = data;
    p->handles = 2; /* no task is added from here on */
    give_up(p, INT64_MAX);
    deliver(p);
    pthread_mutex_lock(&p->lock);
    p->closing = true;
    pthread_cond_broadcast(&p->more);
    pthread_mutex_unlock(&p->lock);
    uv_close((uv_handle_t *)&p->wake, on_closed);
    uv_close((uv_handle_t *)&p->timer, on_closed);
}

/* --- without a loop ----------------------------------------------------------------------------------------------- */

struct await {
    struct file_task *task;
    pthread_mutex_t lock;
    pthread_cond_t through;
    bool done, left; /* done: the task has run; left: the caller no longer waits */
};

static void await_free(struct await *a)
{
    pthread_mutex_destroy(&a->lock);
    pthread_cond_destroy(&a->through);
    free(a);
}

static void *await_main(void *arg)
{
    struct await *a = arg;
    a->task->calls->run(a->task);
    pthread_mutex_lock(&a->lock);
    a->done = true;
    const bool left = a->left;
    pthread_cond_signal(&a->through);
    pthread_mutex_unlock(&a->lock);
    if (left) {
        task_free(a->task);
        await_free(a);
    }
    return NULL;
}

titan_status file_task_await(struct file_task *k, const struct file_calls *calls, uint32_t wait_ms,
                             struct titan_error *err)
{
    titan_assert(calls->run && wait_ms > 0);
    struct timespec until;
    struct await *a = calloc(1, sizeof(*a));
    if (!a)
        return titan_fail(err, TITAN_ENOMEM, "out of memory");
    k->calls = calls;
    a->task = k;
    (void)pthread_mutex_init(&a->lock, NULL);
    (void)pthread_cond_init(&a->through, NULL);
    if (thread_start(STACK, await_main, a) != 0) {
        await_free(a);
        return titan_fail(err, TITAN_ENOMEM, "no thread to open files");
    }
    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += wait_ms / 1000;
    until.tv_nsec += (long)(wait_ms % 1000) * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&a->lock);
    while (!a->done && pthread_cond_clockwait(&a->through, &a->lock, CLOCK_MONOTONIC, &until) != ETIMEDOUT)
        ;
    const bool done = a->done;
    a->left = !done;
    atomic_store(&k->given_up, !done);
    pthread_mutex_unlock(&a->lock);
    if (!done)
        return titan_fail(err, TITAN_ETIMEDOUT, "no answer within %u ms", wait_ms);
    await_free(a);
    return TITAN_OK;
}
