/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/infer/generate.h"

#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "base/rng.h"
#include "base/vec.h"
#include "worker/checkpoint/safetensors.h"
#include "worker/infer/inference.h"
#include "worker/infer/whole.h"

#define MAX_TOKENS_DEFAULT 256
#define MAX_TOKENS_LIMIT 1000000
#define TEMPERATURE_DEFAULT 0.8
#define TOP_K_DEFAULT 40

struct generator {
    const struct generate_options *options;
    struct inference inference;
    struct whole_model *model;
    const struct tokenizer *tokenizer; /* borrowed from the inference */
    int64_t v, t_max;
    struct tokens tokens; /* the prompt's and the drawn tokens */
};

/* --- sampling ----------------------------------------------------------------------------------------------------- */

static int compare_likelihood(const void *a, const void *b, void *arg)
{
    const float *logits = arg;
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    if (logits[x] != logits[y])
        return logits[x] > logits[y] ? -1 : 1;
    return x < y ? -1 : x > y;
}

int32_t generate_draw(const float *logits, int64_t v, double temperature, int64_t top_k, double u, int32_t *work)
{
    titan_assert(v >= 1);
    for (int64_t i = 0; i < v; i++)
        work[i] = (int32_t)i;
    qsort_r(work, (size_t)v, sizeof(*work), compare_likelihood, (void *)logits);
    if (temperature <= 0)
        return work[0];
    int64_t k = top_k > 0 && top_k < v ? top_k : v;
    double total = 0, max = logits[work[0]];
    for (int64_t i = 0; i < k; i++)
        total += exp((logits[work[i]] - max) / temperature);
    double left = u * total;
    for (int64_t i = 0; i < k; i++) {
        left -= exp((logits[work[i]] - max) / temperature);
        if (left < 0)
            return work[i];
    }
    return work[k - 1];
}

/* --- text --------------------------------------------------------------------------------------------------------- */

static titan_status put_token(struct generator *g, int32_t token, struct titan_error *err)
{
    titan_assert(token >= 0);
    return VEC_PUSH(g->tokens.ids, g->tokens.n, g->tokens.cap, token)
               ? TITAN_OK
               : titan_fail(err, TITAN_ENOMEM, "no memory for %zu tokens", g->tokens.n + 1);
}

static titan_status write_logits(const struct generator *g, struct titan_error *err)
{
    const char *path = g->options->logits_path;
    const int64_t n = (int64_t)g->tokens.n;
    if (n > g->t_max)
        return titan_fail(err, TITAN_EINVAL, "the prompt has %" PRId64 " tokens, the model sees %" PRId64, n, g->t_max);
    const struct safetensors_entry entries[2] = {
        {.name = "logits", .dtype = "F32", .shape = {n, g->v}, .ndim = 2},
        {.name = "tokens", .dtype = "I32", .shape = {n}, .ndim = 1},
    };
    size_t elements = (size_t)(n * g->v);
    struct safetensors_writer *w = NULL;
    uint64_t bytes;
    uint32_t crc;
    _cleanup_free_ float *logits = malloc(elements * sizeof(*logits));
    if (!logits)
        return titan_fail(err, TITAN_ENOMEM, "no memory for the logits of %" PRId64 " tokens", n);
    TRY(whole_model_logits(g->model, &(struct whole_batch){.tokens = g->tokens.ids, .b = 1, .t = n}, logits, err));
    TRY(safetensors_create(AT_FDCWD, path, &(struct safetensors_header){entries, 2, NULL}, &w, err));
    titan_status status = safetensors_append(w, logits, elements * sizeof(*logits), err);
    if (status == TITAN_OK)
        status = safetensors_append(w, g->tokens.ids, (size_t)n * sizeof(*g->tokens.ids), err);
    if (status != TITAN_OK) {
        safetensors_abandon(w);
        return status;
    }
    return safetensors_finish(w, &bytes, &crc, err);
}

static titan_status put_text(const char *text, size_t n, FILE *out, struct titan_error *err)
{
    if (fwrite(text, 1, n, out) < n || fflush(out) == EOF)
        return titan_fail_errno(err, "cannot write the text");
    return TITAN_OK;
}

