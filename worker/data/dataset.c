/* SPDX-License-Identifier: Apache-2.0 */
/* dataset.c - see dataset.h. */
#include "worker/data/dataset.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/hash.h"
#include "worker/data/bins.h"
#include "worker/data/corpus.h"
#include "worker/data/data_build.h"
#include "worker/data/fingerprint.h"
#include "worker/data/formats.h"
#include "worker/data/shard.h"

struct dataset {
    struct corpus sources[MIXTURE_MAX];
    struct dataset_found found[MIXTURE_MAX];
    struct bins bins[MIXTURE_MAX]; /* used with `packs`: samples of whole documents */
    bool packs;
    uint64_t *windows[MIXTURE_MAX]; /* numbers of the windows that are read; NULL: all windows */
    int n;
    struct mixture mixture;
    int64_t seq_len, vocab_size;
    uint64_t hash, fingerprint[MIXTURE_MAX];
    int32_t *window; /* seq_len + 1 tokens */
};

/* --- opening ------------------------------------------------------------------------------------------------------ */

/* Most bytes of text that are tokenised when the run opens. With more text, a worker would join too late. */
#define TOKENISE_BYTES_MAX (UINT64_C(256) << 20)

static bool is_bytes(const struct dataset_options *o)
{
    return strcmp(o->tokenizer_name, "bytes") == 0;
}

/* --- text that must become tokens first --------------------------------------------------------------------------- */

static bool is_kind(const struct dataset_source *source, const char *kind)
{
    return strcmp(source->kind ? source->kind : "text", kind) == 0;
}

static bool is_c4(const struct dataset_source *source)
{
    return is_kind(source, "c4") || is_kind(source, "c4_test") || is_kind(source, "c4_validation");
}

static titan_status open_text(struct corpus *c, struct dataset_found *found, const struct dataset_source *source,
                              const struct dataset_options *o, struct titan_error *err)
{
    _cleanup_(shard_set_clear) struct shard_set set = {0};
    char folder[PATH_MAX];
    struct build_report report;
    const char *pattern = tokenizer_pattern(o->tokenizer);
    uint64_t hash, bytes;
    struct build_options build = {.inputs = &source->path,
                                  .n_inputs = 1,
                                  .tokenizer = o->tokenizer,
                                  .tokenizer_name = o->tokenizer_name,
                                  .files = is_kind(source, "text")  ? BUILD_TEXT
                                           : is_kind(source, "sft") ? BUILD_SFT
                                                                    : BUILD_JSONL,
                                  .chat.template = o->chat_template,
                                  .c4_split = is_kind(source, "c4_validation") ? "validation"
                                              : is_c4(source)                  ? "train"
                                                                               : NULL,
                                  .split = o->split,
                                  .bos = is_c4(source),
                                  .wait = true,
                                  .threads = MAX(o->threads, 1),
                                  .shard_tokens = BUILD_SHARD_TOKENS};
    TRY(data_build_inputs(&build, &hash, &bytes, err));
    if (bytes > TOKENISE_BYTES_MAX) {
        (void)titan_fail(err, TITAN_EINVAL,
                         "'%s' is about %" PRIu64 " MiB of text; up to %" PRIu64 " MiB are tokenised when a run starts",
                         source->path, bytes >> 20, TOKENISE_BYTES_MAX >> 20);
        if (err)
            titan_error_hint(
                err, "make tokens of it once: titanctl data build --tokenizer '%.40s'%s%.40s%s --out DIR%s '%.60s'",
                o->tokenizer_name, *pattern ? " --pattern '" : "", pattern, *pattern ? "'" : "",
                build.files == BUILD_SFT                                 ? " --format sft"
                : build.bos && tokenizer_bos(o->tokenizer) != TOKEN_NONE ? " --bos"
                                                                         : "",
                source->path);
        return TITAN_EINVAL;
    }
    /* The tokens go into a folder of the cache, named by the hash of the inputs, or into a temporary folder. */
    const char *temporary = getenv("TMPDIR");
    const int n = o->cache ? snprintf(folder, PATH_MAX, "%s/data-%016" PRIx64, o->cache, hash)
                           : snprintf(folder, PATH_MAX, "%s/titan-data-XXXXXX", temporary ? temporary : "/tmp");
    if (n >= PATH_MAX)
        return titan_fail(err, TITAN_EINVAL, "the path of the folder for tokens is too long");
    if (!o->cache && !mkdtemp(folder))
        return titan_fail_errno(err, "cannot make the folder '%s' for tokens", folder);
    build.out = folder;
    titan_status status = data_build(&build, &report, err);
    if (status == TITAN_OK)
        status = corpus_open_shards(c, folder, &set, err);
    if (!o->cache) { /* the folder can be removed, because mapped files stay readable */
        const titan_status removed = dir_remove(folder, status == TITAN_OK ? err : NULL);
        status = status == TITAN_OK ? removed : status;
    }
    TRY(status);
    found->files = report.files;
    found->bad_records = report.bad_records;
    found->replaced = report.replaced;
    found->left_out = report.left_out;
    memcpy(found->note, report.notes[0], sizeof(found->note));
    return TITAN_OK;
}

