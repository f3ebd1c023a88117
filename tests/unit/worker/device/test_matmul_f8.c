/* SPDX-License-Identifier: Apache-2.0 */
/* One linear layer in float8 on the CPU against PyTorch (tests/golden/float8_reference.py, mxfp8_reference.py): output,
 * input gradient and weight gradient of each recipe, with the flags that the model's converter gives the products. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <math.h>

#include <cmocka.h>

#include "base/bf16.h"
#include "base/cleanup.h"
#include "base/file.h"
#include "base/json.h"
#include "worker/model/converters.h"
#include "worker/tensor/model.h"

struct fixture {
    struct json *file;
    const struct json *layer;
    struct device_handle device;
    struct stream *s;
    int64_t n, in, out;
    enum dtype dt;
    bool bits;        /* x, w and dy are the bits of bf16 numbers */
    void *x, *w, *dy; /* of dt, which holds their values exactly */
};

static double real_of(const struct json *v)
{
    return v->type == JSON_INT ? (double)v->integer : v->real;
}

static void *operand(const struct fixture *f, const char *name, int64_t n)
{
    const struct json *v = json_get(f->layer, name)->first;
    void *p = aligned_alloc(64, ((size_t)n * sizeof(float) + 63) / 64 * 64);
    assert_non_null(p);
    for (int64_t i = 0; i < n; i++, v = v->next) {
        const float x = f->bits ? bf16_to_f32((uint16_t)v->integer) : (float)real_of(v);
        if (f->dt == DTYPE_F32)
            ((float *)p)[i] = x;
        else
            ((uint16_t *)p)[i] = bf16_from_f32(x);
    }
    assert_null(v);
    return p;
}

static void open_fixture_of(struct fixture *f, enum dtype dt, const char *path, bool bits)
{
    struct buf text = BUF_INIT;
    struct titan_error err = {0};
    const struct device_options options = {.threads = 2};
    *f = (struct fixture){.dt = dt, .bits = bits};
    assert_int_equal(file_read(path, 1 << 20, &text, &err), TITAN_OK);
    assert_int_equal(json_parse(text.data, text.len, &f->file, &err), TITAN_OK);
    buf_free(&text);
    f->layer = json_get(f->file, "linear");
    f->n = json_int(f->layer, "n", 0);
    f->in = json_int(f->layer, "in", 0);
    f->out = json_int(f->layer, "out", 0);
    f->x = operand(f, "x", f->n * f->in);
    f->w = operand(f, "w", f->out * f->in);
    f->dy = operand(f, "dy", f->n * f->out);
    assert_int_equal(device_open("cpu", &options, &f->device, &err), TITAN_OK);
    assert_true(f->device.info.float8 && f->device.info.mxfp8);
    assert_int_equal(f->device.ops->stream_open(f->device.dev, "compute", true, &f->s, &err), TITAN_OK);
}

static void open_fixture(struct fixture *f, enum dtype dt)
{
    open_fixture_of(f, dt, TITAN_SOURCE_DIR "/tests/golden/float8.json", false);
}

static void close_fixture(struct fixture *f)
{
    f->device.ops->stream_close(f->s);
    device_close(&f->device);
    json_free(f->file);
    free(f->x);
    free(f->w);
    free(f->dy);
}

