/* program.h - one training step of one rank as data: actions over buffers.
 *
 * The host issues the actions in array order. Each is enqueued on its stream and runs in that stream's order; between
 * streams only the declared waits hold. A buffer is memory with a lifetime: from the first action that touches it to
 * the last. Buffers of the arena share memory when their lifetimes do not meet; external ones are the training state.
 *
 * Built by build.c, proved by check.c over all ranks' programs, executed by exec/. */
#ifndef TITAN_WORKER_PLAN_PROGRAM_H
#define TITAN_WORKER_PLAN_PROGRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"
#include "worker/plan/layout.h"

/* X(name, what it does; operands by position) */
#define ACTION_KINDS(X)                                                                                                \
    X(GATHER, "in SHARD(u); out FULL(u): all-gather of a unit's parameters")                                           \
    X(RELEASE, "in FULL(u): end of its life")                                                                          \
    X(LOAD, "out TOKENS(mb): inputs and targets from the host")                                                        \
    X(EMBED_FORWARD, "in params(0), TOKENS; out X(0)")                                                                 \
    X(LAYER_FORWARD, "in params(l), X(l); out SAVED(l), X(l+1), REPORT; SAVED alone: recomputation for backward")      \
    X(HEAD_FORWARD, "in params, X(L), TOKENS; out HEAD, LOSSES, REPORT: loss and gradient of the logits")              \
    X(HEAD_DGRAD, "in params, X(L), HEAD; out DX(L), HEAD_BACK")                                                       \
    X(HEAD_WGRAD, "in X(L), HEAD, HEAD_BACK; out GRAD")                                                                \
    X(LAYER_DGRAD, "in params, X(l), SAVED(l), DX(l+1); out DX(l), BACK(l), WORK")                                     \
    X(LAYER_WGRAD, "in X(l), SAVED(l), BACK(l), DX(l+1); out GRAD")                                                    \
    X(EMBED_WGRAD, "in TOKENS, DX(0); out GRAD")                                                                       \
    X(ZERO, "out GRAD: of a rank without a microbatch")                                                                \
    X(ADD, "in GRAD(right); out GRAD(left) += right")                                                                  \
    X(REDUCE, "in GRAD; out GRAD_SHARD: reduce-scatter")                                                               \
    X(PACK, "in GRAD of every subtree; out PACK: slices by owner")                                                     \
    X(EXCHANGE, "in PACK; out RECEIVED: all-to-all")                                                                   \
    X(COMBINE, "in RECEIVED; out GRAD_SHARD: sum in tree order")                                                       \
    X(NORM, "in gradient shard; out REPORT: block sums of squares")                                                    \
    X(AGREE, "in REPORT; out REPORTS: all-gather of losses, counts, orders, block sums")                               \
    X(DECIDE, "in REPORTS: the host learns loss and norm, chooses skip, clip factor and rate")                         \
    X(OPTIMISE, "in gradient shard; out STATE(u), SHARD(u)")

enum action_kind {
#define X(name, text) ACT_##name,
    ACTION_KINDS(X)
#undef X
        ACT_COUNT
};

/* X(name, external) */
#define BUFFER_KINDS(X)                                                                                                \
    X(SHARD, true)                                                                                                     \
    X(STATE, true)                                                                                                     \
    X(FULL, false)                                                                                                     \
    X(TOKENS, false)                                                                                                   \
    X(X, false)                                                                                                        \
    X(SAVED, false)                                                                                                    \
    X(HEAD, false)                                                                                                     \
    X(LOSSES, false)                                                                                                   \
    X(DX, false)                                                                                                       \
    X(BACK, false)                                                                                                     \
    X(HEAD_BACK, false)                                                                                                \
    X(WORK, false)                                                                                                     \
    X(GRAD, false)                                                                                                     \
    X(GRAD_SHARD, false)                                                                                               \
    X(PACK, false)                                                                                                     \
    X(RECEIVED, false)                                                                                                 \
    X(REPORT, false)                                                                                                   \
    X(REPORTS, false)

enum buffer_kind {
#define X(name, external) BUF_##name,
    BUFFER_KINDS(X)
#undef X
        BUF_COUNT
};

enum stream_id { STREAM_COMPUTE, STREAM_COMM, STREAM_COUNT };

#define ACTION_IN_MAX 66 /* PACK reads every subtree of a rank's share; others at most 4 */
#define ACTION_OUT_MAX 4

struct action {
    enum action_kind kind;
    enum stream_id stream;
    int unit;           /* -1 where none */
    int64_t microbatch; /* logical, -1 where none */
    bool first;         /* weight gradients: overwrite instead of add */
    size_t bytes;       /* collectives: what one rank sends, equal on all */
    int n_in, n_out;
    int in[ACTION_IN_MAX], out[ACTION_OUT_MAX]; /* buffers */
    int wait;                                   /* action of the other stream that must have run; -1 */
    bool signal;                                /* somebody waits for it */
};

struct buffer {
    enum buffer_kind kind;
    bool external;
    int unit;           /* or layer; -1 where none */
    int64_t microbatch; /* -1 where none */
    size_t bytes;
    size_t offset;   /* in the arena */
    int first, last; /* actions between which it lives; -1: untouched */
};

/* Canonical summation across ranks: slice left += slice right of RECEIVED, in this order; the sum ends in slice 0. */
struct tree_add {
    int left, right;
};

struct program {
    int rank, world;
    int64_t microbatches; /* of the global batch */
    int64_t from, to;     /* this rank's share */
    int64_t share_max;    /* largest share of any rank */
    int n_units;
    bool canonical;
    int subtrees, subtrees_max; /* of this rank, of any rank */
    int n_adds;
    struct tree_add *adds;
    int root_slice;
    int64_t blocks; /* of this rank's state */

    int n_actions, n_buffers, cap_actions, cap_buffers;
    struct action *actions;
    struct buffer *buffers;
    size_t arena_bytes, external_bytes;
};

/* A rank's report, doubles: loss sums [share_max], token counts [share_max], orders [REPORT_ORDERS], input checks
 * [share_max][n_units] (not finite where the input of a unit was not; unit 0 has none), block sums [blocks]. */
#define REPORT_ORDERS 3
static inline int64_t report_losses(void)
{
    return 0;
}
static inline int64_t report_counts(const struct program *p)
{
    return p->share_max;
}
static inline int64_t report_orders(const struct program *p)
{
    return 2 * p->share_max;
}
static inline int64_t report_check(const struct program *p, int64_t slot, int unit)
{
    return 2 * p->share_max + REPORT_ORDERS + slot * p->n_units + unit;
}
static inline int64_t report_blocks(const struct program *p)
{
    return report_check(p, p->share_max, 0);
}
static inline int64_t report_size(const struct program *p)
{
    return report_blocks(p) + p->blocks;
}

const char *action_name(enum action_kind kind);
const char *buffer_name(enum buffer_kind kind);
bool action_is_collective(enum action_kind kind);
/* Whether operand out[i] is also read (added to). */
bool action_adds(const struct action *a, int out);

void program_close(struct program *p); /* NULL is fine */
/* Fill lifetimes, place the arena, derive waits and signals. Called after the actions stand. */
titan_status program_finish(struct program *p, struct titan_error *err) TITAN_MUST_USE;
/* One line an action. */
void program_print(const struct program *p, struct buf *out);

#endif
