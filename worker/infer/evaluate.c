/* SPDX-License-Identifier: Apache-2.0 */
/* evaluate.c - see evaluate.h. */
#include "worker/infer/evaluate.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/eval_options.h"
#include "base/json.h"
#include "worker/data/held_out.h"
#include "worker/data/loader.h"
#include "worker/exec/exec.h"
#include "worker/infer/weights.h"
#include "worker/optim/outcome.h"
#include "worker/plan/plan.h"

struct evaluation_tool {
    const struct evaluate_options *options;
    struct inference inference;
    struct held_out held_out;
    struct plan *plan;
    struct program **programs; /* the program of the only rank */
    struct stream *streams[STREAM_COUNT];
    struct weights weights;
    struct loader loader;
    struct exec *exec;
};

/* --- the recipe --------------------------------------------------------------------------------------------------- */

static titan_status choose_validation(const struct evaluate_options *o, struct recipe *r, struct titan_error *err)
{
    if (!o->data && !r->validation.enable)
        return titan_fail(err, TITAN_EINVAL, "eval: --data PATH is missing: the run has no validation data");
    if (!r->validation.enable) {
        r->validation.enable = true;
        r->validation.seq_len = r->training.seq_len;
        r->validation.local_batch_size = r->training.local_batch_size;
        r->validation.steps = -1;
        (void)snprintf(r->validation.dataset, sizeof r->validation.dataset, "%s", r->training.dataset);
    }
    if (o->data && (size_t)snprintf(r->validation.dataset_path, sizeof r->validation.dataset_path, "%s", o->data) >=
                       sizeof r->validation.dataset_path)
        return titan_fail(err, TITAN_EINVAL, "--data: the path is too long");
    if (o->dataset)
        (void)snprintf(r->validation.dataset, sizeof r->validation.dataset, "%s", o->dataset);
    if (o->steps != 0)
        r->validation.steps = o->steps;
    if (o->seq_len > 0)
        r->validation.seq_len = o->seq_len;
    if (o->inference.tokenizer && (size_t)snprintf(r->model.tokenizer, sizeof r->model.tokenizer, "%s",
                                                   o->inference.tokenizer) >= sizeof r->model.tokenizer)
        return titan_fail(err, TITAN_EINVAL, "--tokenizer: the path is too long");

    /* The evaluation runs on one rank without a pipeline, with the run's batch. It has the run's microbatch size if
     * this divides the batch. */
    const int64_t batch = recipe_validation_batch(r), rows = recipe_validation_rows(r);
    const int64_t training_rows = recipe_microbatch_rows(r);
    r->parallelism.pipeline_parallel_degree = r->parallelism.tensor_parallel_degree = 1;
    r->parallelism.context_parallel_degree = r->parallelism.expert_parallel_degree = 1;
    r->parallelism.expert_tensor_parallel_degree = 1;
    r->parallelism.data_parallel_replicate_degree = 1;
    r->parallelism.data_parallel_shard_degree = -1;
    r->parallelism.expert_parallel_room = 0;
    r->training.enable_cpu_offload = false;
    r->training.local_batch_size = training_rows;
    r->validation.local_batch_size = batch % rows == 0 ? rows : 1;
    r->elastic.min_workers = 1;
    r->elastic.max_workers = batch / r->validation.local_batch_size;
    return TITAN_OK;
}

/* --- the evaluation ----------------------------------------------------------------------------------------------- */

