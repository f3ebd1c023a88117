/* SPDX-License-Identifier: Apache-2.0 */
/* outcome.h: statistics of random meshes, their numbers contributed rank by rank as the executor does, against plain
 * sums; where a value that is not finite is traced to; clipping. TITAN_TEST_SEED repeats a run. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/cleanup.h"
#include "tests/support/random_layout.h"
#include "worker/optim/outcome.h"
#include "worker/tensor/tree.h"

#define WORLD_MAX 24
#define ROUNDS 40

static double draw(unsigned *seed)
{
    return ldexp(1 + random_below(seed, 1 << 20), -random_below(seed, 30));
}

static void near(double got, double want)
{
    if (!(fabs(got - want) <= 1e-12 * fabs(want)))
        fail_msg("%.17g in place of %.17g", got, want);
}

/* The square of an element's gradient, by its place in the local flat buffer of a unit's part. */
static double square(int unit, int part, int64_t i)
{
    return (double)((unit + 1) * 37 + part * 11 + i % 1009) / 64;
}

/* Elements between tensors are 0. */
static int tensor_of(const struct layout *l, int unit, int64_t i)
{
    const struct model_unit *u = &l->model->units[unit];
    for (int t = u->first_tensor; t < u->first_tensor + u->n_tensors; t++)
        if (i >= l->tensors[t].offset && i < l->tensors[t].offset + l->tensors[t].rows * l->tensors[t].cols)
            return t;
    return -1;
}

struct sums {
    long double losses, counts, squares;
};

/* What each rank adds to the norms: squares of what it counts. */
static void add_norms(const struct program *p, const struct layout *l, double *statistics, struct sums *want)
{
    int64_t at = p->statistics.norms;
    for (int u = 0; u < l->model->n_units; u++) {
        for (int rank = 0; rank < l->mesh.world; rank++) {
            const int part = layout_unit_part(l, u, rank);
            const int64_t begin = layout_begin(l, u, rank), n = layout_counted(l, u, rank);
            for (int64_t i = begin; i < begin + n; i++) {
                const double x = tensor_of(l, u, i) >= 0 ? square(u, part, i) : 0;
                statistics[at + (l->canonical ? part * layout_unit_blocks(l, u) + i / l->units[u].block : 0)] += x;
                want->squares += x;
            }
        }
        at += statistics_norms(&p->statistics, l, u);
    }
    assert_int_equal(at, p->statistics.mtp);
}

static double *make_statistics(const struct program *p, const struct layout *l, unsigned *seed, struct sums *want)
{
    const struct step_statistics *r = &p->statistics;
    double *statistics = calloc((size_t)r->size, sizeof *statistics);
    for (int64_t i = 0; i < r->cp * r->microbatches; i++) {
        statistics[r->losses + i] = draw(seed);
        statistics[r->counts + i] = 1 + random_below(seed, 500);
        want->losses += statistics[r->losses + i];
        want->counts += statistics[r->counts + i];
    }
    add_norms(p, l, statistics, want);
    return statistics;
}

static struct step_outcome read_statistics(const struct program *p, const struct layout *l, const double *statistics)
{
    struct step_outcome out;
    assert_int_equal(outcome_read(p, l, statistics, &out, NULL), TITAN_OK);
    return out;
}

static void test_random_statistics(void **state)
{
    (void)state;
    unsigned seed = random_seed();
    for (int round = 0; round < ROUNDS; round++) {
        struct model *m = random_model(&seed);
        struct layout *l = random_layout(&seed, m, WORLD_MAX);
        struct program p = {.layout = l};
        struct sums want = {0};
        statistics_init(&p.statistics, l, 1 + random_below(&seed, 40), l->canonical, false);
        double *statistics = make_statistics(&p, l, &seed, &want);
        const unsigned commands = (unsigned)random_below(&seed, 1 << STATISTICS_COMMANDS);
        for (int b = 0; b < STATISTICS_COMMANDS; b++)
            statistics[p.statistics.commands + b] = commands >> b & 1 ? 1 + random_below(&seed, 3) : 0;

        struct step_outcome out = read_statistics(&p, l, statistics);
        near(out.tokens, (double)want.counts);
        near(out.loss, (double)(want.losses / want.counts));
        near(out.grad_norm, (double)(sqrtl(want.squares) / want.counts));
        assert_int_equal(out.commands, commands);
        assert_true(out.finite);
        assert_int_equal(out.bad_unit, -1);
        free(statistics);
        layout_close(l);
        model_close(m);
    }
}

