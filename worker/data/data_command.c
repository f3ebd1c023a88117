/* SPDX-License-Identifier: Apache-2.0 */
/* data_command.c - see data_command.h. */
#include "worker/data/data_command.h"

#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/data_options.h"
#include "base/json.h"
#include "base/units.h"
#include "worker/data/data_build.h"
#include "worker/data/inspect.h"

/* --- progress ----------------------------------------------------------------------------------------------------- */

#define BAR 24
#define DRAW_NS INT64_C(200000000)
#define LINE_NS INT64_C(30000000000)

struct progress_line {
    bool live; /* the output is a terminal: one line is redrawn; otherwise a line is printed now and then */
    int64_t began_ns, shown_ns;
    bool shown;
};

static void on_progress(void *arg, const struct build_progress *now)
{
    struct progress_line *line = arg;
    const int64_t at = clock_mono_ns();
    if (at - line->shown_ns < (line->live ? DRAW_NS : LINE_NS))
        return;
    line->shown_ns = at;
    line->shown = true;

    char done[UNITS_TEXT], all[UNITS_TEXT], rate[UNITS_TEXT], left[UNITS_TEXT], tokens[UNITS_TEXT], bar[BAR + 1];
    const double share = now->bytes_all ? MIN((double)now->bytes / (double)now->bytes_all, 1) : 1;
    const double seconds = (double)(at - line->began_ns) / 1e9;
    memset(bar, '.', BAR);
    memset(bar, '#', (size_t)(share * BAR));
    bar[BAR] = '\0';
    (void)fprintf(stderr, "%s[%s] %3.0f %%  %s of %s  %s/s  %s tokens  %s left%s", line->live ? "\r\033[K" : "", bar,
                  100 * share, format_bytes(now->bytes, done), format_bytes(now->bytes_all, all),
                  format_bytes((uint64_t)((double)now->bytes / MAX(seconds, 1e-3)), rate),
                  format_count((double)now->tokens, tokens),
                  format_duration(share > 0 ? seconds * (1 - share) / share : -1, left), line->live ? "" : "\n");
    (void)fflush(stderr);
}

static struct progress_line begin_progress(void)
{
    const int64_t now = clock_mono_ns();
    return (struct progress_line){.live = isatty(STDERR_FILENO), .began_ns = now, .shown_ns = now};
}

static void end_progress(const struct progress_line *line)
{
    if (line->live && line->shown)
        (void)fputs("\r\033[K", stderr);
}

/* Threads that work at once. */
static int processors(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof(set), &set) == 0 ? MIN(CPU_COUNT(&set), 1024) : 1;
}

/* --- build -------------------------------------------------------------------------------------------------------- */

static void print_report(const struct build_report *r, const char *out, double seconds)
{
    char duration[UNITS_TEXT];
    (void)printf("%s: %" PRIu64 " documents, %" PRIu64 " tokens, %.3f bytes a token, %" PRIu64 " shard%s", out,
                 r->documents, r->tokens, r->tokens ? (double)r->text_bytes / (double)r->tokens : 0, r->shards,
                 r->shards == 1 ? "" : "s");
    if (r->there)
        (void)printf("; it was built already\n");
    else
        (void)printf(", in %s%s\n", format_duration(seconds, duration),
                     r->resumed ? ", going on with an earlier build" : "");
    if (data_left_out_count(&r->left_out) > 0) {
        _cleanup_(buf_free) struct buf text = BUF_INIT;
        data_left_out_print(&r->left_out, &text);
        (void)printf("left out: %s\n", text.len ? text.data : "");
    }
    if (r->replaced)
        (void)printf("%" PRIu64 " bytes of text are not UTF-8\n", r->replaced);
    if (r->bad_records)
        (void)printf("%" PRIu64 " bad record%s left out\n", r->bad_records, r->bad_records == 1 ? "" : "s");
    for (int i = 0; i < r->n_notes; i++)
        (void)printf("  %s\n", r->notes[i]);
}