static titan_status open_tool(struct evaluation_tool *e, struct titan_error *err)
{
    const struct inference *i = &e->inference;
    const struct recipe *r = &i->trained.recipe;

    TRY(inference_open(&e->options->inference, &e->inference, err));
    TRY(choose_validation(e->options, &e->inference.trained.recipe, err));
    const titan_status found = held_out_open(r, i->tokenizer, NULL, 0, &e->held_out, err);
    TRY(found == TITAN_ENOTFOUND ? TITAN_EINVAL : found); /* exit code 3 is for checkpoints and jobs */

    const struct plan_options plan = {.recipe = r,
                                      .model = i->trained.model,
                                      .world = 1,
                                      .dt = i->dt,
                                      .ops = i->device.ops,
                                      .dev = i->device.dev,
                                      .memory_bytes = i->device.info.memory_bytes,
                                      .memory_free = i->device.info.memory_free,
                                      .no_float8 = !i->device.info.float8,
                                      .no_mxfp8 = !i->device.info.mxfp8,
                                      .evaluation = true};
    TRY(plan_open(&plan, &e->plan, err));
    titan_assert(e->plan->classes == 1);
    TRY(plan_programs(e->plan, &e->programs, err));

    const struct program *program = e->programs[0];
    for (int s = 0; s < STREAM_COUNT; s++)
        if (s == STREAM_COMPUTE || program->streams >> s & 1)
            TRY(i->device.ops->stream_open(i->device.dev, program_stream_name((enum stream_id)s), s == STREAM_COMPUTE,
                                           &e->streams[s], err));
    TRY(weights_open(e->plan->layout, &i->device, i->dt, e->streams[STREAM_COMPUTE], &e->weights, err));
    TRY(weights_load(&e->weights, &i->trained, err));
    struct exec_options exec = {
        .program = program, .cut = e->plan->cut, .device = &i->device, .bind = weights_bind, .arg = &e->weights};
    memcpy(exec.streams, e->streams, sizeof exec.streams);
    TRY(exec_open(&exec, &e->exec, err));

    const struct loader_options loader = {.data = e->held_out.data,
                                          .cut = e->plan->cut,
                                          .share = program->share,
                                          .global_batch = recipe_validation_batch(r),
                                          .documents = r->training.block_causal,
                                          .samples = e->held_out.samples,
                                          .token_bytes = e->held_out.token_bytes};
    return loader_open(&loader, &e->loader, err);
}

titan_status evaluate_checkpoint(const struct evaluate_options *options, struct evaluation_report *ret,
                                 struct titan_error *err)
{
    struct evaluation_tool e = {.options = options};
    struct evaluation_sums sums = {0};

    titan_assert(options->steps >= -1 && options->seq_len >= 0);
    titan_status status = open_tool(&e, err);
    const int64_t began_ns = clock_mono_ns();
    titan_assert(status != TITAN_OK || (e.held_out.steps > 0 && e.programs[0]->forward_only));
    for (uint64_t step = 1; status == TITAN_OK && step <= e.held_out.steps; step++) {
        const double *statistics = NULL;
        status = loader_load(&e.loader, step, err);
        const struct exec_batch batch = {.tokens = e.loader.tokens, .counts = e.loader.counts};
        if (status == TITAN_OK)
            status = exec_evaluate(e.exec, &batch, &statistics, err);
        if (status != TITAN_OK)
            break;
        outcome_add(&e.programs[0]->statistics, statistics, &sums);
        sums.bytes += (double)e.loader.bytes;
        if (options->progress)
            options->progress(options->arg, step, e.held_out.steps);
    }
    if (status == TITAN_OK)
        *ret = (struct evaluation_report){.step = e.inference.trained.info.step,
                                          .tokens = (uint64_t)sums.tokens,
                                          .bytes = (uint64_t)sums.bytes,
                                          .loss = sums.loss / sums.tokens,
                                          .ms = (double)(clock_mono_ns() - began_ns) * 1e-6};
    exec_close(e.exec);
    loader_close(&e.loader);
    weights_close(&e.weights);
    for (int s = 0; s < STREAM_COUNT; s++)
        if (e.streams[s])
            e.inference.device.ops->stream_close(e.streams[s]);
    if (e.programs)
        plan_free_programs(e.plan, e.programs);
    plan_close(e.plan);
    held_out_close(&e.held_out);
    inference_close(&e.inference);
    return status;
}

/* --- command ------------------------------------------------------------------------------------------------------ */

#define DRAW_NS INT64_C(200000000)

