/* SPDX-License-Identifier: Apache-2.0 */
/* frame.c - length-prefixed messages with descriptors; see frame.h. */
#include "base/frame.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cleanup.h"

#define HAS_FD UINT32_C(0x80000000)
#define READ_CHUNK 65536

struct frame {
    struct frame *next;
    int fd;
    size_t len; /* including the prefix */
    uint8_t bytes[];
};

titan_status frame_receive(struct frame_reader *r, int socket, struct titan_error *err)
{
    titan_assert(r->taken <= r->in.len);
    buf_consume(&r->in, r->taken);
    r->taken = 0;
    r->in.limit = 2 * (FRAME_MAX + READ_CHUNK);
    TRY(buf_reserve(&r->in, READ_CHUNK));
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(FRAME_FDS_MAX * sizeof(int))];
    } control;
    struct iovec iov = {r->in.data + r->in.len, READ_CHUNK};
    struct msghdr msg = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof(control.bytes)};
    ssize_t n;
    do {
        n = recvmsg(socket, &msg, MSG_CMSG_CLOEXEC);
    } while (n < 0 && errno == EINTR);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        return TITAN_EAGAIN;
    if (n < 0 && (errno == ECONNRESET || errno == EPIPE))
        return titan_fail(err, TITAN_EPEER, "connection reset");
    if (n < 0)
        return titan_fail_errno(err, "cannot receive");

    /* Keeps the descriptors of one recvmsg. Descriptors beyond the limit are closed, not leaked. */
    titan_assert(r->n_fds >= 0 && r->n_fds <= FRAME_FDS_MAX);
    bool fits = !(msg.msg_flags & MSG_CTRUNC);
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&msg); c; c = CMSG_NXTHDR(&msg, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        size_t held = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < held; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(fd));
            if (r->n_fds < FRAME_FDS_MAX) {
                r->fds[r->n_fds++] = fd;
            } else {
                (void)close(fd);
                fits = false;
            }
        }
    }
    if (!fits)
        return titan_fail(err, TITAN_ELIMIT, "too many descriptors received");
    if (n == 0)
        return titan_fail(err, TITAN_EPEER, "connection closed");
    r->in.len += (size_t)n;
    r->in.data[r->in.len] = '\0';
    return TITAN_OK;
}

