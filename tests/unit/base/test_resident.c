/* SPDX-License-Identifier: Apache-2.0 */
/* resident.h */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>
#include <linux/capability.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/resident.h"
#include "tests/support/child.h"

#define NOBODY 65534
#define MIB ((size_t)1 << 20)

/* Of /proc/self/status; -1: no such line. */
static long status_number(const char *key, int base)
{
    char line[256];
    long number = -1;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof(line), f))
        if (!strncmp(line, key, strlen(key)))
            number = strtol(line + strlen(key), NULL, base);
    if (f)
        (void)fclose(f);
    return number;
}

static long status_kib(const char *key)
{
    return status_number(key, 10);
}

/* The child's exit code: nothing it does to itself is left to the next test. */
static int in_a_child(int (*work)(void))
{
    int status = 0;
    pid_t pid = child_fork();
    if (pid == 0)
        _exit(work());
    assert_true(pid > 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

enum { WELL, NOT_LOCKED, TAKES_UNTOUCHED, LOST_LATER, CHANGED_WHEN_REFUSED, NOT_REFUSED };

static int lock_what_is_touched(void)
{
    if (!resident_set() || status_kib("VmLck:") <= 0)
        return NOT_LOCKED;
    long before = status_kib("VmRSS:");
    char *later = mmap(NULL, 64 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (later == MAP_FAILED || status_kib("VmRSS:") - before > 16 * 1024)
        return TAKES_UNTOUCHED;
    memset(later, 1, MIB);
    /* What is locked cannot be thrown away: the kernel says so itself. */
    return madvise(later, MIB, MADV_DONTNEED) == -1 ? WELL : LOST_LATER;
}

static void test_what_is_touched_stays(void **state)
{
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip(); /* they make mlockall() do nothing */
#endif
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_MEMLOCK, &limit), 0);
    if (limit.rlim_max != RLIM_INFINITY && !(status_number("CapEff:", 16) >> CAP_IPC_LOCK & 1)) {
        print_message("RLIMIT_MEMLOCK is finite here\n");
        skip();
    }
    assert_int_equal(in_a_child(lock_what_is_touched), WELL);
}

static int be_refused(void)
{
    const struct rlimit small = {8 * MIB, 8 * MIB};
    struct rlimit after;
    if (setrlimit(RLIMIT_MEMLOCK, &small) != 0 || (geteuid() == 0 && setuid(NOBODY) != 0))
        return NOT_REFUSED;
    if (resident_set())
        return NOT_REFUSED;
    void *later = mmap(NULL, 64 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    bool as_before = getrlimit(RLIMIT_MEMLOCK, &after) == 0 && after.rlim_cur == small.rlim_cur;
    return later != MAP_FAILED && as_before && status_kib("VmLck:") == 0 ? WELL : CHANGED_WHEN_REFUSED;
}

static void test_a_limit_is_kept(void **state)
{
    (void)state;
    assert_int_equal(in_a_child(be_refused), WELL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_touched_stays),
        cmocka_unit_test(test_a_limit_is_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
