/* SPDX-License-Identifier: Apache-2.0 */
/* corpus.h, formats.h, shard.h: files of tokens as streams, and what is wrong with them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/crc32c.h"
#include "base/file.h"
#include "tests/support/root_dir.h"
#include "worker/data/dataset.h"
#include "worker/data/formats.h"
#include "worker/data/shard.h"

static void put_file(const char *name, const void *data, size_t len)
{
    assert_int_equal(file_replace(root_path(name), data, len, NULL), TITAN_OK);
}

static titan_status open_tokens(const char *name, struct corpus *c, struct titan_error *err)
{
    _cleanup_(data_files_clear) struct data_files files = {0};
    int32_t separator = -1;
    *err = (struct titan_error){0};
    const enum data_format format = data_format_of(root_path(name));
    titan_status status = data_format_files(root_path(name), format, SPLIT_TRAINING, &files, err);
    if (status == TITAN_OK)
        status = corpus_open_tokens(c, &files, format, &separator, err);
    c->separator = separator;
    return status;
}

static void check_tokens(const struct corpus *c, const int32_t *want, int64_t n)
{
    struct titan_error err = {0};
    int32_t got[64];
    assert_int_equal(c->tokens, n);
    for (int64_t from = 0; from < n; from++) {
        assert_int_equal(corpus_read(c, (uint64_t)from, n - from, 1 << 30, got, &err), TITAN_OK);
        for (int64_t i = from; i < n; i++)
            assert_int_equal(got[i - from], want[i]);
    }
}

static void check_starts(const struct corpus *c, uint64_t from, int64_t n, const int32_t *want)
{
    int32_t tokens[64], got[64];
    assert_int_equal(corpus_read(c, from, n, 0, tokens, NULL), TITAN_OK);
    corpus_starts(c, from, n, tokens, got);
    for (int64_t i = 0; i < n; i++)
        if (got[i] != want[i])
            fail_msg("token %ld: its document begins at %d, not %d", (long)i, got[i], want[i]);
}

/* --- nanoGPT and llm.c -------------------------------------------------------------------------------------------- */

static void test_nanogpt(void **state)
{
    (void)state;
    const uint16_t ids[] = {7, 50256, 300, 65535, 0, 1};
    const uint32_t wide[] = {7, 100000, 8};
    struct corpus c = {0};
    struct titan_error err;
    put_file("train.bin", ids, sizeof(ids));
    assert_int_equal(data_format_of(root_path("train.bin")), DATA_NANOGPT);
    assert_int_equal(open_tokens("train.bin", &c, &err), TITAN_OK);
    check_tokens(&c, (const int32_t[]){7, 50256, 300, 65535, 0, 1}, 6);
    check_starts(&c, 0, 6, (const int32_t[]){0, 0, 2, 2, 2, 2});
    check_starts(&c, 1, 5, (const int32_t[]){0, 1, 1, 1, 1});
    corpus_close(&c);
    put_file("train.u32.bin", wide, sizeof(wide));
    assert_int_equal(open_tokens("train.u32.bin", &c, &err), TITAN_OK);
    check_tokens(&c, (const int32_t[]){7, 100000, 8}, 3);
    corpus_close(&c);
    put_file("train.bin", ids, 5);
    assert_int_equal(open_tokens("train.bin", &c, &err), TITAN_ECORRUPT);
    assert_non_null(strstr(err.msg, "5 bytes"));
    corpus_close(&c);
}

static void put_llmc(const char *name, int32_t magic, int32_t version, int32_t tokens, const void *ids, size_t bytes)
{
    _cleanup_free_ char *file = calloc(1, 1024 + bytes);
    const int32_t head[3] = {magic, version, tokens};
    memcpy(file, head, sizeof(head));
    memcpy(file + 1024, ids, bytes);
    put_file(name, file, 1024 + bytes);
}