static titan_status open_source(struct corpus *c, struct dataset_found *found, const struct dataset_source *source,
                                const struct dataset_options *o, struct titan_error *err)
{
    _cleanup_(data_files_clear) struct data_files files = {0};
    _cleanup_(shard_set_clear) struct shard_set set = {0};
    const char *const path = source->path;
    const enum data_format format = data_format_of(path);
    const bool text = is_kind(source, "text"), shards = format == DATA_SHARDS;
    const bool reads = text && !shards && (format != DATA_TEXT || is_bytes(o)); /* the files are read as they are */
    bool encoded = !reads;
    found->what = shards || text ? data_format_name(format) : is_kind(source, "sft") ? "conversations" : "JSON lines";
    if (reads)
        TRY(data_format_files(path, format, o->split, &files, err));
    if (shards) {
        TRY(corpus_open_shards(c, path, &set, err));
        const bool same = strcmp(set.pattern, tokenizer_pattern(o->tokenizer)) == 0;
        if (set.tokenizer_hash != tokenizer_hash(o->tokenizer)) {
            (void)titan_fail(err, TITAN_EINVAL,
                             "'%s' was built with the tokenizer %s%.200s%s(%016" PRIx64
                             "), the run's is '%.200s' (%016" PRIx64 ")",
                             path, *set.tokenizer ? "'" : "", set.tokenizer, *set.tokenizer ? "' " : "",
                             set.tokenizer_hash, o->tokenizer_name, tokenizer_hash(o->tokenizer));
            if (err)
                titan_error_hint(
                    err, "set model.hf_assets_path to the tokenizer it was built with%s%.100s%s, or build it again",
                    same ? "" : ", model.tokenizer_pattern to '", same ? "" : set.pattern, same ? "" : "'");
            return TITAN_EINVAL;
        }
    } else if (reads && format == DATA_TEXT) {
        /* Packed and UTF-16 files must be decoded. If there is too much text to decode, such files are left out. */
        TRY(corpus_open_text(c, &files, files.bytes <= TOKENISE_BYTES_MAX / 4, &encoded, err));
        if (encoded)
            corpus_close(c);
    } else if (reads) {
        /* Files of tokens form one stream, in the order of their names. Which files belong to it is never guessed. */
        const char *const held_out = files.left_out.by[OMITTED_HELD_OUT].first;
        int32_t separator = -1;
        if (files.left_out.by[OMITTED_HELD_OUT].n > 0) {
            (void)titan_fail(
                err, TITAN_EINVAL,
                "training data '%.120s' has files of tokens that are held out by their names (first '%.120s')", path,
                held_out);
            if (err)
                titan_error_hint(err, "name what is trained on: a file ('%.60s') or a pattern (\"DIR/*train*.bin\")",
                                 files.file[0].path);
            return TITAN_EINVAL;
        }
        TRY(corpus_open_tokens(c, &files, format, &separator, err));
        /* Such files do not name their tokenizer. So the separator is the one of the run's tokenizer, or with "bytes"
         * the format's. */
        c->separator = is_bytes(o) ? separator : tokenizer_eos(o->tokenizer);
    }
    found->left_out = files.left_out;
    if (!shards && encoded)
        TRY(open_text(c, found, source, o, err));
    found->files = found->files ? found->files : c->n;
    found->documents = corpus_documents(c);
    found->tokens = c->tokens;
    if (o->vocab_size > 0) {
        const titan_status status = corpus_check_ids(c, o->vocab_size, err);
        if (status != TITAN_OK)
            return titan_error_wrap(err, "'%s'", path);
    }
    return TITAN_OK;
}

