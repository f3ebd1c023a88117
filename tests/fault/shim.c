/* SPDX-License-Identifier: Apache-2.0 */
/* shim.so - preloaded into a daemon: steps its wall clock, fails its n-th write to its store, or lets a file server not
 * answer.
 *
 * TITAN_SHIM names a file of one struct shim, which the test writes and the shim maps; all zero means that nothing
 * happens. The clock: CLOCK_REALTIME, gettimeofday() and time() are `clock_ns` away from the truth; CLOCK_MONOTONIC is
 * never touched. The disk: of the calls that write, extend or sync a file with `marker` in its path, `calls` counts all
 * since it was last set to zero; the one with the number `fail_at` (from 1) fails with `error`, or writes only half
 * when error is 0; later ones succeed, unless `stay` is set: then all from there on fail. The file server: calls that
 * name a path which begins with `share` do not come back while it is set; `held` counts those that are in one now. The
 * file system: of the type that TITAN_SHIM_FS says, a number, for those that ask by a descriptor. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

struct shim {
    int64_t clock_ns;
    uint64_t calls, fail_at, failed;
    int32_t error, stay;
    char marker[64];
    char last[64]; /* name of the call that failed */
    uint64_t held;
    char share[256];
};

static struct shim none, *shim = &none;

__attribute__((constructor)) static void shim_open(void)
{
    const char *path = getenv("TITAN_SHIM");
    const int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    void *at = fd >= 0 ? mmap(NULL, sizeof(*shim), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
    if (at != MAP_FAILED)
        shim = at;
    if (fd >= 0)
        close(fd);
}

int fstatfs(int fd, struct statfs *ret)
{
    const char *type = getenv("TITAN_SHIM_FS");
    const int rc = (int)syscall(SYS_fstatfs, fd, ret);
    if (rc == 0 && type)
        ret->f_type = strtol(type, NULL, 0);
    return rc;
}

/* --- the clock ---------------------------------------------------------------------------------------------------- */

static void add(struct timespec *t, int64_t ns)
{
    const int64_t whole = (int64_t)t->tv_sec * 1000000000 + t->tv_nsec + ns;
    t->tv_sec = whole / 1000000000;
    t->tv_nsec = whole % 1000000000;
}

/* The real one without a system call where there is one (vdso); resolved once. */
static int (*real_clock)(clockid_t, struct timespec *);

int clock_gettime(clockid_t id, struct timespec *t)
{
    if (!real_clock)
        real_clock = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    const int rc = real_clock(id, t);
    if (rc == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE))
        add(t, __atomic_load_n(&shim->clock_ns, __ATOMIC_RELAXED));
    return rc;
}

int gettimeofday(struct timeval *restrict tv, void *restrict zone)
{
    (void)zone;
    struct timespec t;
    if (clock_gettime(CLOCK_REALTIME, &t) != 0)
        return -1;
    *tv = (struct timeval){t.tv_sec, t.tv_nsec / 1000};
    return 0;
}

time_t time(time_t *out)
{
    struct timespec t;
    if (clock_gettime(CLOCK_REALTIME, &t) != 0)
        return -1;
    if (out)
        *out = t.tv_sec;
    return t.tv_sec;
}

/* --- the disk ----------------------------------------------------------------------------------------------------- */

static bool is_marked(int fd)
{
    char link[64], path[4096];
    if (!shim->marker[0])
        return false;
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    const ssize_t n = readlink(link, path, sizeof(path) - 1);
    if (n <= 0)
        return false;
    path[n] = 0;
    return strstr(path, shim->marker) != NULL;
}

/* Is this call the one that fails? */
static bool fails(int fd, const char *name)
{
    if (!is_marked(fd))
        return false;
    const uint64_t call = __atomic_add_fetch(&shim->calls, 1, __ATOMIC_SEQ_CST);
    const uint64_t at = __atomic_load_n(&shim->fail_at, __ATOMIC_SEQ_CST);
    if (!at || call < at || (call > at && !shim->stay))
        return false;
    __atomic_add_fetch(&shim->failed, 1, __ATOMIC_SEQ_CST);
    if (!shim->last[0])
        snprintf(shim->last, sizeof(shim->last), "%s", name);
    errno = shim->error;
    return true;
}

ssize_t pwrite64(int fd, const void *bytes, size_t n, off64_t at)
{
    if (fails(fd, "pwrite")) {
        if (shim->error)
            return -1;
        n /= 2;
    }
    return syscall(SYS_pwrite64, fd, bytes, n, at);
}

