/* SPDX-License-Identifier: Apache-2.0 */
/* Loss-free balancing through whole steps: the statistics has the choices of all microbatches, each counted once
 * whatever is computed again; biases move by the rule, against the load; with frozen weights loads become even; a
 * skipped step leaves biases alone. */
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
#include "worker/exec/exec.h"
#include "worker/plan/build.h"
#include "worker/plan/check.h"

enum { B = 4, T = 32, MICROBATCHES = 3, LAYERS = 3, E = 8, TOP_K = 2, LAYERS_MIXED = LAYERS - 1 };
#define RATE 1e-3

static const struct model_dims dims = {.dim = 32,
                                       .n_layers = LAYERS,
                                       .n_heads = 4,
                                       .n_kv_heads = 2,
                                       .ffn_hidden = 48,
                                       .vocab_size = 512,
                                       .rope_theta = 1e4,
                                       .norm_eps = 1e-5,
                                       .n_experts = E,
                                       .top_k = TOP_K,
                                       .n_shared_experts = 1,
                                       .moe_hidden = 24,
                                       .n_dense_layers = 1,
                                       .route_scale = 1,
                                       .balance_rate = RATE};

struct fixture {
    struct device_handle device;
    struct stream *streams[STREAM_COUNT];
    struct model *model;
    struct layout *layout;
    struct program *program;
    struct exec *exec;
    float **values; /* of every unit: masters, which are the shard too, and room for both moments */
    float *biases;
    int32_t tokens[MICROBATCHES][5][B * T];
    double counts[MICROBATCHES], expert_tokens[LAYERS_MIXED][E], drops[LAYERS_MIXED];
    bool skip;
};

static void must(titan_status status, const struct titan_error *err)
{
    if (status != TITAN_OK)
        fail_msg("%s: %s", titan_status_name(status), err->msg);
}

static void *room(const struct fixture *f, size_t floats)
{
    struct titan_error err = {0};
    void *p = NULL;
    must(f->device.ops->alloc(f->device.dev, floats * sizeof(float), &p, &err), &err);
    return p;
}

static void fill(struct fixture *f)
{
    f->values = calloc((size_t)f->model->n_units, sizeof *f->values);
    for (int u = 0; u < f->model->n_units; u++)
        f->values[u] = room(f, 3 * (size_t)f->layout->units[u].shard);
    for (int i = 0; i < f->model->n_tensors; i++) {
        const struct model_tensor *t = &f->model->tensors[i];
        model_init_tensor(f->model, 7, i, 0, t->numel, f->values[t->unit] + f->layout->tensors[i].offset);
    }
    f->biases = room(f, (size_t)layout_all_experts(f->model));
    for (int m = 0; m < MICROBATCHES; m++)
        for (int i = 0; i < B * T; i++) {
            f->tokens[m][0][i] = i % 2 ? (m * B * T + i) * 37 % 512 : i % 12; /* some are frequent */
            f->tokens[m][1][i] = (m * 31 + i * 5 + 3) % 512;
            f->tokens[m][2][i] = i % T;
            f->tokens[m][3][i] = i;
            f->tokens[m][4][i] = i - i % T;
            f->counts[m]++;
        }
}

static void *bind_buffer(void *arg, const struct buffer *b)
{
    struct fixture *f = arg;
    if (b->kind == BUF_BIAS)
        return f->biases + layout_bias_offset(f->model, f->model->units[b->unit].layer);
    return f->values[b->unit];
}

