/* SPDX-License-Identifier: Apache-2.0 */
/* inspect.c - see inspect.h. */
#include "worker/data/inspect.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "base/rng.h"
#include "base/units.h"
#include "base/utf8.h"
#include "worker/data/formats.h"
#include "worker/data/shard.h"
#include "worker/tokenizer/tokenizer.h"

#define SAMPLE_TOKENS 64
#define VERIFY_TOKENS (1 << 16)

struct inspection {
    enum data_format format;
    struct corpus corpus;
    struct shard_set set;
    struct data_files files; /* files of text, or of tokens of other programs */
    const char *what;
    struct tokenizer *tokenizer; /* NULL: no tokenizer fits */
    const char *why_not;
    struct build_report counted; /* the count of a text */
};

static void inspection_close(struct inspection *in)
{
    tokenizer_close(in->tokenizer);
    shard_set_clear(&in->set);
    corpus_close(&in->corpus);
    data_files_clear(&in->files);
}

static titan_status open_corpus(const char *path, struct inspection *in, struct titan_error *err)
{
    in->format = data_format_of(path);
    in->what = data_format_name(in->format);
    if (in->format == DATA_SHARDS) {
        TRY(corpus_open_shards(&in->corpus, path, &in->set, err));
    } else {
        TRY(data_format_files(path, in->format, SPLIT_TRAINING, &in->files, err));
        if (in->format == DATA_TEXT)
            return TITAN_OK;
        TRY(corpus_open_tokens(&in->corpus, &in->files, in->format, &in->corpus.separator, err));
    }
    return in->corpus.tokens > 0 ? TITAN_OK : titan_fail(err, TITAN_EINVAL, "'%s' has no tokens", path);
}

static titan_status open_tokenizer(const struct inspect_options *o, struct inspection *in, struct titan_error *err)
{
    const char *named = o->tokenizer, *pattern = o->pattern ? o->pattern : in->set.pattern;
    if (named)
        TRY(tokenizer_open_as(named, pattern, &in->tokenizer, err));
    else if (*in->set.tokenizer && tokenizer_open_as(in->set.tokenizer, pattern, &in->tokenizer, NULL) != TITAN_OK)
        in->why_not = "its tokenizer is not there: name one with --tokenizer";
    if (!in->tokenizer && !in->why_not)
        in->why_not = "it does not name its tokenizer: give one with --tokenizer";
    if (in->tokenizer && in->format == DATA_SHARDS && tokenizer_hash(in->tokenizer) != in->set.tokenizer_hash) {
        if (named)
            return titan_fail(err, TITAN_EINVAL,
                              "it was built with the tokenizer '%.160s' (%016" PRIx64
                              "), '%.100s' is another (%016" PRIx64 ")",
                              in->set.tokenizer, in->set.tokenizer_hash, named, tokenizer_hash(in->tokenizer));
        tokenizer_close(TAKE(in->tokenizer));
        in->why_not = "its tokenizer has changed since: name the one it was built with (--tokenizer)";
    }
    return TITAN_OK;
}

/* --- samples ------------------------------------------------------------------------------------------------------ */

struct sample {
    uint64_t at;
    int64_t n;
    int32_t ids[SAMPLE_TOKENS], starts[SAMPLE_TOKENS];
};

/* Appends the text of n ids. If an id is no token, or there is no tokenizer, it appends all n ids as numbers. */
static void decode(const struct inspection *in, const int32_t *ids, int64_t n, struct buf *out)
{
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    if (in->tokenizer && tokenizer_decode(in->tokenizer, ids, (size_t)n, &text, NULL) == TITAN_OK) {
        for (size_t at = 0; at < text.len; at += strlen(text.data + at) + 1) { /* NULs end pieces */
            const char *part = text.data + at;
            /* the text may be cut inside a character */
            for (size_t n_left = strlen(part), good; n_left > 0; n_left -= good) {
                good = utf8_check(part, n_left);
                buf_printf(out, "%.*s", (int)good, part);
                if (good < n_left) {
                    buf_puts(out, "\xef\xbf\xbd");
                    good++;
                }
                part += good;
            }
            if (at + strlen(text.data + at) < text.len)
                buf_puts(out, " ");
        }
        return;
    }
    for (int64_t i = 0; i < n; i++)
        buf_printf(out, "%s%d", i ? " " : "", ids[i]);
}