ssize_t pwrite(int fd, const void *bytes, size_t n, off_t at)
{
    return pwrite64(fd, bytes, n, at);
}

ssize_t write(int fd, const void *bytes, size_t n)
{
    if (fails(fd, "write")) {
        if (shim->error)
            return -1;
        n /= 2;
    }
    return syscall(SYS_write, fd, bytes, n);
}

static int sync_call(int fd, const char *name, long number)
{
    if (fails(fd, name)) {
        errno = shim->error ? shim->error : EIO;
        return -1;
    }
    return (int)syscall(number, fd);
}

int fsync(int fd)
{
    return sync_call(fd, "fsync", SYS_fsync);
}

int fdatasync(int fd)
{
    return sync_call(fd, "fdatasync", SYS_fdatasync);
}

int ftruncate64(int fd, off64_t size)
{
    if (fails(fd, "ftruncate")) {
        errno = shim->error ? shim->error : EIO;
        return -1;
    }
    return (int)syscall(SYS_ftruncate, fd, size);
}

int ftruncate(int fd, off_t size)
{
    return ftruncate64(fd, size);
}

/* --- the file server ---------------------------------------------------------------------------------------------- */

static bool is_shared(const char *path)
{
    const volatile char *share = shim->share;
    for (size_t i = 0; share[0] && i < sizeof(shim->share); i++) {
        if (!share[i])
            return true;
        if (path[i] != share[i])
            return false;
    }
    return false;
}

static void wait_for_server(const char *path)
{
    if (!path || !is_shared(path))
        return;
    __atomic_add_fetch(&shim->held, 1, __ATOMIC_SEQ_CST);
    while (is_shared(path))
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL); /* timing: in a daemon, not in a test */
    __atomic_sub_fetch(&shim->held, 1, __ATOMIC_SEQ_CST);
}

#define MODE(flags, mode)                                                                                              \
    do {                                                                                                               \
        va_list ap;                                                                                                    \
        va_start(ap, flags);                                                                                           \
        mode = ((flags) & (O_CREAT | O_TMPFILE)) ? va_arg(ap, mode_t) : 0;                                             \
        va_end(ap);                                                                                                    \
    } while (0)

int openat64(int at, const char *path, int flags, ...)
{
    mode_t mode;
    MODE(flags, mode);
    wait_for_server(path);
    return (int)syscall(SYS_openat, at, path, flags, mode);
}

int openat(int at, const char *path, int flags, ...)
{
    mode_t mode;
    MODE(flags, mode);
    return openat64(at, path, flags, mode);
}

int open64(const char *path, int flags, ...)
{
    mode_t mode;
    MODE(flags, mode);
    return openat64(AT_FDCWD, path, flags, mode);
}

int open(const char *path, int flags, ...)
{
    mode_t mode;
    MODE(flags, mode);
    return openat64(AT_FDCWD, path, flags, mode);
}

/* What _FORTIFY_SOURCE calls in their place. */
int __openat_2(int at, const char *path, int flags);
int __openat_2(int at, const char *path, int flags)
{
    return openat64(at, path, flags);
}

int __open_2(const char *path, int flags);
int __open_2(const char *path, int flags)
{
    return openat64(AT_FDCWD, path, flags);
}

int mkdir(const char *path, mode_t mode)
{
    wait_for_server(path);
    return (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
}

int access(const char *path, int mode)
{
    wait_for_server(path);
    return (int)syscall(SYS_faccessat, AT_FDCWD, path, mode);
}

int stat64(const char *restrict path, struct stat64 *restrict out)
{
    wait_for_server(path);
    return (int)syscall(SYS_newfstatat, AT_FDCWD, path, out, 0);
}

int stat(const char *restrict path, struct stat *restrict out)
{
    wait_for_server(path);
    return (int)syscall(SYS_newfstatat, AT_FDCWD, path, out, 0);
}

char *realpath(const char *restrict path, char *restrict out)
{
    static char *(*real)(const char *, char *);
    wait_for_server(path);
    if (!real)
        real = (char *(*)(const char *, char *))dlsym(RTLD_NEXT, "realpath");
    return real(path, out);
}

char *__realpath_chk(const char *restrict path, char *restrict out, size_t room);
char *__realpath_chk(const char *restrict path, char *restrict out, size_t room)
{
    (void)room;
    return realpath(path, out);
}
