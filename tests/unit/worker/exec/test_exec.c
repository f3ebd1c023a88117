/* SPDX-License-Identifier: Apache-2.0 */
/* exec.h on one rank: the reported loss is the model's, a skipped step leaves every bit of the state alone, and so
 * does a step that is not updated after the agreement, and a step that ends before its commit point. Static scales of
 * float8 products fit what steps of training have. */
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
#include "base/float8.h"
#include "tests/support/random_layout.h"
#include "tests/support/patience.h"
#include "worker/data/batch.h"
#include "worker/exec/exec.h"
#include "worker/infer/whole.h"
#include "worker/optim/outcome.h"
#include "worker/plan/build.h"
#include "worker/plan/check.h"
#include "worker/plan/scales.h"
#include "worker/state/state.h"

enum { B = 2, T = 16, MICROBATCHES = 3 };

static const struct model_dims dims = {.dim = 32,
                                       .n_layers = 2,
                                       .n_heads = 4,
                                       .n_kv_heads = 2,
                                       .ffn_hidden = 96,
                                       .vocab_size = 64,
                                       .rope_theta = 1e4,
                                       .norm_eps = 1e-5};

struct fixture {
    struct device_handle device;
    struct stream *streams[STREAM_COUNT];
    struct model *model;
    struct converters *converters; /* NULL: no product is in float8 */
    struct train_state *state;
    struct program *program;
    struct exec *exec;
    struct sequence_cut cut;
    int32_t inputs[MICROBATCHES][B * T], targets[MICROBATCHES][B * T];
    int32_t tokens[MICROBATCHES][BATCH_ROWS * B * T];
    double counts[MICROBATCHES];
    /* what run is to do, and what it saw */
    bool skip, fail, directs, scales; /* directs: the program has a direction section; scales: static ones */
    atomic_int revoked;
    enum { REVOKE_NEVER, REVOKE_REDUCED, REVOKE_AGREEING, REVOKE_DECIDED } revoke; /* when it is to be */
    struct step_outcome outcome;
    struct update update;
};

static void must(titan_status status, const struct titan_error *err)
{
    if (status != TITAN_OK)
        fail_msg("%s: %s", titan_status_name(status), err->msg);
}

static titan_status reduced(void *arg, const struct exec_reduced *r, struct stream *s, struct titan_error *err)
{
    struct fixture *f = arg;
    assert_true(r->n > 0 && !r->codes);
    (void)s;
    (void)err;
    atomic_store(&f->revoked, f->revoke == REVOKE_REDUCED);
    return TITAN_OK;
}

static void *bind(void *arg, const struct buffer *buffer)
{
    return state_bind(((struct fixture *)arg)->state, buffer);
}

static void make_batch(struct fixture *f)
{
    f->cut = (struct sequence_cut){.b = B, .t = T, .cp = 1};
    for (int m = 0; m < MICROBATCHES; m++) {
        for (int i = 0; i < B * T; i++) {
            f->inputs[m][i] = (m * 31 + i * 7) % 64;
            f->targets[m][i] = i % 5 == m ? -1 : (m * 31 + i * 7 + 3) % 64; /* some are not counted */
        }
        f->counts[m] = (double)batch_fill(&f->cut, 0, f->inputs[m], f->targets[m], NULL, f->tokens[m]);
    }
}

static void open_program(struct fixture *f)
{
    static const enum checkpointing none[2] = {CHECKPOINT_NONE, CHECKPOINT_NONE};
    struct titan_error err = {0};
    struct build_options build = {.layout = f->state->layout,
                                  .dt = DTYPE_F32,
                                  .b = B,
                                  .t = T,
                                  .loss_chunks = 2,
                                  .ops = f->device.ops,
                                  .dev = f->device.dev,
                                  .microbatches = MICROBATCHES,
                                  .prefetch = 1,
                                  .tensor_sums = f->directs,
                                  .checkpointing = none};
    if (f->scales) {
        struct recipe r;
        recipe_init(&r);
        r.model.float8 = true;
        (void)snprintf(r.float8.recipe_name, sizeof r.float8.recipe_name, "scalify");
        must(converters_open(&r, f->model, &f->converters, &err), &err);
        build.converters = f->converters;
        must(scales_choose(&build, T, f->converters, &err), &err);
    }
    must(program_build(&build, 0, &f->program, &err), &err);
    must(program_check(f->program, 0, &err), &err);
    for (int s = 0; s < STREAM_COUNT; s++)
        if (s == STREAM_COMPUTE || s == STREAM_GATHER || f->program->streams >> s & 1)
            must(f->device.ops->stream_open(f->device.dev, program_stream_name((enum stream_id)s), s == STREAM_COMPUTE,
                                            &f->streams[s], &err),
                 &err);
}