/* Chooses the windows that are read. With a mask, only windows with a trained target are kept, so that every step has
 * trained targets. */
static titan_status choose_windows(struct dataset *ds, int k, const char *path, uint64_t *ret, struct titan_error *err)
{
    const struct corpus *c = &ds->sources[k];
    struct bins *b = &ds->bins[k];
    struct dataset_found *found = &ds->found[k];
    const uint64_t seq_len = (uint64_t)ds->seq_len;
    uint64_t kept = 0;
    *ret = c->tokens > 0 ? (c->tokens - 1) / seq_len : 0;
    if (ds->packs) {
        _cleanup_free_ struct bin_document *documents = NULL;
        titan_status status = corpus_list_documents(c, &documents, err);
        if (status == TITAN_OK)
            status = bins_fill(documents, corpus_documents(c), seq_len, b, err);
        if (status == TITAN_OK && b->n == 0)
            status = titan_fail(err, TITAN_EINVAL, "it has no document of 2 to %" PRIu64 " tokens", seq_len + 1);
        if (status != TITAN_OK)
            return titan_error_wrap(err, "training.packing: '%s'", path);
        found->packed = *ret = b->n;
        found->padding = b->n * seq_len - b->places;
        found->too_long = b->too_long;
    }
    if (*ret == 0)
        return titan_fail(err, TITAN_EINVAL,
                          "'%s' has %" PRIu64 " tokens with those that end texts; one sample needs %" PRIu64
                          " (seq_len + 1)",
                          path, c->tokens, seq_len + 1);
    found->trained = c->tokens;
    if (!corpus_masked(c))
        return TITAN_OK;
    ds->windows[k] = calloc(*ret, sizeof(**ds->windows));
    if (!ds->windows[k])
        return titan_fail(err, TITAN_ENOMEM, "no memory for a list of %" PRIu64 " samples", *ret);
    for (uint64_t w = 0; w < *ret; w++) {
        int64_t trained = ds->packs ? 0 : corpus_mask(c, w * seq_len + 1, ds->seq_len, NULL);
        for (uint64_t d = ds->packs ? b->first[w] : 0; ds->packs && d < b->first[w + 1]; d++)
            trained += corpus_mask(c, b->documents[d].start + 1, (int64_t)b->documents[d].n - 1, NULL);
        if (trained > 0)
            ds->windows[k][kept++] = w;
    }
    found->trained = (uint64_t)corpus_mask(c, 0, (int64_t)c->tokens, NULL);
    found->idle = *ret - kept;
    *ret = kept;
    return kept > 0 ? TITAN_OK
                    : titan_fail(err, TITAN_EINVAL, "'%s' has no sample with a token that is trained on", path);
}

static titan_status open_all(struct dataset *ds, const struct dataset_options *o, struct titan_error *err)
{
    titan_assert(o->n_sources >= 1 && o->n_sources <= MIXTURE_MAX);
    uint64_t windows[MIXTURE_MAX];
    double weights[MIXTURE_MAX];
    ds->hash = HASH_INIT;
    for (; ds->n < o->n_sources; ds->n++) {
        const struct dataset_source *source = &o->sources[ds->n];
        struct corpus *c = &ds->sources[ds->n];
        TRY(open_source(c, &ds->found[ds->n], source, o, err));
        TRY(choose_windows(ds, ds->n, source->path, &windows[ds->n], err));
        weights[ds->n] = source->weight;
        ds->fingerprint[ds->n] = fingerprint_of_corpus(c);
        ds->hash = hash_word(ds->n == 0 ? c->hash : hash_word(ds->hash, c->hash), ds->fingerprint[ds->n]);
    }
    ds->window = calloc((size_t)ds->seq_len + 1, sizeof(*ds->window));
    if (!ds->window)
        return titan_fail(err, TITAN_ENOMEM, "no memory for a sample of %" PRId64 " tokens", ds->seq_len);
    return mixture_init(&ds->mixture, o->seed, ds->n, windows, weights, err);
}

