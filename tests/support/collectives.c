/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/collectives.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/rng.h"
#include "tests/support/seeded.h"

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
    if (kind < 4) {
        size_t count = special[draw(key, n, ARRAY_SIZE(special))];
        return MIN(count, max);
    }
    return draw(key, n, kind < 8 ? max / 50 + 1 : max);
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

/* Round the ring, with the rank `peer` ahead, or behind. */
static void check_shift(struct rank_context *ctx, const struct operation *o, unsigned char *a, unsigned char *b)
{
    size_t bytes = o->count * dtype_bytes(o->dt);
    int distance = o->in_place ? -o->peer : o->peer + ctx->world * (o->number % 2);
    int from = ((ctx->rank - distance) % ctx->world + ctx->world) % ctx->world;
    fill(o, a, ctx->rank, o->count);
    RANK_CHECK(ctx, ctx->ops->shift(ctx->comm, b, a, bytes, distance, ctx->stream) == TITAN_OK);
    RANK_CHECK(ctx, rank_sync(ctx) == TITAN_OK);
    fill(o, a, from, o->count);
    RANK_CHECK(ctx, memcmp(a, b, bytes) == 0);
}

/* Rows from rank `from` to rank `to`: some of none, some of many. */
static int32_t rows_of(const struct operation *o, int from, int to)
{
    uint64_t n = 0;
    struct rng_key key = rng_key(o->seed + (uint64_t)o->number * 64 * 64 + (uint64_t)(from * 64 + to), "rows");
    size_t kind = draw(key, &n, 4);
    return kind == 0 ? 0 : (int32_t)draw(key, &n, kind == 1 ? 3 : o->count / 16 + 1);
}

static void check_all_to_all_v(struct rank_context *ctx, const struct operation *o, unsigned char *a, unsigned char *b)
{
    size_t row = (size_t)(1 + o->number % 7) * dtype_bytes(o->dt), out = 0, in = 0;
    int32_t send_counts[RANKS_MAX], recv_counts[RANKS_MAX];
    for (int r = 0; r < ctx->world; r++) {
        send_counts[r] = rows_of(o, ctx->rank, r);
        recv_counts[r] = rows_of(o, r, ctx->rank);
        for (size_t i = 0; i < (size_t)send_counts[r] * row; i++)
            a[out++] = (unsigned char)((size_t)(o->number + 31 * ctx->rank + 7 * r) + i * 13);
    }
    const struct comm_rows rows = {
        .recv = b, .send = a, .recv_counts = recv_counts, .send_counts = send_counts, .bytes = row};
    RANK_CHECK(ctx, ctx->ops->all_to_all_v(ctx->comm, &rows, ctx->stream) == TITAN_OK);
    RANK_CHECK(ctx, rank_sync(ctx) == TITAN_OK);
    for (int r = 0; r < ctx->world; r++)
        for (size_t i = 0; i < (size_t)recv_counts[r] * row; i++)
            RANK_CHECK(ctx, b[in++] == (unsigned char)((size_t)(o->number + 31 * r + 7 * ctx->rank) + i * 13));
}

/* All send two messages each way before any rank receives, which only a group allows, with a sum before and after. */
static void check_group(struct rank_context *ctx, const struct operation *o, unsigned char *a, unsigned char *b)
{
    size_t bytes = o->count * dtype_bytes(o->dt) / 2, world = (size_t)ctx->world;
    float sums[2] = {(float)ctx->rank, (float)(ctx->rank + 1)};
    fill(o, a, ctx->rank, o->count);
    RANK_CHECK(ctx, ctx->ops->group_begin(ctx->comm) == TITAN_OK);
    RANK_CHECK(ctx, ctx->ops->all_reduce(ctx->comm, &sums[0], 1, DTYPE_F32, ctx->stream) == TITAN_OK);
    for (size_t i = 0; i < 4 * world; i++) {
        size_t half = i / world % 2;
        int r = (int)(i % world);
        if (r == ctx->rank)
            continue;
        titan_status status =
            i < 2 * world ? ctx->ops->send(ctx->comm, a + half * bytes, bytes, r, ctx->stream)
                          : ctx->ops->recv(ctx->comm, b + (2 * (size_t)r + half) * bytes, bytes, r, ctx->stream);
        RANK_CHECK(ctx, status == TITAN_OK);
    }
    RANK_CHECK(ctx, ctx->ops->all_reduce(ctx->comm, &sums[1], 1, DTYPE_F32, ctx->stream) == TITAN_OK);
    RANK_CHECK(ctx, ctx->ops->group_end(ctx->comm) == TITAN_OK);
    RANK_CHECK(ctx, rank_sync(ctx) == TITAN_OK);
    for (int r = 0; r < ctx->world; r++) {
        fill(o, a, r, o->count);
        RANK_CHECK(ctx, r == ctx->rank || memcmp(a, b + 2 * (size_t)r * bytes, 2 * bytes) == 0);
    }
    RANK_CHECK(ctx, sums[0] == (float)(ctx->world * (ctx->world - 1) / 2) && sums[1] == sums[0] + (float)ctx->world);
}

typedef void (*check_fn)(struct rank_context *ctx, const struct operation *o, unsigned char *a, unsigned char *b);
static const check_fn checks[] = {check_all_gather, check_reduce_scatter, check_all_reduce, check_broadcast,
                                  check_all_to_all, check_all_to_all_v,   check_shift,      check_send_recv,
                                  check_barrier,    check_group};

void collectives_run(struct rank_context *ctx, uint64_t seed, int operations, size_t count_max)
{
    struct rng_key key = rng_key(seed, "collectives");
    uint64_t n = 0;
    size_t size = (count_max + 64) * 8 * (size_t)ctx->world;
    unsigned char *a = malloc(size), *b = malloc(size);
    RANK_CHECK(ctx, a && b);
    for (int i = 0; i < operations; i++) {
        static const enum dtype any[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F64, DTYPE_I32, DTYPE_U8};
        struct operation o = {.number = i, .seed = seed};
        o.kind = (int)draw(key, &n, ARRAY_SIZE(checks));
        bool sum = checks[o.kind] == check_reduce_scatter || checks[o.kind] == check_all_reduce;
        o.dt = any[draw(key, &n, sum ? 3 : 5)];
        o.count = draw_count(key, &n, count_max / (size_t)ctx->world + 1);
        if (checks[o.kind] == check_send_recv && i % 2) /* not only what fits a slot */
            o.count = draw_count(key, &n, count_max);
        o.peer = (int)draw(key, &n, (size_t)ctx->world);
        o.in_place = draw(key, &n, 2);
        checks[o.kind](ctx, &o, a, b);
    }
    free(a);
    free(b);
}

uint64_t collectives_seed(void)
{
    return seeded_seed(0);
}
