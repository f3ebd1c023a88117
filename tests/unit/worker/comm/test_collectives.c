/* SPDX-License-Identifier: Apache-2.0 */
/* Every collective of both transports against plain loops: random sequences of operations, sizes, types, in place and
 * not, over 1 to 8 members. TITAN_TEST_SEED repeats a sequence. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/support/collectives.h"
#include "tests/support/patience.h"
#include "tests/support/sets.h"
#include "worker/comm/shm/segment.h"

#define COUNT_MAX 200000
#define OPERATIONS 200

struct plan {
    uint64_t seed;
    int operations;
    size_t count_max;
};

static void run_plan(struct rank_context *ctx)
{
    const struct plan *plan = ctx->arg;
    collectives_run(ctx, plan->seed, plan->operations, plan->count_max);
}

static void run_plans(const struct comm_ops *ops, int world, enum ranks_stream stream, int operations, size_t count_max)
{
    struct plan plan = {.seed = collectives_seed(), .operations = operations, .count_max = count_max};
    struct ranks r;
    printf("# %s world %d TITAN_TEST_SEED=%llu\n", ops->name, world, (unsigned long long)plan.seed);
    ranks_init(&r, ops, world, stream);
    ranks_start(&r, true, run_plan, &plan);
    assert_int_equal(ranks_join(&r), 0);
    ranks_free(&r);
}

static void run_world(const struct comm_ops *ops, int world, enum ranks_stream stream)
{
    run_plans(ops, world, stream, (int)sliced(OPERATIONS / 4, OPERATIONS), COUNT_MAX);
}

#define WORLD_TEST(transport, world, stream)                                                                           \
    static void test_##transport##_##world(void **state)                                                               \
    {                                                                                                                  \
        (void)state;                                                                                                   \
        run_world(&comm_##transport, world, stream);                                                                   \
    }
WORLD_TEST(shm, 1, RANKS_THREAD)
WORLD_TEST(shm, 2, RANKS_THREAD)
WORLD_TEST(shm, 3, RANKS_INLINE)
WORLD_TEST(shm, 4, RANKS_THREAD)
WORLD_TEST(shm, 5, RANKS_INLINE)
WORLD_TEST(shm, 6, RANKS_THREAD)
WORLD_TEST(shm, 7, RANKS_INLINE)
WORLD_TEST(shm, 8, RANKS_THREAD)
WORLD_TEST(tcp, 1, RANKS_THREAD)
WORLD_TEST(tcp, 2, RANKS_THREAD)
WORLD_TEST(tcp, 3, RANKS_INLINE)
WORLD_TEST(tcp, 4, RANKS_THREAD)
WORLD_TEST(tcp, 5, RANKS_INLINE)
WORLD_TEST(tcp, 6, RANKS_THREAD)
WORLD_TEST(tcp, 7, RANKS_INLINE)
WORLD_TEST(tcp, 8, RANKS_THREAD)

/* Many in flight at once: enqueue everything, look at the end. */
static void enqueue_many(struct rank_context *ctx)
{
    enum { N = 50, COUNT = 1000 };
    float *x = calloc(N * COUNT, sizeof(*x));
    RANK_CHECK(ctx, x);
    for (int i = 0; i < N; i++) {
        for (int j = 0; j < COUNT; j++)
            x[i * COUNT + j] = (float)(ctx->rank + 1);
        RANK_CHECK(ctx, ctx->ops->all_reduce(ctx->comm, x + i * COUNT, COUNT, DTYPE_F32, ctx->stream) == TITAN_OK);
    }
    RANK_CHECK(ctx, rank_sync(ctx) == TITAN_OK);
    float expected = (float)(ctx->world * (ctx->world + 1)) / 2;
    for (int i = 0; i < N * COUNT; i++)
        RANK_CHECK(ctx, x[i] == expected);
    free(x);
}

static void run_on(const struct comm_ops *ops, int world, enum ranks_stream stream, rank_fn fn)
{
    struct ranks r;
    ranks_init(&r, ops, world, stream);
    ranks_start(&r, true, fn, NULL);
    assert_int_equal(ranks_join(&r), 0);
    ranks_free(&r);
}

static void test_in_flight(void **state)
{
    (void)state;
    run_on(&comm_shm, 3, RANKS_THREAD, enqueue_many);
    run_on(&comm_tcp, 3, RANKS_THREAD, enqueue_many);
}

