/* SPDX-License-Identifier: Apache-2.0 */
/* file.h, lock.h */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/lock.h"
#include "tests/support/child.h"
#include "tests/support/patience.h"

static char dir[] = "/tmp/titan-test-file-XXXXXX";

static const char *in(const char *name)
{
    static char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    return path;
}

static titan_status read_tail(const char *path, size_t most, struct buf *out, bool *ret_whole, struct titan_error *err)
{
    _cleanup_fd_ int fd = -1;
    TRY(file_open_regular(AT_FDCWD, path, 0, &fd, err));
    return file_read_tail(fd, path, most, out, ret_whole, err);
}

static void test_tail(void **state)
{
    (void)state;
    struct titan_error err = {0};
    struct buf b = BUF_INIT;
    bool whole = false;
    assert_int_equal(file_replace(in("tail"), "one\ntwo\n", 8, &err), TITAN_OK);
    assert_int_equal(read_tail(in("tail"), 8, &b, &whole, &err), TITAN_OK);
    assert_true(whole);
    assert_string_equal(b.data, "one\ntwo\n");
    buf_clear(&b);
    assert_int_equal(read_tail(in("tail"), 5, &b, &whole, &err), TITAN_OK);
    assert_false(whole);
    assert_string_equal(b.data, "\ntwo\n");
    buf_free(&b);
    assert_int_equal(file_replace(in("tail"), "", 0, &err), TITAN_OK);
    assert_int_equal(read_tail(in("tail"), 5, &b, &whole, &err), TITAN_OK);
    assert_true(whole && b.len == 0);
    buf_free(&b);
}

static void test_replace_read(void **state)
{
    (void)state;
    struct titan_error err = {0};
    _cleanup_(buf_free) struct buf b = BUF_INIT;
    assert_int_equal(file_replace(in("a"), "first", 5, &err), TITAN_OK);
    assert_int_equal(file_replace(in("a"), "second!", 7, &err), TITAN_OK);
    buf_puts(&b, ">");
    assert_int_equal(file_read(in("a"), 100, &b, &err), TITAN_OK);
    assert_string_equal(b.data, ">second!");
    assert_int_equal(file_read(in("a"), 7, &b, &err), TITAN_OK); /* just fits */
    assert_int_equal(file_read(in("a"), 6, &b, &err), TITAN_ELIMIT);
    assert_string_equal(b.data, ">second!second!"); /* as it was */
    assert_int_equal(file_read(in("none"), 6, &b, &err), TITAN_ENOTFOUND);
    assert_non_null(strstr(err.msg, "none"));
    struct stat st;
    assert_int_equal(stat(in("a"), &st), 0);
    mode_t mask = umask(0);
    (void)umask(mask);
    assert_int_equal(st.st_mode & 0777, 0666 & ~mask);
    assert_int_equal(file_replace(in("no/such/folder"), "x", 1, &err), TITAN_ENOTFOUND);
    assert_int_equal(file_replace(in("empty"), "", 0, &err), TITAN_OK);
    buf_clear(&b);
    assert_int_equal(file_read(in("empty"), 10, &b, &err), TITAN_OK);
    assert_int_equal(b.len, 0);
}

/* A write that cannot succeed leaves the old content and no temporary file. */
static void test_replace_full(void **state)
{
    (void)state;
    struct titan_error err = {0};
    assert_int_equal(file_replace("/dev/full/x", "x", 1, &err), TITAN_ENOTFOUND);
    assert_int_equal(dir_make(in("target/sub"), &err), TITAN_OK);
    assert_int_not_equal(file_replace(in("target"), "x", 1, &err), TITAN_OK); /* cannot rename over a folder */
    char command[PATH_MAX + 64];
    snprintf(command, sizeof(command), "test -z \"$(ls %s | grep target.)\"", dir);
    assert_int_equal(system(command), 0);
}