/* c (m,n) fp32 from 1s by the flags of a program's product; without float8 where there are none. */
static void product(const struct fixture *f, uint32_t flags, float *c, const void *a, int64_t lda, const void *b,
                    int64_t ldb, int64_t m, int64_t n, int64_t k)
{
    const struct device_ops *ops = f->device.ops;
    const struct float8_product how = {.a = flags & OP_F8_A_E5M2 ? FLOAT8_E5M2 : FLOAT8_E4M3,
                                       .a_lines = flags & OP_F8_A_LINES,
                                       .b_lines = flags & OP_F8_B_LINES,
                                       .power_of_two = flags & OP_F8_POWER,
                                       .blocks = flags & OP_F8_BLOCKS};
    titan_status st;
    for (int64_t i = 0; i < m * n; i++)
        c[i] = 1;
    void *work = aligned_alloc(64, ops->matmul_f8_work_bytes(f->device.dev, f->dt, how.blocks, m, n, k));
    assert_non_null(work);
    if (flags & OP_F8)
        st = ops->matmul_f8(f->s, ARGS(matmul, .c = c, .c_dt = DTYPE_F32, .ldc = n, .a = a, .ta = flags & OP_TA,
                                       .lda = lda, .b = b, .tb = flags & OP_TB, .ldb = ldb, .ab_dt = f->dt, .m = m,
                                       .n = n, .k = k, .beta = flags & OP_ADD_TO ? 1 : 0, .how = &how, .work = work));
    else
        st = ops->matmul(f->s, ARGS(matmul, .c = c, .c_dt = DTYPE_F32, .ldc = n, .a = a, .ta = flags & OP_TA,
                                    .lda = lda, .b = b, .tb = flags & OP_TB, .ldb = ldb, .ab_dt = f->dt, .m = m, .n = n,
                                    .k = k, .beta = flags & OP_ADD_TO ? 1 : 0));
    assert_int_equal(st, TITAN_OK);
    assert_int_equal(ops->stream_sync(f->s, NULL), TITAN_OK);
    free(work);
}

/* Each within 1e-5 of the largest of its row and column, which differ in size by design; added: of 1 + it. */
static void compare(const char *what, const float *got, const struct json *want, int64_t n, bool added)
{
    double largest = 0;
    const struct json *v = want->first;
    for (int64_t i = 0; i < n; i++, v = v->next)
        largest = fmax(largest, fabs(real_of(v)));
    v = want->first;
    for (int64_t i = 0; i < n; i++, v = v->next) {
        const double w = real_of(v) + (added ? 1 : 0);
        if (!(fabs((double)got[i] - w) <= 1e-5 * fabs(w) + 1e-7 * (largest + (added ? 1 : 0))))
            fail_msg("%s: element %ld is %.9g, PyTorch has %.9g", what, (long)i, (double)got[i], w);
    }
}

/* want: the three products, in the converters' order. */
static void check_products(const struct fixture *f, const char *name, const struct recipe *r, struct model *model,
                           const struct json *want)
{
    struct converters *c = NULL;
    assert_int_equal(converters_open(r, model, &c, NULL), TITAN_OK);
    float *y = calloc((size_t)(f->n * f->in + f->out * f->in), sizeof(float));
    assert_non_null(y);
    product(f, OP_TB | c->flags[LINEAR_FORWARD], y, f->x, f->in, f->w, f->in, f->n, f->out, f->in);
    compare(name, y, want, f->n * f->out, false);
    product(f, c->flags[LINEAR_DGRAD], y, f->dy, f->out, f->w, f->in, f->n, f->in, f->out);
    compare(name, y, want->next, f->n * f->in, false);
    product(f, OP_TA | c->flags[LINEAR_WGRAD], y, f->dy, f->out, f->x, f->in, f->out, f->in, f->n);
    compare(name, y, want->next->next, f->out * f->in, false);
    product(f, OP_TA | OP_ADD_TO | c->flags[LINEAR_WGRAD], y, f->dy, f->out, f->x, f->in, f->out, f->in, f->n);
    compare(name, y, want->next->next, f->out * f->in, true);
    free(y);
    free(c);
}

static void check_recipe(const struct fixture *f, const char *name, struct model *model)
{
    struct recipe r;
    recipe_init(&r);
    r.model.float8 = true;
    (void)snprintf(r.float8.recipe_name, sizeof(r.float8.recipe_name), "%s", name);
    check_products(f, name, &r, model, json_get(f->layer, name)->first);
}

static const struct model_dims dims = {.dim = 32,
                                       .n_layers = 1,
                                       .n_heads = 1,
                                       .n_kv_heads = 1,
                                       .ffn_hidden = 32,
                                       .vocab_size = 16,
                                       .rope_theta = 1e4,
                                       .norm_eps = 1e-5};
