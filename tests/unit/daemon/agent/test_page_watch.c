/* SPDX-License-Identifier: Apache-2.0 */
/* Worker pages: made, found again, and how soon a death shows, by the page's mutex and by the pidfd, at several sizes.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/file.h"
#include "daemon/agent/shell/page_watch.h"
#include "daemon/agent/shell/pages_dir.h"
#include "tests/support/child.h"
#include "tests/support/patience.h"

static char folder[64];
static char page_path[PATH_MAX];

static int setup(void **state)
{
    (void)state;
    (void)snprintf(folder, sizeof(folder), "/tmp/titan-page-XXXXXX");
    assert_non_null(mkdtemp(folder));
    (void)snprintf(page_path, sizeof(page_path), "%s/w7.page", folder);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    return dir_remove(folder, NULL) == TITAN_OK ? 0 : -1;
}

static void test_create_and_open(void **state)
{
    (void)state;
    struct worker_page *page, *again;
    struct titan_error err = {0};
    assert_int_equal(page_create(page_path, 3, 7, 1, &page, &err), TITAN_OK);
    assert_int_equal(page_owner(page), PAGE_UNLOCKED);
    assert_int_equal(page_open(page_path, &again, &err), TITAN_OK);
    assert_int_equal(again->job_id, 3);
    assert_int_equal(again->worker_id, 7);
    assert_int_equal(again->slot, 1);
    assert_memory_equal(again->token, page->token, 16);
    page_close(page);
    page_close(again);
}

static void test_not_a_page(void **state)
{
    (void)state;
    struct worker_page *page;
    struct titan_error err = {0};
    char bytes[4096] = {1};
    assert_int_equal(page_open(page_path, &page, &err), TITAN_ENOTFOUND);
    assert_int_equal(file_replace(page_path, "short", 5, &err), TITAN_OK);
    assert_int_equal(page_open(page_path, &page, &err), TITAN_ECORRUPT);
    assert_int_equal(file_replace(page_path, bytes, sizeof(bytes), &err), TITAN_OK);
    assert_int_equal(page_open(page_path, &page, &err), TITAN_ECORRUPT);
    assert_non_null(strstr(err.msg, page_path));
}

/* A process that holds the page's mutex and mib of memory, then waits to be killed. */
static pid_t holder(struct worker_page *page, size_t mib)
{
    pid_t pid = child_fork();
    if (pid != 0)
        return pid;
    char *memory = mmap(NULL, mib << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED || pthread_mutex_lock(&page->alive) != 0)
        _exit(1);
    atomic_store(&page->locked, 1);
    for (;;)
        (void)pause();
}

static double wait_readable_ms(int fd, int64_t since)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    assert_int_equal(poll(&p, 1, patience_ms(60)), 1);
    return (double)(clock_mono_ns() - since) / 1e6;
}

static double kill_and_measure(size_t mib, double *ret_pidfd_ms)
{
    struct worker_page *page;
    struct page_watch *watch;
    struct titan_error err = {0};
    assert_int_equal(page_create(page_path, 3, 7, 1, &page, &err), TITAN_OK);
    pid_t pid = holder(page, mib);
    assert_true(pid > 0);
    int pidfd = pidfd_open(pid, 0);
    AWAIT(atomic_load(&page->locked));
    assert_int_equal(page_owner(page), PAGE_ALIVE);
    assert_int_equal(page_watch_start(page_path, &watch, &err), TITAN_OK);
    patience_pause_ms(20, "the thread gets into its wait; nothing to await tells so");
    int64_t start = clock_mono_ns();
    assert_int_equal(kill(pid, SIGKILL), 0);
    double ms = wait_readable_ms(page_watch_fd(watch), start);
    *ret_pidfd_ms = wait_readable_ms(pidfd, start);
    assert_int_equal(page_owner(page), PAGE_DEAD);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    (void)close(pidfd);
    page_watch_stop(watch);
    page_close(page);
    return ms;
}

static void test_death_is_noticed(void **state)
{
    (void)state;
    static const size_t sizes[] = {1, 256};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        double pidfd_ms, ms = kill_and_measure(sizes[i], &pidfd_ms);
        print_message("# %zu MiB resident: page %.2f ms, pidfd %.2f ms\n", sizes[i], ms, pidfd_ms);
    }
}

static void test_watch_of_a_dead_one(void **state)
{
    (void)state;
    struct worker_page *page;
    struct page_watch *watch;
    struct titan_error err = {0};
    assert_int_equal(page_create(page_path, 3, 7, 1, &page, &err), TITAN_OK);
    pid_t pid = holder(page, 1);
    AWAIT(atomic_load(&page->locked));
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_int_equal(page_watch_start(page_path, &watch, &err), TITAN_OK);
    (void)wait_readable_ms(page_watch_fd(watch), clock_mono_ns());
    page_watch_stop(watch);
    page_close(page);
}

