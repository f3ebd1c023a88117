/* SPDX-License-Identifier: Apache-2.0 */
/* Speed of the collectives on this machine: every operation of every transport, 2 and 4 members, several sizes.
 *   bench_comm [shm|tcp] [ms per measurement]
 * One JSON object a line: transport, op, ranks, bytes (each member's buffer), us (mean of the
 * slowest member in the best of five passes), gbps = bytes / time, so for an all-reduce the "algorithm bandwidth"
 * nccl-tests reports; cpu_us: processor time of all members together, which others on the machine disturb less. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <signal.h>
#include <time.h>

#include "base/cleanup.h"
#include "tests/support/ranks.h"

static const char *const op_names[] = {"all_reduce", "all_reduce_bf16", "all_gather", "reduce_scatter", "broadcast",
                                       "all_to_all", "send_recv",       "shift",      "barrier"};
enum { OPS = ARRAY_SIZE(op_names), PASSES = 5 };

struct measurement {
    int op;
    size_t bytes;
    double ms;
    volatile double us[PASSES + 1][RANKS_MAX], cpu_us[PASSES + 1][RANKS_MAX]; /* the first pass finds out how often */
};

static titan_status call(struct rank_context *ctx, int op, char *a, char *b, size_t bytes)
{
    size_t world = (size_t)ctx->world, share = bytes / world;
    int next = (ctx->rank + 1) % ctx->world, previous = (ctx->rank + ctx->world - 1) % ctx->world;
    switch (op) {
    case 0:
        return ctx->ops->all_reduce(ctx->comm, a, bytes / 4, DTYPE_F32, ctx->stream);
    case 1:
        return ctx->ops->all_reduce(ctx->comm, a, bytes / 2, DTYPE_BF16, ctx->stream);
    case 2: /* in place, as FSDP gathers parameters */
        return ctx->ops->all_gather(ctx->comm, a, a + (size_t)ctx->rank * share, share / 4, DTYPE_F32, ctx->stream);
    case 3:
        return ctx->ops->reduce_scatter(ctx->comm, b, a, share / 4, DTYPE_F32, ctx->stream);
    case 4:
        return ctx->ops->broadcast(ctx->comm, a, bytes, 0, ctx->stream);
    case 5:
        return ctx->ops->all_to_all(ctx->comm, b, a, share, ctx->stream);
    case 6:
        if (ctx->rank % 2) {
            (void)ctx->ops->recv(ctx->comm, b, bytes, previous, ctx->stream);
            return ctx->ops->send(ctx->comm, a, bytes, next, ctx->stream);
        }
        (void)ctx->ops->send(ctx->comm, a, bytes, next, ctx->stream);
        return ctx->ops->recv(ctx->comm, b, bytes, previous, ctx->stream);
    case 7: /* both ways at once, as keys and values of attention go round */
        return ctx->ops->shift(ctx->comm, b, a, bytes, 1, ctx->stream);
    default:
        return ctx->ops->barrier(ctx->comm, ctx->stream);
    }
}

/* Processor time this member has used. */
static double cpu_ms(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static void measure(struct rank_context *ctx)
{
    struct measurement *m = ctx->arg;
    char *a = aligned_alloc(4096, (m->bytes + 4095) / 4096 * 4096);
    char *b = aligned_alloc(4096, (m->bytes + 4095) / 4096 * 4096);
    double rounds = 3;
    memset(a, 0, m->bytes);
    memset(b, 0, m->bytes);
    for (int pass = 0; pass <= PASSES; pass++) {
        RANK_CHECK(ctx, ctx->ops->barrier(ctx->comm, ctx->stream) == TITAN_OK);
        RANK_CHECK(ctx, rank_sync(ctx) == TITAN_OK);
        double start = rank_ms(), cpu = cpu_ms();
        for (int i = 0; i < (int)rounds; i++)
            RANK_CHECK(ctx, call(ctx, m->op, a, b, m->bytes) == TITAN_OK);
        RANK_CHECK(ctx, rank_sync(ctx) == TITAN_OK);
        m->us[pass][ctx->rank] = (rank_ms() - start) * 1000 / (int)rounds;
        m->cpu_us[pass][ctx->rank] = (cpu_ms() - cpu) * 1000 / (int)rounds;
        if (pass == 0) { /* all must do the same number */
            rounds = ctx->rank == 0 ? MIN(MAX(3, m->ms * 1000 / PASSES / m->us[0][0]), 20000) : 0;
            RANK_CHECK(ctx, ctx->ops->all_reduce(ctx->comm, &rounds, 1, DTYPE_F64, ctx->stream) == TITAN_OK);
            RANK_CHECK(ctx, rank_sync(ctx) == TITAN_OK);
        }
    }
    free(a);
    free(b);
}

static void report(const struct comm_ops *ops, int op, int world, size_t bytes, double ms)
{
    struct measurement *m = mmap(NULL, sizeof(*m), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct ranks r;
    double best = 0, cpu = 0;
    if (m == MAP_FAILED)
        exit(1);
    *m = (struct measurement){.op = op, .bytes = bytes, .ms = ms};
    ranks_init(&r, ops, world, RANKS_INLINE);
    ranks_start(&r, true, measure, m);
    if (ranks_join(&r) != 0)
        exit(1);
    ranks_free(&r);
    for (int pass = 1; pass <= PASSES; pass++) {
        double slowest = 0, used = 0;
        for (int i = 0; i < world; i++) {
            slowest = MAX(slowest, m->us[pass][i]);
            used += m->cpu_us[pass][i];
        }
        cpu = pass == 1 ? used : MIN(cpu, used);
        best = pass == 1 ? slowest : MIN(best, slowest);
    }
    printf(
        "{\"transport\":\"%s\",\"op\":\"%s\",\"ranks\":%d,\"bytes\":%zu,\"us\":%.1f,\"gbps\":%.2f,\"cpu_us\":%.1f}\n",
        ops->name, op_names[op], world, bytes, best, (double)bytes / best / 1000, cpu);
    (void)fflush(stdout);
    (void)munmap(m, sizeof(*m));
}

int main(int argc, char **argv)
{
    static const size_t sizes[] = {1024, 1 << 20, 4 << 20, 64 << 20};
    const struct comm_ops *both[] = {&comm_shm, &comm_tcp};
    double ms = argc > 2 ? strtod(argv[2], NULL) : 100;
    (void)signal(SIGPIPE, SIG_IGN);
    for (int t = 0; t < 2; t++) {
        if (argc > 1 && strcmp(argv[1], both[t]->name) != 0)
            continue;
        for (int world = 2; world <= 4; world += 2)
            for (int op = 0; op < OPS; op++)
                for (size_t i = 0; i < (op == OPS - 1 ? 1 : ARRAY_SIZE(sizes)); i++)
                    report(both[t], op, world, sizes[i], ms);
    }
    return 0;
}
