/* SPDX-License-Identifier: Apache-2.0 */
/* ranks.h - a communicator's members as forked processes of a test, with a device that has nothing but streams.
 *
 * The test program must be single-threaded when it forks. A member reports by its exit code: RANK_CHECK prints and
 * ends it with 1. A member that hangs ends by itself, with SIGALRM. */
#ifndef TITAN_TESTS_SUPPORT_RANKS_H
#define TITAN_TESTS_SUPPORT_RANKS_H

#include <stdbool.h>
#include <stdio.h>
#include <sys/types.h>
#include <unistd.h>

#include "worker/comm/comm.h"

#define RANKS_MAX 8

enum ranks_stream { RANKS_INLINE, RANKS_THREAD };

struct ranks {
    const struct comm_ops *ops;
    int world;
    enum ranks_stream stream;
    struct comm_config config; /* of no rank in particular: rank 0, no device */
    int listeners[RANKS_MAX];
    char addresses[RANKS_MAX][32];
    const char *address_list[RANKS_MAX];
    pid_t pids[RANKS_MAX];
};

/* What a member's function gets. */
struct rank_context {
    int rank, world;
    struct comm *comm; /* NULL: the function opens it itself, with config */
    const struct comm_ops *ops;
    struct stream *stream;
    struct comm_config config;
    const struct device_ops *device;
    void *arg;
};
typedef void (*rank_fn)(struct rank_context *ctx);

#define RANK_CHECK(ctx, cond)                                                                                          \
    do {                                                                                                               \
        if (!(cond)) {                                                                                                 \
            fprintf(stderr, "# rank %d of %d: %s:%d: %s\n", (ctx)->rank, (ctx)->world, __FILE__, __LINE__, #cond);     \
            _exit(1);                                                                                                  \
        }                                                                                                              \
    } while (0)

/* Segment or listeners for `world` members of this kind. */
void ranks_init(struct ranks *r, const struct comm_ops *ops, int world, enum ranks_stream stream);
/* Fork all; open_first: each opens the communicator before it calls fn. */
void ranks_start(struct ranks *r, bool open_first, rank_fn fn, void *arg);
/* Wait for member `rank`; its exit code, or 128 + signal. */
int ranks_wait(struct ranks *r, int rank);
/* Wait for all; number of members that did not exit with 0. */
int ranks_join(struct ranks *r);
void ranks_free(struct ranks *r);

/* Another stream of this member: a thread of its own. Close it after the communicators it was used with. */
struct stream *rank_stream_open(void);
void rank_stream_close(struct stream *s);
/* Wait until the stream has run everything; its first failure. */
titan_status rank_sync(struct rank_context *ctx);
/* Monotonic milliseconds. */
double rank_ms(void);

#endif
