/* SPDX-License-Identifier: Apache-2.0 */
/* A folder of shards: the description, the note of a build and two shards are any bytes. Checksums are made right, so
 * that what lies behind them is reached; sizes and counts are not. */
#include "tests/fuzz/common.h"

#include <stddef.h>
#include <sys/stat.h>

#include "base/crc32c.h"
#include "base/file.h"
#include "worker/data/data_build.h"
#include "worker/data/shard.h"

static void refused(titan_status status, const struct titan_error *err)
{
    if (status != TITAN_OK)
        fuzz_error(status, err);
}

static char root[80];

static const char *at(const char *name)
{
    static char path[128];
    (void)snprintf(path, sizeof(path), "%s/%s", root, name);
    return path;
}

static void put_shard(const char *name, struct fuzz_input bytes, bool mend)
{
    struct shard_header h;
    _cleanup_free_ uint8_t *copy = malloc(bytes.len + 1);
    memcpy(copy, bytes.data, bytes.len);
    if (mend && bytes.len >= sizeof(h)) {
        memcpy(&h, copy, sizeof(h));
        memcpy(h.magic, SHARD_MAGIC, sizeof(h.magic));
        h.header_crc = crc32c(0, &h, offsetof(struct shard_header, header_crc));
        memcpy(copy, &h, sizeof(h));
    }
    fuzz_file(at(name), copy, bytes.len);
}

static void try_build(struct fuzz_input lines)
{
    static struct tokenizer *bytes;
    struct titan_error err = {0};
    struct build_report report;
    char input[128];
    (void)snprintf(input, sizeof(input), "%s/lines.jsonl", fuzz_folder());
    const char *const inputs[] = {input};
    fuzz_file(input, lines.data, lines.len);
    fuzz_assert(bytes || tokenizer_open("bytes", &bytes, NULL) == TITAN_OK);
    const struct build_options o = {.inputs = inputs,
                                    .n_inputs = 1,
                                    .out = root,
                                    .tokenizer = bytes,
                                    .tokenizer_name = "bytes",
                                    .files = BUILD_JSONL,
                                    .threads = 1,
                                    .shard_tokens = 4};
    refused(data_build(&o, &report, &err), &err);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = {data, size};
    struct titan_error err = {0};
    struct corpus c = {0};
    struct shard_set set = {0};
    (void)snprintf(root, sizeof(root), "%s/set", fuzz_folder());
    (void)mkdir(root, 0700);
    const uint64_t flags = fuzz_take(&in, 1);
    const struct fuzz_input description = fuzz_piece(&in), note = fuzz_piece(&in), first = fuzz_piece(&in);
    if (description.len)
        fuzz_file(at("titan-data.json"), description.data, description.len);
    if (note.len)
        fuzz_file(at("titan-build.json"), note.data, note.len);
    put_shard("shard-00000.bin", first, flags & 1);
    put_shard("shard-00001.bin", in, flags & 2);
    const titan_status status = corpus_open_shards(&c, root, &set, &err);
    refused(status, &err);
    if (status == TITAN_OK)
        fuzz_assert(c.tokens == set.tokens && c.n == set.n);
    shard_set_clear(&set);
    corpus_close(&c);
    if (flags & 4)
        try_build(in);
    fuzz_assert(dir_remove(root, NULL) == TITAN_OK);
    return 0;
}