titan_status dataset_open(const struct dataset_options *options, struct dataset **ret, struct titan_error *err)
{
    titan_assert(options->n_sources >= 1 && options->n_sources <= MIXTURE_MAX && options->tokenizer);
    if (options->seq_len < 1)
        return titan_fail(err, TITAN_EINVAL, "seq_len must be at least 1, got %" PRId64, options->seq_len);
    struct dataset *ds = calloc(1, sizeof(*ds));
    if (!ds)
        return titan_fail(err, TITAN_ENOMEM, "no memory for a dataset");
    ds->seq_len = options->seq_len;
    ds->vocab_size = options->vocab_size;
    ds->packs = options->packs;
    const titan_status status = open_all(ds, options, err);
    if (status == TITAN_OK)
        *ret = ds;
    else
        dataset_close(ds);
    return status;
}

void dataset_close(struct dataset *ds)
{
    if (!ds)
        return;
    for (int k = 0; k < MIXTURE_MAX; k++)
        corpus_close(&ds->sources[k]);
    for (int k = 0; k < MIXTURE_MAX; k++) {
        bins_clear(&ds->bins[k]);
        free(ds->windows[k]);
    }
    free(ds->window);
    free(ds);
}

/* --- reading ------------------------------------------------------------------------------------------------------ */

uint64_t dataset_tokens(const struct dataset *ds)
{
    uint64_t tokens = 0;
    for (int k = 0; k < ds->n; k++)
        tokens += ds->sources[k].tokens;
    return tokens;
}

uint64_t dataset_windows(const struct dataset *ds)
{
    uint64_t windows = 0;
    for (int k = 0; k < ds->n; k++)
        windows += ds->mixture.windows[k];
    return windows;
}

uint64_t dataset_hash(const struct dataset *ds)
{
    return ds->hash;
}

/* --- how far a run has read --------------------------------------------------------------------------------------- */

void dataset_identify(const struct dataset *ds, struct data_identity *ret)
{
    const struct mixture *m = &ds->mixture;
    *ret = (struct data_identity){.seq_len = ds->seq_len, .n = ds->n, .first = m->first};
    for (int k = 0; k < ds->n; k++)
        ret->source[k] = (struct data_source_identity){.fingerprint = ds->fingerprint[k],
                                                       .tokens = ds->sources[k].tokens,
                                                       .share = m->count[k],
                                                       .from = m->from[k]};
}

/* Returns the source of `before` that source k continues: a source with the same content, else the source at the same
 * place. -1: source k is new. */
static int source_before(const struct dataset *ds, const struct data_identity *before, int k)
{
    if (k < before->n && before->source[k].fingerprint == ds->fingerprint[k])
        return k;
    for (int j = 0; j < before->n; j++)
        if (before->source[j].fingerprint == ds->fingerprint[k])
            return j;
    return before->n == ds->n ? k : -1;
}

void dataset_go_on(struct dataset *ds, const struct data_identity *before, uint64_t samples, bool *ret_moved)
{
    struct mixture *m = &ds->mixture;
    bool same = before->n == ds->n && before->seq_len == ds->seq_len;
    titan_assert(before->n >= 0 && before->n <= MIXTURE_MAX && samples >= before->first);
    for (int k = 0; same && k < ds->n; k++)
        same = before->source[k].share == m->count[k] && source_before(ds, before, k) == k;
    m->first = same ? before->first : before->n > 0 ? samples : 0;
    for (int k = 0; k < ds->n; k++) {
        const int j = before->n > 0 ? source_before(ds, before, k) : -1;
        uint64_t read = j < 0 ? 0 : before->source[j].from;
        if (j >= 0 && !same) { /* samples that may have been read: those of a source are spread over the block */
            const uint64_t since = samples - before->first;
            read += before->n == 1 ? since : (since + MIXTURE_BLOCK - 1) / MIXTURE_BLOCK * before->source[j].share;
        }
        /* With another window length, the new windows cover at least as many tokens. */
        m->from[k] = same || before->seq_len <= 0
                         ? read
                         : (read * (uint64_t)before->seq_len + (uint64_t)ds->seq_len - 1) / (uint64_t)ds->seq_len;
    }
    if (ret_moved)
        *ret_moved = before->n > 0 && !same;
}

