/* SPDX-License-Identifier: Apache-2.0 */
/* Frames over a socket: whole, in pieces, with descriptors, too large, too many. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/frame.h"

static int ends[2];
static struct frame_reader in;
static struct frame_writer out;

static int setup(void **state)
{
    (void)state;
    in = (struct frame_reader){0};
    out = (struct frame_writer){0};
    return socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends);
}

static int teardown(void **state)
{
    (void)state;
    frame_reader_clear(&in);
    frame_writer_clear(&out);
    (void)close(ends[0]);
    (void)close(ends[1]);
    return 0;
}

static titan_status next(const uint8_t **data, size_t *len, int *fd)
{
    titan_status status;
    while ((status = frame_next(&in, FRAME_MAX, data, len, fd, NULL)) == TITAN_EAGAIN)
        if ((status = frame_receive(&in, ends[1], NULL)) != TITAN_OK)
            return status;
    return status;
}

static void put(const char *text, int fd)
{
    assert_int_equal(frame_put(&out, text, strlen(text), fd, NULL), TITAN_OK);
}

static void expect(const char *text, bool with_fd)
{
    const uint8_t *data;
    size_t len;
    int fd;
    assert_int_equal(next(&data, &len, &fd), TITAN_OK);
    assert_int_equal(len, strlen(text));
    assert_memory_equal(data, text, len);
    assert_int_equal(fd >= 0, with_fd);
    if (fd >= 0) {
        assert_int_not_equal(fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
        (void)close(fd);
    }
}

static void test_messages(void **state)
{
    (void)state;
    int fd = memfd_create("test", MFD_CLOEXEC);
    put("one", -1);
    put("", -1);
    put("two with a descriptor", fd);
    put("three", -1);
    put("four with one", fd);
    (void)close(fd); /* its own copy travels */
    assert_int_equal(frame_flush(&out, ends[0], NULL), TITAN_OK);
    expect("one", false);
    expect("", false);
    expect("two with a descriptor", true);
    expect("three", false);
    expect("four with one", true);
    const uint8_t *data;
    size_t len;
    assert_int_equal(next(&data, &len, &fd), TITAN_EAGAIN);
    (void)shutdown(ends[0], SHUT_WR);
    assert_int_equal(next(&data, &len, &fd), TITAN_EPEER);
}

/* Random sizes, random pieces: what goes in comes out. */
static void test_random_pieces(void **state)
{
    (void)state;
    unsigned seed = 7;
    print_message("# seed %u\n", seed);
    static uint8_t bytes[200000];
    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (uint8_t)rand_r(&seed);
    size_t sizes[64];
    int sent = 0, got = 0;
    while (got < 64) {
        const uint8_t *data;
        size_t len;
        int fd;
        if (sent < 64) {
            sizes[sent] = (size_t)rand_r(&seed) % sizeof(bytes);
            assert_int_equal(frame_put(&out, bytes, sizes[sent], -1, NULL), TITAN_OK);
            sent++;
        }
        titan_status flushed = frame_flush(&out, ends[0], NULL);
        assert_true(flushed == TITAN_OK || flushed == TITAN_EAGAIN);
        if (next(&data, &len, &fd) != TITAN_OK)
            continue;
        assert_int_equal(len, sizes[got]);
        assert_memory_equal(data, bytes, len);
        got++;
    }
}

static void test_limits(void **state)
{
    (void)state;
    const uint8_t *data;
    size_t len;
    int fd;
    char *big = calloc(1, FRAME_MAX + 1);
    assert_int_equal(frame_put(&out, big, FRAME_MAX + 1, -1, NULL), TITAN_ELIMIT);
    int fits = 0;
    while (frame_put(&out, big, FRAME_MAX, -1, NULL) == TITAN_OK)
        fits++;
    assert_int_equal(fits, FRAME_QUEUE_MAX / FRAME_MAX - 1);
    free(big);
    static const uint8_t oversize[] = {1, 0, 0x10, 0};
    assert_int_equal(write(ends[0], oversize, 4), 4);
    assert_int_equal(next(&data, &len, &fd), TITAN_ELIMIT);
}

static void test_small_limit(void **state)
{
    (void)state;
    const uint8_t *data;
    size_t len;
    int fd;
    put("longer than four", -1);
    assert_int_equal(frame_flush(&out, ends[0], NULL), TITAN_OK);
    assert_int_equal(frame_receive(&in, ends[1], NULL), TITAN_OK);
    assert_int_equal(frame_next(&in, 4, &data, &len, &fd, NULL), TITAN_ELIMIT);
}

static void test_missing_descriptor(void **state)
{
    (void)state;
    const uint8_t *data;
    size_t len;
    int fd;
    static const uint8_t announced[] = {1, 0, 0, 0x80, 'x'};
    assert_int_equal(write(ends[0], announced, 5), 5);
    assert_int_equal(next(&data, &len, &fd), TITAN_ECORRUPT);
}

/* Descriptors that were not asked for are bounded, and closed. */
static void test_descriptor_flood(void **state)
{
    (void)state;
    titan_status status = TITAN_OK;
    int before = dup(0);
    (void)close(before);
    for (int i = 0; i < 3 * FRAME_FDS_MAX && status != TITAN_ELIMIT; i++) {
        char byte = 0;
        struct iovec iov = {&byte, 1};
        union {
            struct cmsghdr align;
            char bytes[CMSG_SPACE(sizeof(int))];
        } control = {0};
        struct msghdr msg = {
            .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof(control.bytes)};
        struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(c), &ends[0], sizeof(int));
        assert_int_equal(sendmsg(ends[0], &msg, 0), 1);
        status = frame_receive(&in, ends[1], NULL);
    }
    assert_int_equal(status, TITAN_ELIMIT);
    frame_reader_clear(&in);
    int after = dup(0);
    (void)close(after);
    assert_int_equal(after, before);
}

static void test_paths(void **state)
{
    (void)state;
    char folder[] = "/tmp/titan-frame-XXXXXX", path[64], deep[200];
    struct stat st;
    struct titan_error err = {0};
    int listener, fd;
    assert_non_null(mkdtemp(folder));
    (void)snprintf(path, sizeof(path), "%s/s", folder);
    assert_int_equal(frame_connect(path, &fd, &err), TITAN_EUNREACHABLE);
    assert_int_equal(frame_listen(path, &listener, &err), TITAN_OK);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(frame_connect(path, &fd, &err), TITAN_OK);
    (void)close(fd);
    (void)close(listener);
    assert_int_equal(frame_listen(path, &listener, &err), TITAN_OK); /* over a stale one */
    (void)close(listener);
    (void)snprintf(deep, sizeof(deep), "%s/%0150d", folder, 1);
    assert_int_equal(frame_listen(deep, &listener, &err), TITAN_EINVAL);
    assert_non_null(strstr(err.hint, "shorter"));
    assert_int_equal(dir_remove(folder, NULL), TITAN_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_messages, setup, teardown),
        cmocka_unit_test_setup_teardown(test_random_pieces, setup, teardown),
        cmocka_unit_test_setup_teardown(test_limits, setup, teardown),
        cmocka_unit_test_setup_teardown(test_small_limit, setup, teardown),
        cmocka_unit_test_setup_teardown(test_missing_descriptor, setup, teardown),
        cmocka_unit_test_setup_teardown(test_descriptor_flood, setup, teardown),
        cmocka_unit_test(test_paths),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