/* The largest mean loss among those that read different samples: sums by the samples of each rank. */
static double max_loss(const struct program *p, const struct layout *l, const double *statistics)
{
    double most = 0;
    for (int rank = 0; rank < l->mesh.world; rank++) {
        double loss = 0, tokens = 0;
        int64_t from, to;
        const int64_t first = mesh_group_rank(&l->mesh, GROUP_CP, rank) * p->statistics.microbatches;
        tree_share(p->statistics.microbatches, mesh_batch_size(&l->mesh), mesh_batch_rank(&l->mesh, rank), &from, &to);
        for (int64_t i = first + from; i < first + to; i++) {
            loss += statistics[p->statistics.losses + i];
            tokens += statistics[p->statistics.counts + i];
        }
        most = tokens > 0 ? fmax(most, loss / tokens) : most;
    }
    return most;
}

/* Parts add up to the time until the last rank arrives, and the slowest is the one that waits least for others. */
static void test_split(void **state)
{
    (void)state;
    unsigned seed = random_seed();
    for (int round = 0; round < ROUNDS; round++) {
        struct model *m = random_model(&seed);
        struct layout *l = random_layout(&seed, m, WORLD_MAX);
        struct program p = {.layout = l};
        struct sums want = {0};
        double last = 0, busiest = -1, memory = 0, rounds = 0, rows = 0;
        int slowest = -1;
        p.rows_even = 1 + random_below(&seed, 1000);
        m->dims.balance_loss = m->dims.n_experts > 0 ? random_below(&seed, 2) : 0;
        const int64_t modules =
            m->dims.n_experts == 0 ? random_below(&seed, 3) : 0; /* of experts there would be more */
        m->dims.mtp_layers = modules;
        statistics_init(&p.statistics, l, 1 + random_below(&seed, 40), l->canonical, false);
        double *statistics = make_statistics(&p, l, &seed, &want);
        double balance = 0, further = 0;
        for (int64_t i = p.statistics.mtp; i < p.statistics.balance; i++)
            further += statistics[i] = random_below(&seed, 1000);
        for (int64_t i = p.statistics.balance; i < p.statistics.drops; i++)
            balance += statistics[i] = random_below(&seed, 1000);
        for (int rank = 0; rank < l->mesh.world; rank++) {
            double *const v = statistics + p.statistics.values + rank * STATISTICS_VALUES;
            const double part = random_below(&seed, 1000), compute = 1 + random_below(&seed, 1 << 20);
            v[STATISTICS_DATA] = part;
            v[STATISTICS_CHECKPOINT] = part / 2;
            v[STATISTICS_WAITED] = random_below(&seed, 5000);
            v[STATISTICS_ARRIVED] = v[STATISTICS_DATA] + v[STATISTICS_CHECKPOINT] + v[STATISTICS_WAITED] + compute;
            v[STATISTICS_MEMORY] = ldexp(1 + random_below(&seed, 100), 30);
            last = fmax(last, v[STATISTICS_ARRIVED]);
            memory = fmax(memory, v[STATISTICS_MEMORY]);
            rounds += v[STATISTICS_ROUNDS] = random_below(&seed, 9);
            rows = fmax(rows, v[STATISTICS_ROWS] = random_below(&seed, 3000));
            if (part * 1.5 + compute > busiest) {
                busiest = part * 1.5 + compute;
                slowest = rank;
            }
        }
        struct step_outcome out = read_statistics(&p, l, statistics);
        near(out.loss_max, max_loss(&p, l, statistics));
        near(step_split_total(&out.split), last);
        near(out.split.slowest_busy, busiest);
        near(out.split.communication, last - busiest);
        assert_int_equal(out.split.slowest, slowest);
        assert_int_equal(out.memory_bytes, (uint64_t)memory);
        assert_true(out.further_rounds == rounds);
        const int64_t layers = m->dims.n_layers - m->dims.n_dense_layers;
        near(out.balance_loss, layers > 0 ? balance / (out.tokens * (double)layers) : 0);
        near(out.mtp_loss, modules > 0 ? further / (out.tokens * (double)modules) : 0);
        near(out.room_needed, rows / (double)p.rows_even);
        statistics[p.statistics.values + random_below(&seed, l->mesh.world) * STATISTICS_VALUES + STATISTICS_WAITED] =
            NAN;
        out = read_statistics(&p, l, statistics);
        assert_true(out.split.slowest == -1 && isnan(step_split_total(&out.split)) && out.memory_bytes > 0);
        free(statistics);
        layout_close(l);
        model_close(m);
    }
}

/* A gradient that overflows: the last unit it is in, since backward comes to it first. A loss: the unit before the
 * first bad input, or the head. */