/* Stopping a watch of a live worker does not wait for the worker, and does not say it died. */
static void test_watch_stops(void **state)
{
    (void)state;
    struct worker_page *page;
    struct page_watch *watch;
    struct titan_error err = {0};
    assert_int_equal(page_create(page_path, 3, 7, 1, &page, &err), TITAN_OK);
    pid_t pid = holder(page, 1);
    AWAIT(atomic_load(&page->locked));
    assert_int_equal(page_watch_start(page_path, &watch, &err), TITAN_OK);
    struct pollfd p = {.fd = page_watch_fd(watch), .events = POLLIN};
    assert_int_equal(poll(&p, 1, 20), 0);
    page_watch_stop(watch);
    assert_int_equal(page_owner(page), PAGE_ALIVE);
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    page_close(page);
}

/* A worker that spoils its mutex is dead to the agent; pointers in the mutex are not followed. */
static void test_mutex_spoilt(void **state)
{
    (void)state;
    struct worker_page *page;
    struct page_watch *watch;
    struct titan_error err = {0};
    assert_int_equal(page_create(page_path, 3, 7, 1, &page, &err), TITAN_OK);
    pid_t pid = holder(page, 1);
    AWAIT(atomic_load(&page->locked));
    const int lock = page->alive.__data.__lock;
    memset(&page->alive, 0xa5, sizeof(page->alive));
    page->alive.__data.__lock = lock;
    assert_int_equal(page_owner(page), PAGE_ALIVE);
    assert_int_equal(page_watch_start(page_path, &watch, &err), TITAN_OK);
    page->alive.__data.__lock = 0; /* without a wake: the thread looks by itself */
    (void)wait_readable_ms(page_watch_fd(watch), clock_mono_ns());
    assert_int_equal(page_owner(page), PAGE_DEAD);
    page_watch_stop(watch);
    page_close(page);
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
}

/* A page reads as zeroes once its file is cut, and its worker as dead. */
static void test_file_cut(void **state)
{
    (void)state;
    struct worker_page *page;
    struct page_watch *watch;
    struct titan_error err = {0};
    assert_int_equal(page_create(page_path, 3, 7, 1, &page, &err), TITAN_OK);
    pid_t pid = holder(page, 1);
    AWAIT(atomic_load(&page->locked));
    assert_int_equal(page_watch_start(page_path, &watch, &err), TITAN_OK);
    assert_int_equal(truncate(page_path, 0), 0);
    (void)wait_readable_ms(page_watch_fd(watch), clock_mono_ns());
    assert_int_equal(page->worker_id, 0);
    atomic_store(&page->contact_ms, 5);
    assert_int_equal(page_owner(page), PAGE_UNLOCKED);
    page_watch_stop(watch);
    page_close(page);
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
}

/* The folder in memory is found again, one that others may write into is not used, and it goes when it is empty. */
static void test_pages_in_memory(void **state)
{
    (void)state;
    static const struct log quiet = {.subsystem = "test"};
    char dir[PATH_MAX], again[PATH_MAX], page[PATH_MAX + 16], left[PATH_MAX], other[PATH_MAX + 8];
    pages_dir_open(folder, dir, &quiet);
    assert_int_equal(strncmp(dir, "/dev/shm/titan-", 15), 0);
    pages_dir_open(folder, again, &quiet);
    assert_string_equal(again, dir);
    (void)snprintf(page, sizeof(page), "%s/w1.page", dir);
    int fd = open(page, O_CREAT | O_WRONLY, 0600);
    assert_true(fd >= 0);
    close(fd);
    pages_dir_close(folder, dir); /* a worker's is in it */
    pages_dir_open(folder, again, &quiet);
    assert_string_equal(again, dir);
    /* A copy of the directory has the link, and a folder of its own. */
    (void)snprintf(other, sizeof(other), "%s/copy", folder);
    (void)snprintf(left, sizeof(left), "%s/copy/pages", folder);
    assert_int_equal(mkdir(other, 0700), 0);
    assert_int_equal(symlink(dir, left), 0);
    pages_dir_open(other, again, &quiet);
    assert_string_not_equal(again, dir);
    assert_int_equal(access(page, F_OK), 0);
    pages_dir_close(other, again);
    assert_int_equal(rmdir(other), 0);
    assert_int_equal(chmod(dir, 0777), 0);
    pages_dir_open(folder, again, &quiet);
    assert_string_not_equal(again, dir);
    pages_dir_close(folder, again);
    assert_int_equal(access(again, F_OK), -1);
    assert_true(readlink(strcat(strcpy(left, folder), "/pages"), again, sizeof(again)) < 0);
    assert_int_equal(dir_remove(dir, NULL), TITAN_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_create_and_open, setup, teardown),
        cmocka_unit_test_setup_teardown(test_not_a_page, setup, teardown),
        cmocka_unit_test_setup_teardown(test_death_is_noticed, setup, teardown),
        cmocka_unit_test_setup_teardown(test_watch_of_a_dead_one, setup, teardown),
        cmocka_unit_test_setup_teardown(test_watch_stops, setup, teardown),
        cmocka_unit_test_setup_teardown(test_mutex_spoilt, setup, teardown),
        cmocka_unit_test_setup_teardown(test_file_cut, setup, teardown),
        cmocka_unit_test_setup_teardown(test_pages_in_memory, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