static void show_sample(const struct inspection *in, const struct sample *s, struct buf *out)
{
    titan_assert(s->n >= 0 && s->n <= SAMPLE_TOKENS);
    buf_printf(out, "\ntoken %" PRIu64 ":\n", s->at);
    for (int64_t from = 0, to; from < s->n; from = to) {
        _cleanup_(buf_free) struct buf line = BUF_INIT;
        for (to = from + 1; to < s->n && s->starts[to] == s->starts[from];)
            to++;
        const bool begins = s->starts[from] == from && from > 0;
        decode(in, s->ids + from, to - from, &line);
        buf_puts(out, begins ? "  | " : "    ");
        for (size_t i = 0; i < line.len; i++) /* keeps the text on one line */
            if (line.data[i] == '\n')
                line.data[i] = ' ';
        if (line.len) {
            text_fit(line.data, '.');
            buf_puts(out, line.data);
        }
        buf_puts(out, "\n");
    }
}

static void put_sample_json(const struct inspection *in, const struct sample *s, struct json_writer *w)
{
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    json_begin_object(w, NULL);
    json_put_uint(w, "token", s->at);
    json_begin_array(w, "ids");
    for (int64_t i = 0; i < s->n; i++)
        json_put_int(w, NULL, s->ids[i]);
    json_end_array(w);
    json_begin_array(w, "document_starts");
    for (int64_t i = 1; i < s->n; i++)
        if (s->starts[i] == i)
            json_put_int(w, NULL, i);
    json_end_array(w);
    if (in->tokenizer) {
        decode(in, s->ids, s->n, &text);
        json_put_string(w, "text", text.len ? text.data : "");
    }
    json_end_object(w);
}

/* --- all of it ---------------------------------------------------------------------------------------------------- */

static void show_left_out(const struct data_left_out *left_out, struct buf *out)
{
    if (data_left_out_count(left_out) == 0)
        return;
    buf_puts(out, "  left out    ");
    data_left_out_print(left_out, out);
    buf_puts(out, "\n");
}

static void show_text(const struct inspection *in, const char *path, struct buf *out)
{
    const struct build_report *r = &in->counted;
    char text[UNITS_TEXT];
    buf_printf(out, "%s\n  format      text, %" PRIu64 " file%s, %" PRIu64 " of them JSON lines by name\n", path,
               r->files, r->files == 1 ? "" : "s", r->line_files);
    buf_printf(out, "  bytes       %" PRIu64 " (%s)\n", r->bytes, format_bytes(r->bytes, text));
    show_left_out(&r->left_out, out);
    buf_printf(out, "  documents   %" PRIu64 "\n", r->documents);
    if (in->tokenizer)
        buf_printf(out, "  tokens      %" PRIu64 " (%s), %.3f bytes each\n", r->tokens,
                   format_count((double)r->tokens, text), (double)r->text_bytes / (double)r->tokens);
    else
        buf_puts(out, "  tokens      by the tokenizer: name one with --tokenizer\n");
    if (r->bad_records)
        buf_printf(out, "  bad records %" PRIu64 "\n", r->bad_records);
    if (r->replaced)
        buf_printf(out, "  not UTF-8   %" PRIu64 " bytes\n", r->replaced);
    for (int i = 0; i < r->n_notes; i++)
        buf_printf(out, "    %s\n", r->notes[i]);
}