static void print_report_json(const struct build_report *r, const char *out, double seconds)
{
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    struct json_writer w = {.out = &text, .pretty = true};
    json_begin_object(&w, NULL);
    json_put_string(&w, "folder", out);
    json_put_uint(&w, "documents", r->documents);
    json_put_uint(&w, "tokens", r->tokens);
    json_put_uint(&w, "text_bytes", r->text_bytes);
    json_put_uint(&w, "bad_records", r->bad_records);
    json_put_uint(&w, "files", r->files);
    json_put_uint(&w, "files_left_out", data_left_out_count(&r->left_out));
    _cleanup_(buf_free) struct buf left_out = BUF_INIT;
    data_left_out_print(&r->left_out, &left_out);
    json_put_string(&w, "left_out", left_out.len ? left_out.data : "");
    json_put_uint(&w, "bytes_replaced", r->replaced);
    json_put_uint(&w, "shards", r->shards);
    json_put_bool(&w, "was_there", r->there);
    json_put_bool(&w, "resumed", r->resumed);
    json_put_real(&w, "seconds", seconds);
    json_begin_array(&w, "notes");
    for (int i = 0; i < r->n_notes; i++)
        json_put_string(&w, NULL, r->notes[i]);
    json_end_array(&w);
    json_end_object(&w);
    if (!buf_failed(&text))
        (void)puts(text.data);
}

static titan_status read_json(const struct args *args, bool *ret, struct titan_error *err)
{
    const char *format = args_text(args, "output", "table");
    *ret = strcmp(format, "json") == 0;
    if (*ret || strcmp(format, "table") == 0)
        return TITAN_OK;
    return titan_fail(err, TITAN_EINVAL, "--output is table or json, not '%.64s'", format);
}

static titan_status build(const struct args *args, struct titan_error *err)
{
    static const char *const formats[] = {
        [BUILD_AUTO] = "auto", [BUILD_TEXT] = "text", [BUILD_JSONL] = "jsonl", [BUILD_SFT] = "sft"};
    struct tokenizer *tokenizer = NULL;
    struct build_report report;
    size_t format = 0;
    int64_t threads;
    int32_t eos;
    bool json;
    struct progress_line line = begin_progress();
    struct build_options o = {.inputs = (const char *const *)args->words + 1,
                              .n_inputs = args->n - 1,
                              .out = args_text(args, "out", NULL),
                              .tokenizer_name = args_text(args, "tokenizer", NULL),
                              .field = args_text(args, "field", "text"),
                              .chat = {.template = args_text(args, "chat-template", NULL),
                                       .prompt = args_text(args, "prompt", NULL),
                                       .completion = args_text(args, "completion", NULL),
                                       .bos = args_has(args, "bos")},
                              .bos = args_has(args, "bos"),
                              .strict = args_has(args, "strict"),
                              .fresh = args_has(args, "force"),
                              .progress = on_progress,
                              .progress_arg = &line};
    if (!o.tokenizer_name || !o.out || o.n_inputs < 1)
        return titan_fail(err, TITAN_EINVAL, "data build needs --tokenizer, --out and at least one INPUT");
    TRY(read_json(args, &json, err));
    const char *const files = args_text(args, "format", formats[BUILD_AUTO]);
    while (format < ARRAY_SIZE(formats) && strcmp(files, formats[format]) != 0)
        format++;
    if (format == ARRAY_SIZE(formats))
        return titan_fail(err, TITAN_EINVAL, "--format is auto, text, jsonl or sft, not '%.64s'", files);
    o.files = (enum build_files)format;
    const char *const encoding = args_text(args, "encoding", "utf-8");
    o.encoding = strcmp(encoding, "latin-1") == 0 ? TEXT_LATIN1 : TEXT_UTF8;
    if (o.encoding == TEXT_UTF8 && strcmp(encoding, "utf-8") != 0)
        return titan_fail(err, TITAN_EINVAL, "--encoding is utf-8 or latin-1, not '%.64s'; UTF-16 is known by its mark",
                          encoding);
    TRY(args_int(args, "threads", (struct int_range){1, 1024}, processors(), &threads, err));
    TRY(args_int(args, "shard-tokens", (struct int_range){1, INT64_C(1) << 40}, BUILD_SHARD_TOKENS, &o.shard_tokens,
                 err));
    TRY(tokenizer_open_as(o.tokenizer_name, args_text(args, "pattern", NULL), &tokenizer, err));
    o.threads = (int)threads;
    o.tokenizer = tokenizer;
    o.eos = args_has(args, "eos") ? &eos : NULL;
    titan_status status = TITAN_OK;
    if (o.bos && tokenizer_bos(tokenizer) == TOKEN_NONE)
        status = titan_fail(err, TITAN_EINVAL, "tokenizer '%s' has no begin of text (bos_token), which --bos asks for",
                            o.tokenizer_name);
    if (status == TITAN_OK && o.eos) { /* the whole text must be one token */
        const char *const text = args_text(args, "eos", "");
        eos = tokenizer_find(tokenizer, text, strlen(text));
        if (eos == TOKEN_NONE)
            status = titan_fail(err, TITAN_EINVAL, "--eos: the tokenizer has no token '%.64s'", text);
    }
    if (status == TITAN_OK)
        status = data_build(&o, &report, err);
    tokenizer_close(tokenizer);
    end_progress(&line);
    TRY(status);
    (json ? print_report_json : print_report)(&report, o.out, (double)(clock_mono_ns() - line.began_ns) / 1e9);
    return TITAN_OK;
}