int dataset_sources(const struct dataset *ds)
{
    return ds->n;
}

const struct dataset_found *dataset_found(const struct dataset *ds, int source)
{
    titan_assert(source >= 0 && source < ds->n);
    return &ds->found[source];
}

void dataset_found_print(const struct dataset_found *found, struct buf *out)
{
    buf_printf(out, "%" PRIu64 " file%s of %s, ", found->files, found->files == 1 ? "" : "s", found->what);
    if (found->documents > 0)
        buf_printf(out, "%" PRIu64 " document%s, ", found->documents, found->documents == 1 ? "" : "s");
    buf_printf(out, "%" PRIu64 " tokens", found->tokens);
    if (found->trained < found->tokens)
        buf_printf(out, ", %" PRIu64 " of them trained on", found->trained);
    if (strcmp(found->what, "nanoGPT") == 0)
        buf_puts(out, " (as ids without a header)");
    if (found->packed > 0)
        buf_printf(out, ", packed into %" PRIu64 " samples with %" PRIu64 " places of padding", found->packed,
                   found->padding);
    if (found->too_long > 0)
        buf_printf(out, "; %" PRIu64 " documents are longer than a sample and left out", found->too_long);
    if (found->idle > 0)
        buf_printf(out, "; %" PRIu64 " samples have none of these and are passed over", found->idle);
    const char *comma = "; left out: ";
    if (data_left_out_count(&found->left_out) > 0) {
        buf_puts(out, comma);
        data_left_out_print(&found->left_out, out);
        comma = ", ";
    }
    if (found->bad_records > 0)
        buf_printf(out, "%s%" PRIu64 " bad records (first %s)", comma, found->bad_records, found->note);
    if (found->replaced > 0)
        buf_printf(out, "; %" PRIu64 " bytes are not UTF-8%s%s", found->replaced, found->bad_records > 0 ? "" : ": ",
                   found->bad_records > 0 ? "" : found->note);
}

titan_status dataset_sample(const struct dataset *ds, uint64_t g, int32_t *inputs, int32_t *targets, int32_t *starts,
                            struct titan_error *err)
{
    const struct mixture_pick pick = mixture_pick(&ds->mixture, g);
    const struct corpus *c = &ds->sources[pick.source];
    const struct bins *b = &ds->bins[pick.source];
    const uint64_t *windows = ds->windows[pick.source];

    titan_assert(pick.source < ds->n && pick.window < ds->mixture.windows[pick.source]);
    const uint64_t window = windows ? windows[pick.window] : pick.window;
    if (!ds->packs) {
        const uint64_t at = window * (uint64_t)ds->seq_len;
        const size_t bytes = (size_t)ds->seq_len * sizeof(*inputs);
        TRY(corpus_read(c, at, ds->seq_len + 1, ds->vocab_size, ds->window, err));
        memcpy(inputs, ds->window, bytes);
        memcpy(targets, ds->window + 1, bytes);
        if (windows)
            (void)corpus_mask(c, at + 1, ds->seq_len, targets);
        if (starts)
            corpus_starts(c, at, ds->seq_len, ds->window, starts);
        return TITAN_OK;
    }

    /* A bin has whole documents, and padding behind them. */
    int64_t place = 0;
    for (uint64_t d = b->first[window]; d < b->first[window + 1]; d++) {
        const struct bin_document *document = &b->documents[d];
        const int64_t n = (int64_t)document->n - 1;
        titan_assert(n > 0 && n <= ds->seq_len - place);
        TRY(corpus_read(c, document->start, n + 1, ds->vocab_size, ds->window, err));
        memcpy(inputs + place, ds->window, (size_t)n * sizeof(*inputs));
        memcpy(targets + place, ds->window + 1, (size_t)n * sizeof(*targets));
        if (windows)
            (void)corpus_mask(c, document->start + 1, n, targets + place);
        for (int64_t i = 0; starts && i < n; i++)
            starts[place + i] = (int32_t)place;
        place += n;
    }
    for (int64_t i = place; i < ds->seq_len; i++) {
        inputs[i] = 0;
        targets[i] = -1;
        if (starts)
            starts[i] = (int32_t)place;
    }
    return TITAN_OK;
}