/* What a person names stays what it is: /dev/stdout, a FIFO, a link to a file. */
static void test_write(void **state)
{
    (void)state;
    struct titan_error err = {0};
    struct stat st;
    char text[8] = "";
    _cleanup_(buf_free) struct buf b = BUF_INIT;
    assert_int_equal(file_write(in("page"), "first", 5, &err), TITAN_OK);
    assert_int_equal(symlink("page", in("write-link")), 0);
    assert_int_equal(file_write(in("write-link"), "second", 6, &err), TITAN_OK);
    assert_int_equal(lstat(in("write-link"), &st), 0);
    assert_true(S_ISLNK(st.st_mode));
    assert_int_equal(file_read(in("page"), 100, &b, &err), TITAN_OK);
    assert_string_equal(b.data, "second");
    assert_int_equal(mkfifo(in("write-fifo"), 0600), 0);
    _cleanup_fd_ int reader = open(in("write-fifo"), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    assert_int_equal(file_write(in("write-fifo"), "third", 5, &err), TITAN_OK);
    assert_int_equal(read(reader, text, sizeof(text)), 5);
    assert_string_equal(text, "third");
    assert_int_equal(lstat(in("write-fifo"), &st), 0);
    assert_true(S_ISFIFO(st.st_mode));
    assert_int_equal(symlink("/dev/full", in("write-full")),
                     0); /* not by its own name: what failed would have replaced it */
    assert_int_not_equal(file_write(in("write-full"), "x", 1, &err), TITAN_OK);
    assert_non_null(strstr(err.msg, "No space left"));
    assert_int_equal(dir_make(in("write-folder"), &err), TITAN_OK);
    assert_int_not_equal(file_write(in("write-folder"), "x", 1, &err), TITAN_OK);
    assert_non_null(strstr(err.msg, "Is a directory"));
    if (geteuid() != 0)
        return; /* a link of another user cannot be made */
    assert_int_equal(symlink("page", in("write-foreign")), 0);
    assert_int_equal(lchown(in("write-foreign"), 64999, 64999), 0);
    assert_int_equal(file_write(in("write-foreign"), "fourth", 6, &err), TITAN_EPERM);
    assert_non_null(strstr(err.msg, "is a link of another user"));
    buf_clear(&b);
    assert_int_equal(file_read(in("page"), 100, &b, &err), TITAN_OK);
    assert_string_equal(b.data, "second");
}

static void test_dirs(void **state)
{
    (void)state;
    struct titan_error err = {0};
    assert_int_equal(dir_make(in("x/y/z"), &err), TITAN_OK);
    assert_int_equal(dir_make(in("x/y/z/"), &err), TITAN_OK);
    assert_int_equal(file_replace(in("x/y/file"), "x", 1, &err), TITAN_OK);
    assert_int_equal(dir_make(in("x/y/file"), &err), TITAN_EEXIST);
    assert_int_equal(dir_make("", &err), TITAN_EINVAL);
    assert_int_equal(file_replace(in("outside"), "keep", 4, &err), TITAN_OK);
    char target[PATH_MAX];
    snprintf(target, sizeof(target), "%s/outside", dir);
    assert_int_equal(symlink(target, in("x/y/link")), 0);
    assert_int_equal(symlink(dir, in("x/loop")), 0);
    assert_int_equal(dir_remove(in("x"), &err), TITAN_OK);
    assert_int_equal(access(in("x"), F_OK), -1);
    assert_int_equal(access(in("outside"), F_OK), 0); /* links are not followed */
    assert_int_equal(dir_remove(in("x"), &err), TITAN_OK);
    assert_int_not_equal(dir_remove(in("outside"), &err), TITAN_OK);
    assert_int_equal(dir_sync(dir, &err), TITAN_OK);
    assert_int_equal(dir_sync(in("x"), &err), TITAN_ENOTFOUND);
}

/* In a process of its own: that links are refused is for good. */
static void test_named_dirs_without_links(void **state)
{
    (void)state;
    struct titan_error err = {0};
    char target[PATH_MAX];
    snprintf(target, sizeof(target), "%s/others", dir);
    assert_int_equal(dir_make(target, &err), TITAN_OK);
    assert_int_equal(symlink(target, in("swapped")), 0);
    assert_int_equal(file_replace(in("file"), "x", 1, &err), TITAN_OK);
    const pid_t pid = child_fork();
    if (pid == 0) {
        file_refuse_links();
        bool well = dir_make_named(in("named/y//z/"), &err) == TITAN_OK && access(in("named/y/z"), F_OK) == 0;
        well &= dir_make_named(in("swapped"), &err) == TITAN_EINVAL && strstr(err.msg, "symbolic link");
        well &= dir_make_named(in("swapped/new/sub"), &err) == TITAN_EINVAL && strstr(err.msg, "symbolic link");
        well &= dir_make_named(in("file"), &err) == TITAN_EEXIST;
        well &= dir_make_named(in("file/sub"), &err) != TITAN_OK && strstr(err.msg, "Not a directory");
        well &= dir_make_named("", &err) == TITAN_EINVAL;
        dir_unmake_named(in("named/y/z"));
        dir_unmake_named(in("named"));
        well &= access(in("named/y/z"), F_OK) != 0 && access(in("named/y"), F_OK) == 0;
        _exit(well ? 0 : 1);
    }
    int code = -1;
    assert_int_equal(waitpid(pid, &code, 0), pid);
    assert_int_equal(code, 0);
    assert_int_not_equal(access(in("others/new"), F_OK), 0);
}

static void test_self(void **state)
{
    (void)state;
    struct titan_error err = {0};
    char path[PATH_MAX], small[4];
    assert_int_equal(file_self_dir(path, sizeof(path), &err), TITAN_OK);
    assert_int_equal(path[0], '/');
    assert_non_null(strstr(path, "tests/unit/base"));
    assert_int_equal(file_self_dir(small, sizeof(small), &err), TITAN_ELIMIT);
}

static void make_socket(const char *path)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    snprintf(at.sun_path, sizeof(at.sun_path), "%.100s", path);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof(at)), 0);
    close(fd);
}

