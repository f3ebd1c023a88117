/* SPDX-License-Identifier: Apache-2.0 */
#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"

static const char *kind_name(mode_t mode)
{
    switch (mode & S_IFMT) {
    case S_IFDIR:
        return "a folder";
    case S_IFIFO:
        return "a FIFO";
    case S_IFSOCK:
        return "a socket";
    case S_IFLNK:
        return "a symbolic link";
    default:
        return "a device";
    }
}

/* Checks the result of an open() with O_NONBLOCK: fd, or -1 and errno. */
static titan_status check_regular(int fd, const char *name, struct titan_error *err)
{
    struct stat st;
    if (fd < 0 && errno == ENXIO) /* open() of a socket */
        return titan_fail(err, TITAN_EINVAL, "'%s' is a socket, not a regular file", name);
    if (fd < 0 || fstat(fd, &st) < 0)
        return titan_fail_errno(err, "cannot open '%s'", name);
    if (!S_ISREG(st.st_mode))
        return titan_fail(err, TITAN_EINVAL, "'%s' is %s, not a regular file", name, kind_name(st.st_mode));
    return TITAN_OK;
}

titan_status file_open_regular(int at, const char *name, int flags, int *ret_fd, struct titan_error *err)
{
    titan_assert((flags & ~O_NOFOLLOW) == 0);
    titan_assert(at >= 0 || at == AT_FDCWD);
    _cleanup_fd_ int fd = openat(at, name, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK | flags);
    if (fd < 0 && errno == ELOOP && flags & O_NOFOLLOW)
        return titan_fail(err, TITAN_EINVAL, "'%s' is a symbolic link, not a regular file", name);
    TRY(check_regular(fd, name, err));
    *ret_fd = TAKE_FD(fd);
    return TITAN_OK;
}

static bool refuse_links;

void file_refuse_links(void)
{
    refuse_links = true;
}

bool file_refuses_links(void)
{
    return refuse_links;
}

int file_open_named(const char *path, int flags)
{
    struct open_how how = {.flags = (unsigned)(flags | O_CLOEXEC), .resolve = RESOLVE_NO_SYMLINKS};
    char real[PATH_MAX];
    if (!refuse_links)
        return open(path, flags | O_CLOEXEC);
    int fd = (int)syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof(how));
    if (fd >= 0 || errno != ENOSYS)
        return fd;
    if (realpath(path, real) && strcmp(real, path) == 0) /* Linux before 5.6 lacks openat2() */
        return open(path, flags | O_CLOEXEC | O_NOFOLLOW);
    errno = ELOOP;
    return -1;
}

static titan_status read_whole(int fd, const char *path, size_t max, struct buf *out, struct titan_error *err)
{
    titan_assert(fd >= 0);
    size_t start = out->len;
    for (;;) {
        size_t have = out->len - start;
        titan_assert(have <= max);
        size_t want = MIN((size_t)1 << 16, max - have + 1); /* one more than allowed tells "too long" from "fits" */
        titan_status status = buf_reserve(out, want + 1);
        if (status != TITAN_OK) {
            out->len = start;
            return titan_fail(err, status, "cannot hold '%s' (%zu bytes so far)", path, have);
        }
        ssize_t n = read(fd, out->data + out->len, want);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            titan_status failed = titan_fail_errno(err, "cannot read '%s'", path);
            out->len = start;
            out->data[start] = '\0';
            return failed;
        }
        if (n == 0)
            break;
        if (have + (size_t)n > max) {
            out->len = start;
            out->data[start] = '\0';
            return titan_fail(err, TITAN_ELIMIT, "'%s' is larger than %zu bytes", path, max);
        }
        out->len += (size_t)n;
    }
    out->data[out->len] = '\0';
    return TITAN_OK;
}

titan_status file_read(const char *path, size_t max, struct buf *out, struct titan_error *err)
{
    return file_read_at(AT_FDCWD, path, 0, max, out, err);
}

titan_status file_read_at(int at, const char *path, int flags, size_t max, struct buf *out, struct titan_error *err)
{
    _cleanup_fd_ int fd = -1;
    TRY(file_open_regular(at, path, flags, &fd, err));
    return read_whole(fd, path, max, out, err);
}

titan_status file_read_named(const char *path, size_t max, struct buf *out, struct titan_error *err)
{
    _cleanup_fd_ int fd = file_open_named(path, O_RDONLY | O_NOCTTY | O_NONBLOCK);
    TRY(check_regular(fd, path, err));
    return read_whole(fd, path, max, out, err);
}