static titan_status generate(struct generator *g, FILE *out, struct titan_error *err)
{
    const struct generate_options *o = g->options;
    const struct inference *const i = &g->inference;
    const struct inference_options options = {.checkpoint = o->checkpoint,
                                              .tokenizer = o->tokenizer,
                                              .pattern = o->pattern,
                                              .device = o->device,
                                              .dtype = o->dtype};
    TRY(inference_open(&options, &g->inference, err));
    g->tokenizer = i->tokenizer;
    g->v = i->trained.recipe.model.dims.vocab_size;
    g->t_max = i->trained.recipe.training.seq_len;
    const struct whole_options whole = {i->trained.model, &i->device, i->dt, .b = 1, .t = g->t_max};
    TRY(whole_model_open(&whole, &g->model, err));
    TRY(whole_model_load(g->model, &i->trained, err));

    /* An empty prompt stands for the beginning of a text. The model then gets the token that ends a text. */
    struct tokenizer_encoder *e = NULL;
    TRY(tokenizer_encoder_open(g->tokenizer, &e, err));
    const titan_status encoded = tokenizer_encode(e, o->prompt, strlen(o->prompt), &g->tokens, err);
    tokenizer_encoder_close(e);
    TRY(encoded);
    if (g->tokens.n == 0) {
        const int32_t bos = tokenizer_bos(g->tokenizer), eos = tokenizer_eos(g->tokenizer);
        if (bos == TOKEN_NONE && eos == TOKEN_NONE)
            return titan_fail(err, TITAN_EINVAL,
                              "%s, and the tokenizer names no begin or end of a text: give a --prompt",
                              *o->prompt ? "the prompt has no token" : "there is no prompt");
        TRY(put_token(g, eos != TOKEN_NONE ? eos : bos, err));
    }

    if (o->logits_path)
        TRY(write_logits(g, err));
    if (o->max_tokens == 0)
        return TITAN_OK;
    TRY(put_text(o->prompt, strlen(o->prompt), out, err));

    const struct rng_key key = rng_key(o->seed, "generate");
    const int64_t v = tokenizer_vocabulary(g->tokenizer); /* a model may have more rows */
    _cleanup_free_ float *logits = malloc((size_t)g->v * sizeof(*logits));
    _cleanup_free_ int32_t *work = malloc((size_t)g->v * sizeof(*work));
    if (!logits || !work)
        return titan_fail(err, TITAN_ENOMEM, "no memory for %" PRId64 " logits", g->v);
    for (int64_t k = 0; k < o->max_tokens; k++) {
        const int64_t n = (int64_t)g->tokens.n, seen = MIN(n, g->t_max);
        TRY(whole_model_next(g->model, g->tokens.ids + n - seen, seen, logits, err));
        int32_t token = generate_draw(logits, v, o->temperature, o->top_k, (double)rng_uniform(key, (uint64_t)k), work);
        if (token == tokenizer_eos(g->tokenizer))
            break;
        TRY(put_token(g, token, err));

        /* Decodes the token together with the previous token. A token alone would be decoded as the beginning of a
         * text, which may lose a space. */
        const int32_t *last = g->tokens.ids + g->tokens.n - 1;
        _cleanup_(buf_free) struct buf before = BUF_INIT, both = BUF_INIT;
        TRY(tokenizer_decode(g->tokenizer, last - 1, 1, &before, err));
        TRY(tokenizer_decode(g->tokenizer, last - 1, 2, &both, err));
        if (both.len > before.len)
            TRY(put_text(both.data + before.len, both.len - before.len, out, err));
    }
    return put_text("\n", 1, out, err);
}

titan_status generate_text(const struct generate_options *options, FILE *out, struct titan_error *err)
{
    struct generator g = {.options = options};
    if (options->max_tokens < 0 || options->max_tokens > MAX_TOKENS_LIMIT)
        return titan_fail(err, TITAN_EINVAL, "--max-tokens is 0 to %d, not %" PRId64, MAX_TOKENS_LIMIT,
                          options->max_tokens);
    if (!(options->temperature >= 0 && options->temperature <= 100) || options->top_k < 0)
        return titan_fail(err, TITAN_EINVAL, "--temperature is 0 to 100, --top-k not negative");
    titan_status status = generate(&g, out, err);
    free(g.tokens.ids);
    whole_model_close(g.model);
    inference_close(&g.inference);
    return status;
}

/* --- command ------------------------------------------------------------------------------------------------------ */