/* What is no regular file is refused at once by what it is; a reader that waits is ended by the alarm. */
static void test_regular_only(void **state)
{
    (void)state;
    struct titan_error err = {0};
    _cleanup_(buf_free) struct buf b = BUF_INIT;
    _cleanup_fd_ int fd = -1;
    (void)alarm((unsigned)patience_ms(60) / 1000);
    assert_int_equal(mkfifo(in("fifo"), 0600), 0);
    assert_int_equal(mkdir(in("folder"), 0700), 0);
    make_socket(in("socket"));
    assert_int_equal(symlink("nowhere", in("dangling")), 0);
    assert_int_equal(symlink("/dev/zero", in("zero")), 0);
    static const struct {
        const char *name, *says;
    } wrong[] = {{"fifo", "is a FIFO"}, {"folder", "is a folder"}, {"socket", "is a socket"}, {"zero", "is a device"}};
    for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
        assert_int_equal(file_read(in(wrong[i].name), 100, &b, &err), TITAN_EINVAL);
        assert_non_null(strstr(err.msg, wrong[i].says));
        assert_non_null(strstr(err.msg, in(wrong[i].name)));
    }
    assert_int_equal(file_read("/dev/zero", 100, &b, &err), TITAN_EINVAL);
    assert_int_equal(file_read(in("dangling"), 100, &b, &err), TITAN_ENOTFOUND);
    assert_int_equal(b.len, 0);

    assert_int_equal(file_replace(in("plain"), "text", 4, &err), TITAN_OK);
    assert_int_equal(symlink("plain", in("link")), 0);
    assert_int_equal(file_read(in("link"), 100, &b, &err), TITAN_OK); /* followed unless told otherwise */
    const int at = open(dir, O_RDONLY | O_DIRECTORY);
    assert_int_equal(file_read_at(at, "link", O_NOFOLLOW, 100, &b, &err), TITAN_EINVAL);
    assert_non_null(strstr(err.msg, "symbolic link"));
    assert_int_equal(file_read_at(at, "plain", O_NOFOLLOW, 100, &b, &err), TITAN_OK);
    assert_string_equal(b.data, "texttext");
    assert_int_equal(file_open_regular(at, "fifo", O_NOFOLLOW, &fd, &err), TITAN_EINVAL);
    assert_int_equal(fd, -1);
    close(at);
    (void)alarm(0);
}