/* Once the stream has passed a send, its buffer is the caller's again, however late the receiver comes. */
static void late_receiver(struct rank_context *ctx)
{
    enum { BYTES = 16 << 20 };
    unsigned char *x = malloc(BYTES);
    RANK_CHECK(ctx, x);
    memset(x, 'a' + ctx->rank, BYTES);
    if (ctx->rank == 0) {
        RANK_CHECK(ctx, ctx->ops->send(ctx->comm, x, BYTES, 1, ctx->stream) == TITAN_OK);
        RANK_CHECK(ctx, rank_sync(ctx) == TITAN_OK);
        memset(x, 'z', BYTES);
    } else {
        patience_pause_ms(50, "the receiver comes late");
        RANK_CHECK(ctx, ctx->ops->recv(ctx->comm, x, BYTES, 0, ctx->stream) == TITAN_OK);
        RANK_CHECK(ctx, rank_sync(ctx) == TITAN_OK);
        for (int i = 0; i < BYTES; i++)
            RANK_CHECK(ctx, x[i] == 'a');
    }
    RANK_CHECK(ctx, ctx->ops->broadcast(ctx->comm, x, BYTES, 0, ctx->stream) == TITAN_OK);
    RANK_CHECK(ctx, rank_sync(ctx) == TITAN_OK);
    RANK_CHECK(ctx, x[0] == 'z' && x[BYTES - 1] == 'z');
    free(x);
}

static void test_late_receiver(void **state)
{
    (void)state;
    run_on(&comm_shm, 2, RANKS_THREAD, late_receiver);
    run_on(&comm_tcp, 2, RANKS_THREAD, late_receiver);
}

/* As much as is sent in parts that the members pass on, of no even length, from each member. */
static void large_broadcasts(struct rank_context *ctx)
{
    enum { BYTES = (1 << 20) + 13 };
    unsigned char *x = malloc(BYTES);
    RANK_CHECK(ctx, x);
    for (int root = 0; root < ctx->world; root++) {
        for (int i = 0; i < BYTES; i++)
            x[i] = (unsigned char)(ctx->rank == root ? i % 251 + root : 0);
        RANK_CHECK(ctx, ctx->ops->broadcast(ctx->comm, x, BYTES, root, ctx->stream) == TITAN_OK);
        RANK_CHECK(ctx, rank_sync(ctx) == TITAN_OK);
        for (int i = 0; i < BYTES; i++)
            RANK_CHECK(ctx, x[i] == (unsigned char)(i % 251 + root));
    }
    free(x);
}

static void test_large_broadcasts(void **state)
{
    (void)state;
    for (int world = 2; world <= 5; world++) {
        run_on(&comm_shm, world, RANKS_INLINE, large_broadcasts);
        run_on(&comm_tcp, world, RANKS_INLINE, large_broadcasts);
    }
}

/* Messages out on one stream and in on another, as pipelines do: neither direction waits for the other, and no word of
 * one is lost to the other. The receives go first, so with both directions in one order no rank would ever send. */
static void two_directions(struct rank_context *ctx)
{
    enum { ROUNDS = 200, BYTES_MAX = 200000 };
    struct stream *const out = ctx->stream, *const in = rank_stream_open();
    unsigned char *x = malloc(BYTES_MAX), *y = malloc(BYTES_MAX);
    RANK_CHECK(ctx, x && y && in);
    const int next = (ctx->rank + 1) % ctx->world, before = (ctx->rank + ctx->world - 1) % ctx->world;
    for (int i = 0; i < ROUNDS; i++) {
        const size_t bytes = 1 + (size_t)(i * 7919) % BYTES_MAX;
        memset(x, i + ctx->rank, bytes);
        RANK_CHECK(ctx, ctx->ops->recv(ctx->comm, y, bytes, before, in) == TITAN_OK);
        RANK_CHECK(ctx, ctx->ops->send(ctx->comm, x, bytes, next, out) == TITAN_OK);
        RANK_CHECK(ctx, ctx->device->stream_sync(in, NULL) == TITAN_OK);
        RANK_CHECK(ctx, rank_sync(ctx) == TITAN_OK);
        for (size_t j = 0; j < bytes; j++)
            RANK_CHECK(ctx, y[j] == (unsigned char)(i + before));
    }
    ctx->ops->close(ctx->comm);
    ctx->comm = NULL;
    rank_stream_close(in);
    free(x);
    free(y);
}

