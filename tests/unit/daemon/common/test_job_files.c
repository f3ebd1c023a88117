/* SPDX-License-Identifier: Apache-2.0 */
/* What a user may have put into the folder of a job in place of what titand opens there. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "daemon/common/job_files.h"

static char root[64];

static const char *in(const char *name)
{
    static char path[2][PATH_MAX];
    static int turn;
    turn = !turn;
    (void)snprintf(path[turn], PATH_MAX, "%s/%s", root, name);
    return path[turn];
}

static int setup(void **state)
{
    struct titan_error err = {0};
    (void)state;
    strcpy(root, "/tmp/titan-job-files-XXXXXX");
    assert_non_null(mkdtemp(root));
    assert_int_equal(dir_make(in("7/logs"), &err), TITAN_OK);
    assert_int_equal(file_replace(in("secret"), "secret", 6, &err), TITAN_OK);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    return dir_remove(root, NULL);
}

static titan_status open_file(const char *name, int flags)
{
    struct titan_error err = {0};
    _cleanup_fd_ int folder = -1, fd = -1;
    assert_int_equal(job_files_folder(in("7"), "logs", false, &folder, &err), TITAN_OK);
    const titan_status status = job_files_open(folder, name, flags, &fd, &err);
    assert_int_equal(status == TITAN_OK, fd >= 0);
    assert_true(status == TITAN_OK || (strstr(err.msg, name) && !strchr(err.msg, '\n')));
    return status;
}

static void bind_socket(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    _cleanup_fd_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    (void)snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
}

static void test_files(void **state)
{
    (void)state;
    static const int ways[] = {O_RDONLY, O_RDWR, O_WRONLY | O_CREAT | O_APPEND};
    struct stat st;
    assert_int_equal(file_replace(in("7/logs/plain"), "x", 1, NULL), TITAN_OK);
    assert_int_equal(symlink(in("secret"), in("7/logs/link")), 0);
    assert_int_equal(symlink(in("nowhere"), in("7/logs/dangling")), 0);
    assert_int_equal(link(in("secret"), in("7/logs/second")), 0);
    assert_int_equal(mkfifo(in("7/logs/fifo"), 0600), 0);
    assert_int_equal(mkdir(in("7/logs/folder"), 0700), 0);
    bind_socket(in("7/logs/socket"));
    for (size_t i = 0; i < ARRAY_SIZE(ways); i++) {
        static const char *const odd[] = {"link", "dangling", "second", "fifo", "folder", "socket"};
        assert_int_equal(open_file("plain", ways[i]), TITAN_OK);
        for (size_t k = 0; k < ARRAY_SIZE(odd); k++)
            assert_int_equal(open_file(odd[k], ways[i]), TITAN_EINVAL);
    }
    assert_int_equal(open_file("none", O_RDONLY), TITAN_ENOTFOUND);
    assert_int_equal(open_file("new", O_WRONLY | O_CREAT | O_APPEND), TITAN_OK);
    assert_int_equal(lstat(in("nowhere"), &st), -1); /* nothing was made behind a link */
    assert_int_equal(stat(in("secret"), &st), 0);
    assert_int_equal(st.st_size, 6);
}

static titan_status open_folder(const char *name, bool make)
{
    struct titan_error err = {0};
    _cleanup_fd_ int fd = -1;
    const titan_status status = job_files_folder(root, name, make, &fd, &err);
    assert_int_equal(status == TITAN_OK, fd >= 0);
    return status;
}

static void test_folders(void **state)
{
    (void)state;
    assert_int_equal(dir_make(in("9/checkpoint"), NULL), TITAN_OK);
    assert_int_equal(symlink(in("9/checkpoint"), in("7/checkpoint")), 0);
    assert_int_equal(symlink(in("9"), in("7/way")), 0);
    assert_int_equal(mkfifo(in("7/flight"), 0600), 0);
    assert_int_equal(open_folder("", false), TITAN_OK);
    assert_int_equal(open_folder("7", false), TITAN_OK);
    assert_int_equal(open_folder("9/checkpoint", false), TITAN_OK);
    assert_int_equal(open_folder("7/checkpoint", false), TITAN_EINVAL);
    assert_int_equal(open_folder("7/way/checkpoint", false), TITAN_EINVAL);
    assert_int_equal(open_folder("7/../9", false), TITAN_EINVAL);
    assert_int_equal(open_folder("7/flight", true), TITAN_EINVAL);
    assert_int_equal(open_folder("8", false), TITAN_ENOTFOUND);
    assert_int_equal(open_folder("9/flight", true), TITAN_OK);
    assert_int_equal(open_folder("8/flight", true), TITAN_ENOTFOUND); /* its last part alone is made */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_files, setup, teardown),
        cmocka_unit_test_setup_teardown(test_folders, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