static void test_lock(void **state)
{
    (void)state;
    struct titan_error err = {0};
    _cleanup_fd_ int fd = -1;
    int other = -1;
    assert_int_equal(lock_dir(dir, &fd, &err), TITAN_OK);
    /* another description in the same process conflicts too, unlike with POSIX record locks */
    assert_int_equal(lock_dir(dir, &other, &err), TITAN_ECONFLICT);
    assert_int_equal(other, -1);
    char pid[32];
    snprintf(pid, sizeof(pid), "process %d", (int)getpid());
    assert_non_null(strstr(err.msg, pid));
    pid_t child = child_fork();
    if (child == 0)
        _exit(lock_dir(dir, &other, NULL) == TITAN_ECONFLICT ? 0 : 1);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    close(TAKE_FD(fd));
    assert_int_equal(lock_dir(dir, &fd, &err), TITAN_OK);
    assert_int_equal(lock_dir(in("missing"), &other, &err), TITAN_ENOTFOUND);
}

/* The lock dies with its holder, however that ends. */
static void test_lock_killed(void **state)
{
    (void)state;
    int ready[2];
    assert_int_equal(pipe(ready), 0);
    pid_t child = child_fork();
    if (child == 0) {
        int fd = -1;
        char ok = lock_dir(in("."), &fd, NULL) == TITAN_OK;
        (void)!write(ready[1], &ok, 1);
        pause();
        _exit(0);
    }
    char ok = 0;
    assert_int_equal(read(ready[0], &ok, 1), 1);
    assert_true(ok);
    int fd = -1, status;
    assert_int_equal(lock_dir(dir, &fd, NULL), TITAN_ECONFLICT);
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(lock_dir(dir, &fd, NULL), TITAN_OK);
    close(fd);
    close(ready[0]);
    close(ready[1]);
}

/* Of what a run file names: no link anywhere on the way, in a process that was told so. For good, so in one of its own.
 */
static void test_no_links(void **state)
{
    (void)state;
    char folder[64], file[96], link_path[64], through[96];
    (void)snprintf(folder, sizeof(folder), "%s/direct", dir);
    (void)snprintf(file, sizeof(file), "%s/file", folder);
    (void)snprintf(link_path, sizeof(link_path), "%s/indirect", dir);
    (void)snprintf(through, sizeof(through), "%s/file", link_path);
    assert_int_equal(mkdir(folder, 0700), 0);
    assert_int_equal(file_replace(file, "x", 1, NULL), TITAN_OK);
    assert_int_equal(symlink("direct", link_path), 0);
    pid_t child = child_fork();
    if (child == 0) {
        int failed = file_open_named(through, O_RDONLY) < 0 ? 1 : 0;
        file_refuse_links();
        failed |= file_open_named(through, O_RDONLY) >= 0 || errno != ELOOP ? 2 : 0;
        failed |= file_open_named(link_path, O_RDONLY | O_DIRECTORY) >= 0 ? 4 : 0;
        failed |= file_open_named(file, O_RDONLY) < 0 || file_open_named(folder, O_RDONLY | O_DIRECTORY) < 0 ? 8 : 0;
        _exit(failed);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

static int setup(void **state)
{
    (void)state;
    return mkdtemp(dir) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    return dir_remove(dir, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_replace_read), cmocka_unit_test(test_tail),
        cmocka_unit_test(test_replace_full), cmocka_unit_test(test_write),
        cmocka_unit_test(test_dirs),         cmocka_unit_test(test_named_dirs_without_links),
        cmocka_unit_test(test_self),         cmocka_unit_test(test_no_links),
        cmocka_unit_test(test_regular_only), cmocka_unit_test(test_lock),
        cmocka_unit_test(test_lock_killed),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
