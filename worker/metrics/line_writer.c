/* SPDX-License-Identifier: Apache-2.0 */
/* line_writer.c - see line_writer.h. */
#include "worker/metrics/line_writer.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"

#define LAST_MS 1000
#define LOCK_MS 10000
#define LOCK_LOOK_MS 10

struct line {
    struct line *next;
    size_t len;
    char text[];
};

struct line_writer {
    int fd;
    pthread_t thread;
    pthread_mutex_t lock; /* protects all fields below */
    pthread_cond_t changed;
    struct line *first, **last; /* first: the line that is being written, or will be written next */
    size_t bytes;
    bool slow; /* the file did not take a line in time, and since then has not taken all lines */
    bool lost; /* the last line was lost, because the disk was full */
    bool closing;
    bool left; /* the thread frees the writer */
};

static void writer_free(struct line_writer *w)
{
    titan_assert(!w->first && w->bytes == 0);
    (void)close(w->fd);
    (void)pthread_cond_destroy(&w->changed);
    (void)pthread_mutex_destroy(&w->lock);
    free(w);
}

static struct timespec in_ms(int64_t ms)
{
    struct timespec at;
    (void)clock_gettime(CLOCK_MONOTONIC, &at);
    at.tv_nsec += ms % 1000 * 1000000;
    at.tv_sec += ms / 1000 + at.tv_nsec / 1000000000;
    at.tv_nsec %= 1000000000;
    return at;
}

static void *write_lines(void *arg)
{
    struct line_writer *w = arg;
    (void)pthread_mutex_lock(&w->lock);

    /* Waits for the file's lock, so that the previous writer's lines come before ours. */
    const int64_t until = clock_mono_ns() + INT64_C(1000000) * LOCK_MS;
    bool alone = false;
    while (!alone && clock_mono_ns() < until && (w->first || !w->closing)) {
        const struct timespec look = in_ms(LOCK_LOOK_MS);
        (void)pthread_mutex_unlock(&w->lock);
        alone = flock(w->fd, LOCK_EX | LOCK_NB) == 0;
        (void)pthread_mutex_lock(&w->lock);
        if (!alone)
            (void)pthread_cond_timedwait(&w->changed, &w->lock, &look);
    }

    while (w->first || !w->closing) {
        struct line *const line = w->first;
        if (!line) {
            (void)pthread_cond_wait(&w->changed, &w->lock);
            continue;
        }
        (void)pthread_mutex_unlock(&w->lock);
        const bool lost = file_append(w->fd, line->text, line->len, NULL) != TITAN_OK; /* a full disk loses lines */
        (void)pthread_mutex_lock(&w->lock);
        w->lost = lost;
        w->bytes -= line->len;
        w->first = line->next;
        if (!w->first)
            w->last = &w->first;
        free(line);
        (void)pthread_cond_broadcast(&w->changed);
    }
    const bool left = w->left;
    (void)pthread_mutex_unlock(&w->lock);
    if (left)
        writer_free(w);
    return NULL;
}

/* Waits until all lines are written, but at most `ms` milliseconds. The caller holds the lock. */
static bool wait_until_written(struct line_writer *w, int64_t ms)
{
    const struct timespec until = in_ms(ms);
    while (w->first)
        if (pthread_cond_timedwait(&w->changed, &w->lock, &until) != 0)
            break;
    return !w->first;
}

struct line_writer *line_writer_open(int fd, struct titan_error *err)
{
    struct line_writer *w = calloc(1, sizeof *w);
    pthread_condattr_t monotonic;
    sigset_t all, before;
    titan_assert(fd >= 0);
    if (!w) {
        (void)close(fd);
        (void)titan_fail(err, TITAN_ENOMEM, "out of memory");
        return NULL;
    }
    w->fd = fd;
    w->last = &w->first;
    (void)pthread_mutex_init(&w->lock, NULL);
    (void)pthread_condattr_init(&monotonic);
    (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&w->changed, &monotonic);
    (void)pthread_condattr_destroy(&monotonic);
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_BLOCK, &all, &before);
    const int rc = pthread_create(&w->thread, NULL, write_lines, w);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc != 0) {
        writer_free(w);
        (void)titan_fail(err, TITAN_ENOMEM, "cannot start the thread that writes metrics: %s", strerror(rc));
        return NULL;
    }
    (void)pthread_setname_np(w->thread, "metrics");
    return w;
}

void line_writer_close(struct line_writer *w)
{
    if (!w)
        return;
    (void)pthread_mutex_lock(&w->lock);
    w->closing = true;
    (void)pthread_cond_broadcast(&w->changed);
    const bool left = w->left = !wait_until_written(w, LAST_MS);
    const pthread_t thread = w->thread; /* copied: after the unlock, a writer that is left to its thread may be freed */
    (void)pthread_mutex_unlock(&w->lock);
    if (left) {
        (void)pthread_detach(thread);
        return;
    }
    (void)pthread_join(thread, NULL);
    writer_free(w);
}

bool line_writer_put(struct line_writer *w, const char *text, size_t len)
{
    struct line *line = malloc(sizeof *line + len);
    titan_assert(len > 0);
    (void)pthread_mutex_lock(&w->lock);
    w->slow = !wait_until_written(w, w->slow ? 0 : LINE_WRITER_WAIT_MS);
    const bool taken = !w->slow && !w->lost, room = w->bytes + len <= LINE_WRITER_BYTES;
    if (line && room) {
        line->next = NULL;
        line->len = len;
        memcpy(line->text, text, len);
        *w->last = line;
        w->last = &line->next;
        w->bytes += len;
        (void)pthread_cond_broadcast(&w->changed);
        line = NULL;
    }
    (void)pthread_mutex_unlock(&w->lock);
    free(line);
    return taken;
}

bool line_writer_wait(struct line_writer *w)
{
    (void)pthread_mutex_lock(&w->lock);
    const bool written = wait_until_written(w, LINE_WRITER_WAIT_MS);
    (void)pthread_mutex_unlock(&w->lock);
    return written;
}