/* --- inspect and verify ------------------------------------------------------------------------------------------- */

static titan_status inspect(const struct args *args, struct titan_error *err)
{
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    struct progress_line line = begin_progress();
    struct inspect_options o = {.path = args->words[1],
                                .tokenizer = args_text(args, "tokenizer", NULL),
                                .pattern = args_text(args, "pattern", NULL),
                                .threads = processors(),
                                .progress = on_progress,
                                .progress_arg = &line};
    int64_t seed;
    TRY(read_json(args, &o.json, err));
    TRY(args_int(args, "sample", (struct int_range){0, 1000000}, 3, &o.samples, err));
    TRY(args_int(args, "seed", (struct int_range){0, INT64_MAX}, 0, &seed, err));
    o.seed = (uint64_t)seed;
    const titan_status status = data_inspect(&o, &text, err);
    end_progress(&line);
    TRY(status);
    (void)fputs(text.data, stdout);
    return TITAN_OK;
}

static titan_status run(void *with, const struct args *args, struct titan_error *err)
{
    const char *action = args->words[0];
    titan_status status = TITAN_OK;
    (void)with;
    if (strcmp(action, "build") == 0) {
        status = build(args, err);
    } else if (strcmp(action, "inspect") != 0 && strcmp(action, "verify") != 0) {
        return titan_fail(err, TITAN_EINVAL, "data: there are build, inspect and verify, not '%.64s'", action);
    } else if (args->n < 2) {
        return titan_fail(err, TITAN_EINVAL, "data %s: the DIR or FILE is missing", action);
    } else if (strcmp(action, "inspect") == 0) {
        status = inspect(args, err);
    } else {
        for (int i = 1; i < args->n && status == TITAN_OK; i++) {
            _cleanup_(buf_free) struct buf text = BUF_INIT;
            status = data_verify(args->words[i], &text, err);
            if (status == TITAN_OK)
                (void)fputs(text.data, stdout);
        }
    }
    return status == TITAN_ENOTFOUND ? TITAN_EINVAL : status;
}

const struct command data_command = {
    .name = "data",
    .summary = "make files of tokens, look into them, check them",
    .arguments = "build INPUT... | inspect DIR|FILE | verify DIR|FILE...",
    .text =
        "build makes a folder of tokens of text files, files of JSON lines and folders of them, also in gzip or zstd. "
        "Given\nagain after an end it did not choose, it goes on where it was. inspect also reads token files of "
        "Megatron, llm.c and\nnanoGPT. docs/data.md has formats and rules.",
    .min_args = 1,
    .max_args = ANY_NUMBER,
    .word = WORD_FILE,
    .options = (const struct option_spec[]){DATA_OPTIONS,
                                            {"output", 'o', "FORMAT", "table (default) or json", WORD_FORMAT},
                                            {NULL}},
    .examples = (const struct example[]){{"titan-worker data build --tokenizer ./llama3 --out ./c4-tokens ./c4/en",
                                          "C4's shards, as they were downloaded"},
                                         {"titan-worker data inspect ./c4-tokens --sample 5", "five samples, decoded"},
                                         {NULL}},
    .run = run,
};
