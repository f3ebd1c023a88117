/* Every collective of both transports against plain loops: random sequences of operations, sizes, types, in place and
 * not, over 1 to 5 members. TITAN_TEST_SEED repeats a sequence. */
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

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/rng.h"
#include "tests/support/ranks.h"

#define COUNT_MAX 200000
#define OPERATIONS 150

struct plan {
    uint64_t seed;
    int operations;
};

/* Input element i of a rank in an operation: the same everywhere. */
static float value_of(uint64_t seed, int op, int rank, size_t i)
{
    uint64_t x =
        (seed + (uint64_t)op * 1000003 + (uint64_t)rank * 7919) * 0x9e3779b97f4a7c15u + i * 0xd1342543de82ef95u;
    x ^= x >> 29;
    x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 32;
    return ((float)(x & 0xffff) - 32768.0f) * (1.0f / 3000.0f); /* sums round, so their order shows */
}

static float from_bf16(uint16_t x)
{
    union {
        uint32_t u;
        float f;
    } v = {.u = (uint32_t)x << 16};
    return v.f;
}

static uint16_t to_bf16(float f)
{
    union {
        float f;
        uint32_t u;
    } v = {.f = f};
    return (uint16_t)((v.u + 0x7fff + ((v.u >> 16) & 1)) >> 16);
}

/* Element i as stored: what value_of becomes in this type. */
static void put(void *base, size_t i, enum dtype dt, float v)
{
    if (dt == DTYPE_F32)
        ((float *)base)[i] = v;
    else if (dt == DTYPE_F64)
        ((double *)base)[i] = (double)v / 3;
    else if (dt == DTYPE_BF16)
        ((uint16_t *)base)[i] = to_bf16(v);
    else if (dt == DTYPE_I32)
        ((int32_t *)base)[i] = (int32_t)(v * 4096);
    else
        ((uint8_t *)base)[i] = (uint8_t)(int)(v * 16);
}

/* The sum over ranks of element i, by the contract: rank order, fp32 for bf16. */
static void put_sum(void *base, size_t at, enum dtype dt, uint64_t seed, int op, int world, size_t i)
{
    unsigned char one[8];
    double sum64 = 0;
    float sum32 = 0;
    for (int r = 0; r < world; r++) {
        put(one, 0, dt, value_of(seed, op, r, i));
        double x64;
        float x32;
        uint16_t x16;
        memcpy(&x64, one, sizeof(x64));
        memcpy(&x32, one, sizeof(x32));
        memcpy(&x16, one, sizeof(x16));
        float x = dt == DTYPE_BF16 ? from_bf16(x16) : x32;
        sum64 = r == 0 ? x64 : sum64 + x64;
        sum32 = r == 0 ? x : sum32 + x;
    }
    if (dt == DTYPE_F64)
        ((double *)base)[at] = sum64;
    else if (dt == DTYPE_F32)
        ((float *)base)[at] = sum32;
    else
        ((uint16_t *)base)[at] = to_bf16(sum32);
}

static size_t draw(struct rng_key key, uint64_t *n, size_t below)
{
    uint32_t w[4];
    rng_philox(key, (*n)++, 0, w);
    return (((size_t)w[0] << 32) | w[1]) % below;
}

static size_t draw_count(struct rng_key key, uint64_t *n, size_t max)
{
    static const size_t special[] = {0, 1, 2, 3, 15, 16, 17, 63, 64, 65, 1000, 4096};
    size_t kind = draw(key, n, 10);
    if (kind < 4)
        return special[draw(key, n, ARRAY_SIZE(special))];
    return draw(key, n, kind < 8 ? max / 50 : max);
}

struct operation {
    int number, kind, peer;
    size_t count;
    enum dtype dt;
    bool in_place;
    uint64_t seed;
};

static void fill(const struct operation *o, void *base, int rank, size_t n)
{
    for (size_t i = 0; i < n; i++)
        put(base, i, o->dt, value_of(o->seed, o->number, rank, i));
}

static void check_all_gather(struct rank_context *ctx, const struct operation *o, unsigned char *a, unsigned char *b)
{
    size_t bytes = o->count * dtype_bytes(o->dt);
    unsigned char *recv = b, *send = o->in_place ? b + (size_t)ctx->rank * bytes : a;
    fill(o, send, ctx->rank, o->count);
    RANK_CHECK(ctx, ctx->ops->all_gather(ctx->comm, recv, send, o->count, o->dt, ctx->stream) == TITAN_OK);
    RANK_CHECK(ctx, rank_sync(ctx) == TITAN_OK);
    for (int r = 0; r < ctx->world; r++) {
        fill(o, a, r, o->count);
        RANK_CHECK(ctx, memcmp(a, recv + (size_t)r * bytes, bytes) == 0);
    }
}