/* What float8 operands with a static scale had: elements, those beyond the type's largest value, and the root mean
 * squares of codes. */
static struct {
    const struct device_ops *ops;
    struct device_ops counting;
    int64_t elements, beyond;
    double least[2], most[2]; /* by enum float8 */
} seen;

static void look_at(const float *x, int64_t rows, int64_t cols, int64_t ld, float scale, enum float8 type)
{
    double sum = 0;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++) {
            const double code = (double)x[i * ld + j] * (double)scale;
            seen.beyond += fabs(code) > (double)float8_max(type);
            sum += code * code;
        }
    const double root = sqrt(sum / (double)(rows * cols));
    seen.elements += rows * cols;
    seen.least[type] = fmin(seen.least[type], root);
    seen.most[type] = fmax(seen.most[type], root);
}

static titan_status counted_f8(struct stream *s, const struct matmul_args *a)
{
    TRY(seen.ops->stream_sync(s, NULL));
    look_at(a->a, a->ta ? a->k : a->m, a->ta ? a->m : a->k, a->lda, *a->how->a_given, a->how->a);
    if (a->ta)
        look_at(a->b, a->k, a->n, a->ldb, *a->how->b_given, a->how->b);
    return seen.ops->matmul_f8(s, a);
}

static void count_float8(struct fixture *f)
{
    seen.ops = f->device.ops;
    seen.counting = *f->device.ops;
    seen.counting.matmul_f8 = counted_f8;
    f->device.ops = &seen.counting;
    for (int i = 0; i < 2; i++) {
        seen.least[i] = INFINITY;
        seen.most[i] = 0;
    }
}

static int open_fixture(void **state, bool directs, bool scales)
{
    static struct fixture f;
    struct titan_error err = {0};
    const struct device_options options = {.threads = 1};
    struct layout *layout = NULL;
    struct stream *compute = NULL;

    memset(&f, 0, sizeof f);
    f.directs = directs;
    f.scales = scales;
    (void)setenv("TITAN_PLUGIN_DIR", TITAN_BUILD_DIR "/lib/titan", 0);
    must(device_open("cpu", &options, &f.device, &err), &err);
    if (scales)
        count_float8(&f);
    must(model_open(&dims, &f.model, &err), &err);
    const struct layout_options cut = {
        .model = f.model, .mesh = {.world = 1, .size = {1, 1, 1, 1, 1}, .ep = 1}, .kinds = adamw_kinds()};
    must(layout_open(&cut, &layout, &err), &err);
    const struct state_options state_is = {.device = &f.device, .layout = layout, .types.compute = DTYPE_F32};
    must(state_open(&state_is, &f.state, &err), &err);
    open_program(&f);
    compute = f.streams[STREAM_COMPUTE];
    must(state_init(f.state, 5, compute, &err), &err);
    struct exec_options exec = {.program = f.program,
                                .cut = {.b = B, .t = T, .cp = 1},
                                .device = &f.device,
                                .bind = bind,
                                .reduced = reduced,
                                .arg = &f,
                                .revoked = &f.revoked};
    memcpy(exec.streams, f.streams, sizeof exec.streams);
    must(exec_open(&exec, &f.exec, &err), &err);
    make_batch(&f);
    *state = &f;
    return 0;
}

static int set_up(void **state)
{
    return open_fixture(state, false, false);
}

static int set_up_direction(void **state)
{
    return open_fixture(state, true, false);
}