static void test_two_directions(void **state)
{
    (void)state;
    run_on(&comm_shm, 2, RANKS_THREAD, two_directions);
    run_on(&comm_tcp, 2, RANKS_THREAD, two_directions);
    run_on(&comm_shm, 3, RANKS_THREAD, two_directions);
    run_on(&comm_tcp, 3, RANKS_THREAD, two_directions);
}

/* Operations of several slots a member: all buffers in turn, and again. */
static void test_many_slots(void **state)
{
    (void)state;
    for (int world = 2; world <= 3; world++)
        run_plans(&comm_shm, world, RANKS_THREAD, 40, 6 * segment_layout(world).slot_bytes / 8 * (size_t)world);
}

/* What a segment can cost at most, however many members: see segment.h. */
static void test_segment_size(void **state)
{
    (void)state;
    for (int world = 1; world <= COMM_WORLD_MAX; world++) {
        const struct segment_layout l = segment_layout(world);
        assert_true(l.slot_bytes > 0 && l.slot_bytes % ((size_t)world * 64) == 0);
        assert_true(l.channel_slot_bytes > 0 && l.channel_slot_bytes % 64 == 0);
        assert_true(l.channel_slots - l.slots <= (size_t)192 << 20);
        assert_true(l.bytes - l.channel_slots <= (size_t)512 << 20);
        assert_true(l.bytes <= (size_t)1 << 30);
    }
}

/* No rank passes a barrier before all have come: each counts itself in a shared word before it. */
static void count_at_barriers(struct rank_context *ctx)
{
    _Atomic int *arrived = ctx->arg;
    for (int round = 0; round < 20; round++) {
        if (round % ctx->world == ctx->rank)
            patience_pause_ms(2, "one comes late");
        (void)atomic_fetch_add(arrived + round, 1);
        RANK_CHECK(ctx, ctx->ops->barrier(ctx->comm, ctx->stream) == TITAN_OK);
        RANK_CHECK(ctx, rank_sync(ctx) == TITAN_OK);
        RANK_CHECK(ctx, arrived[round] == ctx->world);
    }
}

static void test_barriers(void **state)
{
    (void)state;
    const struct comm_ops *both[] = {&comm_shm, &comm_tcp};
    for (int t = 0; t < 2; t++) {
        for (int world = 2; world <= 5; world++) {
            struct ranks r;
            void *words = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
            assert_true(words != MAP_FAILED);
            ranks_init(&r, both[t], world, RANKS_INLINE);
            ranks_start(&r, true, count_at_barriers, words);
            assert_int_equal(ranks_join(&r), 0);
            ranks_free(&r);
            (void)munmap(words, 4096);
        }
    }
}

static void bad_arguments(struct rank_context *ctx)
{
    float x[4] = {0};
    RANK_CHECK(ctx, ctx->ops->send(ctx->comm, x, 4, ctx->world, ctx->stream) == TITAN_EINVAL);
    RANK_CHECK(ctx, ctx->ops->recv(ctx->comm, x, 4, ctx->rank, ctx->stream) == TITAN_EINVAL);
    RANK_CHECK(ctx, ctx->ops->broadcast(ctx->comm, x, 4, -1, ctx->stream) == TITAN_EINVAL);
    RANK_CHECK(ctx, ctx->ops->all_reduce(ctx->comm, x, 4, DTYPE_U8, ctx->stream) == TITAN_EINVAL);
    RANK_CHECK(ctx, ctx->ops->barrier(ctx->comm, ctx->stream) == TITAN_OK && rank_sync(ctx) == TITAN_OK);
}

static void test_bad_arguments(void **state)
{
    (void)state;
    run_on(&comm_shm, 2, RANKS_INLINE, bad_arguments);
    run_on(&comm_tcp, 2, RANKS_INLINE, bad_arguments);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        longer(test_shm_1),           longer(test_shm_2),        longer(test_shm_3),        longer(test_shm_4),
        longer(test_shm_5),           longer(test_shm_6),        longer(test_shm_7),        longer(test_shm_8),
        longer(test_tcp_1),           longer(test_tcp_2),        longer(test_tcp_3),        longer(test_tcp_4),
        longer(test_tcp_5),           longer(test_tcp_6),        longer(test_tcp_7),        longer(test_tcp_8),
        quick(test_in_flight),        quick(test_bad_arguments), quick(test_late_receiver), quick(test_two_directions),
        quick(test_large_broadcasts), quick(test_barriers),      quick(test_many_slots),    quick(test_segment_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
