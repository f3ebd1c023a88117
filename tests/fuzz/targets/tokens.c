/* SPDX-License-Identifier: Apache-2.0 */
/* Files of tokens: Megatron's .bin and .idx, llm.c's, nanoGPT's, and single shards, of any bytes. What opens can be
 * read to its last token, and documents begin where they can. */
#include "tests/fuzz/common.h"

#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "worker/data/formats.h"
#include "worker/data/shard.h"

enum { READ_MAX = 4096 };

static void refused(titan_status status, const struct titan_error *err)
{
    if (status != TITAN_OK)
        fuzz_error(status, err);
}

static void look(const struct corpus *c, uint64_t at)
{
    static int32_t ids[READ_MAX], starts[READ_MAX];
    if (c->tokens == 0)
        return;
    const int64_t n = (int64_t)MIN(c->tokens, (uint64_t)READ_MAX);
    const uint64_t places[] = {0, c->tokens - (uint64_t)n, at % (c->tokens - (uint64_t)n + 1)};
    for (size_t k = 0; k < ARRAY_SIZE(places); k++) {
        struct titan_error err = {0};
        const titan_status status = corpus_read(c, places[k], n, 0, ids, &err);
        refused(status, &err);
        if (status != TITAN_OK)
            continue;
        corpus_starts(c, places[k], n, ids, starts);
        for (int64_t i = 0; i < n; i++)
            fuzz_assert(starts[i] >= 0 && starts[i] <= i && (i == 0 || starts[i] >= starts[i - 1]));
        const titan_status small = corpus_read(c, places[k], n, 100, ids, &err);
        for (int64_t i = 0; small == TITAN_OK && i < n; i++)
            fuzz_assert(ids[i] < 100);
    }
    (void)!corpus_check_ids(c, 100, NULL);
    for (size_t i = 0; i < c->n; i++)
        for (uint64_t d = 0; d < MIN(c->segments[i].index.documents, (uint64_t)READ_MAX); d++)
            fuzz_assert(corpus_document(&c->segments[i], d) <= c->segments[i].tokens);
}

static titan_status open_any(const char *path, struct corpus *c, struct titan_error *err)
{
    struct shard_set set = {0};
    int32_t separator;
    const enum data_format format = data_format_of(path);
    if (format == DATA_TEXT)
        return titan_fail(err, TITAN_EINVAL, "text");
    if (format != DATA_SHARDS) {
        _cleanup_(data_files_clear) struct data_files files = {0};
        TRY(data_format_files(path, format, SPLIT_TRAINING, &files, err));
        return corpus_open_tokens(c, &files, format, &separator, err);
    }
    const titan_status status = corpus_open_shards(c, path, &set, err);
    shard_set_clear(&set);
    return status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = {data, size};
    struct titan_error err = {0};
    struct corpus c = {0};
    char bin[96], idx[96];
    const uint64_t at = fuzz_take(&in, 8);
    const bool wide = fuzz_take(&in, 1) & 1;
    (void)snprintf(bin, sizeof(bin), "%s/x%s.bin", fuzz_folder(), wide ? ".u32" : "");
    (void)snprintf(idx, sizeof(idx), "%s/x%s.idx", fuzz_folder(), wide ? ".u32" : "");
    const struct fuzz_input index = fuzz_piece(&in);
    if (index.len)
        fuzz_file(idx, index.data, index.len);
    fuzz_file(bin, in.data, in.len);
    refused(open_any(bin, &c, &err), &err);
    look(&c, at);
    corpus_close(&c);
    (void)unlink(bin);
    (void)unlink(idx);
    return 0;
}
