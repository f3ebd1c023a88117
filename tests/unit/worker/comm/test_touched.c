/* SPDX-License-Identifier: Apache-2.0 */
/* comm_shm_touched() against the pages of its segment that each member has: every kind of traffic, small and large. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "tests/support/ranks.h"

#define TIMES 12 /* each buffer and each slot of a ring is met, by a whole piece of a large part, too */
/* A fault brings pages around it that are there already; the segment's head has some of its own. */
#define FAULT_AROUND ((size_t)64 << 10)

struct traffic {
    const char *name;
    size_t count; /* floats of a part */
    struct comm_use use;
};

/* Resident bytes of the segment in this process; the counters in status are only nearly right. */
static size_t resident(void)
{
    _cleanup_file_ FILE *f = fopen("/proc/self/smaps", "re");
    char line[512];
    bool ours = false;
    size_t kib = 0, all = 0;

    for (; f && fgets(line, sizeof line, f);) {
        if (strstr(line, "memfd:"))
            ours = strstr(line, "titan-comm") != NULL;
        if (ours && sscanf(line, "Rss: %zu kB", &kib) == 1) {
            all += kib << 10;
            ours = false;
        }
    }
    return all;
}

static void carry(struct rank_context *ctx, const struct traffic *t, float *a, float *b)
{
    const int next = (ctx->rank + 1) % ctx->world, before = (ctx->rank + ctx->world - 1) % ctx->world;
    titan_status st = TITAN_OK;

    if (t->use.gathered)
        st |= ctx->ops->all_gather(ctx->comm, a, b, t->count, DTYPE_F32, ctx->stream);
    if (t->use.exchanged)
        st |= ctx->ops->reduce_scatter(ctx->comm, b, a, t->count, DTYPE_F32, ctx->stream);
    if (t->use.summed)
        st |= ctx->ops->all_reduce(ctx->comm, a, t->count, DTYPE_F32, ctx->stream);
    if (t->use.message) {
        st |= ctx->ops->group_begin(ctx->comm);
        st |= ctx->ops->send(ctx->comm, b, t->count * sizeof(float), next, ctx->stream);
        st |= ctx->ops->recv(ctx->comm, a, t->count * sizeof(float), before, ctx->stream);
        st |= ctx->ops->group_end(ctx->comm);
    }
    RANK_CHECK(ctx, st == TITAN_OK);
}

static void compare(struct rank_context *ctx)
{
    const struct traffic *const t = ctx->arg;
    float *const a = calloc(t->count * (size_t)ctx->world, sizeof *a), *const b = calloc(t->count, sizeof *b);

    RANK_CHECK(ctx, a && b);
    for (int i = 0; i < TIMES; i++)
        carry(ctx, t, a, b);
    RANK_CHECK(ctx, rank_sync(ctx) == TITAN_OK);
    const size_t told = comm_shm_touched(ctx->world, &t->use), is = resident();
    const size_t latitude = 3 * (size_t)(ctx->world - 1) * FAULT_AROUND;
    if (told > is + latitude || is > told + latitude)
        fprintf(stderr, "# %s, %d members: %zu KiB, told are %zu\n", t->name, ctx->world, is >> 10, told >> 10);
    RANK_CHECK(ctx, told <= is + latitude && is <= told + latitude);
    free(a);
    free(b);
}

static void touched_is_resident(void **state)
{
    enum { SMALL = 40000, LARGE = 900000, TINY = 1000 };
    static const size_t f = sizeof(float);
    struct traffic all[] = {
        {"gather", SMALL, {.gathered = SMALL * f}},
        {"large gather", LARGE, {.gathered = LARGE * f}},
        {"scatter", SMALL, {.exchanged = SMALL * f}},
        {"large scatter", LARGE, {.exchanged = LARGE * f}},
        {"both", LARGE, {.gathered = LARGE * f, .exchanged = LARGE * f}},
        {"short sum", TINY, {.summed = TINY * f}},
        {"sum", LARGE, {.summed = LARGE * f}},
        {"message", SMALL, {.message = SMALL * f, .ways = 2}},
        {"large message", LARGE, {.message = LARGE * f, .ways = 2}},
    };

    (void)state;
    for (int world = 2; world <= 4; world += 2)
        for (size_t i = 0; i < ARRAY_SIZE(all); i++) {
            struct ranks r;
            if (world > 2 && all[i].use.summed > TINY * f) /* two shares of each slot, until lengths differ */
                continue;
            ranks_init(&r, &comm_shm, world, RANKS_INLINE);
            ranks_start(&r, true, compare, &all[i]);
            assert_int_equal(ranks_join(&r), 0);
            ranks_free(&r);
        }
}

static void alone_touches_nothing(void **state)
{
    const struct comm_use use = {.gathered = 1 << 20};

    (void)state;
    assert_int_equal(comm_shm_touched(1, &use), 0);
    assert_int_equal(comm_shm_touched(COMM_WORLD_MAX + 1, &use), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(touched_is_resident), cmocka_unit_test(alone_touches_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