titan_status file_read_tail(int fd, const char *name, size_t most, struct buf *out, bool *ret_whole,
                            struct titan_error *err)
{
    struct stat st;
    titan_assert(fd >= 0 && most > 0 && out->len == 0);
    if (fstat(fd, &st) != 0)
        return titan_fail_errno(err, "cannot read '%s'", name);
    *ret_whole = (uint64_t)st.st_size <= most;
    const size_t want = *ret_whole ? (size_t)st.st_size : most;
    titan_status status = buf_reserve(out, want + 1);
    if (status != TITAN_OK)
        return titan_fail(err, status, "cannot hold %zu bytes of '%s'", want, name);
    while (out->len < want) {
        const ssize_t n = pread(fd, out->data + out->len, want - out->len, st.st_size - (off_t)(want - out->len));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return titan_fail_errno(err, "cannot read '%s'", name);
        if (n == 0) /* the file has become shorter */
            break;
        out->len += (size_t)n;
    }
    out->data[out->len] = '\0';
    return TITAN_OK;
}

titan_status file_write_all(int fd, const void *data, size_t len)
{
    titan_assert(fd >= 0);
    for (const char *at = data; len;) {
        ssize_t n = write(fd, at, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return TITAN_EIO;
        at += n;
        len -= (size_t)n;
    }
    return TITAN_OK;
}

void file_parent(const char *path, char out[PATH_MAX])
{
    const char *slash = strrchr(path, '/');
    size_t len = slash ? (size_t)(slash - path) : 0;
    if (!slash)
        snprintf(out, PATH_MAX, ".");
    else if (len == 0)
        snprintf(out, PATH_MAX, "/");
    else
        snprintf(out, PATH_MAX, "%.*s", (int)len, path);
}

titan_status file_make_temporary(int at, const char *name, mode_t mode, char out[PATH_MAX], int *ret_fd,
                                 struct titan_error *err)
{
    titan_assert(at >= 0 || at == AT_FDCWD);
    for (int tries = 0;; tries++) {
        unsigned salt = 0;
        if (getrandom(&salt, sizeof(salt), 0) != sizeof(salt))
            return titan_fail_errno(err, "no random numbers");
        if (snprintf(out, PATH_MAX, "%s.%08x", name, salt) >= PATH_MAX)
            return titan_fail(err, TITAN_EINVAL, "path too long: '%s'", name);
        *ret_fd = openat(at, out, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
        if (*ret_fd >= 0)
            return TITAN_OK;
        if (errno != EEXIST || tries == 100)
            return titan_fail_errno(err, "cannot create '%s'", out);
    }
}

/* What a replaced file gets. */
struct content {
    const void *data;
    size_t len;
    mode_t mode;
    bool durable;
};

/* Does not sync the folder. */
static titan_status replace(int at, const char *name, const struct content *c, struct titan_error *err)
{
    char temporary[PATH_MAX];
    _cleanup_fd_ int fd = -1;
    TRY(file_make_temporary(at, name, c->mode, temporary, &fd, err));
    titan_status status = TITAN_OK;
    if (file_write_all(fd, c->data, c->len) != TITAN_OK || (c->durable && fsync(fd) < 0))
        status = titan_fail_errno(err, "cannot write '%s'", temporary);
    else if (renameat(at, temporary, at, name) < 0)
        status = titan_fail_errno(err, "cannot rename '%s' to '%s'", temporary, name);
    if (status != TITAN_OK)
        (void)unlinkat(at, temporary, 0);
    return status;
}

static titan_status replace_path(const char *path, const void *data, size_t len, mode_t mode, struct titan_error *err)
{
    char parent[PATH_MAX];
    if (strlen(path) >= sizeof(parent))
        return titan_fail(err, TITAN_EINVAL, "path too long: '%s'", path);
    file_parent(path, parent);
    TRY(replace(AT_FDCWD, path, &(struct content){data, len, mode, true}, err));
    return dir_sync(parent, err);
}

titan_status file_replace(const char *path, const void *data, size_t len, struct titan_error *err)
{
    return replace_path(path, data, len, 0666, err);
}

titan_status file_write(const char *path, const void *data, size_t len, struct titan_error *err)
{
    struct stat st = {.st_mode = S_IFREG}; /* a missing file is created */
    char target[PATH_MAX];
    _cleanup_fd_ int seen = open(path, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    const bool link = seen >= 0 && fstat(seen, &st) == 0 && S_ISLNK(st.st_mode);
    if (link && st.st_uid != 0 && st.st_uid != geteuid())
        return titan_fail(err, TITAN_EPERM, "'%s' is a link of another user: name the file that it leads to", path);
    if (link && stat(path, &st) < 0)
        st.st_mode = S_IFREG;
    if (S_ISREG(st.st_mode))
        return file_replace(link && realpath(path, target) ? target : path, data, len, err);
    _cleanup_fd_ int fd = open(path, O_WRONLY | O_NOCTTY | O_CLOEXEC | (link ? 0 : O_NOFOLLOW));
    if (fd < 0)
        return titan_fail_errno(err, "cannot open '%s'", path);
    return file_write_all(fd, data, len) == TITAN_OK ? TITAN_OK : titan_fail_errno(err, "cannot write '%s'", path);
}

titan_status file_replace_private(const char *path, const void *data, size_t len, struct titan_error *err)
{
    return replace_path(path, data, len, 0600, err);
}

titan_status file_replace_at(int at, const char *name, const void *data, size_t len, struct titan_error *err)
{
    titan_assert(at >= 0);
    TRY(replace(at, name, &(struct content){data, len, 0666, true}, err));
    if (fsync(at) < 0 && errno != EINVAL)
        return titan_fail_errno(err, "cannot sync the folder of '%s'", name);
    return TITAN_OK;
}

titan_status file_place_at(int at, const char *name, const void *data, size_t len, struct titan_error *err)
{
    titan_assert(at >= 0);
    return replace(at, name, &(struct content){data, len, 0666, false}, err);
}

/* The mode of mkdir(1) without write access for others; the umask, or the parent folder's access list, reduces it. */
#define FOLDER_MODE 0775

titan_status dir_make(const char *path, struct titan_error *err)
{
    char part[PATH_MAX];
    size_t len = strlen(path);
    if (len == 0 || len >= sizeof(part))
        return titan_fail(err, TITAN_EINVAL, "not a folder name: '%s'", path);
    memcpy(part, path, len + 1);
    for (char *p = part + 1;; p++) {
        if (*p && *p != '/')
            continue;
        char end = *p;
        *p = '\0';
        if (mkdir(part, FOLDER_MODE) < 0 && errno != EEXIST)
            return titan_fail_errno(err, "cannot make folder '%s'", part);
        *p = end;
        if (!end)
            break;
    }
    struct stat st;
    if (stat(path, &st) < 0)
        return titan_fail_errno(err, "cannot look at '%s'", path);
    if (!S_ISDIR(st.st_mode))
        return titan_fail(err, TITAN_EEXIST, "'%s' is in the way: not a folder", path);
    return TITAN_OK;
}

/* Opens one component after another, each below the previous component: no link on the way is followed. */
titan_status dir_make_named(const char *path, struct titan_error *err)
{
    char part[PATH_MAX];
    size_t len = strlen(path);
    if (!refuse_links)
        return dir_make(path, err);
    if (len == 0 || len >= sizeof(part))
        return titan_fail(err, TITAN_EINVAL, "not a folder name: '%s'", path);
    memcpy(part, path, len + 1);
    _cleanup_fd_ int at = open(path[0] == '/' ? "/" : ".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    for (char *p = part; at >= 0 && *p;) {
        char *name = p + strspn(p, "/");
        p = name + strcspn(name, "/");
        if (p == name)
            break;
        const char end = *p;
        *p = '\0';
        if (mkdirat(at, name, FOLDER_MODE) < 0 && errno != EEXIST)
            return titan_fail_errno(err, "cannot make folder '%s'", part);
        const int below = openat(at, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
        struct stat st;
        if (below < 0 || fstat(below, &st) < 0)
            return titan_fail_errno(err, "cannot look at '%s'", part);
        (void)close(at);
        at = below;
        if (S_ISLNK(st.st_mode))
            return titan_fail(err, TITAN_EINVAL, "'%s' is a symbolic link, not a folder", part);
        if (!S_ISDIR(st.st_mode) && end) /* as mkdir(2) reports for a path below a file */
            errno = ENOTDIR;
        if (!S_ISDIR(st.st_mode))
            return end ? titan_fail_errno(err, "cannot make folder '%s'", path)
                       : titan_fail(err, TITAN_EEXIST, "'%s' is in the way: not a folder", part);
        *p = end;
    }
    return at >= 0 ? TITAN_OK : titan_fail_errno(err, "cannot make folder '%s'", path);
}

void dir_unmake_named(const char *path)
{
    char parent[PATH_MAX];
    const char *slash = strrchr(path, '/');
    if (strlen(path) >= sizeof(parent))
        return;
    file_parent(path, parent);
    _cleanup_fd_ int at = file_open_named(parent, O_PATH | O_DIRECTORY);
    if (at >= 0)
        (void)unlinkat(at, slash ? slash + 1 : path, AT_REMOVEDIR);
}

#define REMOVE_DEPTH_MAX 64

/* Removes the content of the open folder as far as possible; takes fd. path is for messages; returns the first
 * error. */
static titan_status remove_below(int fd, const char *path, int depth, struct titan_error *err)
{
    titan_assert(fd >= 0 && depth >= 0);
    if (depth > REMOVE_DEPTH_MAX) {
        (void)close(fd);
        return titan_fail(err, TITAN_ELIMIT, "folders below '%s' are nested too deep", path);
    }
    DIR *dir = fdopendir(fd);
    if (!dir) {
        titan_status failed = titan_fail_errno(err, "cannot list '%s'", path);
        (void)close(fd);
        return failed;
    }
    titan_status status = TITAN_OK;
    for (;;) {
        errno = 0;
        struct dirent *entry = readdir(dir);
        if (!entry) {
            if (errno && status == TITAN_OK)
                status = titan_fail_errno(err, "cannot list '%s'", path);
            break;
        }
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        if (unlinkat(fd, entry->d_name, 0) == 0 || errno == ENOENT)
            continue;
        struct titan_error why = {0};
        titan_status one = TITAN_OK;
        const int sub = errno == EISDIR || errno == EPERM
                            ? openat(fd, entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
                            : -1;
        if (sub >= 0)
            one = remove_below(sub, path, depth + 1, &why);
        if (sub < 0 || (one == TITAN_OK && unlinkat(fd, entry->d_name, AT_REMOVEDIR) < 0 && errno != ENOENT))
            one = titan_fail_errno(&why, "cannot remove '%s/%s'", path, entry->d_name);
        if (status == TITAN_OK && (status = one) != TITAN_OK && err)
            *err = why;
    }
    (void)closedir(dir);
    return status;
}

titan_status dir_open_at(int at, const char *name, bool make, int *ret_fd, struct titan_error *err)
{
    titan_assert(at >= 0 || at == AT_FDCWD);
    if (make && mkdirat(at, name, FOLDER_MODE) < 0 && errno != EEXIST)
        return titan_fail_errno(err, "cannot make folder '%s'", name);
    _cleanup_fd_ int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct stat st;
    if (fd < 0 && (errno == ENOTDIR || errno == ELOOP) && fstatat(at, name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
        !S_ISDIR(st.st_mode))
        return titan_fail(err, TITAN_EINVAL, "'%s' is %s, not a folder", name,
                          S_ISREG(st.st_mode) ? "a file" : kind_name(st.st_mode));
    if (fd < 0)
        return titan_fail_errno(err, "cannot open folder '%s'", name);
    *ret_fd = TAKE_FD(fd);
    return TITAN_OK;
}

titan_status dir_remove(const char *path, struct titan_error *err)
{
    return dir_remove_at(AT_FDCWD, path, err);
}

titan_status dir_remove_at(int at, const char *name, struct titan_error *err)
{
    titan_assert(at >= 0 || at == AT_FDCWD);
    int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT ? TITAN_OK : titan_fail_errno(err, "cannot open folder '%s'", name);
    TRY(remove_below(fd, name, 0, err));
    if (unlinkat(at, name, AT_REMOVEDIR) < 0 && errno != ENOENT)
        return titan_fail_errno(err, "cannot remove '%s'", name);
    return TITAN_OK;
}

titan_status file_append(int fd, const void *data, size_t len, struct titan_error *err)
{
    titan_assert(fd >= 0 && len > 0);
    const off_t end = lseek(fd, 0, SEEK_END);
    const ssize_t n = write(fd, data, len);
    if (n == (ssize_t)len)
        return TITAN_OK;
    if (n < 0)
        return titan_fail_errno(err, "cannot write");
    if (n > 0)
        (void)!ftruncate(fd, end);
    return titan_fail(err, TITAN_EIO, "the disk is full");
}

titan_status dir_sync(const char *path, struct titan_error *err)
{
    _cleanup_fd_ int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return titan_fail_errno(err, "cannot open folder '%s'", path);
    /* EINVAL: the file system does not support syncing folders. */
    if (fsync(fd) < 0 && errno != EINVAL)
        return titan_fail_errno(err, "cannot sync folder '%s'", path);
    return TITAN_OK;
}

titan_status file_self_dir(char *out, size_t cap, struct titan_error *err)
{
    titan_assert(cap > 0);
    char path[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 1);
    if (n < 0)
        return titan_fail_errno(err, "cannot read /proc/self/exe");
    path[n] = '\0';
    char *slash = strrchr(path, '/');
    if (!slash)
        return titan_fail(err, TITAN_ENOTFOUND, "no folder in '%s'", path);
    slash[slash == path ? 1 : 0] = '\0';
    if ((size_t)snprintf(out, cap, "%s", path) >= cap)
        return titan_fail(err, TITAN_ELIMIT, "path too long: '%s'", path);
    return TITAN_OK;
}