/* A folder of them is one stream, in the order of the names. */
static void test_llmc(void **state)
{
    (void)state;
    const uint16_t first[] = {50256, 1, 2}, second[] = {3, 50256, 4};
    const uint32_t llama[] = {128000, 5};
    struct corpus c = {0};
    struct titan_error err;
    assert_int_equal(mkdir(root_path("fineweb"), 0755), 0);
    put_llmc("fineweb/train_000002.bin", 20240520, 1, 3, second, sizeof(second));
    put_llmc("fineweb/train_000001.bin", 20240520, 1, 3, first, sizeof(first));
    assert_int_equal(data_format_of(root_path("fineweb")), DATA_LLMC);
    assert_int_equal(open_tokens("fineweb", &c, &err), TITAN_OK);
    assert_int_equal(c.separator, 50256);
    check_tokens(&c, (const int32_t[]){50256, 1, 2, 3, 50256, 4}, 6);
    check_starts(&c, 0, 6, (const int32_t[]){0, 1, 1, 1, 1, 5});
    corpus_close(&c);
    put_llmc("llama.bin", 20240801, 7, 2, llama, sizeof(llama));
    assert_int_equal(open_tokens("llama.bin", &c, &err), TITAN_OK);
    check_tokens(&c, (const int32_t[]){128000, 5}, 2);
    corpus_close(&c);
    put_llmc("short.bin", 20240520, 1, 4, first, sizeof(first));
    assert_int_equal(open_tokens("short.bin", &c, &err), TITAN_ECORRUPT);
    assert_non_null(strstr(err.msg, "3 tokens, its header says 4"));
    put_llmc("new.bin", 20240520, 2, 3, first, sizeof(first));
    assert_int_equal(open_tokens("new.bin", &c, &err), TITAN_EVERSION);
    put_file("fineweb/train_000003.bin", first, sizeof(first));
    assert_int_equal(open_tokens("fineweb", &c, &err), TITAN_EINVAL);
    assert_non_null(strstr(err.msg, "nanoGPT"));
    corpus_close(&c);
}

/* --- Megatron ----------------------------------------------------------------------------------------------------- */

struct megatron {
    uint64_t version, sequences, documents;
    uint8_t type;
    int32_t lengths[4];
    int64_t places[4], starts[4];
};

static size_t pack(const struct megatron *m, char *out)
{
    size_t n = 0;
#define PUT(what, bytes) (memcpy(out + n, (what), (bytes)), n += (bytes))
    PUT("MMIDIDX\0\0", 9);
    PUT(&m->version, 8);
    PUT(&m->type, 1);
    PUT(&m->sequences, 8);
    PUT(&m->documents, 8);
    PUT(m->lengths, 4 * m->sequences);
    PUT(m->places, 8 * m->sequences);
    PUT(m->starts, 8 * m->documents);
    return n;
}

/* Three sequences, of which the first two are one document. No id separates them: the index does. */
static void test_megatron(void **state)
{
    (void)state;
    const int32_t ids[] = {10, 11, 12, 13, 14, 15};
    const struct megatron good = {.version = 1,
                                  .type = 4,
                                  .sequences = 3,
                                  .documents = 3,
                                  .lengths = {1, 2, 3},
                                  .places = {0, 4, 12},
                                  .starts = {0, 2, 3}};
    char index[256];
    struct corpus c = {0};
    struct titan_error err;
    size_t n = pack(&good, index);
    put_file("text.bin", ids, sizeof(ids));
    put_file("text.idx", index, n);
    assert_int_equal(data_format_of(root_path("text.bin")), DATA_MEGATRON);
    assert_int_equal(data_format_of(root_path("text.idx")), DATA_MEGATRON);
    assert_int_equal(open_tokens("text.idx", &c, &err), TITAN_OK);
    check_tokens(&c, ids, 6);
    check_starts(&c, 0, 6, (const int32_t[]){0, 0, 0, 3, 3, 3});
    check_starts(&c, 2, 4, (const int32_t[]){0, 1, 1, 1});
    check_starts(&c, 3, 3, (const int32_t[]){0, 0, 0});
    corpus_close(&c);

    for (size_t cut = 0; cut < n; cut++) {
        put_file("text.idx", index, cut);
        const titan_status status = open_tokens("text.bin", &c, &err);
        assert_true(cut < 9 ? status == TITAN_OK : status != TITAN_OK); /* without a header it is nanoGPT's */
        corpus_close(&c);
    }
    struct megatron bad = good;
    bad.lengths[2] = 4;
    put_file("text.idx", index, pack(&bad, index));
    assert_int_equal(open_tokens("text.bin", &c, &err), TITAN_ECORRUPT);
    assert_non_null(strstr(err.msg, "28 bytes"));
    assert_non_null(strstr(err.msg, "24"));
    bad = good;
    bad.version = 2;
    put_file("text.idx", index, pack(&bad, index));
    assert_int_equal(open_tokens("text.bin", &c, &err), TITAN_EVERSION);
    bad = good;
    bad.type = 7; /* floats */
    put_file("text.idx", index, pack(&bad, index));
    assert_int_equal(open_tokens("text.bin", &c, &err), TITAN_EINVAL);
    bad = good; /* places that are none: wrong boundaries, and nothing else */
    bad.places[1] = 1 << 30;
    bad.starts[1] = -5;
    put_file("text.idx", index, pack(&bad, index));
    assert_int_equal(open_tokens("text.bin", &c, &err), TITAN_OK);
    check_tokens(&c, ids, 6);
    int32_t starts[6];
    corpus_starts(&c, 0, 6, ids, starts);
    for (int i = 0; i < 6; i++)
        assert_true(starts[i] >= 0 && starts[i] <= i);
    corpus_close(&c);
}