static const enum dtype types[] = {DTYPE_F32, DTYPE_BF16};

static void test_linear_layer(void **state)
{
    struct model *model;
    (void)state;
    assert_int_equal(model_open(&dims, &model, NULL), TITAN_OK);
    for (int i = 0; i < 2; i++) {
        struct fixture f;
        open_fixture(&f, types[i]);
        check_recipe(&f, "tensorwise", model);
        check_recipe(&f, "rowwise", model);
        check_recipe(&f, "rowwise_with_gw_hp", model);
        close_fixture(&f);
    }
    model_close(model);
}

/* What is not finite goes through, also where its line's scale is 0; zeros stay zeros. */
static void test_not_finite(void **state)
{
    enum { M = 3, N = 5, K = 40 };
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    (void)state;
    struct fixture f;
    open_fixture(&f, DTYPE_F32);
    for (int i = 0; i < 3; i++)
        for (int lines = 0; lines < 2; lines++) {
            float a[M * K], b[N * K], c[M * N];
            for (int j = 0; j < M * K; j++)
                a[j] = j < K ? 0 : (float)(j % 7);
            for (int j = 0; j < N * K; j++)
                b[j] = 0.5f;
            product(&f, OP_F8 | OP_TB | (lines ? OP_F8_A_LINES | OP_F8_B_LINES : 0), c, a, K, b, K, M, N, K);
            for (int j = 0; j < N; j++)
                assert_true(c[j] == 0 && c[N + j] > 0);
            a[K + 33] = bad[i];
            product(&f, OP_F8 | OP_TB | (lines ? OP_F8_A_LINES | OP_F8_B_LINES : 0), c, a, K, b, K, M, N, K);
            for (int j = 0; j < N; j++)
                assert_false(isfinite(c[N + j]));
            for (int j = 0; j < N; j++)
                assert_true(!lines || (c[j] == 0 && c[2 * N + j] > 0)); /* other lines have their own scales */
        }
    close_fixture(&f);
}

/* A power of two more or less gives the same codes: the result is scaled, to the bit (recipes with such scales). */
static void test_power_of_two(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(&f, DTYPE_F32);
    float *larger = malloc((size_t)(f.n * f.in) * sizeof(float)), *y = calloc((size_t)(2 * f.n * f.out), sizeof(float));
    assert_true(larger && y);
    const uint32_t flags = OP_F8 | OP_TB | OP_F8_A_LINES | OP_F8_B_LINES | OP_F8_POWER;
    for (int64_t i = 0; i < f.n * f.in; i++)
        larger[i] = 0x1p9f * ((const float *)f.x)[i];
    product(&f, flags, y, f.x, f.in, f.w, f.in, f.n, f.out, f.in);
    product(&f, flags, y + f.n * f.out, larger, f.in, f.w, f.in, f.n, f.out, f.in);
    for (int64_t i = 0; i < f.n * f.out; i++)
        assert_true(y[f.n * f.out + i] == 0x1p9f * y[i]);
    free(larger);
    free(y);
    close_fixture(&f);
}

/* --- MXFP8 -------------------------------------------------------------------------------------------------------- */

#define MXFP8_GOLDEN TITAN_SOURCE_DIR "/tests/golden/mxfp8.json"

/* The weight gradient's sum, of 40 rows, ends in a block of 8. */
static void test_mx_linear_layer(void **state)
{
    struct model *model;
    struct recipe r;
    (void)state;
    recipe_init(&r);
    r.model.mxfp8 = true;
    assert_int_equal(model_open(&dims, &model, NULL), TITAN_OK);
    for (int i = 0; i < 2; i++) {
        struct fixture f;
        open_fixture_of(&f, types[i], MXFP8_GOLDEN, true);
        check_products(&f, "mxfp8", &r, model, json_get(f.layer, "products")->first);
        close_fixture(&f);
    }
    model_close(model);
}

static float from_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

/* The golden blocks times the identity, which MXFP8 has as it is: what codes and scales stand for, to the bit.
 * Rows of blocks as they lie, and turned round. */