/* One of the norms of a unit that the sums are of: between experts' tensors there are blocks that no sum is of. */
static int64_t some_norm(const struct program *p, const struct layout *l, int unit, unsigned *seed)
{
    for (;;) {
        const int64_t i = random_below(seed, (int)statistics_norms(&p->statistics, l, unit));
        if (!l->canonical || l->model->units[unit].kind != UNIT_EXPERTS ||
            tensor_of(l, unit, i % layout_unit_blocks(l, unit) * l->units[unit].block) >= 0)
            return i;
    }
}

static void test_not_finite(void **state)
{
    (void)state;
    unsigned seed = random_seed();
    for (int round = 0; round < ROUNDS; round++) {
        struct model *m = random_model(&seed);
        struct layout *l = random_layout(&seed, m, WORLD_MAX);
        struct program p = {.layout = l};
        struct sums want = {0};
        statistics_init(&p.statistics, l, 3, l->canonical, false);
        double *statistics = make_statistics(&p, l, &seed, &want);
        const int bad = random_below(&seed, m->n_units), worse = random_below(&seed, bad + 1);
        int64_t at = p.statistics.norms;
        for (int u = 0; u <= bad; u++) {
            if (u == bad || u == worse)
                statistics[at + some_norm(&p, l, u, &seed)] = random_below(&seed, 2) ? INFINITY : NAN;
            at += statistics_norms(&p.statistics, l, u);
        }
        struct step_outcome out = read_statistics(&p, l, statistics);
        assert_true(!out.finite && isfinite(out.loss));
        assert_int_equal(out.bad_unit, bad);

        statistics[p.statistics.losses + random_below(&seed, p.statistics.cp * 3)] = NAN;
        out = read_statistics(&p, l, statistics);
        assert_false(out.finite);
        assert_int_equal(out.bad_unit, m->n_units - 1);
        const int first = 1 + random_below(&seed, m->n_units - 1);
        for (int u = first; u < m->n_units; u++)
            statistics[p.statistics.checks + u] = NAN;
        assert_int_equal(read_statistics(&p, l, statistics).bad_unit, first - 1);
        free(statistics);
        layout_close(l);
        model_close(m);
    }
}

/* Of several tensors whose sums are not finite, the highest unit is named, as of gradients. */
static void test_sums_not_finite(void **state)
{
    static const double bad[] = {NAN, INFINITY, -INFINITY};
    unsigned seed = random_seed();

    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        struct model *m = random_model(&seed);
        const struct model_unit *const u = &m->units[random_below(&seed, m->n_units)];
        struct step_outcome out = {.finite = true, .bad_unit = -1};
        double *sums = calloc((size_t)m->n_tensors, sizeof *sums);
        outcome_add_sums(m, sums, &out);
        assert_true(out.finite && out.bad_unit == -1);
        sums[random_below(&seed, u->first_tensor + u->n_tensors)] = bad[round % 3];
        sums[u->first_tensor + random_below(&seed, u->n_tensors)] = bad[(round + 1) % 3];
        outcome_add_sums(m, sums, &out);
        assert_false(out.finite);
        assert_ptr_equal(&m->units[out.bad_unit], u);
        free(sums);
        model_close(m);
    }
}

/* What no ranks can have said: tokens are refused, memory is not known. */
static void test_cannot_be(void **state)
{
    static const double wrong[] = {NAN, INFINITY, 1e300, -1e300};
    unsigned seed = random_seed();
    struct model *m = random_model(&seed);
    struct layout *l = random_layout(&seed, m, WORLD_MAX);
    struct program p = {.layout = l};
    struct sums want = {0};
    struct step_outcome out;
    struct titan_error err = {0};
    (void)state;
    statistics_init(&p.statistics, l, 7, l->canonical, false);
    double *statistics = make_statistics(&p, l, &seed, &want);
    double *const memory = statistics + p.statistics.values + STATISTICS_MEMORY;
    for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
        *memory = wrong[i];
        assert_int_equal(outcome_read(&p, l, statistics, &out, &err), TITAN_OK);
        assert_true(out.memory_bytes < UINT64_C(1) << 53);
    }
    for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
        statistics[p.statistics.counts] = wrong[i];
        assert_int_equal(outcome_read(&p, l, statistics, &out, &err), TITAN_ECONFLICT);
        assert_non_null(strstr(err.msg, "the ranks have counted"));
    }
    free(statistics);
    layout_close(l);
    model_close(m);
}