static int set_up_scales(void **state)
{
    return open_fixture(state, false, true);
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    exec_close(f->exec);
    program_close(f->program);
    state_close(f->state);
    free(f->converters);
    model_close(f->model);
    for (int i = 0; i < STREAM_COUNT; i++)
        if (f->streams[i])
            f->device.ops->stream_close(f->streams[i]);
    device_close(&f->device);
    return 0;
}

/* The optimizer's arguments for a step with these statistics. */
static titan_status decide(struct fixture *f, const double *statistics, struct titan_error *err)
{
    TRY(outcome_read(f->program, f->state->layout, statistics, &f->outcome, err));
    f->update.args[0] = (struct update_args){.lr = 1e-2f,
                                             .beta1 = 0.9f,
                                             .beta2 = 0.95f,
                                             .eps = 1e-8f,
                                             .grad_scale = (float)(1 / f->outcome.tokens),
                                             .bias1 = 0.1f,
                                             .bias2 = 0.05f};
    f->update.args[1] = f->update.args[0];
    f->update.alike = true;
    f->update.threshold[0] = f->update.threshold[1] = f->directs ? 0.5f : 0;
    for (int g = 0; g < PARAMS_GROUPS; g++)
        memcpy(f->update.kind[g], (int[]){0, 1, -1}, sizeof f->update.kind[g]);
    return TITAN_OK;
}

static titan_status run(struct fixture *f, unsigned commands, struct titan_error *err)
{
    const struct exec_batch batch = {.tokens = &f->tokens[0][0], .counts = f->counts, .commands = commands};
    const double *statistics = NULL;
    TRY(exec_gradients(f->exec, &batch, err));
    atomic_store(&f->revoked, f->revoke == REVOKE_AGREEING);
    TRY(exec_agree(f->exec, &statistics, err));
    assert_false(exec_prepared(f->exec));
    assert_int_equal(exec_statistics(f->exec) == statistics, !f->directs);
    if (f->fail)
        return titan_fail(err, TITAN_ECANCELLED, "the host has other plans");
    TRY(decide(f, statistics, err));
    atomic_store(&f->revoked, f->revoke == REVOKE_DECIDED);
    TRY(exec_commit(f->exec, f->skip ? NULL : &f->update, err));
    assert_ptr_equal(exec_statistics(f->exec), statistics);
    f->update.sums = f->directs ? statistics + f->program->statistics.size : NULL;
    for (int t = 0; f->directs && t < f->model->n_tensors; t++)
        assert_true(f->skip ? f->update.sums[t] == 0 : f->update.sums[t] > 0);
    TRY(exec_update(f->exec, f->skip ? NULL : &f->update, err));
    return f->device.ops->stream_sync(f->streams[STREAM_COMPUTE], err);
}

static float *copy_state(const struct fixture *f)
{
    float *copy = malloc((size_t)state_snapshot_size(f->state->layout, 0) * sizeof *copy);
    must(state_snapshot(f->state, copy, f->streams[STREAM_COMPUTE], NULL), NULL);
    return copy;
}

/* Loss and gradient norm against the same batch through whole.h. */
static void test_loss_and_norm(void **state)
{
    struct fixture *f = *state;
    struct titan_error err = {0};
    struct whole_model *w = NULL;
    double sum = 0, counted = 0, square = 0;
    float *grads[64] = {0}, *total[64] = {0};

    must(run(f, 5, &err), &err);
    must(whole_model_open(&(struct whole_options){f->model, &f->device, DTYPE_F32, B, T}, &w, &err), &err);
    must(whole_model_init(w, 5, &err), &err);
    for (int i = 0; i < f->model->n_tensors; i++) {
        grads[i] = calloc((size_t)f->model->tensors[i].numel, sizeof(float));
        total[i] = calloc((size_t)f->model->tensors[i].numel, sizeof(float));
    }
    for (int m = 0; m < MICROBATCHES; m++) {
        double loss;
        must(whole_model_loss(w, &(struct whole_batch){f->inputs[m], f->targets[m], B, T}, &loss, grads, &err), &err);
        sum += loss;
        counted += f->counts[m];
        for (int i = 0; i < f->model->n_tensors; i++)
            for (int64_t e = 0; e < f->model->tensors[i].numel; e++)
                total[i][e] += grads[i][e];
    }
    for (int i = 0; i < f->model->n_tensors; i++) {
        for (int64_t e = 0; e < f->model->tensors[i].numel; e++)
            square += (double)total[i][e] * total[i][e];
        free(grads[i]);
        free(total[i]);
    }
    assert_true(f->outcome.finite && f->outcome.bad_unit == -1);
    assert_true(f->outcome.tokens == counted);
    assert_true(fabs(f->outcome.loss - sum / counted) < 1e-9);
    assert_true(fabs(f->outcome.grad_norm - sqrt(square) / counted) < 1e-6 * f->outcome.grad_norm);
    assert_int_equal(f->outcome.commands, 5);
    whole_model_close(w);
}

