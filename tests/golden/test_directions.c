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
    bool in_place; /* the states are read where the next ones are written */
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
        m->of.next[i] = m->in_place ? (float *)(uintptr_t)m->of.state[i] : memory(m, m->kept[i]);
    }
    must(d->ops->alloc(d->dev, whole_work_bytes(&m->recipe, dt, rows, cols, heads), &m->work, &err), &err);
}

static void matrix_close(struct matrix *m)
{
    for (int i = 0; i < OPTIMIZER_STATES; i++) {
        m->d->ops->release(m->d->dev, (void *)(uintptr_t)m->of.state[i]);
        if (!m->in_place)
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
    struct whole_step step = update.whole;
    const struct update_piece piece = {.master = m->weights, .grad = m->of.values, .n = (size_t)m->n};
    assert_int_equal(a->rule, RULE_DIRECTION);
    step.dt = m->dt;
    move(m, m->of.values, gradient, m->n);
    must(whole_direction(&step, &m->of, m->work, m->d->ops, m->s), &err);
    if (direction)
        move(m, direction, m->of.values, m->n);
    must(m->d->ops->update(m->s, &piece, 1, a), &err);
    for (int i = 0; i < OPTIMIZER_STATES && m->of.state[i] && !m->in_place; i++)
        must(m->d->ops->cast(m->s, (void *)(uintptr_t)m->of.state[i], a->moment, m->of.next[i], DTYPE_F32,
                             (size_t)m->kept[i]),
             &err);
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
    if (json_get(c, "basis")) {
        float *const basis = read_numbers(json_get(c, "basis"), m.kept[2], 1);
        move(&m, (void *)(uintptr_t)m.of.state[2], basis, m.kept[2]);
        free(basis);
    }
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

static struct json *read_file(void)
{
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    struct titan_error err = {0};
    struct json *file = NULL;

    must(file_read(TITAN_SOURCE_DIR "/tests/golden/directions.json", 4 << 20, &text, &err), &err);
    must(json_parse(text.data, text.len, &file, &err), &err);
    return file;
}

static void check_references(enum dtype dt, double limit)
{
    struct device_handle device = open_device(1);
    struct json *const file = read_file();
    int cases = 0;

    for (const struct json *c = json_get(file, "cases")->first; c; c = c->next, cases++) {
        const struct errors off = run_case(&device, file, c, dt);
        print_message("# %s: %.1e, behind five steps %.1e\n", json_string(c, "case", ""), off.direction, off.after);
        assert_true(off.direction < limit && off.after < limit);
    }
    assert_true(cases >= 25);
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

/* --- GaLore ------------------------------------------------------------------------------------------------------- */

/* New bases are orthonormal, with the sign that they are to have, and keep as much of the gradient as exact singular
 * vectors do. What they keep of a gradient of zeros is nothing, but they are bases. */
static void test_bases(void **state)
{
    struct device_handle device = open_device(1);
    struct json *const file = read_file();

    (void)state;
    for (const struct json *c = json_get(file, "decomposed")->first; c; c = c->next) {
        const int64_t rows = json_int(c, "rows", 0), cols = json_int(c, "cols", 0), rank = json_int(c, "rank", 0);
        const int64_t small = MIN(rows, cols), large = MAX(rows, cols);
        float *const gradient = read_numbers(json_get(c, "gradient"), rows * cols, 1);
        float *const basis = calloc((size_t)(rank * small), sizeof *basis);
        struct matrix m = {0};
        struct titan_error err = {0};
        assert_non_null(basis);
        recipe_init(&m.recipe);
        must(recipe_set(&m.recipe, "optimizer.name=GaLore2", &err), &err);
        m.recipe.optimizer.galore.rank = rank;
        matrix_open(&m, &device, rows, cols, 1, DTYPE_F32);
        for (int zeros = 0; zeros < 2; zeros++) {
            double all = 0, kept = 0, off = 0;
            matrix_step(&m, 1, gradient, NULL);
            move(&m, basis, m.of.state[2], m.kept[2]);
            for (int64_t i = 0; i < rank; i++) {
                int64_t largest = 0;
                for (int64_t j = 0; j <= i; j++) {
                    double product = i == j ? -1 : 0;
                    for (int64_t k = 0; k < small; k++)
                        product += (double)basis[i * small + k] * (double)basis[j * small + k];
                    off = fmax(off, fabs(product));
                }
                for (int64_t k = 1; k < small; k++)
                    largest = fabsf(basis[i * small + k]) > fabsf(basis[i * small + largest]) ? k : largest;
                assert_true(basis[i * small + largest] > 0);
                for (int64_t j = 0; j < large; j++) {
                    double product = 0;
                    for (int64_t k = 0; k < small; k++)
                        product +=
                            (double)basis[i * small + k] * (double)gradient[rows >= cols ? j * cols + k : k * cols + j];
                    kept += product * product;
                }
            }
            for (int64_t i = 0; i < m.n; i++)
                all += (double)gradient[i] * (double)gradient[i];
            assert_true(off < 4e-6);
            if (zeros == 0) {
                print_message("# %s: keeps %.6f, exact %.6f\n", json_string(c, "case", ""), kept / all,
                              json_real(c, "energy", 0));
                assert_true(kept / all > json_real(c, "energy", 0) - 1e-3);
            }
            memset(gradient, 0, (size_t)m.n * sizeof *gradient);
        }
        matrix_close(&m);
        free(basis);
        free(gradient);
    }
    device_close(&device);
    json_free(file);
}

static void random_numbers(const char *name, float *ret, int64_t n)
{
    rng_normals(rng_key(11, name), 0, (uint64_t)n, ret);
}

/* Which of 12 steps make a new basis: the first, and by turns one in five. In the others its bits stay. */
static void test_turns(void **state)
{
    enum { ROWS = 12, COLS = 8, RANK = 2 };
    static const int turns[][2] = {{0, 5}, {1, 5}, {2, 4}, {3, 3}, {4, 2}, {5, 1}}; /* number of 6, a turn */
    struct device_handle device = open_device(1);
    float gradient[ROWS * COLS], before[RANK * COLS], after[RANK * COLS];

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(turns); i++) {
        struct matrix m = {0};
        struct titan_error err = {0};
        recipe_init(&m.recipe);
        must(recipe_set(&m.recipe, "optimizer.name=GaLore2", &err), &err);
        must(recipe_set(&m.recipe, "optimizer.galore.interval=5", &err), &err);
        matrix_open(&m, &device, ROWS, COLS, 1, DTYPE_F32);
        assert_int_equal(m.kept[2], RANK * COLS);
        m.of.number = turns[i][0];
        m.of.of = (int64_t)ARRAY_SIZE(turns);
        move(&m, before, m.of.state[2], RANK * COLS);
        for (int number = 1; number <= 12; number++) {
            const bool turn = number == 1 || number % 5 == turns[i][1] % 5;
            random_numbers(number % 2 ? "odd" : "even", gradient, ROWS * COLS);
            matrix_step(&m, (uint64_t)number, gradient, NULL);
            move(&m, after, m.of.state[2], RANK * COLS);
            assert_true((memcmp(before, after, sizeof after) != 0) == turn);
            memcpy(before, after, sizeof before);
        }
        matrix_close(&m);
    }
    device_close(&device);
}

/* --- what AdamW is ------------------------------------------------------------------------------------------------ */

/* Three steps are AdamW's, to the bit, with these keys. */
static void check_adamw(const char *const *keys, int64_t rows, int64_t cols)
{
    struct device_handle device = open_device(2);
    struct titan_error err = {0};
    struct matrix m = {0};

    recipe_init(&m.recipe);
    for (; *keys; keys++)
        must(recipe_set(&m.recipe, *keys, &err), &err);
    matrix_open(&m, &device, rows, cols, 1, DTYPE_F32);
    float *const gradient = calloc((size_t)m.n, sizeof *gradient), *const got = calloc((size_t)m.n, sizeof *got);
    float *const w = memory(&m, m.n), *const grad = memory(&m, m.n);
    struct update_piece piece = {
        .master = w, .state = {memory(&m, m.n), memory(&m, m.n)}, .grad = grad, .n = (size_t)m.n};
    assert_true(gradient && got);
    random_numbers("w", got, m.n);
    move(&m, m.weights, got, m.n);
    move(&m, w, got, m.n);
    for (uint64_t number = 1; number <= 3; number++) {
        struct update_step at = numbers;
        at.number = number;
        struct update_args args = update_of_recipe(&m.recipe, &at).args[PARAMS_MATRICES];
        args.rule = RULE_ADAMW;
        rng_normals(rng_key(number, "g"), 0, (uint64_t)m.n, gradient);
        matrix_step(&m, number, gradient, NULL);
        move(&m, grad, gradient, m.n);
        must(device.ops->update(m.s, &piece, 1, &args), &err);
        move(&m, gradient, w, m.n);
        move(&m, got, m.weights, m.n);
        assert_true(memcmp(gradient, got, (size_t)m.n * sizeof *got) == 0);
        for (int i = 0; i < 2; i++) { /* m and v; two of bf16 fill a float */
            const int64_t n = m.n * (int64_t)dtype_bytes(args.moment) / 4;
            move(&m, gradient, piece.state[i], n);
            move(&m, got, m.of.state[i], n);
            assert_true(memcmp(gradient, got, (size_t)n * sizeof *got) == 0);
        }
    }
    for (int i = 0; i < 2; i++)
        device.ops->release(device.dev, piece.state[i]);
    device.ops->release(device.dev, w);
    device.ops->release(device.dev, grad);
    free(gradient);
    free(got);
    matrix_close(&m);
    device_close(&device);
}

static void test_adamw(void **state)
{
    static const char *const full[] = {"optimizer.name=GaLore2", "optimizer.galore.rank=46", "optimizer.galore.scale=1",
                                       NULL};
    static const char *const bf16[] = {"optimizer.name=GaLore2", "optimizer.galore.rank=46", "optimizer.galore.scale=1",
                                       "optimizer.state_dtype=bfloat16", NULL};
#define OFF(component) "optimizer.ranger21." component "=false"
    static const char *const off[] = {"optimizer.name=Ranger21",
                                      OFF("clip"),
                                      OFF("centralize"),
                                      OFF("normalize"),
                                      OFF("momentum"),
                                      OFF("softplus"),
                                      OFF("stable_decay"),
                                      OFF("norm_loss"),
                                      OFF("lookahead"),
                                      NULL,
                                      NULL};
    const char *off_bf16[ARRAY_SIZE(off)];

    (void)state;
    check_adamw(full, 70, 46);
    check_adamw(full, 46, 70);
    check_adamw(bf16, 70, 46);
    check_adamw(off, 46, 70);
    memcpy(off_bf16, off, sizeof off);
    off_bf16[ARRAY_SIZE(off) - 2] = "optimizer.state_dtype=bfloat16";
    check_adamw(off_bf16, 46, 70);
}

/* --- threads ------------------------------------------------------------------------------------------------------ */

/* Two steps of a matrix; the bits of directions and states go to ret. Returns their number. */
static int64_t run_random(const char *const *keys, int threads, bool in_place, enum dtype dt, int64_t rows,
                          int64_t cols, float *ret)
{
    struct device_handle device = open_device(threads);
    struct titan_error err = {0};
    struct matrix m = {.in_place = in_place};
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

/* Any number of threads, and states in the place of the next ones, give the same bits. */
static void test_threads(void **state)
{
    static const char *const runs[][4] = {{"optimizer.name=Muon"},
                                          {"optimizer.name=Muon", "optimizer.muon.per_head=true"},
                                          {"optimizer.name=GaLore2", "optimizer.galore.rank=240"},
                                          {"optimizer.name=Ranger21"}};
    enum { ROWS = 400, COLS = 288, MOST = 8 * ROWS * COLS };

    (void)state;
    if (getenv("TITAN_TEST_DEVICE")) /* a GPU's threads are not counted by this option */
        return;
    float *const one = calloc(MOST, sizeof *one), *const four = calloc(MOST, sizeof *four);
    assert_true(one && four);
    for (size_t i = 0; i < ARRAY_SIZE(runs); i++)
        for (int turn = 0; turn < 2; turn++) {
            const enum dtype dt = i == 0 ? DTYPE_BF16 : DTYPE_F32;
            const int64_t rows = turn ? ROWS : COLS, cols = turn ? COLS : ROWS;
            const int64_t n = run_random(runs[i], 1, false, dt, rows, cols, one);
            assert_true(n <= MOST);
            assert_int_equal(run_random(runs[i], 4, turn, dt, rows, cols, four), n);
            assert_true(memcmp(one, four, (size_t)n * sizeof *one) == 0);
        }
    free(one);
    free(four);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_references), cmocka_unit_test(test_references_bf16), cmocka_unit_test(test_bases),
        cmocka_unit_test(test_turns),      cmocka_unit_test(test_adamw),           cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
