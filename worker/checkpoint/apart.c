/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/checkpoint/apart.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/progress.h"

#define LOOK_MS 20    /* interval of looks at whether the job is still wanted */
#define LINGER_MS 250 /* time for the thread to end once the job is unwanted */

void apart_init(struct apart *a)
{
    atomic_init(&a->holders, 1);
    (void)sem_init(&a->ended, 0, 0);
}

void apart_close(struct apart *a)
{
    if (!a || atomic_fetch_sub(&a->holders, 1) > 1)
        return;
    (void)sem_destroy(&a->ended);
    a->clear(a);
}

static void *apart_main(void *arg)
{
    struct apart *a = arg;
    a->status = a->run(a, &a->error);
    atomic_store(&a->over, true);
    (void)sem_post(&a->ended);
    apart_close(a);
    return NULL;
}

static bool ended_within(struct apart *a, int ms)
{
    const int64_t until = clock_mono_ns() + ms * INT64_C(1000000);
    const struct timespec at = {.tv_sec = until / 1000000000, .tv_nsec = until % 1000000000};
    int rc;

    while ((rc = sem_clockwait(&a->ended, CLOCK_MONOTONIC, &at)) < 0 && errno == EINTR)
        ;
    return rc == 0 && atomic_load(&a->over);
}

titan_status apart_run(struct apart *a, const struct apart_limit *limit, struct titan_error *err)
{
    pthread_t thread;
    sigset_t every, old;

    titan_assert(a->run && a->clear && limit->still_ms >= 0);
    titan_assert(atomic_load(&a->holders) == 1);
    (void)sigfillset(&every);
    (void)pthread_sigmask(SIG_SETMASK, &every, &old); /* the main thread handles signals */
    atomic_fetch_add(&a->holders, 1);
    const int rc = pthread_create(&thread, NULL, apart_main, a);
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc != 0) {
        atomic_fetch_sub(&a->holders, 1);
        return titan_fail(err, TITAN_ENOMEM, "cannot start a thread: %s", strerror(rc));
    }
    (void)pthread_detach(thread);

    /* The caller waits until the thread has ended, the job is unwanted, or the thread makes no progress. */
    int64_t moved_at = clock_mono_ns();
    uint64_t moved = 0;
    bool ended, unwanted = false;
    progress_wait_begin();
    while (!(ended = ended_within(a, LOOK_MS))) {
        const uint64_t now_moved = atomic_load(&a->watch.moved);
        const int64_t now = clock_mono_ns();
        if (now_moved != moved)
            moved_at = now;
        moved = now_moved;
        unwanted = limit->stop && atomic_load(limit->stop);
        if (!unwanted && (limit->still_ms == 0 || now - moved_at < limit->still_ms * INT64_C(1000000)))
            continue;
        atomic_store(&a->watch.stop, 1);
        ended = ended_within(a, LINGER_MS) && a->status != TITAN_EREVOKED;
        break;
    }
    progress_wait_end();
    if (!ended)
        return unwanted ? titan_fail(err, TITAN_EREVOKED, "the epoch was revoked while its checkpoint was read")
                        : titan_fail(err, TITAN_ETIMEDOUT, "no answer for %d s", limit->still_ms / 1000);
    if (a->status != TITAN_OK && err)
        *err = a->error;
    return a->status;
}