static void test_skip(void **state)
{
    struct fixture *f = *state;
    struct titan_error err = {0};
    const size_t bytes = (size_t)state_snapshot_size(f->state->layout, 0) * sizeof(float);
    _cleanup_free_ float *before = copy_state(f);

    f->skip = true;
    must(run(f, 0, &err), &err);
    _cleanup_free_ float *after = copy_state(f);
    assert_memory_equal(before, after, bytes);
    const double first = f->outcome.loss;
    must(run(f, 0, &err), &err);
    assert_true(f->outcome.loss == first);

    f->skip = false;
    must(run(f, 0, &err), &err);
    _cleanup_free_ float *updated = copy_state(f);
    assert_memory_not_equal(before, updated, bytes);
    must(run(f, 0, &err), &err);
    assert_true(f->outcome.loss < first);
}

static void test_host_fails(void **state)
{
    struct fixture *f = *state;
    struct titan_error err = {0};
    _cleanup_free_ float *before = copy_state(f);

    f->fail = true;
    assert_int_equal(run(f, 0, &err), TITAN_ECANCELLED);
    _cleanup_free_ float *after = copy_state(f);
    assert_memory_equal(before, after, (size_t)state_snapshot_size(f->state->layout, 0) * sizeof(float));
}

/* Before AGREE a revoked step ends at once; from there on it needs no peer, and is finished. */
static void test_revoked(void **state)
{
    struct fixture *f = *state;
    struct titan_error err = {0};
    const size_t bytes = (size_t)state_snapshot_size(f->state->layout, 0) * sizeof(float);
    _cleanup_free_ float *before = copy_state(f);

    f->revoke = REVOKE_REDUCED;
    assert_int_equal(run(f, 0, &err), TITAN_EREVOKED);
    assert_false(exec_prepared(f->exec));
    _cleanup_free_ float *after = copy_state(f);
    assert_memory_equal(before, after, bytes);
    atomic_store(&f->revoked, 0);
    f->revoke = REVOKE_AGREEING;
    must(run(f, 0, &err), &err);
    _cleanup_free_ float *updated = copy_state(f);
    assert_memory_not_equal(before, updated, bytes);
}

/* A step with a direction section is committed behind it. Before that a revocation leaves state and statistics. */
static void test_direction(void **state)
{
    struct fixture *f = *state;
    struct titan_error err = {0};
    const size_t bytes = (size_t)state_snapshot_size(f->state->layout, 0) * sizeof(float);

    must(run(f, 0, &err), &err);
    const double *const committed = exec_statistics(f->exec);
    _cleanup_free_ float *before = copy_state(f);
    f->revoke = REVOKE_DECIDED;
    assert_int_equal(run(f, 0, &err), TITAN_EREVOKED);
    assert_false(exec_prepared(f->exec));
    assert_ptr_equal(exec_statistics(f->exec), committed);
    _cleanup_free_ float *after = copy_state(f);
    assert_memory_equal(before, after, bytes);

    atomic_store(&f->revoked, 0);
    f->revoke = REVOKE_NEVER;
    f->skip = true;
    must(run(f, 0, &err), &err);
    _cleanup_free_ float *skipped = copy_state(f);
    assert_memory_equal(before, skipped, bytes);
    f->skip = false;
    must(run(f, 0, &err), &err);
    _cleanup_free_ float *updated = copy_state(f);
    assert_memory_not_equal(before, updated, bytes);
}

