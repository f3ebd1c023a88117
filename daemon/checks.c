/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/checks.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/clock.h"

#define LOOK_MS 100     /* how often it is looked for those that hang */
#define PATIENCE_MS 500 /* at one entry, before another thread takes the rest */
#define STACK (1 << 20)

struct thread {
    struct checks *owner;
    bool alive;
    struct check *at; /* NULL = idle */
};

struct checks {
    uv_loop_t *loop;
    struct checks_calls calls;
    uint32_t deadline_ms;
    uv_async_t wake;
    uv_timer_t timer;
    int handles;
    void (*closed)(void *);
    void *data;

    pthread_mutex_t lock; /* over the rest */
    pthread_cond_t more;
    struct check *waiting, **last, *finished, **last_finished;
    size_t bytes; /* of what waits */
    struct thread threads[CHECKS_THREADS_MAX];
    unsigned refs; /* threads alive, and the loop */
    bool closing;
};

static int64_t now_ms(void)
{
    return clock_mono_ns() / 1000000;
}

/* Locked; unlocks. The last one out frees. */
static void release(struct checks *c)
{
    bool last = --c->refs == 0;
    pthread_mutex_unlock(&c->lock);
    if (!last)
        return;
    pthread_mutex_destroy(&c->lock);
    pthread_cond_destroy(&c->more);
    free(c);
}

static struct check *take(struct checks *c)
{
    struct check *k = c->waiting;
    c->waiting = k->next;
    if (!c->waiting)
        c->last = &c->waiting;
    c->bytes -= k->bytes;
    k->next = NULL;
    return k;
}

static void *thread_main(void *arg)
{
    struct thread *t = arg;
    struct checks *c = t->owner;
    pthread_mutex_lock(&c->lock);
    for (;;) {
        while (!c->waiting && !c->closing)
            pthread_cond_wait(&c->more, &c->lock);
        if (c->closing)
            break;
        struct check *k = t->at = take(c);
        k->since_ms = now_ms();
        pthread_mutex_unlock(&c->lock);
        c->calls.run(k);
        pthread_mutex_lock(&c->lock);
        t->at = NULL;
        if (k->given_up || c->closing) { /* nobody asks for it any more */
            c->calls.free(k);
            continue;
        }
        *c->last_finished = k;
        c->last_finished = &k->next;
        (void)uv_async_send(&c->wake);
    }
    t->alive = false;
    release(c);
    return NULL;
}

/* Locked. A thread that is idle, or a new one; false when all are at work. */
static bool have_thread(struct checks *c)
{
    pthread_attr_t attr;
    pthread_t id;
    struct thread *free_one = NULL;
    for (size_t i = 0; i < CHECKS_THREADS_MAX; i++) {
        if (c->threads[i].alive && !c->threads[i].at)
            return true;
        if (!c->threads[i].alive && !free_one)
            free_one = &c->threads[i];
    }
    if (!free_one)
        return false;
    (void)pthread_attr_init(&attr);
    (void)pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    (void)pthread_attr_setstacksize(&attr, STACK);
    *free_one = (struct thread){.owner = c, .alive = true};
    free_one->alive = pthread_create(&id, &attr, thread_main, free_one) == 0;
    c->refs += free_one->alive;
    (void)pthread_attr_destroy(&attr);
    return free_one->alive;
}

/* Locked. Is somebody at work who will soon take the next one? */
static bool one_works(const struct checks *c, int64_t now)
{
    for (size_t i = 0; i < CHECKS_THREADS_MAX; i++)
        if (c->threads[i].alive && c->threads[i].at && now - c->threads[i].at->since_ms < PATIENCE_MS)
            return true;
    return false;
}

static bool all_hang(const struct checks *c)
{
    for (size_t i = 0; i < CHECKS_THREADS_MAX; i++)
        if (!c->threads[i].alive || !c->threads[i].at || !c->threads[i].at->given_up)
            return false;
    return true;
}

static void deliver(struct checks *c)
{
    pthread_mutex_lock(&c->lock);
    struct check *k = TAKE(c->finished);
    c->last_finished = &c->finished;
    pthread_mutex_unlock(&c->lock);
    for (struct check *next; k; k = next) {
        next = k->next;
        c->calls.done(k);
    }
}

static void on_wake(uv_async_t *wake)
{
    struct checks *c = wake->data;
    if (!c->closing)
        deliver(c);
}