/* --- ids ---------------------------------------------------------------------------------------------------------- */

static void test_vocabulary(void **state)
{
    (void)state;
    const uint16_t ids[] = {1, 2, 700, 3};
    struct corpus c = {0};
    struct titan_error err;
    int32_t got[4];
    put_file("a.bin", ids, sizeof(ids));
    assert_int_equal(open_tokens("a.bin", &c, &err), TITAN_OK);
    assert_int_equal(corpus_check_ids(&c, 701, &err), TITAN_OK);
    assert_int_equal(corpus_check_ids(&c, 700, &err), TITAN_EINVAL);
    assert_non_null(strstr(err.msg, "id 700"));
    assert_non_null(strstr(err.msg, "vocab_size is 700"));
    assert_int_equal(corpus_read(&c, 0, 4, 701, got, &err), TITAN_OK);
    assert_int_equal(corpus_read(&c, 0, 4, 700, got, &err), TITAN_ECORRUPT);
    assert_non_null(strstr(err.msg, "token 2 "));
    corpus_close(&c);
}

/* --- shards ------------------------------------------------------------------------------------------------------- */

static const uint16_t document_ids[] = {5, 6, 9, 7, 9, 9};

/* Documents 5 6 eos, 7 eos, eos. */
static void put_set(const char *name)
{
    struct shard_writer *w = NULL;
    struct shard_set set = {.tokenizer = "some", .tokenizer_hash = 77, .vocab_size = 10, .eos = 9, .width = 2};
    struct shard_info info;
    char path[PATH_MAX];
    uint32_t id_max;
    (void)mkdir(root_path(name), 0755);
    shard_path(root_path(name), 0, path);
    assert_int_equal(shard_writer_open(path, 2, 77, 9, &w, NULL), TITAN_OK);
    assert_int_equal(shard_writer_add(w, document_ids, NULL, 3, 9, NULL), TITAN_OK);
    assert_int_equal(shard_writer_end_document(w, NULL), TITAN_OK);
    assert_int_equal(shard_writer_add(w, document_ids + 3, NULL, 2, 9, NULL), TITAN_OK);
    assert_int_equal(shard_writer_end_document(w, NULL), TITAN_OK);
    assert_int_equal(shard_writer_add(w, document_ids + 5, NULL, 1, 9, NULL), TITAN_OK);
    assert_int_equal(shard_writer_end_document(w, NULL), TITAN_OK);
    assert_int_equal(shard_writer_finish(w, &info, &id_max, NULL), TITAN_OK);
    set.shards = &info;
    set.n = 1;
    set.tokens = info.tokens;
    set.documents = info.documents;
    set.id_max = (int32_t)id_max;
    assert_int_equal(shard_set_write(root_path(name), &set, NULL), TITAN_OK);
}