static titan_status generate_json(const struct generate_options *o, struct titan_error *err)
{
    _cleanup_(buf_free) struct buf json = BUF_INIT;
    _cleanup_free_ char *text = NULL;
    size_t n = 0;
    struct json_writer w = {.out = &json, .pretty = true};
    FILE *out = open_memstream(&text, &n);
    if (!out)
        return titan_fail_errno(err, "no memory for the text");
    titan_status status = generate_text(o, out, err);
    if (fclose(out) != 0 && status == TITAN_OK)
        status = titan_fail_errno(err, "no memory for the text");
    if (status != TITAN_OK)
        return status;
    const size_t prompt = MIN(strlen(o->prompt), n);
    if (n > prompt)
        text[n - 1] = '\0'; /* this newline was added to the output, the model has not written it */
    json_begin_object(&w, NULL);
    json_put_string(&w, "prompt", o->prompt);
    json_put_string(&w, "text", text + prompt);
    json_end_object(&w);
    buf_puts(&json, "\n");
    return buf_failed(&json) ? titan_fail(err, TITAN_ENOMEM, "no memory for the text")
                             : put_text(json.data, json.len, stdout, err);
}

static titan_status run(void *with, const struct args *args, struct titan_error *err)
{
    struct generate_options o = {.checkpoint = args->words[0],
                                 .prompt = args_text(args, "prompt", ""),
                                 .tokenizer = args_text(args, "tokenizer", NULL),
                                 .pattern = args_text(args, "pattern", NULL),
                                 .device = args_text(args, "device", NULL),
                                 .dtype = args_text(args, "dtype", NULL),
                                 .logits_path = args_text(args, "logits", NULL)};
    const char *output = args_text(args, "output", "table");
    int64_t seed;
    (void)with;
    TRY(args_int(args, "max-tokens", (struct int_range){0, MAX_TOKENS_LIMIT}, MAX_TOKENS_DEFAULT, &o.max_tokens, err));
    TRY(args_real(args, "temperature", (struct real_range){0, 100}, TEMPERATURE_DEFAULT, &o.temperature, err));
    TRY(args_int(args, "top-k", (struct int_range){0, INT64_MAX}, TOP_K_DEFAULT, &o.top_k, err));
    TRY(args_int(args, "seed", (struct int_range){INT64_MIN, INT64_MAX}, 0, &seed, err));
    o.seed = (uint64_t)seed;
    if (strcmp(output, "table") != 0 && strcmp(output, "json") != 0)
        return titan_fail(err, TITAN_EINVAL, "--output is table or json, not '%.64s'", output);
    return strcmp(output, "json") == 0 ? generate_json(&o, err) : generate_text(&o, stdout, err);
}

const struct command generate_command = {
    .name = "generate",
    .summary = "continue a text with a checkpoint",
    .arguments = "CHECKPOINT",
    .text =
        "CHECKPOINT is one, or a folder of them: the newest. The text ends with the model's own end of a text, too.",
    .min_args = 1,
    .max_args = 1,
    .options =
        (const struct option_spec[]){
            {"prompt", 0, "TEXT", "the text to go on from (default: the beginning of a text)", WORD_NONE},
            {"max-tokens", 0, "N", "tokens to add at most (256); 0 = none, for --logits alone", WORD_NONE},
            {"temperature", 0, "T", "0 = always the likeliest (0.8)", WORD_NONE},
            {"top-k", 0, "K", "draw among the K likeliest, 0 = all (40)", WORD_NONE},
            {"seed", 0, "S", "the same seed gives the same text (0)", WORD_NONE},
            {"tokenizer", 't', "T", "where the run's tokenizer is now (default: where it was)", WORD_FILE},
            {"pattern", 0, "P", "of a file of ranks as tokenizer: how text is cut (default: as in the run)", WORD_NONE},
            {"device", 0, "NAME", "auto, cpu or cuda (default: the run's)", WORD_NONE},
            {"dtype", 0, "TYPE", "bf16 or f32 (default: what the run computed in)", WORD_NONE},
            {"logits", 0, "FILE", "write the logits of every position of the prompt as safetensors", WORD_FILE},
            {"output", 'o', "FORMAT", "table (default): the text; or json: the prompt and what follows it",
             WORD_FORMAT},
            {NULL}},
    .examples = (const struct example[]){{"titan-worker generate run/checkpoint --prompt '#include <' --temperature 0",
                                          "the newest checkpoint, no chance involved"},
                                         {NULL}},
    .run = run,
};