/* Those that have had their time. Their list: what no thread has had is the callee's. */
static void give_up(struct checks *c, int64_t before_ms)
{
    struct check *started[CHECKS_THREADS_MAX], *unstarted = NULL, **tail = &unstarted;
    size_t n = 0;
    pthread_mutex_lock(&c->lock);
    for (size_t i = 0; i < CHECKS_THREADS_MAX; i++) {
        struct check *k = c->threads[i].alive ? c->threads[i].at : NULL;
        if (k && !k->given_up && k->since_ms <= before_ms) {
            k->given_up = true;
            started[n++] = k;
        }
    }
    while (c->waiting && c->waiting->since_ms <= before_ms) {
        *tail = take(c);
        tail = &(*tail)->next;
    }
    /* Unlocked, one that is started may be freed at any moment. */
    for (size_t i = 0; i < n; i++)
        c->calls.given_up(started[i], true);
    pthread_mutex_unlock(&c->lock);
    for (struct check *next; unstarted; unstarted = next) {
        next = unstarted->next;
        c->calls.given_up(unstarted, false);
    }
}

static void on_timer(uv_timer_t *timer)
{
    struct checks *c = timer->data;
    int64_t now = now_ms();
    give_up(c, now - c->deadline_ms);
    pthread_mutex_lock(&c->lock);
    bool busy = c->waiting;
    if (c->waiting && !one_works(c, now) && have_thread(c))
        pthread_cond_signal(&c->more);
    for (size_t i = 0; i < CHECKS_THREADS_MAX; i++)
        busy |= c->threads[i].alive && c->threads[i].at && !c->threads[i].at->given_up;
    pthread_mutex_unlock(&c->lock);
    if (!busy)
        uv_timer_stop(timer);
}

titan_status checks_open(uv_loop_t *loop, const struct checks_calls *calls, uint32_t deadline_ms, struct checks **ret,
                         struct titan_error *err)
{
    struct checks *c = calloc(1, sizeof(*c));
    if (!c)
        return titan_fail(err, TITAN_ENOMEM, "out of memory");
    c->loop = loop;
    c->calls = *calls;
    c->deadline_ms = deadline_ms;
    c->refs = 1;
    c->last = &c->waiting;
    c->last_finished = &c->finished;
    if (uv_async_init(loop, &c->wake, on_wake) != 0) {
        free(c);
        return titan_fail(err, TITAN_ELIMIT, "no descriptor for the threads that check %s", calls->what);
    }
    (void)uv_timer_init(loop, &c->timer);
    c->wake.data = c->timer.data = c;
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->more, NULL);
    *ret = c;
    return TITAN_OK;
}

titan_status checks_add(struct checks *c, struct check *k, size_t bytes, struct titan_error *err)
{
    titan_status status = TITAN_OK;
    int64_t now = now_ms();
    pthread_mutex_lock(&c->lock);
    if (all_hang(c))
        status =
            titan_fail(err, TITAN_EAGAIN, "paths of %d earlier %s do not answer; no more is checked before they do",
                       CHECKS_THREADS_MAX, c->calls.what);
    else if (c->bytes + bytes > CHECKS_BYTES_MAX)
        status = titan_fail(err, TITAN_ELIMIT, "%s of %zu MiB wait to be checked already", c->calls.what,
                            CHECKS_BYTES_MAX >> 20);
    if (status == TITAN_OK) {
        k->next = NULL;
        k->bytes = bytes;
        k->since_ms = now;
        k->given_up = false;
        *c->last = k;
        c->last = &k->next;
        c->bytes += bytes;
        if (!one_works(c, now) && have_thread(c))
            pthread_cond_signal(&c->more);
    }
    pthread_mutex_unlock(&c->lock);
    if (status == TITAN_OK && !uv_is_active((uv_handle_t *)&c->timer))
        (void)uv_timer_start(&c->timer, on_timer, LOOK_MS, LOOK_MS);
    return status;
}

bool checks_drop(struct checks *c, struct check *k)
{
    bool dropped = false;
    pthread_mutex_lock(&c->lock);
    for (struct check **at = &c->waiting; *at && !dropped; at = &(*at)->next) {
        if (*at != k)
            continue;
        *at = k->next;
        if (!k->next)
            c->last = at;
        c->bytes -= k->bytes;
        dropped = true;
        break;
    }
    pthread_mutex_unlock(&c->lock);
    return dropped;
}

static void on_closed(uv_handle_t *handle)
{
    struct checks *c = handle->data;
    if (--c->handles > 0)
        return;
    void (*closed)(void *) = c->closed;
    void *data = c->data;
    pthread_mutex_lock(&c->lock);
    release(c);
    closed(data);
}

void checks_close(struct checks *c, void (*closed)(void *data), void *data)
{
    c->closed = closed;
    c->data = data;
    pthread_mutex_lock(&c->lock);
    c->closing = true;
    pthread_cond_broadcast(&c->more);
    pthread_mutex_unlock(&c->lock);
    deliver(c);
    give_up(c, INT64_MAX);
    c->handles = 2;
    uv_close((uv_handle_t *)&c->wake, on_closed);
    uv_close((uv_handle_t *)&c->timer, on_closed);
}
