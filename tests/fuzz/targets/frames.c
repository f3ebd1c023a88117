/* SPDX-License-Identifier: Apache-2.0 */
/* Frames of a Unix socket, in pieces as they come, with a descriptor at times. */
#include "tests/fuzz/common.h"

#include <sys/socket.h>
#include <unistd.h>

#include "base/frame.h"

static void push(int fd, const struct fuzz_input *piece, bool with_fd)
{
    struct iovec iov = {(void *)piece->data, piece->len};
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } control = {.header = {.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS}};
    memcpy(CMSG_DATA(&control.header), &fd, sizeof(int));
    struct msghdr m = {.msg_iov = &iov,
                       .msg_iovlen = 1,
                       .msg_control = with_fd ? control.space : NULL,
                       .msg_controllen = with_fd ? sizeof(control.space) : 0};
    (void)sendmsg(fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = {data, size};
    struct frame_reader r = {0};
    struct titan_error err = {0};
    int pair[2];
    fuzz_assert(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) == 0);
    size_t max = 1 + fuzz_take(&in, 2);
    titan_status status = TITAN_OK;
    while (in.len > 0 && (status == TITAN_OK || status == TITAN_EAGAIN)) {
        bool with_fd = fuzz_take(&in, 1) % 4 == 0;
        struct fuzz_input piece = fuzz_piece(&in);
        if (piece.len > 0)
            push(pair[0], &piece, with_fd);
        while ((status = frame_receive(&r, pair[1], &err)) == TITAN_OK) {
            const uint8_t *message;
            size_t len;
            int fd;
            while (frame_next(&r, max, &message, &len, &fd, &err) == TITAN_OK) {
                fuzz_assert(len <= max);
                volatile uint8_t last = len ? message[len - 1] : 0;
                (void)last;
                if (fd >= 0)
                    (void)close(fd);
            }
        }
    }
    frame_reader_clear(&r);
    (void)close(pair[0]);
    (void)close(pair[1]);
    return 0;
}
