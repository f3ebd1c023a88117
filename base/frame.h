/* SPDX-License-Identifier: Apache-2.0 */
/* frame.h - messages over a Unix stream socket: a little-endian u32, then that many bytes. One descriptor may accompany
 * a message; the top bit of the u32 marks this, and the descriptor arrives no later than the message's first byte.
 *
 * The socket is non-blocking; neither side ever blocks here. Every size is bounded, and the peer is not trusted. An
 * agent and its workers use frames (proto/titan/internal/worker.proto). */
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
    size_t taken; /* bytes of in already returned by frame_next() */
    int fds[FRAME_FDS_MAX];
    int n_fds;
};

/* Reads what the socket holds now. TITAN_OK: some bytes came (call again until TITAN_EAGAIN); TITAN_EPEER: the peer
 * closed; TITAN_ELIMIT: the peer sent more descriptors than messages that carry a descriptor. */
titan_status frame_receive(struct frame_reader *r, int socket, struct titan_error *err) TITAN_MUST_USE;
/* Returns the next whole message: bytes (valid until the next frame_receive) and its descriptor (-1 = none; the caller
 * owns it). TITAN_EAGAIN: the message is incomplete. TITAN_ELIMIT: the message is larger than max. */
titan_status frame_next(struct frame_reader *r, size_t max, const uint8_t **ret_data, size_t *ret_len, int *ret_fd,
                        struct titan_error *err) TITAN_MUST_USE;
void frame_reader_clear(struct frame_reader *r);

struct frame;
struct frame_writer {
    struct frame *first, *last;
    size_t bytes;  /* bytes of all waiting frames */
    size_t offset; /* bytes of the first frame already sent */
};

/* Queues a copy of a message; fd (-1 = none) is duplicated. TITAN_ELIMIT: too many bytes are waiting. */
titan_status frame_put(struct frame_writer *w, const void *data, size_t len, int fd,
                       struct titan_error *err) TITAN_MUST_USE;
/* Sends as much as the socket takes. TITAN_OK: all sent; TITAN_EAGAIN: wait until the socket is writable; TITAN_EPEER:
 * the peer is gone, and the frames stay queued. */
titan_status frame_flush(struct frame_writer *w, int socket, struct titan_error *err) TITAN_MUST_USE;
/* Moves all frames of `from` to the end of `to`. */
void frame_move(struct frame_writer *to, struct frame_writer *from);
void frame_writer_clear(struct frame_writer *w);

/* A non-blocking close-on-exec Unix stream socket, listening at path (mode 0600; a stale file is replaced) or connected
 * to path. TITAN_EINVAL: path is too long for a socket. TITAN_EUNREACHABLE: no process listens. */
titan_status frame_listen(const char *path, int *ret_fd, struct titan_error *err) TITAN_MUST_USE;
titan_status frame_connect(const char *path, int *ret_fd, struct titan_error *err) TITAN_MUST_USE;

#endif
