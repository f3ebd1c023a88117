/* SPDX-License-Identifier: Apache-2.0 */
/* page_watch.c - worker pages; see page_watch.h. */
#include "daemon/agent/shell/page_watch.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "daemon/common/thread.h"

#define PAGE_BYTES 4096
#define WATCH_STACK_BYTES ((size_t)256 * 1024)

/* --- mappings ----------------------------------------------------------------------------------------------------- */

/* A worker can truncate the file that the agent has mapped. The agent must then read zeroes, as of a dead worker;
 * otherwise SIGBUS would end the agent. The handler finds the mappings in this table. */
#define MAPPINGS_MAX 4096
static _Atomic(void *) mappings[MAPPINGS_MAX];

static void on_sigbus(int number, siginfo_t *info, void *context)
{
    (void)context;
    char *const page = (char *)((uintptr_t)info->si_addr & ~(uintptr_t)(PAGE_BYTES - 1));
    size_t i = 0;
    while (i < MAPPINGS_MAX && atomic_load(&mappings[i]) != page)
        i++;
    if (page && i < MAPPINGS_MAX) {
        const void *zeroes =
            mmap(page, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        if (zeroes == page)
            return;
    }
    (void)signal(number, SIG_DFL); /* the repeated access now ends the process */
}

static titan_status page_map(int fd, const char *path, struct worker_page **ret, struct titan_error *err)
{
    const struct sigaction action = {.sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO};
    (void)sigaction(SIGBUS, &action, NULL);
    void *p = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        return titan_fail_errno(err, "cannot map '%s'", path);
    for (size_t i = 0; i < MAPPINGS_MAX; i++) {
        void *none = NULL;
        if (!atomic_compare_exchange_strong(&mappings[i], &none, p))
            continue;
        *ret = p;
        return TITAN_OK;
    }
    (void)munmap(p, PAGE_BYTES);
    return titan_fail(err, TITAN_ELIMIT, "cannot map '%s': %d pages of workers are mapped", path, MAPPINGS_MAX);
}

void page_close(struct worker_page *page)
{
    for (size_t i = 0; page && i < MAPPINGS_MAX; i++) {
        void *p = page;
        if (!atomic_compare_exchange_strong(&mappings[i], &p, NULL))
            continue;
        (void)munmap(page, PAGE_BYTES);
        return;
    }
}

/* --- the file ----------------------------------------------------------------------------------------------------- */

titan_status page_create(const char *path, uint64_t job_id, uint64_t worker_id, uint32_t slot, struct worker_page **ret,
                         struct titan_error *err)
{
    if (unlink(path) < 0 && errno != ENOENT)
        return titan_fail_errno(err, "cannot replace '%s'", path);
    _cleanup_fd_ int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return titan_fail_errno(err, "cannot create '%s'", path);
    /* Allocates the blocks now, so that a full disk is an error here, and not a SIGBUS in the worker. */
    int rc = posix_fallocate(fd, 0, PAGE_BYTES);
    if (rc) {
        (void)unlink(path);
        errno = rc;
        return titan_fail_errno(err, "cannot size '%s'", path);
    }
    struct worker_page *page = NULL;
    TRY(page_map(fd, path, &page, err));
    pthread_mutexattr_t attr;
    rc = pthread_mutexattr_init(&attr);
    if (!rc) {
        (void)pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
        (void)pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
        rc = pthread_mutex_init(&page->alive, &attr);
        (void)pthread_mutexattr_destroy(&attr);
    }
    if (rc || getrandom(page->token, sizeof(page->token), 0) != (ssize_t)sizeof(page->token)) {
        page_close(page);
        (void)unlink(path);
        return titan_fail(err, TITAN_EIO, "cannot set up '%s'", path);
    }
    page->job_id = job_id;
    page->worker_id = worker_id;
    page->slot = slot;
    atomic_store(&page->exit_code, -1); /* no exit code is known yet */
    page->magic = WORKER_PAGE_MAGIC;
    *ret = page;
    return TITAN_OK;
}

titan_status page_open(const char *path, struct worker_page **ret, struct titan_error *err)
{
    _cleanup_fd_ int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return titan_fail_errno(err, "cannot open '%s'", path);
    struct stat st;
    if (fstat(fd, &st) < 0)
        return titan_fail_errno(err, "cannot stat '%s'", path);
    if (!S_ISREG(st.st_mode) || st.st_size != PAGE_BYTES)
        return titan_fail(err, TITAN_ECORRUPT, "'%s' is not a worker's page: %lld bytes, expected %d", path,
                          (long long)st.st_size, PAGE_BYTES);
    struct worker_page *page = NULL;
    TRY(page_map(fd, path, &page, err));
    if (page->magic != WORKER_PAGE_MAGIC) {
        page_close(page);
        return titan_fail(err, TITAN_ECORRUPT, "'%s' is not a worker's page: wrong magic", path);
    }
    *ret = page;
    return TITAN_OK;
}

/* --- the holder of the mutex -------------------------------------------------------------------------------------- */

/* Of the mutex, the agent reads only the futex, and without libc, because libc's calls follow pointers in the mutex,
 * and the worker can change these pointers. By the kernel's contract the futex holds the owner's thread number, plus
 * FUTEX_OWNER_DIED once the owner is dead. */
static _Atomic uint32_t *futex_of(struct worker_page *page)
{
    return (_Atomic uint32_t *)(void *)&page->alive.__data.__lock;
}

static bool held(uint32_t value)
{
    return (value & FUTEX_TID_MASK) != 0 && !(value & FUTEX_OWNER_DIED);
}

enum page_owner page_owner(struct worker_page *page)
{
    if (!atomic_load(&page->locked))
        return PAGE_UNLOCKED;
    return held(atomic_load(futex_of(page))) ? PAGE_ALIVE : PAGE_DEAD;
}

/* Shared by the agent and the thread; the last user frees it. */
struct page_watch {
    struct worker_page *page; /* this watch's own mapping */
    int event;
    atomic_bool stopped;
    atomic_int refs;
};

static void watch_unref(struct page_watch *w)
{
    const int refs = atomic_fetch_sub(&w->refs, 1);
    titan_assert(refs > 0);
    if (refs > 1)
        return;
    page_close(w->page);
    (void)close(w->event);
    free(w);
}

static void *watch_main(void *arg)
{
    struct page_watch *w = arg;
    static const struct timespec second = {.tv_sec = 1};
    _Atomic uint32_t *const futex = futex_of(w->page);
    uint32_t value;
    while (held(value = atomic_load(futex)) && !atomic_load(&w->stopped)) {
        /* The kernel wakes this thread only if this bit is set. */
        if (!(value & FUTEX_WAITERS) && !atomic_compare_exchange_strong(futex, &value, value | FUTEX_WAITERS))
            continue;
        (void)syscall(SYS_futex, futex, FUTEX_WAIT, value | FUTEX_WAITERS, &second, NULL, 0);
    }
    if (!held(value))
        (void)eventfd_write(w->event, 1);
    watch_unref(w);
    return NULL;
}

titan_status page_watch_start(const char *path, struct page_watch **ret, struct titan_error *err)
{
    struct page_watch *w = calloc(1, sizeof(*w));
    if (!w)
        return titan_fail(err, TITAN_ENOMEM, "no memory to watch '%s'", path);
    atomic_init(&w->refs, 2);
    titan_status status = page_open(path, &w->page, err);
    if (status != TITAN_OK) {
        free(w);
        return status;
    }
    w->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int rc = w->event < 0 ? errno : thread_start(WATCH_STACK_BYTES, watch_main, w);
    if (rc) {
        page_close(w->page);
        if (w->event >= 0)
            (void)close(w->event);
        free(w);
        errno = rc;
        return titan_fail_errno(err, "cannot start the thread that watches '%s'", path);
    }
    *ret = w;
    return TITAN_OK;
}

int page_watch_fd(const struct page_watch *watch)
{
    return watch->event;
}

void page_watch_stop(struct page_watch *watch)
{
    if (!watch)
        return;
    atomic_store(&watch->stopped, true);
    watch_unref(watch);
}