static void test_shards(void **state)
{
    (void)state;
    struct corpus c = {0};
    struct shard_set set = {0};
    struct titan_error err = {0};
    put_set("set");
    assert_int_equal(data_format_of(root_path("set")), DATA_SHARDS);
    assert_int_equal(data_format_of(root_path("set/shard-00000.bin")), DATA_SHARDS);
    if (corpus_open_shards(&c, root_path("set"), &set, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    assert_int_equal(set.tokenizer_hash, 77);
    assert_int_equal(set.documents, 3);
    assert_int_equal(set.id_max, 9);
    check_tokens(&c, (const int32_t[]){5, 6, 9, 7, 9, 9}, 6);
    check_starts(&c, 0, 6, (const int32_t[]){0, 0, 0, 3, 3, 5});
    shard_set_clear(&set);
    corpus_close(&c);
}

/* Every byte of a shard that is changed, and every length that it is cut to, is noticed. */
static void test_damaged_shards(void **state)
{
    (void)state;
    _cleanup_(buf_free) struct buf file = BUF_INIT;
    put_set("set");
    assert_int_equal(file_read(root_path("set/shard-00000.bin"), 1 << 20, &file, NULL), TITAN_OK);
    const size_t padding = SHARD_HEADER_BYTES + sizeof(document_ids), padding_end = (padding + 7) / 8 * 8;
    for (size_t i = 0; i < 2 * file.len; i++) {
        struct corpus c = {0};
        struct shard_set set = {0};
        struct titan_error err = {0};
        const size_t byte = i % file.len;
        if (i < file.len && byte >= padding && byte < padding_end)
            continue;
        file.data[byte] ^= i < file.len ? 0x10 : 0;
        put_file("set/shard-00000.bin", file.data, i < file.len ? file.len : byte);
        const titan_status status = corpus_open_shards(&c, root_path("set"), &set, &err);
        if (status == TITAN_OK)
            fail_msg("byte %zu of %zu, %s: not noticed", byte, file.len, i < file.len ? "changed" : "the end");
        assert_non_null(strstr(err.msg, "shard-00000.bin"));
        file.data[byte] ^= i < file.len ? 0x10 : 0;
        shard_set_clear(&set);
        corpus_close(&c);
    }
}

static void test_refused_sets(void **state)
{
    (void)state;
    struct tokenizer *bytes = NULL;
    struct titan_error err = {0};
    struct dataset *ds = NULL;
    assert_int_equal(tokenizer_open("bytes", &bytes, NULL), TITAN_OK);
    put_set("set");
    char path[256];
    (void)snprintf(path, sizeof(path), "%s/set", root);
    const struct dataset_source source = {.path = path};
    const struct dataset_options o = {
        .sources = &source, .n_sources = 1, .tokenizer_name = "bytes", .tokenizer = bytes, .seq_len = 2};
    assert_int_equal(dataset_open(&o, &ds, &err), TITAN_EINVAL); /* another tokenizer: both are named */
    assert_non_null(strstr(err.msg, "'some' (000000000000004d)"));
    assert_non_null(strstr(err.msg, "'bytes'"));
    assert_int_equal(unlink(root_path("set/shard-00000.bin")), 0);
    assert_int_equal(dataset_open(&o, &ds, &err), TITAN_ECORRUPT);
    assert_non_null(strstr(err.msg, "missing"));
    assert_int_equal(unlink(root_path("set/titan-data.json")), 0);
    put_file("set/titan-build.json", "{}", 2);
    assert_int_equal(dataset_open(&o, &ds, &err), TITAN_EINVAL);
    assert_non_null(strstr(err.msg, "not finished"));
    put_file("set/titan-data.json", "{", 1);
    assert_int_equal(dataset_open(&o, &ds, &err), TITAN_ECORRUPT);
    tokenizer_close(bytes);
}

/* Files that are no tokens to train on, or of another width than their name has it. */
static void test_foreign_files(void **state)
{
    (void)state;
    struct titan_error err;
    struct corpus c = {0};
    int32_t wide[64];
    uint16_t eight[64];
    for (int i = 0; i < 64; i++) {
        wide[i] = i * 911;
        eight[i] = (uint16_t)(i % 8);
    }
    put_file("m.bin", wide, sizeof(wide));
    assert_int_equal(open_tokens("m.bin", &c, &err), TITAN_EINVAL);
    assert_non_null(strstr(err.msg, "looks like ids of 32 bits"));
    assert_non_null(strstr(err.hint, "NAME.idx"));
    put_file("m.u32.bin", wide, sizeof(wide));
    assert_int_equal(open_tokens("m.u32.bin", &c, &err), TITAN_OK);
    corpus_close(&c);
    put_file("s.bin", eight, sizeof(eight)); /* few different ids are no sign */
    assert_int_equal(open_tokens("s.bin", &c, &err), TITAN_OK);
    assert_int_equal(c.tokens, 64);
    corpus_close(&c);
    wide[0] = 20240522;
    put_file("e.bin", wide, sizeof(wide));
    assert_int_equal(open_tokens("e.bin", &c, &err), TITAN_EINVAL);
    assert_non_null(strstr(err.msg, "questions for an evaluation"));
    put_file("z.bin", "PK\3\4 and so on", 14);
    assert_int_equal(open_tokens("z.bin", &c, &err), TITAN_EINVAL);
    assert_non_null(strstr(err.msg, "zip archive"));
}

/* What lies beside nanoGPT's files makes no text of the folder; what else does, where no name says "train". */
static void test_folder_of_nanogpt(void **state)
{
    (void)state;
    const uint16_t ids[] = {1, 2, 3};
    struct titan_error err;
    struct corpus c = {0};
    assert_int_equal(mkdir(root_path("nano"), 0755), 0);
    put_file("nano/a.bin", ids, sizeof(ids));
    put_file("nano/meta.pkl", "x", 1);
    put_file("nano/prepare.py", "x", 1);
    put_file("nano/input.txt", "x", 1);
    assert_int_equal(open_tokens("nano", &c, &err), TITAN_OK);
    assert_int_equal(c.tokens, 3);
    corpus_close(&c);
    put_file("nano/notes.txt", "x", 1);
    assert_int_equal(data_format_of(root_path("nano")), DATA_TEXT);
    put_file("nano/train.bin", ids, sizeof(ids));
    put_file("nano/val.bin", ids, sizeof(ids));
    assert_int_equal(open_tokens("nano", &c, &err), TITAN_OK);
    assert_int_equal(c.tokens, 6);
    corpus_close(&c);
    assert_int_equal(data_format_of(root_path("nano/*.bin")), DATA_NANOGPT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_foreign_files, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_folder_of_nanogpt, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_nanogpt, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_llmc, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_megatron, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_vocabulary, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_shards, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_damaged_shards, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_refused_sets, make_root, remove_root),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
