/* SPDX-License-Identifier: Apache-2.0 */
/* scales.h: every operation has a rule; what the CPU computes of random values is as large as the rules say; the powers
 * of a model's layers, also far from their sources, and the same on every mesh. */
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
#include "worker/plan/plan.h"
#include "worker/plan/scales.h"

static void test_every_operation(void **state)
{
    (void)state;
    for (int op = 0; op < OP_COUNT; op++)
        if (!scales_has_rule((enum op)op))
            fail_msg("%s has no rule in worker/plan/scales.c: how large is what it writes?", op_name((enum op)op));
}

/* --- rules beside random values ----------------------------------------------------------------------------------- */

enum { MOST = 1 << 20, HELD = 16 };

static struct {
    struct device_handle device;
    struct stream *s;
    uint64_t random;
    float *held[HELD];
    int n;
} at;

static int set_up(void **state)
{
    const struct device_options options = {.threads = 2};
    (void)state;
    at.random = 7;
    struct titan_error err = {0};
    if (device_open("cpu", &options, &at.device, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    return at.device.ops->stream_open(at.device.dev, "compute", true, &at.s, NULL);
}

static int tear_down(void **state)
{
    (void)state;
    at.device.ops->stream_close(at.s);
    device_close(&at.device);
    return 0;
}

static double uniform(void)
{
    at.random = at.random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return ((double)(at.random >> 11) + 0.5) * 0x1p-53;
}

/* n normal values with this mean square; let_go() frees them. */
static float *normal(int64_t n, double square)
{
    float *const x = aligned_alloc(64, ((size_t)n * sizeof *x + 63) / 64 * 64);
    assert_true(x && at.n < HELD);
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)(sqrt(square) * sqrt(-2 * log(uniform())) * cos(2 * M_PI * uniform()));
    at.held[at.n++] = x;
    return x;
}

static void let_go(void)
{
    while (at.n > 0)
        free(at.held[--at.n]);
}

static void holds(const char *what, const float *x, int64_t n, double square)
{
    double sum = 0;
    assert_int_equal(at.device.ops->stream_sync(at.s, NULL), TITAN_OK);
    for (int64_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    const double ratio = sqrt(sum / (double)n / square);
    if (!(ratio >= 0.5 && ratio <= 2))
        fail_msg("%s: root mean square %g, the rule says %g", what, sqrt(sum / (double)n), sqrt(square));
}

#define OK(call) assert_int_equal(at.device.ops->call, TITAN_OK)
/* Applies a rule to mean squares, in the operands' order. */
#define RULE(op, params, squares) scales_rule(op, &(struct op_params)params, 1, squares, (int)ARRAY_SIZE(squares))
#define P(...)                                                                                                         \
    {                                                                                                                  \
        __VA_ARGS__                                                                                                    \
    }

static void test_products(void **state)
{
    enum { M = 96, N = 64, K = 200 };
    (void)state;
    for (int i = 0; i < 4; i++) {
        const double square = i & 1 ? 9 : 1;
        const bool adds = i & 2;
        float *c = normal(M * N, adds ? 300 : 0), *a = normal(M * K, square), *b = normal(N * K, 1);
        double s[] = {adds ? 300 : 0, square, 1};
        OK(matmul(at.s, ARGS(matmul, .c = c, .c_dt = DTYPE_F32, .ldc = N, .a = a, .lda = K, .b = b, .tb = true,
                             .ldb = K, .ab_dt = DTYPE_F32, .m = M, .n = N, .k = K, .beta = adds ? 1 : 0)));
        RULE(OP_MATMUL, P(.matmul = {.M = M, .N = N, .K = K}, .flags = OP_TB | (adds ? OP_ADD_TO : 0)), s);
        holds("product", c, M * N, s[0]);
        const int32_t counts[] = {M / 3, M - M / 3};
        double grouped[] = {0, square, 1, 1};
        float *e = normal(M * N, 0), *w = normal(2 * K * N, 1);
        OK(matmul_grouped(at.s,
                          ARGS(matmul, .c = e, .c_dt = DTYPE_F32, .ldc = N, .a = a, .lda = K, .b = w, .ldb = N,
                               .ab_dt = DTYPE_F32, .counts = counts, .groups = 2, .parts = 1, .m = M, .n = N, .k = K)));
        RULE(OP_MATMUL_GROUPED, P(.matmul_grouped = {.M = M, .N = N, .K = K, .groups = 2, .rows = M}), grouped);
        holds("grouped product", e, M * N, grouped[0]);
        let_go();
    }
}

static void test_sums(void **state)
{
    enum { N = 5000, ROWS = 40, COLS = 50 };
    (void)state;
    float *a = normal(N, 1), *b = normal(N, 16), *out = normal(N, 0);
    double s[] = {0, 1, 16}, x[] = {0, 16}, two[] = {16, 1}, factor[] = {0, 16}, cap[] = {0, 16};
    OK(add(at.s, out, a, b, DTYPE_F32, N));
    RULE(OP_ADD, P(0), s);
    holds("sum", out, N, s[0]);
    OK(cast(at.s, out, DTYPE_F32, b, DTYPE_F32, N));
    RULE(OP_CAST, P(0), x);
    holds("cast", out, N, x[0]);
    OK(scale(at.s, out, b, DTYPE_F32, 0.25f, N));
    RULE(OP_SCALE, P(.scale = {.factor = 0.25}), factor);
    holds("multiple", out, N, factor[0]);
    OK(softcap(at.s, ARGS(softcap, .out = out, .x = b, .dt = DTYPE_F32, .cap = 1.5f, .n = N)));
    RULE(OP_SOFTCAP, P(.softcap = {.cap = 1.5}), cap);
    holds("cap", out, N, cap[0]);
    OK(accumulate(at.s, b, a, N));
    RULE(OP_ACCUMULATE, P(0), two);
    holds("sum in place", b, N, two[0]);
    float *wide = normal(4 * ROWS * COLS, 1), *sum = normal(ROWS * COLS, 1);
    double repeated[] = {1, 1}, bias[] = {4, 1}, dbias[] = {0, 1};
    OK(add_2d(at.s, ARGS(strided, .dst = sum, .ldd = COLS, .src = wide, .lds = COLS, .dt = DTYPE_F32, .rows = ROWS,
                         .cols = COLS, .repeat = 4)));
    RULE(OP_ADD_2D, P(.add_2d = {.rows = ROWS, .cols = COLS, .repeat = 4}), repeated);
    holds("sum of rows", sum, ROWS * COLS, repeated[0]);
    float *y = normal(ROWS * COLS, 4), *v = normal(COLS, 1), *dv = normal(COLS, 0);
    OK(bias_wgrad(at.s, ARGS(bias, .dbias = dv, .dout = wide, .ld = COLS, .dt = DTYPE_F32, .n = ROWS, .c = COLS)));
    RULE(OP_BIAS_WGRAD, P(.bias_wgrad = {.N = ROWS, .C = COLS}), dbias);
    holds("gradient of a bias", dv, COLS, dbias[0]);
    OK(add_bias(at.s, ARGS(bias, .x = y, .ld = COLS, .bias = v, .dt = DTYPE_F32, .n = ROWS, .c = COLS)));
    RULE(OP_ADD_BIAS, P(0), bias);
    holds("bias", y, ROWS * COLS, bias[0]);
    let_go();
    /* over ranks; a gather changes nothing, a rotation neither */
    double reduced[] = {0, 3}, all[] = {2}, gathered[] = {0, 5}, turned[] = {7, 1, 1, 1};
    scales_rule(OP_REDUCE_SCATTER, &(struct op_params){0}, 4, reduced, 2);
    scales_rule(OP_ALL_REDUCE, &(struct op_params){0}, 4, all, 1);
    scales_rule(OP_ALL_GATHER, &(struct op_params){0}, 4, gathered, 2);
    RULE(OP_ROPE, P(0), turned);
    assert_true(reduced[0] == 12 && all[0] == 8 && gathered[0] == 5 && turned[0] == 7);
}

static void test_norms(void **state)
{
    enum { N = 60, C = 80 };
    (void)state;
    for (int i = 0; i < 2; i++) {
        const double square = i ? 25 : 1;
        float *x = normal(N * C, square), *gain = normal(C, 2), *out = normal(N * C, 0), *rstd = normal(N, 0),
              *dout = normal(N * C, 1), *dx = normal(N * C, 3), *dgain = normal(C, 0);
        double forward[] = {0, 0, square, 2}, backward[] = {3, 1, square, 2, 1}, own[] = {0, 1, square, 1};
        OK(rmsnorm(at.s, ARGS(norm, .out = out, .rstd = rstd, .x = x, .gain = gain, .dt = DTYPE_F32, .n = N, .c = C,
                              .eps = 1e-6f)));
        RULE(OP_RMSNORM, P(.rmsnorm = {.N = N, .C = C}), forward);
        holds("norm", out, N * C, forward[0]);
        OK(rmsnorm_dgrad(at.s, ARGS(norm, .dx = dx, .residual = dx, .dout = dout, .x = x, .gain = gain, .rstd = rstd,
                                    .dt = DTYPE_F32, .n = N, .c = C)));
        RULE(OP_RMSNORM_DGRAD, P(.flags = OP_ADD_TO), backward);
        holds("gradient of a norm", dx, N * C, backward[0]);
        OK(rmsnorm_dgain(
            at.s, ARGS(norm, .dgain = dgain, .dout = dout, .x = x, .rstd = rstd, .dt = DTYPE_F32, .n = N, .c = C)));
        RULE(OP_RMSNORM_DGAIN, P(.rmsnorm_dgain = {.N = N, .C = C}), own);
        holds("gradient of a gain", dgain, C, own[0]);
        let_go();
    }
    double stored[] = {0, 0, 9, 0}; /* the gain less 1 */
    RULE(OP_RMSNORM, P(.flags = OP_OFFSET), stored);
    assert_true(stored[0] == 1);
}

static void test_gates(void **state)
{
    enum { N = 60, F = 80 };
    static const double squares[] = {0.01, 1, 16};
    (void)state;
    for (int i = 0; i < 6; i++) {
        const double square = squares[i / 2];
        const bool gelu = i & 1;
        float *gate = normal(N * F, square), *up = normal(N * F, 4), *out = normal(N * F, 0), *dout = normal(N * F, 1),
              *dgate = normal(N * F, 0), *dup = normal(N * F, 0);
        double forward[] = {0, square, 4}, backward[] = {0, 0, 1, square, 4};
        OK(swiglu(at.s, ARGS(swiglu, .out = out, .gate = gate, .up = up, .ldgu = F, .dt = DTYPE_F32, .n = N, .f = F,
                             .gelu = gelu)));
        OK(swiglu_dgrad(at.s, ARGS(swiglu, .dgate = dgate, .dup = dup, .lddgu = F, .dout = dout, .gate = gate, .up = up,
                                   .ldgu = F, .dt = DTYPE_F32, .n = N, .f = F, .gelu = gelu)));
        RULE(OP_SWIGLU, P(.flags = gelu ? OP_GELU : 0), forward);
        RULE(OP_SWIGLU_DGRAD, P(.flags = gelu ? OP_GELU : 0), backward);
        holds("gate", out, N * F, forward[0]);
        holds("gradient of a gate", dgate, N * F, backward[0]);
        holds("gradient of what is gated", dup, N * F, backward[1]);
        let_go();
    }
}

/* Short and long sequences, nearly equal weights and sharp ones. */
static void test_attention(void **state)
{
    enum { H = 4, KV = 2, D = 16, DV = 32 };
    (void)state;
    for (int i = 0; i < 6; i++) {
        const int64_t t = i & 1 ? 512 : 64;
        const double square = i / 2 == 0 ? 0.01 : i / 2 == 1 ? 1 : 2;
        const struct attention_shape z = {
            .dt = DTYPE_F32, .b = 1, .tq = t, .tk = t, .h = H, .kv = KV, .d = D, .dv = DV};
        float *q = normal(t * H * D, square), *k = normal(t * KV * D, square), *v = normal(t * KV * DV, 4),
              *out = normal(t * H * DV, 0), *lse = normal(H * t, 0), *dout = normal(t * H * DV, 1),
              *dq = normal(t * H * D, 0), *dk = normal(t * KV * D, 0), *dv = normal(t * KV * DV, 0);
        float *work = normal((int64_t)(at.device.ops->attention_work_bytes(at.device.dev, &z) / sizeof(float)) + 1, 0);
        double forward[] = {0, 0, square, square, 4}, backward[] = {0, 0, 0, 1, 1, 1, square, square, 4, 1};
        OK(attention(at.s, ARGS(attention, .out = out, .lse = lse, .q = q, .k = k, .v = v, .ldq = H * D, .ldk = KV * D,
                                .ldv = KV * DV, .ldo = H * DV, .shape = z)));
        OK(attention_dgrad(at.s, ARGS(attention, .dq = dq, .dk = dk, .dv = dv, .lddq = H * D, .lddk = KV * D,
                                      .lddv = KV * DV, .dout = dout, .lddo = H * DV, .out = out, .ldo = H * DV,
                                      .lse = lse, .q = q, .ldq = H * D, .k = k, .ldk = KV * D, .v = v, .ldv = KV * DV,
                                      .shape = z, .work = work)));
        RULE(OP_ATTENTION, P(.attention = {.Tq = t, .Tk = t, .H = H, .K = KV, .D = D, .Dv = DV}), forward);
        RULE(OP_ATTENTION_DGRAD, P(.attention_dgrad = {.Tq = t, .Tk = t, .H = H, .K = KV, .D = D, .Dv = DV}), backward);
        holds("attention", out, t * H * DV, forward[0]);
        holds("gradient of queries", dq, t * H * D, backward[0]);
        holds("gradient of keys", dk, t * KV * D, backward[1]);
        holds("gradient of values", dv, t * KV * DV, backward[2]);
        let_go();
    }
}

/* As training begins, and with a model that is sure of the right token, or of a wrong one, half of the time. */
static void test_losses(void **state)
{
    enum { N = 64, V = 300 };
    (void)state;
    for (int i = 0; i < 3; i++) {
        float *logits = normal(N * V, 0.1), *dlogits = normal(N * V, 0), *losses = normal(N, 0),
              *stats = normal(3 * N, 0);
        int32_t targets[N];
        for (int j = 0; j < N; j++) {
            targets[j] = j * 4;
            logits[j * V + targets[j]] += i == 1 ? 5.7f : 0;
            logits[j * V + 1 + targets[j]] += i == 2 && j % 2 ? 5.7f : 0;
        }
        OK(loss(at.s, ARGS(loss, .losses = losses, .stats = stats, .dlogits = dlogits, .logits = logits,
                           .targets = targets, .dt = DTYPE_F32, .n = N, .v = V)));
        double s[] = {0, 0, 0.1, 1, 0}, finish[] = {0, 0, 0.1, 1, 1};
        RULE(OP_LOSS, P(.loss = {.N = N, .V = V}), s);
        RULE(OP_LOSS_FINISH, P(.loss_finish = {.N = N, .V = V}), finish);
        holds("gradient of logits", dlogits, N * V, s[4]);
        assert_true(s[4] == finish[1]);
        let_go();
    }
    double half[] = {0, 0, 1, 1, 0}; /* one of two ranks' half of the vocabulary */
    scales_rule(OP_LOSS_FINISH, &(struct op_params){.loss_finish = {.V = V / 2}}, 2, half, 5);
    assert_true(half[1] == 1.0 / V);
}

static void test_rows(void **state)
{
    enum { N = 60, K = 2, C = 50, V = 40 };
    (void)state;
    float *rows = normal(N * K * C, 4), *x = normal(N * C, 9), *out = normal(N * C, 0), *weights = normal(N * K, 0.25),
          *spread = normal(N * K * C, 0), *dweights = normal(N * K, 0), *table = normal(V * C, 2),
          *dtable = normal(V * C, 0);
    int32_t place[N * K], tokens[N];
    for (int i = 0; i < N * K; i++)
        place[i] = (i * 7) % (N * K);
    for (int i = 0; i < N; i++)
        tokens[i] = (i * 7) % V;
    double with[] = {0, 4, 1, 0.25}, without[] = {0, 4, 1}, there[] = {0, 9, 1}, of[] = {0, 9, 4, 1}, e[] = {0, 1, 2},
           de[] = {0, 1, 9};
    OK(combine_rows(at.s, ARGS(placed, .dst = out, .src = rows, .place = place, .weights = weights, .dt = DTYPE_F32,
                               .n = N, .top_k = K, .c = C)));
    RULE(OP_COMBINE_ROWS, P(.combine_rows = {.N = N, .top_k = K, .C = C}), with);
    holds("rows combined by weight", out, N * C, with[0]);
    OK(combine_rows(
        at.s, ARGS(placed, .dst = out, .src = rows, .place = place, .dt = DTYPE_F32, .n = N, .top_k = K, .c = C)));
    RULE(OP_COMBINE_ROWS, P(.combine_rows = {.N = N, .top_k = K, .C = C}), without);
    holds("rows combined", out, N * C, without[0]);
    OK(scatter_rows(
        at.s, ARGS(placed, .dst = spread, .src = x, .place = place, .dt = DTYPE_F32, .n = N, .top_k = K, .c = C)));
    RULE(OP_SCATTER_ROWS, P(.scatter_rows = {.N = N, .top_k = K, .C = C}), there);
    holds("scattered rows", spread, N * K * C, there[0]);
    OK(combine_dweights(at.s, ARGS(placed, .dweights = dweights, .dout = x, .src = rows, .place = place,
                                   .dt = DTYPE_F32, .n = N, .top_k = K, .c = C)));
    RULE(OP_COMBINE_DWEIGHTS, P(.combine_dweights = {.N = N, .top_k = K, .C = C}), of);
    holds("gradient of weights", dweights, N * K, of[0]);
    OK(embed(at.s, ARGS(embed, .out = out, .tokens = tokens, .table = table, .dt = DTYPE_F32, .n = N, .c = C, .v = V)));
    RULE(OP_EMBED, P(.embed = {.N = N, .C = C, .V = V}), e);
    holds("embedding", out, N * C, e[0]);
    OK(embed_wgrad(
        at.s, ARGS(embed, .dtable = dtable, .tokens = tokens, .dout = x, .dt = DTYPE_F32, .n = N, .c = C, .v = V)));
    RULE(OP_EMBED_WGRAD, P(.embed_wgrad = {.N = N, .C = C, .V = V}), de);
    holds("gradient of an embedding", dtable, V * C, de[0]);
    let_go();
}

/* --- powers ------------------------------------------------------------------------------------------------------- */

static void test_powers(void **state)
{
    (void)state;
    /* squares of 1, just below 4, 4 and 1/4; the margin is e4m3's alone */
    assert_int_equal(scales_power(1, FLOAT8_E5M2), 0);
    assert_int_equal(scales_power(nextafter(4, 0), FLOAT8_E5M2), 0);
    assert_int_equal(scales_power(4, FLOAT8_E5M2), -1);
    assert_int_equal(scales_power(16, FLOAT8_E5M2), -2);
    assert_int_equal(scales_power(0.25, FLOAT8_E5M2), 1);
    assert_int_equal(scales_power(nextafter(0.25, 0), FLOAT8_E5M2), 2);
    assert_int_equal(scales_power(0.25, FLOAT8_E4M3), 1 - SCALES_MARGIN);
    assert_int_equal(scales_power(0, FLOAT8_E4M3), 0);
    assert_int_equal(scales_power(INFINITY, FLOAT8_E4M3), 0);
    assert_int_equal(scales_power(NAN, FLOAT8_E5M2), 0);
    assert_int_equal(scales_power(0x1p200, FLOAT8_E5M2), -POWERS_ZERO);
    assert_int_equal(scales_power(0x1p-200, FLOAT8_E5M2), POWERS - 1 - POWERS_ZERO);
}

/* --- a model's layers --------------------------------------------------------------------------------------------- */

struct planned_scales {
    struct recipe recipe;
    struct model *model;
    struct plan *plan;
    struct program **programs;
};

static void open_scales(struct planned_scales *p, int world, const char *const *sets)
{
    struct titan_error err = {0};
    memset(p, 0, sizeof *p);
    recipe_init(&p->recipe);
    for (; *sets; sets++)
        if (recipe_set(&p->recipe, *sets, &err) != TITAN_OK)
            fail_msg("%s: %s", *sets, err.msg);
    p->recipe.elastic.max_workers = world;
    p->recipe.training.local_batch_size = 1;
    (void)snprintf(p->recipe.float8.recipe_name, sizeof p->recipe.float8.recipe_name, "scalify");
    p->recipe.model.float8 = true;
    if (recipe_resolve(&p->recipe, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    assert_int_equal(model_open(&p->recipe.model.dims, &p->model, &err), TITAN_OK);
    const struct plan_options options = {
        .recipe = &p->recipe, .model = p->model, .world = world, .dt = DTYPE_BF16, .machine = cost_machine_find("cpu")};
    if (plan_open(&options, &p->plan, &err) != TITAN_OK || plan_programs(p->plan, &p->programs, &err) != TITAN_OK)
        fail_msg("world %d: %s", world, err.msg);
}

static void close_scales(struct planned_scales *p)
{
    plan_free_programs(p->plan, p->programs);
    plan_close(p->plan);
    model_close(p->model);
}

/* Every float8 product takes powers of two from the table, but for a weight's; weights have one for all. */
static int check_products(const struct program *p)
{
    int products = 0;
    for (int i = 0; i < p->n_actions; i++) {
        const struct action *const a = &p->actions[i];
        const uint32_t flags = a->op == OP_MATMUL ? action_params(p, a)->flags : 0;
        if (!(flags & OP_F8))
            continue;
        assert_true(flags & OP_F8_GIVEN && !(flags & (OP_F8_A_LINES | OP_F8_B_LINES | OP_F8_BLOCKS)));
        for (int k = OPERAND_OF(matmul, work) + 1; k < a->n_operands; k++) {
            const struct operand *const o = &action_operands(p, a)[k];
            const struct buffer *const b = &p->buffers[o->buffer];
            const bool weight = k == OPERAND_OF(matmul, work) + (flags & OP_F8_B_CODES ? 1 : 2) && !(flags & OP_TA);
            assert_true(weight ? b->kind != BUF_TABLE : b->kind == BUF_TABLE && b->unit == TABLE_POWERS);
        }
        products++;
    }
    return products;
}

/* Scales follow from the model and the sequence alone. */
static void test_meshes(void **state)
{
    static const struct {
        int world;
        const char *model, *sets[6];
    } of[] = {
        {1, "model.flavor=tiny", {0}},
        {3, "model.flavor=tiny", {"activation_checkpoint.mode=full", 0}},
        {2,
         "model.flavor=tiny",
         {"parallelism.tensor_parallel_degree=2", "parallelism.enable_async_tensor_parallel=true", 0}},
        {2, "model.flavor=tiny", {"parallelism.pipeline_parallel_degree=2", 0}},
        {2, "model.flavor=tiny", {"parallelism.context_parallel_degree=2", 0}},
        {4,
         "model.flavor=tiny",
         {"parallelism.tensor_parallel_degree=2", "float8.enable_fsdp_float8_all_gather=false", "compile.fuse=false",
          "activation_checkpoint.mode=selective", 0}},
        {1, "model.name=deepseek_v3", {"model.flavor=tiny", 0}},
        {4, "model.name=deepseek_v3", {"model.flavor=tiny", "parallelism.tensor_parallel_degree=2", 0}},
    };
    struct product_powers want[256];
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(of); i++) {
        struct planned_scales p;
        const char *sets[10] = {of[i].model, "training.global_batch_size=12"};
        int products = 0;
        for (int k = 0; of[i].sets[k]; k++)
            sets[2 + k] = of[i].sets[k];
        open_scales(&p, of[i].world, sets);
        const struct converters *const c = p.plan->converters;
        assert_true(p.model->n_tensors <= (int)ARRAY_SIZE(want));
        if (of[i].world == 1)
            memcpy(want, c->powers, (size_t)p.model->n_tensors * sizeof *want);
        assert_memory_equal(want, c->powers, (size_t)p.model->n_tensors * sizeof *want);
        for (int k = 0; k < p.plan->classes; k++)
            products += check_products(p.programs[k]);
        assert_true(products > 0);
        close_scales(&p);
    }
}

static struct product_powers powers_of(const struct planned_scales *p, const char *name)
{
    for (int i = 0; i < p->model->n_tensors; i++)
        if (strcmp(p->model->tensors[i].name, name) == 0) {
            assert_true(p->plan->converters->converted[i]);
            return p->plan->converters->powers[i];
        }
    fail_msg("no tensor %s", name);
    return (struct product_powers){0};
}

/* Llama 3 8B with weights of 0.08, by hand. Behind norms inputs are 1. Scores are far apart (variance 687), so that
 * exp(687 / 172.8) = 53.3 of 8192 weights count: (53.3 / 8192) (1 + ln(8192 / 53.3)) = 0.0393, times 26.2 of the
 * values, is 1.015^2. A gate of 26.2 gives 6.55 (1 + 26.2 / 27.6) = 12.8; up has 0.0032 * 4096 = 13.1 in the first
 * layer, 0.0001 * 4096 = 0.41 in the last: 12.9^2 and 2.29^2. */
static void test_a_large_model(void **state)
{
    struct planned_scales p;
    (void)state;
    open_scales(
        &p, 8, (const char *const[]){"model.flavor=8B", "training.seq_len=8192", "training.global_batch_size=8", NULL});
    assert_int_equal(powers_of(&p, "layers.0.attention.wq.weight").x, -SCALES_MARGIN);
    assert_int_equal(powers_of(&p, "layers.31.feed_forward.w1.weight").x, -SCALES_MARGIN);
    assert_int_equal(powers_of(&p, "layers.0.attention.wo.weight").x, -SCALES_MARGIN);
    assert_int_equal(powers_of(&p, "layers.31.attention.wo.weight").x, -SCALES_MARGIN);
    assert_int_equal(powers_of(&p, "layers.0.feed_forward.w2.weight").x, -3 - SCALES_MARGIN);
    assert_int_equal(powers_of(&p, "layers.31.feed_forward.w2.weight").x, -1 - SCALES_MARGIN);
    close_scales(&p);
}

int main(void)
{
    (void)setenv("TITAN_PLUGIN_DIR", TITAN_BUILD_DIR "/lib/titan", 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_operation), cmocka_unit_test(test_products),      cmocka_unit_test(test_sums),
        cmocka_unit_test(test_norms),           cmocka_unit_test(test_gates),         cmocka_unit_test(test_attention),
        cmocka_unit_test(test_losses),          cmocka_unit_test(test_rows),          cmocka_unit_test(test_powers),
        cmocka_unit_test(test_meshes),          cmocka_unit_test(test_a_large_model),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