static void check_reduce_scatter(struct rank_context *ctx, const struct operation *o, unsigned char *a,
                                 unsigned char *b)
{
    size_t bytes = o->count * dtype_bytes(o->dt), mine = (size_t)ctx->rank * o->count;
    unsigned char *send = a, *recv = o->in_place ? a + (size_t)ctx->rank * bytes : b;
    fill(o, send, ctx->rank, o->count * (size_t)ctx->world);
    RANK_CHECK(ctx, ctx->ops->reduce_scatter(ctx->comm, recv, send, o->count, o->dt, ctx->stream) == TITAN_OK);
    RANK_CHECK(ctx, rank_sync(ctx) == TITAN_OK);
    unsigned char *expected = o->in_place ? b : a;
    for (size_t i = 0; i < o->count; i++)
        put_sum(expected, i, o->dt, o->seed, o->number, ctx->world, mine + i);
    RANK_CHECK(ctx, memcmp(expected, recv, bytes) == 0);
}

static void check_all_reduce(struct rank_context *ctx, const struct operation *o, unsigned char *a, unsigned char *b)
{
    size_t n = o->count * (size_t)ctx->world;
    fill(o, a, ctx->rank, n);
    RANK_CHECK(ctx, ctx->ops->all_reduce(ctx->comm, a, n, o->dt, ctx->stream) == TITAN_OK);
    RANK_CHECK(ctx, rank_sync(ctx) == TITAN_OK);
    for (size_t i = 0; i < n; i++)
        put_sum(b, i, o->dt, o->seed, o->number, ctx->world, i);
    RANK_CHECK(ctx, memcmp(a, b, n * dtype_bytes(o->dt)) == 0);
}

static void check_broadcast(struct rank_context *ctx, const struct operation *o, unsigned char *a, unsigned char *b)
{
    size_t bytes = o->count * dtype_bytes(o->dt);
    fill(o, a, ctx->rank, o->count);
    RANK_CHECK(ctx, ctx->ops->broadcast(ctx->comm, a, bytes, o->peer, ctx->stream) == TITAN_OK);
    RANK_CHECK(ctx, rank_sync(ctx) == TITAN_OK);
    fill(o, b, o->peer, o->count);
    RANK_CHECK(ctx, memcmp(a, b, bytes) == 0);
}

static void check_all_to_all(struct rank_context *ctx, const struct operation *o, unsigned char *a, unsigned char *b)
{
    size_t es = dtype_bytes(o->dt), bytes = o->count * es;
    fill(o, a, ctx->rank, o->count * (size_t)ctx->world);
    RANK_CHECK(ctx, ctx->ops->all_to_all(ctx->comm, b, a, bytes, ctx->stream) == TITAN_OK);
    RANK_CHECK(ctx, rank_sync(ctx) == TITAN_OK);
    for (int r = 0; r < ctx->world; r++) {
        fill(o, a, r, o->count * (size_t)ctx->world);
        RANK_CHECK(ctx, memcmp(a + (size_t)ctx->rank * bytes, b + (size_t)r * bytes, bytes) == 0);
    }
}

/* Round the ring: even ranks send first. */
static void check_send_recv(struct rank_context *ctx, const struct operation *o, unsigned char *a, unsigned char *b)
{
    size_t bytes = o->count * dtype_bytes(o->dt);
    int to = (ctx->rank + 1) % ctx->world, from = (ctx->rank + ctx->world - 1) % ctx->world;
    if (ctx->world == 1)
        return;
    fill(o, a, ctx->rank, o->count);
    /* With an odd number of members the last one must not wait to send to rank 0, which sends first too: it receives
     * first like the odd ones. */
    bool sends_first = ctx->rank % 2 == 0 && ctx->rank != ctx->world - 1;
    for (int i = 0; i < 2; i++) {
        titan_status status = (i == 0) == sends_first ? ctx->ops->send(ctx->comm, a, bytes, to, ctx->stream)
                                                      : ctx->ops->recv(ctx->comm, b, bytes, from, ctx->stream);
        RANK_CHECK(ctx, status == TITAN_OK);
    }
    RANK_CHECK(ctx, rank_sync(ctx) == TITAN_OK);
    fill(o, a, from, o->count);
    RANK_CHECK(ctx, memcmp(a, b, bytes) == 0);
}