static void test_mx_values(void **state)
{
    enum { ROWS_MAX = 64, N = MX_BLOCK };
    static float blocks[ROWS_MAX * N], turned[N * ROWS_MAX], identity[N * N], c[ROWS_MAX * N], want[ROWS_MAX * N];
    struct fixture f;
    int64_t rows = 0;
    (void)state;
    open_fixture_of(&f, DTYPE_F32, MXFP8_GOLDEN, true);
    for (const struct json *b = json_get(f.file, "blocks")->first; b; b = b->next, rows++) {
        const struct json *bits = b->first->first, *scale = b->first->next, *code = scale->next->first;
        assert_true(rows < ROWS_MAX);
        for (int j = 0; j < N; j++, bits = bits->next, code = code->next) {
            blocks[rows * N + j] = from_bits((uint32_t)bits->integer);
            want[rows * N + j] = scale->integer == 255 ? NAN
                                                       : (float)ldexp((double)float8_decode((uint8_t)code->integer),
                                                                      (int)scale->integer - 127);
        }
    }
    for (int i = 0; i < N; i++)
        identity[i * N + i] = 1;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < N; j++)
            turned[j * rows + i] = blocks[i * N + j];
    for (int way = 0; way < 4; way++) {
        product(&f, OP_F8 | OP_F8_BLOCKS | (way & 1 ? OP_TA : 0) | (way & 2 ? OP_TB : 0), c, way & 1 ? turned : blocks,
                way & 1 ? rows : N, identity, N, rows, N, N);
        for (int64_t i = 0; i < rows * N; i++)
            if (c[i] != want[i] && (c[i] == c[i] || want[i] == want[i]))
                fail_msg("block %ld element %ld: %a becomes %a, PyTorch has %a", (long)(i / N), (long)(i % N),
                         (double)blocks[i], (double)c[i], (double)want[i]);
    }
    close_fixture(&f);
}

/* What is not finite spoils its own lines alone; anything that is not blocks of e4m3 is refused beside them. */
static void test_mx_bounds(void **state)
{
    enum { M = 3, N = 4, K = 40 };
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    struct fixture f;
    (void)state;
    open_fixture(&f, DTYPE_F32);
    for (int i = 0; i < 3; i++) {
        float a[M * K], b[N * K], c[M * N];
        for (int j = 0; j < M * K; j++)
            a[j] = j < K ? 0 : (float)(j % 7);
        for (int j = 0; j < N * K; j++)
            b[j] = 1;
        a[K + 33] = bad[i];
        product(&f, OP_F8 | OP_F8_BLOCKS | OP_TB, c, a, K, b, K, M, N, K);
        for (int j = 0; j < N; j++)
            assert_true(c[j] == 0 && c[N + j] != c[N + j] && c[2 * N + j] > 0);
    }
    const struct float8_product refused[] = {{.blocks = true, .a = FLOAT8_E5M2},
                                             {.blocks = true, .b = FLOAT8_E5M2},
                                             {.blocks = true, .a_lines = true},
                                             {.blocks = true, .b_lines = true},
                                             {.blocks = true, .b_scale = (const float *)f.x}};
    float c = 0, work[64];
    for (size_t i = 0; i < ARRAY_SIZE(refused); i++)
        assert_int_equal(f.device.ops->matmul_f8(f.s, ARGS(matmul, .c = &c, .c_dt = DTYPE_F32, .ldc = 1, .a = f.x,
                                                           .lda = 1, .b = f.x, .ldb = 1, .ab_dt = DTYPE_F32, .m = 1,
                                                           .n = 1, .k = 1, .how = &refused[i], .work = work)),
                         TITAN_EINVAL);
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_linear_layer),    cmocka_unit_test(test_not_finite), cmocka_unit_test(test_power_of_two),
        cmocka_unit_test(test_mx_linear_layer), cmocka_unit_test(test_mx_values),  cmocka_unit_test(test_mx_bounds),
    };
    setenv("TITAN_PLUGIN_DIR", TITAN_BUILD_DIR "/lib/titan", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