/* Numbers of blocks are the same for every data-parallel degree, and so is their sum, bit for bit. */
static void test_canonical_norm(void **state)
{
    (void)state;
    unsigned seed = random_seed();
    struct model *m = random_model(&seed);
    double first = 0;
    for (int replicas = 1; replicas <= 3; replicas++)
        for (int shards = 1; shards <= 5; shards++) {
            const struct layout_options o = {
                .model = m,
                .mesh = {.world = replicas * shards * 2, .size = {1, replicas, shards, 1, 2}, .ep = 1},
                .canonical = true};
            struct layout *l = NULL;
            struct sums want = {0};
            unsigned same = 1;
            assert_int_equal(layout_open(&o, &l, NULL), TITAN_OK);
            struct program p = {.layout = l};
            statistics_init(&p.statistics, l, 7, true, false);
            double *statistics = make_statistics(&p, l, &same, &want);
            const struct step_outcome out = read_statistics(&p, l, statistics);
            if (first == 0)
                first = out.grad_norm;
            assert_true(out.grad_norm == first);
            free(statistics);
            layout_close(l);
        }
    model_close(m);
}

/* An odd number of elements in an expert's matrix, so that no block of the others fits. */
static const struct model_dims experts = {.dim = 20,
                                          .n_layers = 2,
                                          .n_heads = 2,
                                          .n_kv_heads = 2,
                                          .head_dim = 10,
                                          .ffn_hidden = 40,
                                          .vocab_size = 64,
                                          .rope_theta = 1e4,
                                          .norm_eps = 1e-5,
                                          .n_experts = 8,
                                          .top_k = 2,
                                          .moe_hidden = 147,
                                          .route_scale = 1};

/* Squares of a rank's part of an experts' unit, by their places in the whole tensor. */
static void add_experts(const struct layout *l, int unit, int salt, double *norms)
{
    for (int rank = 0; rank < l->mesh.world; rank++) {
        const int64_t begin = layout_begin(l, unit, rank), n = layout_counted(l, unit, rank);
        for (int64_t i = begin; i < begin + n; i++) {
            const int t = tensor_of(l, unit, i);
            int64_t row, col;
            if (t < 0)
                continue;
            layout_origin(l, t, rank, 0, &row, &col);
            const int64_t place = row * l->tensors[t].cols + i - l->tensors[t].offset;
            norms[layout_unit_part(l, unit, rank) * layout_unit_blocks(l, unit) + i / l->units[unit].block] +=
                sqrt((double)(t * 1000003 + (salt + 1) * (place % 977 + 1)));
        }
    }
}

static double norm_of_experts(const struct model *m, int shards, int ep, int salt)
{
    const struct layout_options o = {
        .model = m, .mesh = {.world = shards, .size = {1, 1, shards, 1, 1}, .ep = ep}, .canonical = true};
    const int unit = model_experts_unit(m, 1);
    struct layout *l = NULL;
    double gradients[16], masters[16];

    assert_int_equal(layout_open(&o, &l, NULL), TITAN_OK);
    struct program p = {.layout = l};
    statistics_init(&p.statistics, l, 7, true, false);
    double *statistics = calloc((size_t)p.statistics.size, sizeof *statistics);
    int64_t at = p.statistics.norms;
    for (int u = 0; u < unit; u++)
        at += statistics_norms(&p.statistics, l, u);
    add_experts(l, unit, salt, statistics + at);
    statistics[p.statistics.counts] = 1;
    outcome_unit_norms(&p, l, statistics, gradients, masters);
    free(statistics);
    layout_close(l);
    return gradients[unit];
}

/* The same bits for every expert-parallel degree. */
static void test_canonical_norm_of_experts(void **state)
{
    (void)state;
    struct model *m = NULL;

    assert_int_equal(model_open(&experts, &m, NULL), TITAN_OK);
    for (int salt = 0; salt < 8; salt++) {
        const double one = norm_of_experts(m, 1, 1, salt);
        assert_true(one > 0);
        for (int shards = 2; shards <= 8; shards *= 2)
            for (int ep = 1; ep <= shards; ep *= 2)
                assert_true(norm_of_experts(m, shards, ep, salt) == one);
    }
    model_close(m);
}

static void test_clip(void **state)
{
    (void)state;
    assert_true(optim_clip_factor(5, 0) == 1);
    assert_true(optim_clip_factor(0.5, 1) == 1);
    near(optim_clip_factor(4, 1), 1 / (4 + 1e-6));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_statistics),
        cmocka_unit_test(test_split),
        cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_sums_not_finite),
        cmocka_unit_test(test_cannot_be),
        cmocka_unit_test(test_canonical_norm),
        cmocka_unit_test(test_canonical_norm_of_experts),
        cmocka_unit_test(test_clip),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
