/* SPDX-License-Identifier: Apache-2.0 */
/* bench_exec.c - what the program executor costs beside the kernels it starts.
 *
 *   bench_exec [threads] [steps] [section.key=value]...
 *
 * One rank on the CPU runs the step program of a model of 124 M parameters three times over: with its kernels; with
 * kernels that do nothing, which leaves the executor's own work - the walk, finding addresses and numbers, waits,
 * events, calls through the device's table; and with kernels that do nothing but sweep the caches; the time of that is
 * taken off again, so that the executor finds its tables as cold as behind real kernels. Overhead is the last against
 * the first. Prints JSON. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "worker/data/batch.h"
#include "worker/exec/exec.h"
#include "worker/plan/plan.h"
#include "worker/state/state.h"

#define SWEEP_BYTES ((size_t)4 << 20) /* more than a core's own caches */
#define LINE 64
#define IDLE_STEPS 20

enum kernels { REAL, NOTHING, SWEEP };

struct bench {
    struct recipe recipe;
    struct model *model;
    struct plan *plan;
    struct program *program;
    struct train_state *state;
    struct device_handle device, without; /* the same device without kernels */
    struct device_ops idle;
    struct stream *streams[STREAM_COUNT];
    int32_t *tokens;
    double *counts;
};

static void must(titan_status status, const struct titan_error *err)
{
    if (status == TITAN_OK)
        return;
    fprintf(stderr, "bench_exec: %s\n", err->msg);
    exit(1);
}

/* --- kernels that do nothing -------------------------------------------------------------------------------------- */

static int64_t sweep_ns, calls;

static titan_status nothing(void)
{
    calls++;
    return TITAN_OK;
}

static titan_status sweep(void)
{
    static volatile char memory[SWEEP_BYTES];
    const int64_t begin = clock_mono_ns();

    calls++;
    for (size_t i = 0; i < SWEEP_BYTES; i += LINE)
        memory[i]++;
    sweep_ns += clock_mono_ns() - begin;
    return TITAN_OK;
}

/* Every operation from copy to the last becomes fn, which takes no arguments: calling conventions let the caller clear
 * them away. Streams, events and memory stay the device's. */
static void replace_kernels(struct bench *b, titan_status (*fn)(void))
{
    char *const first = (char *)&b->idle.copy;

    b->idle = *b->device.ops;
    for (size_t i = 0; i < (sizeof b->idle - offsetof(struct device_ops, copy)) / sizeof fn; i++)
        memcpy(first + i * sizeof fn, &fn, sizeof fn);
    b->idle.attention_work_bytes = b->device.ops->attention_work_bytes;
    b->without = b->device;
    b->without.ops = &b->idle;
}

/* --- the step ----------------------------------------------------------------------------------------------------- */

static void *bind(void *arg, const struct buffer *buffer)
{
    return state_bind(((struct bench *)arg)->state, buffer);
}

static const struct update update = {.args = {{.lr = 1e-4f,
                                               .beta1 = 0.9f,
                                               .beta2 = 0.95f,
                                               .eps = 1e-8f,
                                               .grad_scale = 1e-3f,
                                               .bias1 = 0.1f,
                                               .bias2 = 0.05f}},
                                     .kind = {{0, 1, -1}},
                                     .alike = true};

static titan_status run_step(struct exec *exec, const struct exec_batch *batch, struct titan_error *err)
{
    const double *statistics = NULL;

    TRY(exec_gradients(exec, batch, err));
    TRY(exec_agree(exec, &statistics, err));
    return exec_update(exec, &update, err);
}

/* Milliseconds of each of n steps, sorted. */
static int by_value(const void *x, const void *y)
{
    const double *a = x, *b = y;
    return *a < *b ? -1 : *a > *b;
}

static double median_step(struct bench *b, enum kernels kernels, int n)
{
    struct titan_error err = {0};
    struct exec *exec = NULL;
    double ms[64];

    if (kernels != REAL)
        replace_kernels(b, kernels == SWEEP ? sweep : nothing);
    struct exec_options options = {.program = b->program,
                                   .cut = b->plan->cut,
                                   .device = kernels == REAL ? &b->device : &b->without,
                                   .bind = bind,
                                   .arg = b};
    memcpy(options.streams, b->streams, sizeof options.streams);
    must(exec_open(&options, &exec, &err), &err);
    const struct exec_batch batch = {.tokens = b->tokens, .counts = b->counts};
    for (int i = -1; i < n; i++) { /* the first warms up */
        sweep_ns = calls = 0;
        const int64_t begin = clock_mono_ns();
        must(run_step(exec, &batch, &err), &err);
        must(b->device.ops->stream_sync(b->streams[STREAM_COMPUTE], &err), &err);
        if (i >= 0)
            ms[i] = (double)(clock_mono_ns() - begin - sweep_ns) * 1e-6;
    }
    exec_close(exec);
    qsort(ms, (size_t)n, sizeof ms[0], by_value);
    return ms[n / 2];
}

/* --- set-up ------------------------------------------------------------------------------------------------------- */