static void open_model(struct fixture *f, const struct model_dims *of, double capacity, enum checkpointing mode)
{
    struct titan_error err = {0};
    const struct device_options options = {.threads = 1};
    enum checkpointing modes[LAYERS];
    memset(f, 0, sizeof *f);
    (void)setenv("TITAN_PLUGIN_DIR", TITAN_BUILD_DIR "/lib/titan", 0);
    must(device_open("cpu", &options, &f->device, &err), &err);
    must(model_open(of, &f->model, &err), &err);
    const struct layout_options layout = {.model = f->model, .mesh = {.world = 1, .size = {1, 1, 1, 1, 1}, .ep = 1}};
    must(layout_open(&layout, &f->layout, &err), &err);
    for (int l = 0; l < LAYERS; l++)
        modes[l] = mode;
    const struct build_options build = {.layout = f->layout,
                                        .dt = DTYPE_F32,
                                        .b = B,
                                        .t = T,
                                        .loss_chunks = 1,
                                        .expert_capacity = capacity,
                                        .ops = f->device.ops,
                                        .dev = f->device.dev,
                                        .microbatches = MICROBATCHES,
                                        .checkpointing = modes};
    must(program_build(&build, 0, &f->program, &err), &err);
    must(program_check(f->program, 0, &err), &err);
    fill(f);
    struct exec_options exec = {
        .program = f->program, .cut = {.b = B, .t = T, .cp = 1}, .device = &f->device, .bind = bind_buffer, .arg = f};
    for (int s = 0; s < STREAM_COUNT; s++)
        if (s == STREAM_COMPUTE || f->program->streams >> s & 1)
            must(f->device.ops->stream_open(f->device.dev, program_stream_name((enum stream_id)s), s == STREAM_COMPUTE,
                                            &f->streams[s], &err),
                 &err);
    memcpy(exec.streams, f->streams, sizeof exec.streams);
    must(exec_open(&exec, &f->exec, &err), &err);
}

static void open_step(struct fixture *f, enum checkpointing mode)
{
    open_model(f, &dims, 0, mode);
}

static void close_step(struct fixture *f)
{
    exec_close(f->exec);
    for (int s = 0; s < STREAM_COUNT; s++)
        if (f->streams[s])
            f->device.ops->stream_close(f->streams[s]);
    for (int u = 0; u < f->model->n_units; u++)
        f->device.ops->release(f->device.dev, f->values[u]);
    free(f->values);
    f->device.ops->release(f->device.dev, f->biases);
    program_close(f->program);
    layout_close(f->layout);
    model_close(f->model);
    device_close(&f->device);
}

static void run_step(struct fixture *f)
{
    static const struct update frozen = {/* weights stay what they are */
                                         .args = {{.eps = 1, .bias1 = 1, .bias2 = 1}},
                                         .kind = {{0, 1, -1}},
                                         .alike = true};
    struct titan_error err = {0};
    const struct exec_batch batch = {.tokens = &f->tokens[0][0][0], .counts = f->counts};
    const double *statistics = NULL;
    must(exec_gradients(f->exec, &batch, &err), &err);
    must(exec_agree(f->exec, &statistics, &err), &err);
    assert_int_equal(f->program->statistics.size - f->program->statistics.expert_tokens, LAYERS_MIXED * E);
    memcpy(f->expert_tokens, statistics + f->program->statistics.expert_tokens, sizeof f->expert_tokens);
    memcpy(f->drops, statistics + f->program->statistics.drops, sizeof f->drops);
    must(exec_update(f->exec, f->skip ? NULL : &frozen, &err), &err);
    must(f->device.ops->stream_sync(f->streams[STREAM_COMPUTE], &err), &err);
}

/* Most of an expert, in means; 1 is even. */
static double imbalance(const double *expert_tokens)
{
    double most = 0;
    for (int e = 0; e < E; e++)
        most = fmax(most, expert_tokens[e]);
    return most * E / (MICROBATCHES * B * T * TOP_K);
}

/* One step's change, from the paper's rule and TorchTitan's centering. */
static void expected_change(const double *expert_tokens, double *ret)
{
    const double mean = (double)(MICROBATCHES * B * T * TOP_K) / E;
    double sum = 0;
    for (int e = 0; e < E; e++) {
        ret[e] = expert_tokens[e] < mean ? RATE : expert_tokens[e] > mean ? -RATE : 0;
        sum += ret[e];
    }
    for (int e = 0; e < E; e++)
        ret[e] -= sum / E;
}

static void test_rule(void **state)
{
    struct fixture f;
    double want[LAYERS_MIXED][E] = {0};
    (void)state;
    open_step(&f, CHECKPOINT_NONE);
    for (int step = 0; step < 3; step++) {
        run_step(&f);
        for (int l = 0; l < LAYERS_MIXED; l++) {
            double change[E], all = 0;
            expected_change(f.expert_tokens[l], change);
            for (int e = 0; e < E; e++) {
                all += f.expert_tokens[l][e];
                want[l][e] += change[e];
                assert_true(fabs(f.biases[l * E + e] - want[l][e]) < 1e-8);
            }
            assert_true(all == MICROBATCHES * B * T * TOP_K);
            assert_true(imbalance(f.expert_tokens[l]) > 1.1); /* there is something to do */
        }
    }
    close_step(&f);
}

