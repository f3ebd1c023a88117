/* SPDX-License-Identifier: Apache-2.0 */
/* Updates that need a matrix whole, on the CPU (TITAN_TEST_DEVICE names another device), against their references: the
 * directions of five steps, from the keys of a recipe on, and the matrix behind them. Values:
 * tests/golden/directions_reference.py. The bits for any number of threads. */
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
#include "base/file.h"
#include "base/json.h"
#include "base/rng.h"
#include "worker/optim/update.h"
#include "worker/optim/whole_matrix.h"

static const struct update_step numbers = {.rate = 1, .number = 1, .tokens = 4, .clip = 0.5};

static void must(titan_status status, const struct titan_error *err)
{
    if (status != TITAN_OK)
        fail_msg("%s: %s", titan_status_name(status), err->msg);
}

static struct device_handle open_device(int threads)
{
    const char *const name = getenv("TITAN_TEST_DEVICE");
    struct titan_error err = {0};
    struct device_handle d;

    (void)setenv("TITAN_PLUGIN_DIR", TITAN_BUILD_DIR "/lib/titan", 0);
    must(device_open(name ? name : "cpu", &(struct device_options){.threads = threads}, &d, &err), &err);
    return d;
}

/* --- a matrix that is updated ------------------------------------------------------------------------------------- */

struct matrix {
    const struct device_handle *d;
    struct stream *s;
    struct recipe recipe;
    enum dtype dt;
    struct whole_matrix of;
    int64_t n, kept[OPTIMIZER_STATES]; /* elements of the matrix and its states */
    void *work;
    float *weights;
};

static void *memory(const struct matrix *m, int64_t n)
{
    struct titan_error err = {0};
    void *p = NULL;

    must(m->d->ops->alloc(m->d->dev, (size_t)n * sizeof(float) + 1, &p, &err), &err);
    return p;
}

static void move(const struct matrix *m, void *dst, const void *src, int64_t n)
{
    struct titan_error err = {0};

    must(m->d->ops->copy(m->s, dst, src, (size_t)n * sizeof(float)), &err);
    must(m->d->ops->stream_sync(m->s, &err), &err);
}

/* All state is zero. The recipe has its keys. */
static void matrix_open(struct matrix *m, const struct device_handle *d, int64_t rows, int64_t cols, int64_t heads,
                        enum dtype dt)
{
    const struct optimizer *const o = optimizer_of_matrices(&m->recipe);
    struct titan_error err = {0};

    m->d = d;
    m->dt = dt;
    m->n = rows * cols;
    m->of = (struct whole_matrix){.name = "layers.0.w", .rows = rows, .cols = cols, .heads = heads, .of = 1};
    must(d->ops->stream_open(d->dev, "compute", true, &m->s, &err), &err);
    m->of.values = memory(m, m->n);
    m->of.weights = m->weights = memory(m, m->n);
    for (int i = 0; i < optimizer_states(o, &m->recipe); i++) {
        int64_t r, c;
        optimizer_state_shape(o, &m->recipe, i, rows, cols, &r, &c);
        m->kept[i] = r * c;
        m->of.state[i] = memory(m, m->kept[i]);
        m->of.next[i] = memory(m, m->kept[i]);
    }
    must(d->ops->alloc(d->dev, whole_work_bytes(&m->recipe, dt, rows, cols, heads), &m->work, &err), &err);
}

static void matrix_close(struct matrix *m)
{
    for (int i = 0; i < OPTIMIZER_STATES; i++) {
        m->d->ops->release(m->d->dev, (void *)(uintptr_t)m->of.state[i]);
        m->d->ops->release(m->d->dev, m->of.next[i]);
    }
    m->d->ops->release(m->d->dev, m->of.values);
    m->d->ops->release(m->d->dev, m->weights);
    m->d->ops->release(m->d->dev, m->work);
    m->d->ops->stream_close(m->s);
}