static void read_recipe(struct bench *b, int n, char **sets)
{
    static const char *const keys[] = {"model.flavor=debugmodel",
                                       "model.dim=768",
                                       "model.n_layers=12",
                                       "model.n_heads=12",
                                       "model.n_kv_heads=12",
                                       "model.ffn_hidden=2048",
                                       "model.vocab_size=25600",
                                       "training.seq_len=512",
                                       "training.local_batch_size=1",
                                       "elastic.max_workers=1",
                                       "activation_checkpoint.mode=none"};
    struct titan_error err = {0};

    recipe_init(&b->recipe);
    for (size_t i = 0; i < ARRAY_SIZE(keys); i++)
        must(recipe_set(&b->recipe, keys[i], &err), &err);
    for (int i = 0; i < n; i++)
        must(recipe_set(&b->recipe, sets[i], &err), &err);
    must(recipe_resolve(&b->recipe, &err), &err);
    must(model_open(&b->recipe.model.dims, &b->model, &err), &err);
}

static void open_program(struct bench *b)
{
    struct titan_error err = {0};
    struct layout *layout = NULL;
    const enum dtype dt = b->device.info.bf16_fast ? DTYPE_BF16 : DTYPE_F32;
    const struct plan_options options = {
        .recipe = &b->recipe, .model = b->model, .world = 1, .dt = dt, .ops = b->device.ops, .dev = b->device.dev};

    must(plan_open(&options, &b->plan, &err), &err);
    must(plan_program(b->plan, 0, &b->program, &err), &err);
    must(layout_of_recipe(&b->recipe, b->model, &b->plan->mesh, &layout, &err), &err);
    const struct state_options state = {.device = &b->device, .layout = layout, .types.compute = dt};
    must(state_open(&state, &b->state, &err), &err);
    for (int s = 0; s < STREAM_COUNT; s++)
        if (s == STREAM_COMPUTE || b->program->streams >> s & 1)
            must(b->device.ops->stream_open(b->device.dev, program_stream_name((enum stream_id)s), s == STREAM_COMPUTE,
                                            &b->streams[s], &err),
                 &err);
    must(state_init(b->state, 1, b->streams[STREAM_COMPUTE], &err), &err);
}

static void make_batch(struct bench *b)
{
    const int64_t n = b->plan->cut.b * b->plan->cut.t, share = b->program->share;
    _cleanup_free_ int32_t *inputs = calloc((size_t)n, sizeof *inputs);

    b->tokens = calloc((size_t)(share * BATCH_ROWS * n), sizeof *b->tokens);
    b->counts = calloc((size_t)share, sizeof *b->counts);
    if (!inputs || !b->tokens || !b->counts)
        exit(1);
    for (int64_t i = 0; i < n; i++)
        inputs[i] = (int32_t)(i * 7919 % b->recipe.model.dims.vocab_size);
    for (int64_t m = 0; m < share; m++)
        b->counts[m] = (double)batch_fill(&b->plan->cut, 0, inputs, inputs, NULL, b->tokens + m * BATCH_ROWS * n);
}

static void close_bench(struct bench *b)
{
    for (int s = 0; s < STREAM_COUNT; s++)
        if (b->streams[s])
            b->device.ops->stream_close(b->streams[s]);
    program_close(b->program);
    plan_close(b->plan);
    state_close(b->state);
    model_close(b->model);
    device_close(&b->device);
    free(b->tokens);
    free(b->counts);
}

int main(int argc, char **argv)
{
    struct bench b = {0};
    struct titan_error err = {0};
    const struct device_options options = {.threads = argc > 1 ? atoi(argv[1]) : 1};
    const int steps = argc > 2 ? atoi(argv[2]) : 5;

    if (steps < 1 || steps > 64) {
        fprintf(stderr, "bench_exec [threads] [steps: 1 to 64] [section.key=value]...\n");
        return 2;
    }
    (void)setenv("TITAN_PLUGIN_DIR", TITAN_BUILD_DIR "/lib/titan", 0);
    must(device_open("cpu", &options, &b.device, &err), &err);
    read_recipe(&b, argc > 3 ? argc - 3 : 0, argv + 3);
    open_program(&b);
    make_batch(&b);
    const double real = median_step(&b, REAL, steps);
    const double warm = median_step(&b, NOTHING, IDLE_STEPS);
    const double cold = median_step(&b, SWEEP, IDLE_STEPS);
    printf("{\"parameters\":%ld,\"tokens\":%ld,\"dtype\":\"%s\",\"threads\":%d,\"actions\":%d,\"kernels\":%ld,"
           "\"step_ms\":%.3f,\"executor_warm_ms\":%.4f,\"executor_cold_ms\":%.4f,\"overhead\":%.6f,"
           "\"target_overhead\":0.02}\n",
           (long)recipe_params(&b.recipe), (long)(b.plan->cut.b * b.plan->cut.t * b.program->share),
           b.plan->opt.dt == DTYPE_BF16 ? "bf16" : "fp32", options.threads, b.program->n_actions, (long)calls, real,
           warm, cold, cold / (real - cold));
    close_bench(&b);
    return 0;
}