static void check_barrier(struct rank_context *ctx, const struct operation *o, unsigned char *a, unsigned char *b)
{
    (void)o, (void)a, (void)b;
    RANK_CHECK(ctx, ctx->ops->barrier(ctx->comm, ctx->stream) == TITAN_OK);
    RANK_CHECK(ctx, rank_sync(ctx) == TITAN_OK);
}

typedef void (*check_fn)(struct rank_context *ctx, const struct operation *o, unsigned char *a, unsigned char *b);
static const check_fn checks[] = {check_all_gather, check_reduce_scatter, check_all_reduce, check_broadcast,
                                  check_all_to_all, check_send_recv,      check_barrier};

static void run_plan(struct rank_context *ctx)
{
    const struct plan *plan = ctx->arg;
    struct rng_key key = rng_key(plan->seed, "collectives");
    uint64_t n = 0;
    size_t size = (size_t)COUNT_MAX * 8 * (size_t)ctx->world;
    unsigned char *a = malloc(size), *b = malloc(size);
    RANK_CHECK(ctx, a && b);
    for (int i = 0; i < plan->operations; i++) {
        static const enum dtype any[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F64, DTYPE_I32, DTYPE_U8};
        struct operation o = {.number = i, .seed = plan->seed};
        o.kind = (int)draw(key, &n, ARRAY_SIZE(checks));
        bool sum = checks[o.kind] == check_reduce_scatter || checks[o.kind] == check_all_reduce;
        o.dt = any[draw(key, &n, sum ? 3 : 5)];
        o.count = draw_count(key, &n, COUNT_MAX / (size_t)ctx->world);
        if (o.kind == 5 && i % 2) /* not only what fits a slot */
            o.count = draw_count(key, &n, COUNT_MAX);
        o.peer = (int)draw(key, &n, (size_t)ctx->world);
        o.in_place = draw(key, &n, 2);
        checks[o.kind](ctx, &o, a, b);
    }
    free(a);
    free(b);
}

static uint64_t pick_seed(void)
{
    const char *text = getenv("TITAN_TEST_SEED");
    return text ? strtoull(text, NULL, 10) : (uint64_t)clock_wall_ms();
}

static void run_world(const struct comm_ops *ops, int world, enum ranks_stream stream)
{
    struct plan plan = {.seed = pick_seed(), .operations = OPERATIONS};
    struct ranks r;
    printf("# %s world %d TITAN_TEST_SEED=%llu\n", ops->name, world, (unsigned long long)plan.seed);
    ranks_init(&r, ops, world, stream);
    ranks_start(&r, true, run_plan, &plan);
    assert_int_equal(ranks_join(&r), 0);
    ranks_free(&r);
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
WORLD_TEST(tcp, 1, RANKS_THREAD)
WORLD_TEST(tcp, 2, RANKS_THREAD)
WORLD_TEST(tcp, 3, RANKS_INLINE)
WORLD_TEST(tcp, 4, RANKS_THREAD)
WORLD_TEST(tcp, 5, RANKS_INLINE)

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
        (void)usleep(50000);
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

/* Nobody passes a barrier before everybody has come: each counts itself in a shared word before it. */
static void count_at_barriers(struct rank_context *ctx)
{
    _Atomic int *arrived = ctx->arg;
    for (int round = 0; round < 20; round++) {
        if (round % ctx->world == ctx->rank)
            (void)usleep(2000);
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
    RANK_CHECK(ctx, ctx->ops->async_error(ctx->comm, NULL) == TITAN_OK);
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
        cmocka_unit_test(test_shm_1),         cmocka_unit_test(test_shm_2),     cmocka_unit_test(test_shm_3),
        cmocka_unit_test(test_shm_4),         cmocka_unit_test(test_shm_5),     cmocka_unit_test(test_tcp_1),
        cmocka_unit_test(test_tcp_2),         cmocka_unit_test(test_tcp_3),     cmocka_unit_test(test_tcp_4),
        cmocka_unit_test(test_tcp_5),         cmocka_unit_test(test_in_flight), cmocka_unit_test(test_bad_arguments),
        cmocka_unit_test(test_late_receiver), cmocka_unit_test(test_barriers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
