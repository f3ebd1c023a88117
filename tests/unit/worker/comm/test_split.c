/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators split from another: every operation in groups of many shapes, several of them at work at once, random
 * sequences of random groups, and what becomes of them when a member dies, never comes or is revoked. TITAN_TEST_SEED
 * repeats a sequence. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/cleanup.h"
#include "base/rng.h"
#include "tests/support/collectives.h"
#include "tests/support/patience.h"

#define CHILDREN_MAX 16

static const struct comm_ops *const transports[] = {&comm_shm, &comm_tcp};

/* What the members tell the test. */
struct shared {
    uint64_t seed;
    atomic_int ready[RANKS_MAX], go;
    volatile double ended_ms[RANKS_MAX];
    int variant;
};

static struct shared *make_shared(void)
{
    void *p = mmap(NULL, sizeof(struct shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(p != MAP_FAILED);
    return p;
}

static void await(atomic_int *word)
{
    titan_assert(AWAITED(atomic_load(word)));
}

/* --- groups ------------------------------------------------------------------------------------------------------- */

/* The members of this rank's group, from the colours of all; their number. */
static int group_of(int rank, int world, const int *colours, int *ret_members)
{
    int n = 0;
    for (int r = 0; r < world; r++)
        if (colours[r] == colours[rank])
            ret_members[n++] = r;
    return n;
}

/* Split ctx->comm; the result is what a member's function gets, with the same stream. */
static struct rank_context split_by(struct rank_context *ctx, const int *colours)
{
    int members[RANKS_MAX], n = group_of(ctx->rank, ctx->world, colours, members);
    struct rank_context child = *ctx;
    struct titan_error err = {0};
    child.comm = NULL;
    child.world = n;
    for (int i = 0; i < n; i++)
        if (members[i] == ctx->rank)
            child.rank = i;
    if (ctx->ops->split(ctx->comm, members, n, NULL, &child.comm, &err) != TITAN_OK)
        fprintf(stderr, "# rank %d: split: %s\n", ctx->rank, err.msg);
    RANK_CHECK(ctx, child.comm);
    return child;
}

/* Shapes as a mesh has them, and others. */
static int colour_of(int shape, int rank, int world)
{
    switch (shape) {
    case 0: /* all */
        return 0;
    case 1: /* each alone */
        return rank;
    case 2: /* halves */
        return rank < world / 2;
    case 3: /* every other */
        return rank % 2;
    case 4: /* pairs of neighbours */
        return rank / 2;
    case 5: /* pairs of first and last, the one in the middle alone */
        return rank < world - 1 - rank ? rank : world - 1 - rank;
    default: /* one against the rest */
        return rank == world - 1;
    }
}
#define SHAPES 7

static void all_shapes(struct rank_context *ctx)
{
    const struct shared *sh = ctx->arg;
    for (int shape = 0; shape < SHAPES; shape++) {
        int colours[RANKS_MAX];
        for (int r = 0; r < ctx->world; r++)
            colours[r] = colour_of(shape, r, ctx->world);
        struct rank_context child = split_by(ctx, colours);
        collectives_run(&child, sh->seed + (uint64_t)colours[ctx->rank], 25, 20000);
        ctx->ops->close(child.comm);
    }
    collectives_run(ctx, sh->seed, 10, 20000);
}

/* Halves of halves of halves, all open at once. */
static void nested(struct rank_context *ctx)
{
    const struct shared *sh = ctx->arg;
    struct rank_context level[4] = {*ctx};
    int depth = 0;
    for (; depth < 3; depth++) {
        int colours[RANKS_MAX];
        for (int r = 0; r < level[depth].world; r++)
            colours[r] = r < level[depth].world / 2;
        level[depth + 1] = split_by(&level[depth], colours);
    }
    for (int i = depth; i >= 0; i--) {
        collectives_run(&level[i], sh->seed + (uint64_t)i, 20, 20000);
        if (i > 0)
            ctx->ops->close(level[i].comm);
    }
}

static void run_members(const struct comm_ops *ops, int world, enum ranks_stream stream, rank_fn fn, uint64_t seed)
{
    struct ranks r;
    struct shared *sh = make_shared();
    sh->seed = seed;
    printf("# %s world %d TITAN_TEST_SEED=%llu\n", ops->name, world, (unsigned long long)seed);
    ranks_init(&r, ops, world, stream);
    ranks_start(&r, true, fn, sh);
    assert_int_equal(ranks_join(&r), 0);
    ranks_free(&r);
    (void)munmap(sh, sizeof(*sh));
}

static void test_shapes(void **state)
{
    (void)state;
    for (size_t t = 0; t < ARRAY_SIZE(transports); t++)
        for (int world = 1; world <= 8; world++)
            run_members(transports[t], world, world % 2 ? RANKS_INLINE : RANKS_THREAD, all_shapes, collectives_seed());
}

static void test_nested(void **state)
{
    (void)state;
    for (size_t t = 0; t < ARRAY_SIZE(transports); t++)
        run_members(transports[t], 8, RANKS_INLINE, nested, collectives_seed());
}

/* --- random groups ------------------------------------------------------------------------------------------------ */

static uint32_t draw(struct rng_key key, uint64_t *n, uint32_t below)
{
    uint32_t w[4];
    rng_philox(key, (*n)++, 0, w);
    return w[0] % below;
}

/* A sequence of splits into random groups, of operations in whichever is open, and of closing. */
static void random_groups(struct rank_context *ctx)
{
    const struct shared *sh = ctx->arg;
    struct rng_key key = rng_key(sh->seed, "groups");
    struct rank_context open[CHILDREN_MAX];
    int n_open = 0, colours[CHILDREN_MAX][RANKS_MAX];
    uint64_t n = 0;
    for (int i = 0; i < 150; i++) {
        uint32_t kind = draw(key, &n, 4), which = draw(key, &n, CHILDREN_MAX), groups = 1 + draw(key, &n, 4);
        if (kind == 0 && n_open < CHILDREN_MAX) {
            for (int r = 0; r < ctx->world; r++)
                colours[n_open][r] = (int)draw(key, &n, groups);
            open[n_open] = split_by(ctx, colours[n_open]);
            n_open++;
        } else if (kind == 1 && i % 3 == 0 && n_open > 0) {
            ctx->ops->close(open[--n_open].comm);
        } else if (n_open > 0) {
            int c = (int)which % n_open;
            uint64_t seed = sh->seed + (uint64_t)i * 100 + (uint64_t)colours[c][ctx->rank];
            collectives_run(&open[c], seed, 3, 30000);
        }
    }
    while (n_open > 0)
        ctx->ops->close(open[--n_open].comm);
    collectives_run(ctx, sh->seed, 5, 1000);
}

static void test_random_groups(void **state)
{
    (void)state;
    for (size_t t = 0; t < ARRAY_SIZE(transports); t++)
        for (int world = 3; world <= 8; world += 5)
            run_members(transports[t], world, world == 8 ? RANKS_THREAD : RANKS_INLINE, random_groups,
                        collectives_seed());
}

/* --- at once ------------------------------------------------------------------------------------------------------ */

struct worker {
    struct rank_context ctx;
    pthread_t thread;
    uint64_t seed;
};

static void *work(void *arg)
{
    struct worker *w = arg;
    collectives_run(&w->ctx, w->seed, 60, 60000);
    return NULL;
}

/* All shapes and the parent, each on a thread and a stream of its own. */
static void all_at_once(struct rank_context *ctx)
{
    const struct shared *sh = ctx->arg;
    struct worker workers[SHAPES];
    for (int shape = 0; shape < SHAPES; shape++) {
        struct worker *w = &workers[shape];
        int colours[RANKS_MAX];
        for (int r = 0; r < ctx->world; r++)
            colours[r] = colour_of(shape, r, ctx->world);
        w->ctx = split_by(ctx, colours);
        w->ctx.stream = rank_stream_open();
        w->seed = sh->seed + (uint64_t)(10 * shape + colours[ctx->rank]);
    }
    for (int i = 0; i < SHAPES; i++)
        RANK_CHECK(ctx, pthread_create(&workers[i].thread, NULL, work, &workers[i]) == 0);
    collectives_run(ctx, sh->seed, 60, 60000);
    for (int i = 0; i < SHAPES; i++) {
        RANK_CHECK(ctx, pthread_join(workers[i].thread, NULL) == 0);
        ctx->ops->close(workers[i].ctx.comm);
        rank_stream_close(workers[i].ctx.stream);
    }
}

static void test_at_once(void **state)
{
    (void)state;
    for (size_t t = 0; t < ARRAY_SIZE(transports); t++)
        for (int world = 4; world <= 8; world += 4)
            run_members(transports[t], world, RANKS_THREAD, all_at_once, collectives_seed());
}

/* Both ends send what no buffer holds before either receives: on communicators and streams of their own. */
static void both_send(struct rank_context *ctx)
{
    enum { BYTES = 24 << 20 };
    int colours[RANKS_MAX] = {0};
    struct rank_context up = split_by(ctx, colours), down = split_by(ctx, colours);
    down.stream = rank_stream_open();
    unsigned char *out = malloc(BYTES), *in = malloc(BYTES);
    RANK_CHECK(ctx, out && in);
    memset(out, 'a' + ctx->rank, BYTES);
    for (int i = 0; i < 3; i++) {
        struct rank_context *sends = ctx->rank == 0 ? &up : &down, *receives = ctx->rank == 0 ? &down : &up;
        RANK_CHECK(ctx, sends->ops->send(sends->comm, out, BYTES, !ctx->rank, sends->stream) == TITAN_OK);
        RANK_CHECK(ctx, receives->ops->recv(receives->comm, in, BYTES, !ctx->rank, receives->stream) == TITAN_OK);
        RANK_CHECK(ctx, rank_sync(sends) == TITAN_OK && rank_sync(receives) == TITAN_OK);
        for (size_t b = 0; b < BYTES; b++)
            RANK_CHECK(ctx, in[b] == 'a' + !ctx->rank);
    }
    ctx->ops->close(up.comm);
    ctx->ops->close(down.comm);
    rank_stream_close(down.stream);
    free(out);
    free(in);
}

static void test_both_send(void **state)
{
    (void)state;
    for (size_t t = 0; t < ARRAY_SIZE(transports); t++)
        run_members(transports[t], 2, RANKS_THREAD, both_send, 0);
}

/* --- forming ------------------------------------------------------------------------------------------------------ */

/* As many as a worker has, every time: soon formed, in use, closed. */
static void form_many(struct rank_context *ctx)
{
    struct shared *sh = ctx->arg;
    struct rank_context open[CHILDREN_MAX];
    double at = rank_ms();
    for (int i = 0; i < CHILDREN_MAX; i++) {
        int colours[RANKS_MAX];
        for (int r = 0; r < ctx->world; r++)
            colours[r] = colour_of(i % SHAPES, r, ctx->world);
        open[i] = split_by(ctx, colours);
    }
    sh->ended_ms[ctx->rank] = rank_ms() - at;
    for (int i = 0; i < CHILDREN_MAX; i++) {
        float x = 1;
        RANK_CHECK(ctx, ctx->ops->all_reduce(open[i].comm, &x, 1, DTYPE_F32, ctx->stream) == TITAN_OK);
        RANK_CHECK(ctx, rank_sync(ctx) == TITAN_OK);
        RANK_CHECK(ctx, x == (float)open[i].world);
    }
    for (int i = 0; i < CHILDREN_MAX; i++)
        ctx->ops->close(open[i].comm);
}

static void test_form_many(void **state)
{
    (void)state;
    for (size_t t = 0; t < ARRAY_SIZE(transports); t++) {
        struct ranks r;
        struct shared *sh = make_shared();
        double slowest = 0;
        ranks_init(&r, transports[t], 8, RANKS_THREAD);
        ranks_start(&r, true, form_many, sh);
        assert_int_equal(ranks_join(&r), 0);
        for (int i = 0; i < 8; i++)
            slowest = MAX(slowest, sh->ended_ms[i]);
        printf("# %s: %d communicators of 8 members in %.1f ms\n", r.ops->name, CHILDREN_MAX, slowest);
        ranks_free(&r);
        (void)munmap(sh, sizeof(*sh));
    }
}

static void wrong_members(struct rank_context *ctx)
{
    static const struct {
        int n, members[4];
    } wrong[] = {{2, {1, 0}}, {2, {0, 0}}, {2, {0, 3}}, {2, {-1, 0}}, {1, {1}}, {0, {0}}};
    struct comm *child = NULL;
    struct titan_error err = {0};
    if (ctx->rank == 0) {
        for (size_t i = 0; i < ARRAY_SIZE(wrong); i++)
            RANK_CHECK(ctx,
                       ctx->ops->split(ctx->comm, wrong[i].members, wrong[i].n, NULL, &child, &err) == TITAN_EINVAL &&
                           err.msg[0] && !child);
    }
    int colours[RANKS_MAX] = {0};
    struct rank_context all = split_by(ctx, colours);
    float x = 1;
    RANK_CHECK(ctx, ctx->ops->group_end(all.comm) == TITAN_EINVAL);
    RANK_CHECK(ctx, ctx->ops->group_begin(all.comm) == TITAN_OK);
    RANK_CHECK(ctx, ctx->ops->group_begin(all.comm) == TITAN_EINVAL);
    RANK_CHECK(ctx, ctx->ops->all_reduce(all.comm, &x, 1, DTYPE_F32, ctx->stream) == TITAN_OK);
    RANK_CHECK(ctx, ctx->ops->send(all.comm, &x, 4, ctx->rank, ctx->stream) == TITAN_EINVAL);
    RANK_CHECK(ctx, ctx->ops->group_end(all.comm) == TITAN_OK);
    RANK_CHECK(ctx, rank_sync(ctx) == TITAN_OK && x == 3);
    /* Rows of less than nothing, or more to oneself than one takes, are no memory of the communicator. */
    int32_t rows[] = {0, 0, 0}, bad[] = {0, 0, 0};
    bad[(ctx->rank + ctx->world - 1) % ctx->world] = -1;
    const struct comm_rows uneven = {.recv = &x, .send = &x, .recv_counts = rows, .send_counts = bad, .bytes = 4};
    RANK_CHECK(ctx, ctx->ops->all_to_all_v(all.comm, &uneven, ctx->stream) == TITAN_OK);
    titan_status status = rank_sync(ctx);
    RANK_CHECK(ctx, status == TITAN_EINVAL || status == TITAN_EPEER);
    ctx->ops->close(all.comm);
}

static void test_wrong_arguments(void **state)
{
    (void)state;
    for (size_t t = 0; t < ARRAY_SIZE(transports); t++)
        run_members(transports[t], 3, RANKS_THREAD, wrong_members, 0);
}

enum { NEVER_ABORTED, NEVER_REVOKED, NEVER_IN_TIME, NEVER_KILLED, NEVER_KILLED_FIRST, NEVER_VARIANTS };

/* The rank that never splits. */
static int absent(const struct shared *sh)
{
    return sh->variant == NEVER_KILLED_FIRST ? 0 : 1;
}

struct ender {
    struct rank_context *ctx;
    atomic_int abort_flag;
};

static void *end_soon(void *arg)
{
    struct ender *e = arg;
    const struct shared *sh = e->ctx->arg;
    patience_pause_ms(50, "the members get into their forming");
    if (sh->variant == NEVER_ABORTED)
        atomic_store(&e->abort_flag, 1);
    else
        e->ctx->ops->revoke(e->ctx->comm);
    return NULL;
}

static void split_without_one(struct rank_context *ctx)
{
    struct shared *sh = ctx->arg;
    struct ender e = {.ctx = ctx};
    struct titan_error err = {0};
    struct comm *child = NULL;
    pthread_t thread;
    const int members[] = {0, 1, 2, 3};
    if (ctx->rank == absent(sh)) {
        atomic_store(&sh->ready[ctx->rank], 1);
        await(&sh->go);
        return;
    }
    bool ends = sh->variant == NEVER_ABORTED || sh->variant == NEVER_REVOKED;
    if (ends)
        RANK_CHECK(ctx, pthread_create(&thread, NULL, end_soon, &e) == 0);
    atomic_store(&sh->ready[ctx->rank], 1);
    titan_status status = ctx->ops->split(ctx->comm, members, 4, &e.abort_flag, &child, &err);
    sh->ended_ms[ctx->rank] = rank_ms();
    if (sh->variant == NEVER_IN_TIME)
        RANK_CHECK(ctx, status == TITAN_ETIMEDOUT || status == TITAN_EPEER);
    else if (sh->variant == NEVER_KILLED || sh->variant == NEVER_KILLED_FIRST)
        RANK_CHECK(ctx, status == TITAN_EPEER);
    else /* a peer that was told first has closed its connections, or its process is gone */
        RANK_CHECK(ctx, status == TITAN_EREVOKED || status == TITAN_EPEER);
    RANK_CHECK(ctx, err.msg[0] && !child);
    if (ends)
        RANK_CHECK(ctx, pthread_join(thread, NULL) == 0);
}

static void test_member_never_comes(void **state)
{
    (void)state;
    for (size_t t = 0; t < ARRAY_SIZE(transports) * NEVER_VARIANTS; t++) {
        struct ranks r;
        struct shared *sh = make_shared();
        sh->variant = (int)t % NEVER_VARIANTS;
        ranks_init(&r, transports[t / NEVER_VARIANTS], 4, RANKS_THREAD);
        if (sh->variant == NEVER_IN_TIME)
            r.config.timeout_ms = patience_stretched(1000); /* all four meet within this, and then do not */
        ranks_start(&r, true, split_without_one, sh);
        double at = 0;
        const bool killed = sh->variant == NEVER_KILLED || sh->variant == NEVER_KILLED_FIRST;
        if (killed) {
            for (int i = 0; i < 4; i++)
                await(&sh->ready[i]);
            patience_pause_ms(50, "the others get into their forming");
            at = rank_ms();
            assert_int_equal(kill(r.pids[absent(sh)], SIGKILL), 0);
        }
        for (int i = 0; i < 4; i++)
            assert_int_equal(i == absent(sh) ? 0 : ranks_wait(&r, i), 0);
        if (killed)
            printf("# %s: rank 2 knew after %.1f ms\n", r.ops->name, sh->ended_ms[2] - at);
        atomic_store(&sh->go, 1);
        (void)ranks_wait(&r, absent(sh));
        ranks_free(&r);
        (void)munmap(sh, sizeof(*sh));
    }
}

/* --- ends --------------------------------------------------------------------------------------------------------- */

/* What a barrier of comm ends with, on a stream that has seen no failure. */
static titan_status barrier_ends(const struct rank_context *ctx, struct comm *comm)
{
    struct rank_context own = *ctx;
    own.stream = rank_stream_open();
    (void)ctx->ops->barrier(comm, own.stream);
    titan_status status = rank_sync(&own);
    rank_stream_close(own.stream);
    return status;
}

/* Rank 5 dies. Rank 4 waits for it in their own group; rank 3 for rank 4, in the parent; the others for rank 3, in
 * theirs, where no rank has died. */
static void wait_for_the_dead(struct rank_context *ctx)
{
    struct shared *sh = ctx->arg;
    int colours[] = {0, 0, 0, 0, 1, 1};
    struct rank_context child = split_by(ctx, colours), other = split_by(ctx, colours);
    unsigned char x[100];
    child.stream = rank_stream_open();
    if (ctx->rank == 3)
        (void)ctx->ops->recv(ctx->comm, x, sizeof(x), 4, ctx->stream);
    else if (ctx->rank != 5)
        (void)ctx->ops->barrier(child.comm, child.stream);
    atomic_store(&sh->ready[ctx->rank], 1);
    while (ctx->rank == 5) /* to be killed */
        (void)pause();
    titan_status status = ctx->rank == 3 ? rank_sync(ctx) : rank_sync(&child);
    sh->ended_ms[ctx->rank] = rank_ms();
    RANK_CHECK(ctx, status == TITAN_EPEER || status == TITAN_EREVOKED);
    /* What has not been waited for has failed as well. */
    RANK_CHECK(ctx, barrier_ends(ctx, ctx->comm) != TITAN_OK);
    RANK_CHECK(ctx, barrier_ends(ctx, other.comm) != TITAN_OK);
    await(&sh->go);
    ctx->ops->close(child.comm);
    ctx->ops->close(other.comm);
    rank_stream_close(child.stream);
}

static void test_killed(void **state)
{
    (void)state;
    for (size_t t = 0; t < ARRAY_SIZE(transports); t++) {
        struct ranks r;
        struct shared *sh = make_shared();
        ranks_init(&r, transports[t], 6, RANKS_THREAD);
        ranks_start(&r, true, wait_for_the_dead, sh);
        for (int i = 0; i < 6; i++)
            await(&sh->ready[i]);
        patience_pause_ms(50, "the others get into their operations");
        double at = rank_ms(), slowest = 0;
        assert_int_equal(kill(r.pids[5], SIGKILL), 0);
        for (int i = 0; i < 5; i++) {
            AWAIT(sh->ended_ms[i] > 0);
            slowest = MAX(slowest, sh->ended_ms[i] - at);
        }
        printf("# %s: all knew after %.1f ms\n", r.ops->name, slowest);
        atomic_store(&sh->go, 1);
        for (int i = 0; i < 5; i++)
            assert_int_equal(ranks_wait(&r, i), 0);
        (void)ranks_wait(&r, 5);
        ranks_free(&r);
        (void)munmap(sh, sizeof(*sh));
    }
}

static void *revoke_when_told(void *arg)
{
    struct rank_context *ctx = arg;
    struct shared *sh = ctx->arg;
    await(&sh->go);
    ctx->ops->revoke(ctx->comm);
    return NULL;
}

/* Three waits of a rank at once, for one that is stopped; a revoke of the parent ends them all, and whatever follows.
 */
static void wait_for_the_stopped(struct rank_context *ctx)
{
    struct shared *sh = ctx->arg;
    struct rank_context children[3];
    pthread_t thread;
    float x[3] = {0};
    int colours[RANKS_MAX] = {0}, alone[RANKS_MAX] = {0, 1, 2, 3};
    for (int i = 0; i < 3; i++) {
        children[i] = split_by(ctx, colours);
        children[i].stream = rank_stream_open();
    }
    struct rank_context grandchild = split_by(&children[0], colours), single = split_by(ctx, alone);
    atomic_store(&sh->ready[ctx->rank], 1);
    if (ctx->rank == 0) {
        await(&sh->ready[RANKS_MAX - 1]);
    } else {
        RANK_CHECK(ctx, pthread_create(&thread, NULL, revoke_when_told, ctx) == 0);
        for (int i = 0; i < 3; i++)
            (void)ctx->ops->all_reduce(children[i].comm, &x[i], 1, DTYPE_F32, children[i].stream);
        for (int i = 0; i < 3; i++)
            RANK_CHECK(ctx, rank_sync(&children[i]) == TITAN_EREVOKED);
        sh->ended_ms[ctx->rank] = rank_ms();
        RANK_CHECK(ctx, pthread_join(thread, NULL) == 0);
        RANK_CHECK(ctx, barrier_ends(ctx, grandchild.comm) == TITAN_EREVOKED);
        RANK_CHECK(ctx, barrier_ends(ctx, single.comm) == TITAN_EREVOKED);
        struct comm *late = NULL;
        RANK_CHECK(ctx, ctx->ops->split(ctx->comm, &ctx->rank, 1, NULL, &late, NULL) == TITAN_EREVOKED);
    }
    ctx->ops->close(grandchild.comm);
    ctx->ops->close(single.comm);
    for (int i = 0; i < 3; i++) {
        ctx->ops->close(children[i].comm);
        rank_stream_close(children[i].stream);
    }
}

static void test_revoked(void **state)
{
    (void)state;
    for (size_t t = 0; t < ARRAY_SIZE(transports); t++) {
        struct ranks r;
        struct shared *sh = make_shared();
        ranks_init(&r, transports[t], 4, RANKS_THREAD);
        ranks_start(&r, true, wait_for_the_stopped, sh);
        for (int i = 0; i < 4; i++)
            await(&sh->ready[i]);
        assert_int_equal(kill(r.pids[0], SIGSTOP), 0);
        patience_pause_ms(100, "the others come to wait for it");
        for (int i = 1; i < 4; i++)
            assert_true(sh->ended_ms[i] == 0);
        double at = rank_ms();
        atomic_store(&sh->go, 1);
        for (int i = 1; i < 4; i++) {
            assert_int_equal(ranks_wait(&r, i), 0);
            printf("# %s: rank %d out after %.1f ms\n", r.ops->name, i, sh->ended_ms[i] - at);
        }
        atomic_store(&sh->ready[RANKS_MAX - 1], 1);
        assert_int_equal(kill(r.pids[0], SIGCONT), 0);
        assert_int_equal(ranks_wait(&r, 0), 0);
        ranks_free(&r);
        (void)munmap(sh, sizeof(*sh));
    }
}

/* Closed right after the last operation, which must have succeeded for all, every time. */
static void close_at_the_end(struct rank_context *ctx)
{
    for (int i = 0; i < 10; i++) {
        int colours[RANKS_MAX];
        float x[64] = {1};
        for (int r = 0; r < ctx->world; r++)
            colours[r] = colour_of(2 + i % 3, r, ctx->world);
        struct rank_context child = split_by(ctx, colours);
        (void)ctx->ops->all_reduce(child.comm, x, 64, DTYPE_F32, ctx->stream);
        (void)ctx->ops->shift(child.comm, x + 32, x, 4 * sizeof(*x), 1, ctx->stream);
        RANK_CHECK(ctx, rank_sync(ctx) == TITAN_OK);
        ctx->ops->close(child.comm);
    }
}

/* Closing must not wait for peers, also when the stream is held up by an operation of another communicator: rank 1
 * comes when the others have gone. */
static void close_in_flight(struct rank_context *ctx)
{
    struct shared *sh = ctx->arg;
    int colours[RANKS_MAX] = {0};
    struct rank_context ahead = split_by(ctx, colours), behind = split_by(ctx, colours);
    float x[2] = {0};
    /* Split may be done here before it is on another rank, which would then see this one go. */
    RANK_CHECK(ctx, ctx->ops->barrier(ctx->comm, ctx->stream) == TITAN_OK && rank_sync(ctx) == TITAN_OK);
    for (int r = 0; r < ctx->world && ctx->rank == 1; r++)
        titan_assert(r == 1 || AWAITED(atomic_load(&sh->ready[r])));
    (void)ctx->ops->all_reduce(ahead.comm, &x[0], 1, DTYPE_F32, ctx->stream);
    (void)ctx->ops->all_reduce(behind.comm, &x[1], 1, DTYPE_F32, ctx->stream);
    ctx->ops->close(behind.comm);
    ctx->ops->close(ahead.comm);
    atomic_store(&sh->ready[ctx->rank], 1);
}

static void test_closing(void **state)
{
    (void)state;
    for (size_t t = 0; t < ARRAY_SIZE(transports); t++)
        run_members(transports[t], 3, RANKS_THREAD, close_in_flight, 0);
    for (size_t t = 0; t < ARRAY_SIZE(transports); t++)
        for (int i = 0; i < 10; i++) {
            struct ranks r;
            ranks_init(&r, transports[t], 4, i % 2 ? RANKS_THREAD : RANKS_INLINE);
            ranks_start(&r, true, close_at_the_end, NULL);
            assert_int_equal(ranks_join(&r), 0);
            ranks_free(&r);
        }
}

int main(void)
{
    (void)signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),          cmocka_unit_test(test_nested),
        cmocka_unit_test(test_random_groups),   cmocka_unit_test(test_at_once),
        cmocka_unit_test(test_both_send),       cmocka_unit_test(test_form_many),
        cmocka_unit_test(test_wrong_arguments), cmocka_unit_test(test_member_never_comes),
        cmocka_unit_test(test_killed),          cmocka_unit_test(test_revoked),
        cmocka_unit_test(test_closing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