static void draw_progress(void *arg, uint64_t done, uint64_t steps)
{
    int64_t *drawn_ns = arg;
    const int64_t now_ns = clock_mono_ns();

    if (done < steps && now_ns - *drawn_ns < DRAW_NS)
        return;
    *drawn_ns = now_ns;
    (void)fprintf(stderr, "\r\033[K");
    if (done < steps)
        (void)fprintf(stderr, "%" PRIu64 " of %" PRIu64 " steps", done, steps);
    (void)fflush(stderr);
}

static titan_status run(void *with, const struct args *args, struct titan_error *err)
{
    static const char *const kinds[] = {"text", "jsonl", "c4", "c4_test", "c4_validation", "sft"};
    int64_t drawn_ns = 0;
    struct evaluation_report r;
    size_t kind = 0;
    const char *output = args_text(args, "output", "table");
    struct evaluate_options o = {.inference = {.checkpoint = args->words[0],
                                               .tokenizer = args_text(args, "tokenizer", NULL),
                                               .pattern = args_text(args, "pattern", NULL),
                                               .device = args_text(args, "device", NULL),
                                               .dtype = args_text(args, "dtype", NULL)},
                                 .data = args_text(args, "data", NULL),
                                 .dataset = args_text(args, "dataset", NULL),
                                 .progress = isatty(STDERR_FILENO) ? draw_progress : NULL,
                                 .arg = &drawn_ns};
    (void)with;
    TRY(args_int(args, "steps", (struct int_range){-1, 1000000000}, 0, &o.steps, err));
    if (args_has(args, "steps") && o.steps == 0)
        return titan_fail(err, TITAN_EINVAL, "--steps 0: a number of steps, or -1 for all of the data");
    TRY(args_int(args, "seq-len", (struct int_range){1, 1 << 24}, 0, &o.seq_len, err));
    while (o.dataset && kind < ARRAY_SIZE(kinds) && strcmp(o.dataset, kinds[kind]) != 0)
        kind++;
    if (kind == ARRAY_SIZE(kinds))
        return titan_fail(err, TITAN_EINVAL, "--dataset is text, jsonl, c4, c4_test, c4_validation or sft, not '%.64s'",
                          o.dataset);
    if (strcmp(output, "table") != 0 && strcmp(output, "json") != 0)
        return titan_fail(err, TITAN_EINVAL, "--output is table or json, not '%.64s'", output);
    TRY(evaluate_checkpoint(&o, &r, err));

    const double perplexity = evaluation_perplexity(&r), bits = evaluation_bits_per_byte(&r);
    if (strcmp(output, "table") == 0) {
        (void)printf("loss           %.6f\nperplexity     %.4f\n", r.loss, perplexity);
        if (bits >= 0)
            (void)printf("bits per byte  %.5f\n", bits);
        (void)printf("tokens         %" PRIu64 "\nstep           %" PRIu64 "\n", r.tokens, r.step);
        return TITAN_OK;
    }
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    struct json_writer w = {.out = &text, .pretty = true};
    json_begin_object(&w, NULL);
    json_put_uint(&w, "step", r.step);
    json_put_real(&w, "loss", r.loss);
    json_put_real(&w, "perplexity", perplexity);
    json_put_real(&w, "bits_per_byte", bits);
    json_put_uint(&w, "tokens", r.tokens);
    json_put_uint(&w, "bytes", r.bytes);
    json_put_real(&w, "seconds", r.ms * 1e-3);
    json_end_object(&w);
    if (!buf_failed(&text))
        (void)puts(text.data);
    return TITAN_OK;
}

const struct command eval_command = {
    .name = "eval",
    .summary = "the loss of a checkpoint on validation data",
    .arguments = "CHECKPOINT",
    .text =
        "CHECKPOINT is one, or a folder of them: the newest. Samples and arithmetic are those of an evaluation in the "
        "run.",
    .min_args = 1,
    .max_args = 1,
    .options = (const struct option_spec[]){EVAL_OPTIONS,
                                            {"output", 'o', "FORMAT", "table (default) or json", WORD_FORMAT},
                                            {NULL}},
    .examples = (const struct example[]){{"titan-worker eval run/checkpoint --data ./held-out",
                                          "the newest checkpoint, on text it was not trained on"},
                                         {NULL}},
    .run = run,
};