/* One step with this gradient. direction (n) may be NULL. */
static void matrix_step(struct matrix *m, uint64_t number, const float *gradient, float *direction)
{
    struct update_step at = numbers;
    struct titan_error err = {0};

    at.number = number;
    const struct update update = update_of_recipe(&m->recipe, &at);
    const struct update_args *const a = &update.args[PARAMS_MATRICES];
    const struct whole_step step = {&m->recipe, number, a->grad_scale, m->dt, DTYPE_F32};
    const struct update_piece piece = {.master = m->weights, .grad = m->of.values, .n = (size_t)m->n};
    assert_int_equal(a->rule, RULE_DIRECTION);
    move(m, m->of.values, gradient, m->n);
    must(whole_direction(&step, &m->of, m->work, m->d->ops, m->s), &err);
    if (direction)
        move(m, direction, m->of.values, m->n);
    must(m->d->ops->update(m->s, &piece, 1, a), &err);
    for (int i = 0; i < OPTIMIZER_STATES; i++) {
        const void *const before = m->of.state[i];
        m->of.state[i] = m->of.next[i];
        m->of.next[i] = (void *)(uintptr_t)before;
    }
}

/* --- references --------------------------------------------------------------------------------------------------- */

static float *read_numbers(const struct json *list, int64_t n, double factor)
{
    float *const ret = calloc((size_t)n, sizeof *ret);
    int64_t i = 0;

    assert_non_null(ret);
    for (const struct json *v = list->first; v; v = v->next) {
        assert_true(i < n);
        ret[i++] = (float)(factor * (v->type == JSON_INT ? (double)v->integer : v->real));
    }
    assert_int_equal(i, n);
    return ret;
}

/* The root mean square of got's error, over that of want. */
static double error_of(const float *got, const float *want, int64_t n)
{
    double off = 0, all = 0;

    for (int64_t i = 0; i < n; i++) {
        off += ((double)got[i] - (double)want[i]) * ((double)got[i] - (double)want[i]);
        all += (double)want[i] * (double)want[i];
    }
    return sqrt(off / all);
}

struct errors {
    double direction, after;
};

static struct errors run_case(const struct device_handle *d, const struct json *file, const struct json *c,
                              enum dtype dt)
{
    const int64_t unit = json_int(file, "unit", 0), first = json_int(c, "first", 1);
    struct matrix m = {0};
    struct titan_error err = {0};
    struct errors worst = {0};
    uint64_t number = (uint64_t)first;

    recipe_init(&m.recipe);
    m.recipe.optimizer.lr = json_real(file, "lr", 0);
    m.recipe.optimizer.weight_decay = json_real(file, "weight_decay", 0);
    for (const struct json *key = json_get(c, "keys")->first; key; key = key->next)
        must(recipe_set(&m.recipe, key->string, &err), &err);
    matrix_open(&m, d, json_int(c, "rows", 0), json_int(c, "cols", 0), json_int(c, "heads", 0), dt);
    float *const w = read_numbers(json_get(c, "w"), m.n, 1 / (double)unit), *const got = calloc((size_t)m.n, sizeof *w);
    assert_non_null(got);
    move(&m, m.weights, w, m.n);
    const struct json *want = json_get(c, "directions")->first;
    for (const struct json *g = json_get(c, "gradients")->first; g; g = g->next) {
        float *const gradient = read_numbers(g, m.n, numbers.tokens / numbers.clip / (double)unit);
        matrix_step(&m, number++, gradient, got);
        if (number == (uint64_t)first + 1 || !g->next) {
            float *const direction = read_numbers(want, m.n, 1);
            worst.direction = fmax(worst.direction, error_of(got, direction, m.n));
            want = want->next;
            free(direction);
        }
        free(gradient);
    }
    float *const after = read_numbers(json_get(c, "after"), m.n, 1);
    move(&m, got, m.weights, m.n);
    worst.after = error_of(got, after, m.n);
    free(after);
    free(got);
    free(w);
    matrix_close(&m);
    return worst;
}