static void show_counts(const struct inspection *in, const char *path, struct buf *out)
{
    const struct shard_set *set = &in->set;
    const uint64_t documents = corpus_documents(&in->corpus);
    char text[UNITS_TEXT];
    buf_printf(out, "%s\n  format      %s, %zu file%s, %u bytes a token%s\n", path, in->what, in->corpus.n,
               in->corpus.n == 1 ? "" : "s", in->corpus.segments[0].width,
               in->format == DATA_NANOGPT ? " (assumed: it has no header)" : "");
    buf_printf(out, "  tokens      %" PRIu64 " (%s)\n", in->corpus.tokens,
               format_count((double)in->corpus.tokens, text));
    if (corpus_masked(&in->corpus))
        buf_printf(out, "  trained on  %" PRId64 "\n", corpus_mask(&in->corpus, 0, (int64_t)in->corpus.tokens, NULL));
    show_left_out(&in->files.left_out, out);
    if (documents)
        buf_printf(out, "  documents   %" PRIu64 "\n", documents);
    if (in->corpus.separator >= 0)
        buf_printf(out, "  separator   %d\n", in->corpus.separator);
    if (in->format != DATA_SHARDS)
        return;
    buf_printf(out, "  tokenizer   %s (%016" PRIx64 ")\n", *set->tokenizer ? set->tokenizer : "-", set->tokenizer_hash);
    if (*set->pattern)
        buf_printf(out, "  pattern     %s\n", set->pattern);
    buf_printf(out, "  largest id  %d\n", set->id_max);
    if (set->text_bytes)
        buf_printf(out, "  text        %" PRIu64 " bytes, %.3f a token\n  bad records %" PRIu64 "\n", set->text_bytes,
                   (double)set->text_bytes / (double)in->corpus.tokens, set->bad_records);
}

static void put_files_json(const struct inspection *in, uint64_t files, const struct data_left_out *left_out,
                           struct json_writer *w)
{
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    data_left_out_print(left_out, &text);
    json_put_string(w, "format", in->what);
    json_put_uint(w, "files", files);
    json_put_uint(w, "files_left_out", data_left_out_count(left_out));
    json_put_string(w, "left_out", text.len ? text.data : "");
}

static void put_text_json(const struct inspection *in, struct json_writer *w)
{
    const struct build_report *r = &in->counted;
    put_files_json(in, r->files, &r->left_out, w);
    json_put_uint(w, "bytes", r->bytes);
    json_put_uint(w, "documents", r->documents);
    if (in->tokenizer)
        json_put_uint(w, "tokens", r->tokens);
    json_put_uint(w, "bad_records", r->bad_records);
    json_put_uint(w, "bytes_replaced", r->replaced);
}

static void put_counts_json(const struct inspection *in, struct json_writer *w)
{
    const struct shard_set *set = &in->set;
    const uint64_t documents = corpus_documents(&in->corpus);
    char hash[20];
    put_files_json(in, in->format == DATA_SHARDS ? in->corpus.n : in->files.n, &in->files.left_out, w);
    json_put_uint(w, "token_bytes", in->corpus.segments[0].width);
    json_put_uint(w, "tokens", in->corpus.tokens);
    if (corpus_masked(&in->corpus))
        json_put_int(w, "tokens_trained_on", corpus_mask(&in->corpus, 0, (int64_t)in->corpus.tokens, NULL));
    if (documents)
        json_put_uint(w, "documents", documents);
    if (in->corpus.separator >= 0)
        json_put_int(w, "separator", in->corpus.separator);
    if (in->format != DATA_SHARDS)
        return;
    (void)snprintf(hash, sizeof(hash), "%016" PRIx64, set->tokenizer_hash);
    json_put_string(w, "tokenizer", set->tokenizer);
    json_put_string(w, "tokenizer_hash", hash);
    json_put_string(w, "tokenizer_pattern", set->pattern);
    json_put_int(w, "id_max", set->id_max);
    json_put_uint(w, "text_bytes", set->text_bytes);
    json_put_uint(w, "bad_records", set->bad_records);
}