titan_status frame_next(struct frame_reader *r, size_t max, const uint8_t **ret_data, size_t *ret_len, int *ret_fd,
                        struct titan_error *err)
{
    titan_assert(r->taken <= r->in.len);
    size_t have = r->in.len - r->taken;
    if (have < 4)
        return TITAN_EAGAIN;
    const uint8_t *p = (const uint8_t *)r->in.data + r->taken;
    uint32_t prefix = (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
    size_t len = prefix & ~HAS_FD;
    if (len > max || len > FRAME_MAX)
        return titan_fail(err, TITAN_ELIMIT, "message of %zu bytes, at most %zu are allowed", len, max);
    if (have < 4 + len)
        return TITAN_EAGAIN;
    int fd = -1;
    if (prefix & HAS_FD) {
        if (r->n_fds == 0)
            return titan_fail(err, TITAN_ECORRUPT, "message without the descriptor it announces");
        fd = r->fds[0];
        memmove(r->fds, r->fds + 1, (size_t)--r->n_fds * sizeof(int));
    }
    r->taken += 4 + len;
    titan_assert(r->taken <= r->in.len);
    *ret_data = p + 4;
    *ret_len = len;
    *ret_fd = fd;
    return TITAN_OK;
}

void frame_reader_clear(struct frame_reader *r)
{
    for (int i = 0; i < r->n_fds; i++)
        (void)close(r->fds[i]);
    r->n_fds = 0;
    r->taken = 0;
    buf_free(&r->in);
}

static void frame_free(struct frame *f)
{
    if (f->fd >= 0)
        (void)close(f->fd);
    free(f);
}

titan_status frame_put(struct frame_writer *w, const void *data, size_t len, int fd, struct titan_error *err)
{
    titan_assert(!w->first == !w->last && w->offset <= w->bytes);
    if (len > FRAME_MAX || w->bytes + len + 4 > FRAME_QUEUE_MAX)
        return titan_fail(err, TITAN_ELIMIT, "%zu bytes are waiting to be sent, no room for %zu more", w->bytes, len);
    struct frame *f = malloc(sizeof(*f) + 4 + len);
    if (!f)
        return titan_fail(err, TITAN_ENOMEM, "no memory for a message of %zu bytes", len);
    *f = (struct frame){.fd = -1, .len = 4 + len};
    if (fd >= 0 && (f->fd = fcntl(fd, F_DUPFD_CLOEXEC, 3)) < 0) {
        titan_status status = titan_fail_errno(err, "cannot duplicate descriptor %d", fd);
        free(f);
        return status;
    }
    const uint32_t prefix = (uint32_t)len | (fd >= 0 ? HAS_FD : 0);
    for (int i = 0; i < 4; i++)
        f->bytes[i] = (uint8_t)(prefix >> (8 * i));
    if (len)
        memcpy(f->bytes + 4, data, len);
    *(w->last ? &w->last->next : &w->first) = f;
    w->last = f;
    w->bytes += f->len;
    return TITAN_OK;
}

titan_status frame_flush(struct frame_writer *w, int socket, struct titan_error *err)
{
    while (w->first) {
        struct frame *f = w->first;
        titan_assert(w->offset < f->len);
        struct iovec iov = {(void *)(f->bytes + w->offset), f->len - w->offset};
        struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
        union {
            struct cmsghdr align;
            char bytes[CMSG_SPACE(sizeof(int))];
        } control = {0};
        if (f->fd >= 0 && w->offset == 0) {
            msg.msg_control = control.bytes;
            msg.msg_controllen = sizeof(control.bytes);
            struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
            c->cmsg_level = SOL_SOCKET;
            c->cmsg_type = SCM_RIGHTS;
            c->cmsg_len = CMSG_LEN(sizeof(int));
            memcpy(CMSG_DATA(c), &f->fd, sizeof(int));
        }
        ssize_t n;
        do {
            n = sendmsg(socket, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
        } while (n < 0 && errno == EINTR);
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return TITAN_EAGAIN;
        if (n < 0 && (errno == EPIPE || errno == ECONNRESET || errno == ENOTCONN))
            return titan_fail(err, TITAN_EPEER, "connection closed by the peer");
        if (n < 0)
            return titan_fail_errno(err, "cannot send");
        titan_assert((size_t)n <= f->len - w->offset);
        w->offset += (size_t)n;
        if (w->offset < f->len)
            continue;
        w->first = f->next;
        w->last = w->first ? w->last : NULL;
        w->bytes -= f->len;
        w->offset = 0;
        frame_free(f);
    }
    titan_assert(w->bytes == 0 && w->offset == 0 && !w->last);
    return TITAN_OK;
}

void frame_move(struct frame_writer *to, struct frame_writer *from)
{
    titan_assert(from->offset == 0);
    if (!from->first)
        return;
    *(to->last ? &to->last->next : &to->first) = from->first;
    to->last = from->last;
    to->bytes += from->bytes;
    *from = (struct frame_writer){0};
}

void frame_writer_clear(struct frame_writer *w)
{
    while (w->first) {
        struct frame *f = w->first;
        w->first = f->next;
        frame_free(f);
    }
    *w = (struct frame_writer){0};
}

static titan_status address_of(const char *path, struct sockaddr_un *ret, struct titan_error *err)
{
    *ret = (struct sockaddr_un){.sun_family = AF_UNIX};
    size_t len = strlen(path);
    if (len >= sizeof(ret->sun_path)) {
        (void)titan_fail(err, TITAN_EINVAL, "socket path '%s' has %zu bytes, at most %zu are possible", path, len,
                         sizeof(ret->sun_path) - 1);
        titan_error_hint(err, "choose a shorter state directory");
        return TITAN_EINVAL;
    }
    memcpy(ret->sun_path, path, len + 1);
    return TITAN_OK;
}

titan_status frame_listen(const char *path, int *ret_fd, struct titan_error *err)
{
    struct sockaddr_un address;
    TRY(address_of(path, &address, err));
    _cleanup_fd_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return titan_fail_errno(err, "cannot create a socket");
    if (unlink(path) < 0 && errno != ENOENT)
        return titan_fail_errno(err, "cannot replace '%s'", path);
    /* bind() creates the file with the socket's mode under the umask, so fchmod comes first. */
    if (fchmod(fd, 0600) < 0 || bind(fd, (struct sockaddr *)&address, sizeof(address)) < 0)
        return titan_fail_errno(err, "cannot bind '%s'", path);
    if (chmod(path, 0600) < 0 || listen(fd, 256) < 0)
        return titan_fail_errno(err, "cannot listen on '%s'", path);
    *ret_fd = TAKE_FD(fd);
    return TITAN_OK;
}

titan_status frame_connect(const char *path, int *ret_fd, struct titan_error *err)
{
    struct sockaddr_un address;
    TRY(address_of(path, &address, err));
    _cleanup_fd_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return titan_fail_errno(err, "cannot create a socket");
    if (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0)
        return titan_fail(err, TITAN_EUNREACHABLE, "cannot connect to '%s': %s", path, strerror(errno));
    *ret_fd = TAKE_FD(fd);
    return TITAN_OK;
}