/* A weight that is not finite: its unit is named, though the units after it and all gradients are spoilt too. */
static void test_bad_unit(void **state)
{
    struct fixture *f = *state;
    struct titan_error err = {0};

    f->skip = true;
    for (int u = 0; u < f->model->n_units; u++) {
        const int first = f->model->units[u].first_tensor;
        const struct model_tensor *t = &f->model->tensors[first];
        float *weight =
            (float *)f->state->values + 3 * f->state->layout->units[u].offset + f->state->layout->tensors[first].offset;
        for (int64_t i = 0; i < (u == 0 ? t->numel : 1); i++) /* the embedding: a row that occurs */
            weight[i] = NAN;
        must(run(f, 0, &err), &err);
        assert_false(f->outcome.finite);
        assert_int_equal(f->outcome.bad_unit, u);
        model_init_tensor(f->model, 5, first, 0, u == 0 ? t->numel : 1, weight);
        must(run(f, 0, &err), &err);
        assert_true(f->outcome.finite && f->outcome.bad_unit == -1);
    }
}

/* A gradient that is not finite though the loss is: the first unit backward came to. */
static void test_bad_gradient(void **state)
{
    struct fixture *f = *state;
    struct titan_error err = {0};
    struct step_outcome outcome;

    const struct step_statistics *r = &f->program->statistics;
    _cleanup_free_ double *statistics = calloc((size_t)r->size, sizeof *statistics);
    for (int m = 0; m < MICROBATCHES; m++)
        statistics[r->counts + m] = 1;
    for (int u = 0; u <= 2; u++)
        statistics[r->norms + u] = INFINITY;
    must(outcome_read(f->program, f->state->layout, statistics, &outcome, &err), &err);
    assert_false(outcome.finite);
    assert_int_equal(outcome.bad_unit, 2);
}

static titan_status late(void *done, struct titan_error *err)
{
    (void)err;
    patience_pause_ms(20, "the executor is closed meanwhile");
    atomic_store((atomic_int *)done, 1);
    return TITAN_OK;
}

/* A stream that the compute stream has joined may still look at the executor's events. */
static void test_close_waits(void **state)
{
    struct fixture *f = *state;
    struct titan_error err = {0};
    atomic_int done = 0;

    must(f->device.ops->stream_call(f->streams[STREAM_GATHER], late, &done, &err), &err);
    exec_close(TAKE(f->exec));
    assert_int_equal(atomic_load(&done), 1);
}

/* 24 steps on the same batch, the loss falls to a tenth: nothing is beyond the largest codes, and codes stay above the
 * smallest ones. */
static void test_static_scales(void **state)
{
    struct fixture *f = *state;
    struct titan_error err = {0};
    double first = 0;

    for (int step = 0; step < 24; step++) {
        must(run(f, 0, &err), &err);
        first = step == 0 ? f->outcome.loss : first;
    }
    print_message(
        "# loss %.3f to %.3f; %ld operands' elements, %ld beyond; codes' root mean squares: e4m3 %.2g to %.2g, "
        "e5m2 %.2g to %.2g\n",
        first, f->outcome.loss, (long)seen.elements, (long)seen.beyond, seen.least[0], seen.most[0], seen.least[1],
        seen.most[1]);
    assert_true(f->outcome.finite && f->outcome.loss < 0.1 * first);
    assert_true(seen.elements > 0 && seen.beyond == 0);
    assert_true(seen.least[FLOAT8_E4M3] > 0x1p-7 && seen.least[FLOAT8_E5M2] > 0x1p-12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_loss_and_norm, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_skip, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_host_fails, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_revoked, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_direction, set_up_direction, tear_down),
        cmocka_unit_test_setup_teardown(test_bad_unit, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_bad_gradient, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_close_waits, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_static_scales, set_up_scales, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