titan_status data_inspect(const struct inspect_options *o, struct buf *out, struct titan_error *err)
{
    _cleanup_(inspection_close) struct inspection in = {.corpus.separator = -1};
    struct json_writer w = {.out = out, .pretty = true};
    TRY(open_corpus(o->path, &in, err));
    const uint64_t tokens = in.corpus.tokens;
    const int64_t samples = in.format == DATA_TEXT ? 0 : o->samples;
    TRY(open_tokenizer(o, &in, err));

    /* A text is counted whole. Without a tokenizer each byte is a token, and only the number of documents is of use. */
    if (in.format == DATA_TEXT) {
        struct tokenizer *bytes = NULL;
        struct build_options count = {.inputs = &o->path,
                                      .n_inputs = 1,
                                      .tokenizer_name = o->tokenizer ? o->tokenizer : "bytes",
                                      .threads = o->threads,
                                      .progress = o->progress,
                                      .progress_arg = o->progress_arg};
        if (!in.tokenizer)
            TRY(tokenizer_open_as(count.tokenizer_name, NULL, &bytes, err));
        count.tokenizer = in.tokenizer ? in.tokenizer : bytes;
        const titan_status status = data_count(&count, &in.counted, err);
        tokenizer_close(bytes);
        TRY(status);
    }

    if (o->json) {
        json_begin_object(&w, NULL);
        (in.format == DATA_TEXT ? put_text_json : put_counts_json)(&in, &w);
        json_begin_array(&w, "samples");
    } else {
        (in.format == DATA_TEXT ? show_text : show_counts)(&in, o->path, out);
        if (samples > 0 && in.why_not)
            buf_printf(out, "  samples     as ids; %s\n", in.why_not);
    }
    for (int64_t i = 0; i < samples; i++) {
        struct sample sample = {.n = (int64_t)MIN(tokens, (uint64_t)SAMPLE_TOKENS)};
        uint32_t drawn[4];
        titan_assert(tokens > 0);
        rng_philox(rng_key(o->seed, "data.inspect"), (uint64_t)i, 0, drawn);
        sample.at = ((uint64_t)drawn[0] << 32 | drawn[1]) % (tokens - (uint64_t)sample.n + 1);
        TRY(corpus_read(&in.corpus, sample.at, sample.n, 0, sample.ids, err));
        corpus_starts(&in.corpus, sample.at, sample.n, sample.ids, sample.starts);
        if (o->json)
            put_sample_json(&in, &sample, &w);
        else
            show_sample(&in, &sample, out);
    }
    if (o->json) {
        json_end_array(&w);
        json_end_object(&w);
        buf_puts(out, "\n");
    }
    return buf_failed(out) ? titan_fail(err, TITAN_ENOMEM, "no memory for %" PRId64 " samples", o->samples) : TITAN_OK;
}

/* --- verifying ---------------------------------------------------------------------------------------------------- */

titan_status data_verify(const char *path, struct buf *out, struct titan_error *err)
{
    _cleanup_(inspection_close) struct inspection in = {0};
    _cleanup_free_ int32_t *ids = malloc(VERIFY_TOKENS * sizeof(*ids));
    if (!ids)
        return titan_fail(err, TITAN_ENOMEM, "no memory to verify '%s'", path);
    TRY(open_corpus(path, &in, err));
    if (in.format == DATA_TEXT)
        return titan_fail(err, TITAN_EINVAL, "'%s' is text, not a file or folder of tokens", path);
    for (size_t i = 0; i < in.corpus.n; i++) {
        const struct segment *s = &in.corpus.segments[i];
        struct shard_header h;
        char name[PATH_MAX];
        if (in.format == DATA_SHARDS) {
            shard_path(path, i, name);
            TRY(shard_header_read(name, s->mapping.at, s->mapping.bytes, &h, err));
            TRY(shard_verify(name, s->mapping.at, &h, err));
        }
        uint64_t before = 0;
        for (uint64_t d = 0; d < s->index.documents; d++) {
            const uint64_t start = corpus_document(s, d);
            if (start < before || start > s->tokens)
                return titan_fail(err, TITAN_ECORRUPT,
                                  "'%s': document %" PRIu64 " of file %zu begins at token %" PRIu64
                                  ", the one before at %" PRIu64,
                                  path, d, i, start, before);
            before = start;
        }
    }
    const int64_t limit = in.format == DATA_SHARDS ? (int64_t)in.set.id_max + 1 : 0;
    for (uint64_t at = 0; at < in.corpus.tokens; at += VERIFY_TOKENS)
        TRY(corpus_read(&in.corpus, at, (int64_t)MIN((uint64_t)VERIFY_TOKENS, in.corpus.tokens - at), limit, ids, err));
    buf_printf(out, "%s: %" PRIu64 " tokens in %zu file%s, %s\n", path, in.corpus.tokens, in.corpus.n,
               in.corpus.n == 1 ? "" : "s",
               in.format == DATA_SHARDS ? "checksums are right" : "as its headers say; the format has no checksums");
    return TITAN_OK;
}
