/* SPDX-License-Identifier: Apache-2.0 */
/* One linear layer with SwitchBack on the CPU against PyTorch (tests/golden/int8_reference.py): output, input gradient
 * and weight gradient of each variant, with the flags that the model's converter gives the products; rows that are kept
 * as codes. */
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
        if (f->dt == DTYPE_F32)
            ((float *)p)[i] = (float)real_of(v);
        else
            ((uint16_t *)p)[i] = bf16_from_f32((float)real_of(v));
    }
    assert_null(v);
    return p;
}

static void open_fixture(struct fixture *f, enum dtype dt, int threads)
{
    struct buf text = BUF_INIT;
    struct titan_error err = {0};
    const struct device_options options = {.threads = threads};
    *f = (struct fixture){.dt = dt};
    assert_int_equal(file_read(TITAN_SOURCE_DIR "/tests/golden/int8.json", 1 << 20, &text, &err), TITAN_OK);
    assert_int_equal(json_parse(text.data, text.len, &f->file, &err), TITAN_OK);
    buf_free(&text);
    f->layer = json_get(f->file, "linear");
    f->n = json_int(f->layer, "n", 0);
    f->in = json_int(f->layer, "in", 0);
    f->out = json_int(f->layer, "out", 0);
    f->x = operand(f, "x", f->n * f->in);
    f->w = operand(f, "w", f->out * f->in);
    f->dy = operand(f, "dy", f->n * f->out);
    if (device_open("cpu", &options, &f->device, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    assert_int_equal(f->device.ops->stream_open(f->device.dev, "compute", true, &f->s, &err), TITAN_OK);
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

/* c (m,n) fp32 by the flags of a program's product. */
static void product(const struct fixture *f, uint32_t flags, float *c, const void *a, int64_t lda, const void *b,
                    int64_t ldb, int64_t m, int64_t n, int64_t k)
{
    const struct device_ops *ops = f->device.ops;
    const struct int8_product how = {flags & OP_I8_B_LINES};
    void *work = aligned_alloc(64, ops->matmul_i8_work_bytes(f->device.dev, f->dt, m, n, k));
    const struct matmul_args args = {.c = c,
                                     .c_dt = DTYPE_F32,
                                     .ldc = n,
                                     .a = a,
                                     .ta = flags & OP_TA,
                                     .lda = lda,
                                     .b = b,
                                     .tb = flags & OP_TB,
                                     .ldb = ldb,
                                     .ab_dt = f->dt,
                                     .m = m,
                                     .n = n,
                                     .k = k,
                                     .int8 = &how,
                                     .work = work};
    assert_non_null(work);
    assert_int_equal((flags & OP_I8 ? ops->matmul_i8 : ops->matmul)(f->s, &args), TITAN_OK);
    assert_int_equal(ops->stream_sync(f->s, NULL), TITAN_OK);
    free(work);
}

static void compare(const char *what, const float *got, const struct json *want, int64_t n, double limit)
{
    double largest = 0;
    for (const struct json *v = want->first; v; v = v->next)
        largest = fmax(largest, fabs(real_of(v)));
    const struct json *v = want->first;
    for (int64_t i = 0; i < n; i++, v = v->next)
        if (!(fabs((double)got[i] - real_of(v)) <= limit * (fabs(real_of(v)) + largest / 1024)))
            fail_msg("%s: element %ld is %.9g, PyTorch has %.9g", what, (long)i, (double)got[i], real_of(v));
}

static void converters_of(const char *variant, const struct model *model, struct converters **ret)
{
    struct recipe r;
    recipe_init(&r);
    r.model.switchback = true;
    (void)snprintf(r.switchback.variant, sizeof r.switchback.variant, "%s", variant);
    assert_int_equal(converters_open(&r, model, ret, NULL), TITAN_OK);
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
static const char *const variants[] = {"global", "vectorwise"};

/* In fp32 and bf16, on one thread and three: PyTorch's values, and the same bits. The weight gradient has those of a
 * layer without converter. */
static void test_linear_layer(void **state)
{
    enum { MOST = 44 * 36 };
    struct model *model;
    (void)state;
    assert_int_equal(model_open(&dims, &model, NULL), TITAN_OK);
    for (size_t v = 0; v < ARRAY_SIZE(variants); v++) {
        static float bits[4][3][MOST], plain[MOST];
        struct converters *c = NULL;
        converters_of(variants[v], model, &c);
        for (int run = 0; run < 4; run++) {
            struct fixture f;
            float(*const y)[MOST] = bits[run];
            open_fixture(&f, types[run & 1], run & 2 ? 3 : 1);
            assert_true(f.n * f.out <= MOST && f.n * f.in <= MOST && f.out * f.in <= MOST);
            const struct json *const want = json_get(f.layer, variants[v])->first;
            product(&f, OP_TB | c->flags[LINEAR_FORWARD], y[0], f.x, f.in, f.w, f.in, f.n, f.out, f.in);
            compare(variants[v], y[0], want, f.n * f.out, 2e-7);
            product(&f, c->flags[LINEAR_DGRAD], y[1], f.dy, f.out, f.w, f.in, f.n, f.in, f.out);
            compare(variants[v], y[1], want->next, f.n * f.in, 2e-7);
            product(&f, OP_TA | c->flags[LINEAR_WGRAD], y[2], f.dy, f.out, f.x, f.in, f.out, f.in, f.n);
            compare(variants[v], y[2], want->next->next, f.out * f.in, 1e-4);
            product(&f, OP_TA, plain, f.dy, f.out, f.x, f.in, f.out, f.in, f.n);
            assert_memory_equal(y[2], plain, (size_t)(f.out * f.in) * sizeof(float));
            for (int part = 0; part < 2; part++) /* operands are the same numbers in both types */
                assert_memory_equal(y[part], bits[0][part], sizeof bits[0][part]);
            close_fixture(&f);
        }
        free(c);
    }
    model_close(model);
}

/* mem_efficient: PyTorch's codes and scales of x, and the weight gradient of their values. */
static void test_kept_rows(void **state)
{
    enum { MOST = 44 * 36 };
    (void)state;
    for (int run = 0; run < 4; run++) {
        static float dw[MOST], got[MOST], one[MOST];
        struct fixture f;
        open_fixture(&f, types[run & 1], run & 2 ? 3 : 1);
        const struct device_ops *ops = f.device.ops;
        const int64_t pitch = int8_row_codes(f.in);
        uint8_t *codes = aligned_alloc(64, ((size_t)int8_rows_bytes(f.n, f.in) + 63) / 64 * 64);
        void *values = aligned_alloc(64, MOST * sizeof(float));
        assert_true(codes && values && f.n * f.in <= MOST && f.out * f.in <= MOST);
        assert_int_equal(ops->rows_encode(f.s, &(struct rows_encode_args){codes, f.x, f.dt, f.n, f.in}), TITAN_OK);
        assert_int_equal(ops->rows_decode(f.s, &(struct rows_decode_args){values, codes, f.dt, f.n, f.in}), TITAN_OK);
        assert_int_equal(ops->stream_sync(f.s, NULL), TITAN_OK);
        for (int64_t i = 0; i < f.n * pitch; i++)
            if (i % pitch < f.in)
                got[i / pitch * f.in + i % pitch] = (float)(int8_t)codes[i];
            else
                assert_int_equal(codes[i], 0);
        compare("codes", got, json_get(f.layer, "codes"), f.n * f.in, 0);
        memcpy(one, codes + f.n * pitch, (size_t)f.n * sizeof *one);
        compare("scales", one, json_get(f.layer, "one"), f.n, 1e-8);
        const struct json *const kept = json_get(f.layer, "kept")->first;
        product(&f, OP_TA, dw, f.dy, f.out, values, f.in, f.out, f.in, f.n);
        compare("kept", dw, f.dt == DTYPE_F32 ? kept : kept->next, f.out * f.in, 1e-4);
        close_fixture(&f);
        free(codes);
        free(values);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_linear_layer), cmocka_unit_test(test_kept_rows)};
    setenv("TITAN_PLUGIN_DIR", TITAN_BUILD_DIR "/lib/titan", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
