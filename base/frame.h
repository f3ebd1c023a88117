/* SPDX-License-Identifier: Apache-2.0 */
/* frame.h - messages over a Unix stream socket: a little-endian u32, then that many bytes. One descriptor may travel
 * with a message; the top bit of the u32 says so, and it arrives no later than the message's first byte.
 *
 * The socket is non-blocking; neither side ever waits in here. Every size is bounded, nothing from the peer is
 * trusted. Used between an agent and its workers (proto/titan/internal/worker.proto). */
#ifndef TITAN_BASE_FRAME_H
#define TITAN_BASE_FRAME_H

#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"

#define FRAME_MAX (1u << 20)       /* bytes of one message */
#define FRAME_QUEUE_MAX (4u << 20) /* bytes waiting to be sent */
#define FRAME_FDS_MAX 8            /* descriptors received ahead of their messages */

struct frame_reader {
    struct buf in;
    size_t taken; /* bytes of in already handed out */
    int fds[FRAME_FDS_MAX];
    int n_fds;
};

/* Take in what the socket holds now. TITAN_OK: some bytes came (call again until TITAN_EAGAIN); TITAN_EPEER: the peer
 * closed; TITAN_ELIMIT: more descriptors than messages that carry one. */
titan_status frame_receive(struct frame_reader *r, int socket, struct titan_error *err) TITAN_MUST_USE;
/* The next whole message: bytes (valid until the next frame_receive) and its descriptor (-1 = none; the caller owns
 * it). TITAN_EAGAIN when it is not all here yet; TITAN_ELIMIT for one above max. */
titan_status frame_next(struct frame_reader *r, size_t max, const uint8_t **ret_data, size_t *ret_len, int *ret_fd,
                        struct titan_error *err) TITAN_MUST_USE;
void frame_reader_clear(struct frame_reader *r);

struct frame;
struct frame_writer {
    struct frame *first, *last;
    size_t bytes;  /* of all waiting frames */
    size_t offset; /* bytes of the first already sent */
};

/* Queue a copy of a message; fd (-1 = none) is duplicated. TITAN_ELIMIT when too much is waiting. */
titan_status frame_put(struct frame_writer *w, const void *data, size_t len, int fd,
                       struct titan_error *err) TITAN_MUST_USE;
/* Send what the socket takes. TITAN_OK: all sent; TITAN_EAGAIN: wait until it is writable; TITAN_EPEER: the peer is
 * gone, the frames stay queued. */
titan_status frame_flush(struct frame_writer *w, int socket, struct titan_error *err) TITAN_MUST_USE;
/* Put all of `from` behind `to`. */
void frame_move(struct frame_writer *to, struct frame_writer *from);
void frame_writer_clear(struct frame_writer *w);

/* A non-blocking close-on-exec Unix stream socket listening at path (mode 0600; a stale file is replaced) or connected
 * to it. TITAN_EINVAL: path too long for a socket. TITAN_EUNREACHABLE: no process listens. */
titan_status frame_listen(const char *path, int *ret_fd, struct titan_error *err) TITAN_MUST_USE;
titan_status frame_connect(const char *path, int *ret_fd, struct titan_error *err) TITAN_MUST_USE;

#endif