static void test_becomes_even(void **state)
{
    struct fixture f;
    double first[LAYERS_MIXED], late[LAYERS_MIXED][E] = {0};
    (void)state;
    open_step(&f, CHECKPOINT_NONE);
    run_step(&f);
    for (int l = 0; l < LAYERS_MIXED; l++)
        first[l] = imbalance(f.expert_tokens[l]);
    for (int step = 0; step < 80; step++)
        run_step(&f);
    for (int step = 0; step < 20; step++) { /* a frequent token goes here and there: on average */
        run_step(&f);
        for (int l = 0; l < LAYERS_MIXED; l++)
            for (int e = 0; e < E; e++)
                late[l][e] += f.expert_tokens[l][e] / 20;
    }
    for (int l = 0; l < LAYERS_MIXED; l++) {
        const double last = imbalance(late[l]);
        print_message("# layer %d: busiest expert has %.2f of the mean, after 100 steps %.2f\n", l + 1, first[l], last);
        assert_true(last - 1 < (first[l] - 1) / 2);
    }
    close_step(&f);
}

static void test_skipped(void **state)
{
    struct fixture f;
    float before[LAYERS_MIXED * E];
    (void)state;
    open_step(&f, CHECKPOINT_NONE);
    run_step(&f);
    memcpy(before, f.biases, sizeof before);
    f.skip = true;
    run_step(&f);
    assert_memory_equal(before, f.biases, sizeof before);
    double skipped[LAYERS_MIXED][E];
    memcpy(skipped, f.expert_tokens, sizeof skipped);
    f.skip = false;
    run_step(&f); /* counts anew: the same choices, as nothing has moved */
    assert_memory_equal(skipped, f.expert_tokens, sizeof skipped);
    assert_memory_not_equal(before, f.biases, sizeof before);
    close_step(&f);
}

static void test_counted_once(void **state)
{
    double want[LAYERS_MIXED][E];
    (void)state;
    for (int mode = CHECKPOINT_NONE; mode <= CHECKPOINT_FULL; mode++) {
        struct fixture f;
        open_step(&f, (enum checkpointing)mode);
        run_step(&f);
        if (mode == CHECKPOINT_NONE)
            memcpy(want, f.expert_tokens, sizeof want);
        assert_memory_equal(want, f.expert_tokens, sizeof want);
        close_step(&f);
    }
}

/* The first step's biases are 0, and so are none. */
static void test_counted_without_balance(void **state)
{
    struct model_dims plain = dims;
    double want[LAYERS_MIXED][E];
    struct fixture f;
    (void)state;
    open_step(&f, CHECKPOINT_NONE);
    run_step(&f);
    memcpy(want, f.expert_tokens, sizeof want);
    close_step(&f);
    plain.balance_rate = 0;
    open_model(&f, &plain, 0, CHECKPOINT_FULL);
    assert_int_equal(layout_biases(f.model), 0);
    for (int step = 0; step < 2; step++) {
        run_step(&f);
        assert_memory_equal(want, f.expert_tokens, sizeof want);
    }
    close_step(&f);
}

/* With the same tokens in all microbatches each of them has a third of the loads, and a row is dropped once. */
static void test_dropped(void **state)
{
    static const double capacities[] = {0.8, 1.5, 8};
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(capacities); i++)
        for (int mode = CHECKPOINT_NONE; mode <= CHECKPOINT_FULL; mode += CHECKPOINT_FULL) {
            struct fixture f;
            open_model(&f, &dims, capacities[i], (enum checkpointing)mode);
            for (int m = 1; m < MICROBATCHES; m++)
                memcpy(f.tokens[m], f.tokens[0], sizeof f.tokens[0]);
            run_step(&f);
            double all = 0;
            for (int l = 0; l < LAYERS_MIXED; l++) {
                const double room = ceil(capacities[i] * (B * T * TOP_K) / E);
                double want = 0;
                for (int e = 0; e < E; e++)
                    want += fmax(f.expert_tokens[l][e] - MICROBATCHES * room, 0);
                assert_true(f.drops[l] == want);
                all += want;
            }
            print_message("# %g even shares: %g rows dropped\n", capacities[i], all);
            assert_int_equal(all > 0, i < 2);
            close_step(&f);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rule),
        cmocka_unit_test(test_becomes_even),
        cmocka_unit_test(test_skipped),
        cmocka_unit_test(test_counted_once),
        cmocka_unit_test(test_counted_without_balance),
        cmocka_unit_test(test_dropped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