static void check_references(enum dtype dt, double limit)
{
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    struct device_handle device = open_device(1);
    struct titan_error err = {0};
    struct json *file = NULL;
    int cases = 0;

    must(file_read(TITAN_SOURCE_DIR "/tests/golden/directions.json", 4 << 20, &text, &err), &err);
    must(json_parse(text.data, text.len, &file, &err), &err);
    for (const struct json *c = json_get(file, "cases")->first; c; c = c->next, cases++) {
        const struct errors off = run_case(&device, file, c, dt);
        print_message("# %s: %.1e, behind five steps %.1e\n", json_string(c, "case", ""), off.direction, off.after);
        assert_true(off.direction < limit && off.after < limit);
    }
    assert_true(cases >= 10);
    device_close(&device);
    json_free(file);
}

static void test_references(void **state)
{
    (void)state;
    check_references(DTYPE_F32, 5e-6);
}

/* The iteration makes small singular values up to 3.4^5 times larger, and the rounding errors of bf16 with them. */
static void test_references_bf16(void **state)
{
    (void)state;
    check_references(DTYPE_BF16, 0.06);
}

/* --- threads ------------------------------------------------------------------------------------------------------ */

static void random_numbers(const char *name, float *ret, int64_t n)
{
    rng_normals(rng_key(11, name), 0, (uint64_t)n, ret);
}

/* Two steps of a matrix; the bits of directions and states go to ret. Returns their number. */
static int64_t run_random(const char *const *keys, int threads, enum dtype dt, int64_t rows, int64_t cols, float *ret)
{
    struct device_handle device = open_device(threads);
    struct titan_error err = {0};
    struct matrix m = {0};
    float *const random = calloc((size_t)(rows * cols), sizeof *random);
    int64_t at = 0;

    assert_non_null(random);
    recipe_init(&m.recipe);
    for (; *keys; keys++)
        must(recipe_set(&m.recipe, *keys, &err), &err);
    matrix_open(&m, &device, rows, cols, 2, dt);
    random_numbers("w", random, m.n);
    move(&m, m.weights, random, m.n);
    for (uint64_t number = 1; number <= 2; number++) {
        random_numbers(number == 1 ? "first" : "second", random, m.n);
        matrix_step(&m, number, random, ret + at);
        at += m.n;
    }
    for (int i = 0; i < OPTIMIZER_STATES && m.of.state[i]; i++) {
        move(&m, ret + at, m.of.state[i], m.kept[i]);
        at += m.kept[i];
    }
    matrix_close(&m);
    device_close(&device);
    free(random);
    return at;
}

static void test_threads(void **state)
{
    static const char *const runs[][4] = {{"optimizer.name=Muon"},
                                          {"optimizer.name=Muon", "optimizer.muon.per_head=true"}};
    enum { ROWS = 288, COLS = 200, MOST = 8 * ROWS * COLS };
    float *const one = calloc(MOST, sizeof *one), *const four = calloc(MOST, sizeof *four);

    (void)state;
    assert_true(one && four);
    for (size_t i = 0; i < ARRAY_SIZE(runs); i++)
        for (int turn = 0; turn < 2; turn++) {
            const enum dtype dt = i == 0 ? DTYPE_BF16 : DTYPE_F32;
            const int64_t rows = turn ? ROWS : COLS, cols = turn ? COLS : ROWS;
            const int64_t n = run_random(runs[i], 1, dt, rows, cols, one);
            assert_true(n <= MOST);
            assert_int_equal(run_random(runs[i], 4, dt, rows, cols, four), n);
            assert_true(memcmp(one, four, (size_t)n * sizeof *one) == 0);
        }
    free(one);
    free(four);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_references),
        cmocka_unit_test(test_references_bf16),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
