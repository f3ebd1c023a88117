/* SPDX-License-Identifier: Apache-2.0 */
/* data_build.h: what comes out of a build, whatever the threads and however often it was ended on the way. */
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
#include <zlib.h>
#include <zstd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/failpoint.h"
#include "base/file.h"
#include "tests/support/root_dir.h"
#include "worker/data/data_build.h"
#include "worker/data/dataset.h"
#include "worker/data/jsonl.h"
#include "worker/data/packed.h"
#include "worker/data/pieces.h"
#include "worker/data/shard.h"

static struct tokenizer *tokenizer;

static int end(void **state)
{
    assert_int_equal(failpoint_set(NULL, NULL), TITAN_OK);
    return remove_root(state);
}

static char *at(const char *name, char out[256])
{
    (void)snprintf(out, 256, "%s/%s", root, name);
    return out;
}

static void put_file(const char *name, const void *data, size_t len)
{
    char path[256];
    assert_int_equal(file_replace(at(name, path), data, len, NULL), TITAN_OK);
}

static titan_status build(const char *input, const char *out, int threads, int64_t shard_tokens,
                          struct build_report *report, struct titan_error *err)
{
    char from[256], to[256];
    const char *const inputs[] = {at(input, from)};
    const struct build_options o = {.inputs = inputs,
                                    .n_inputs = 1,
                                    .out = at(out, to),
                                    .tokenizer = tokenizer,
                                    .tokenizer_name = "bytes",
                                    .threads = threads,
                                    .shard_tokens = shard_tokens};
    *err = (struct titan_error){0};
    return data_build(&o, report, err);
}

/* All tokens of a folder, as bytes: the tokenizer is "bytes". */
static void read_back(const char *name, struct buf *out)
{
    char path[256];
    struct corpus c = {0};
    struct shard_set set = {0};
    struct titan_error err = {0};
    if (corpus_open_shards(&c, at(name, path), &set, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    for (uint64_t t = 0; t < c.tokens; t++) {
        int32_t id;
        assert_int_equal(corpus_read(&c, t, 1, 256, &id, NULL), TITAN_OK);
        assert_int_equal(buf_append(out, &(char){(char)id}, 1), TITAN_OK);
    }
    shard_set_clear(&set);
    corpus_close(&c);
}

static void check_content(const char *name, const char *want, size_t n)
{
    _cleanup_(buf_free) struct buf got = BUF_INIT;
    read_back(name, &got);
    assert_int_equal(got.len, n);
    assert_memory_equal(got.data, want, n);
}

static void put_gzip(const char *name, const char *text)
{
    char path[256];
    gzFile f = gzopen(at(name, path), "ab"); /* every call adds a member */
    assert_int_equal(gzwrite(f, text, (unsigned)strlen(text)), strlen(text));
    assert_int_equal(gzclose(f), Z_OK);
}

static void put_zstd(const char *name, const char *text)
{
    char packed[512];
    const size_t n = ZSTD_compress(packed, sizeof(packed), text, strlen(text), 3);
    assert_false(ZSTD_isError(n));
    put_file(name, packed, n);
}

static void test_kinds_of_files(void **state)
{
    (void)state;
    char path[256];
    struct build_report r;
    struct titan_error err;
    assert_int_equal(mkdir(at("text", path), 0755), 0);
    put_file("text/a", "first", 5);
    put_file("text/b.bin", "\0\1\2", 3); /* no text */
    put_gzip("text/c.gz", "packed ");
    put_gzip("text/c.gz", "twice");
    put_zstd("text/d.zst", "by zstd");
    assert_int_equal(build("text", "out", 2, 1000, &r, &err), TITAN_OK);
    assert_int_equal(r.documents, 3);
    assert_int_equal(r.left_out.by[OMITTED_BINARY].n, 1);
    check_content("out", "first\0packed twice\0by zstd", 27);
    /* With a file of JSON lines in it a folder is taken for that. */
    put_gzip("text/e.jsonl.gz", "{\"text\":\"one\"}\n{\"text\":\"\"}\n");
    put_zstd("text/f.json.zst", "{\"text\":\"two\"}");
    assert_int_equal(build("text", "lines", 2, 1000, &r, &err), TITAN_OK);
    assert_int_equal(r.documents, 3);
    assert_int_equal(r.left_out.by[OMITTED_KIND].n, 4);
    check_content("lines", "one\0\0two", 9);
    put_file("text/g.parquet", "PAR1", 4);
    assert_int_equal(build("text", "none", 2, 1000, &r, &err), TITAN_EUNSUPPORTED);
    assert_non_null(strstr(err.msg, "text/g.parquet' is Parquet, which is not read"));
    assert_non_null(strstr(err.hint, "pyarrow"));
    assert_int_equal(err.hint[strlen(err.hint) - 1], 'l'); /* whole: >F.jsonl */
}

/* Zeros behind members, as tapes and block devices leave them, are no data. */
static void test_padded_gzip(void **state)
{
    (void)state;
    _cleanup_(buf_free) struct buf file = BUF_INIT;
    struct build_report r;
    struct titan_error err;
    char path[256];
    put_gzip("x.gz", "first, ");
    assert_int_equal(file_read(at("x.gz", path), 1 << 20, &file, NULL), TITAN_OK);
    char padded[2][1000] = {{0}};
    assert_in_range(file.len, 1, sizeof(padded[0]) / 2);
    memcpy(padded[0], file.data, file.len);
    memcpy(padded[1], file.data, file.len);
    put_file("x.gz", padded, sizeof(padded));
    assert_int_equal(build("x.gz", "out", 2, 1000, &r, &err), TITAN_OK);
    assert_int_equal(r.bad_records, 0);
    check_content("out", "first, first, ", 15);
    put_file("x.gz", memset(padded, 0, sizeof(padded)), sizeof(padded)); /* no member at all */
    assert_int_equal(build("x.gz", "zeros", 2, 1000, &r, &err), TITAN_EINVAL);
    assert_non_null(strstr(err.msg, "there is no text"));
}

static void test_bad_records(void **state)
{
    (void)state;
    static const char lines[] = "{\"text\":\"a\"}\n\nnonsense\n{\"text\":1}\n{\"text\":\"b\"}\n{\"txt\":1}";
    struct build_report r;
    struct titan_error err;
    char path[256];
    put_file("x.jsonl", lines, sizeof(lines) - 1);
    assert_int_equal(build("x.jsonl", "out", 1, 1000, &r, &err), TITAN_OK);
    assert_int_equal(r.documents, 2);
    assert_int_equal(r.bad_records, 3);
    assert_int_equal(r.n_notes, 3);
    assert_non_null(strstr(r.notes[0], "x.jsonl:3: not a JSON object"));
    assert_non_null(strstr(r.notes[2], "x.jsonl:6: no such field"));
    check_content("out", "a\0b", 4);
    const char *const inputs[] = {at("x.jsonl", path)};
    char out[256];
    const struct build_options strict = {.inputs = inputs,
                                         .n_inputs = 1,
                                         .out = at("strict", out),
                                         .tokenizer = tokenizer,
                                         .tokenizer_name = "bytes",
                                         .strict = true,
                                         .threads = 2,
                                         .shard_tokens = 10};
    assert_int_equal(data_build(&strict, &r, &err), TITAN_EINVAL);
    assert_non_null(strstr(err.msg, "x.jsonl:3"));
}

/* Packed data that is cut off: what is whole before that counts, and it is told. */
static void test_cut_off(void **state)
{
    (void)state;
    _cleanup_(buf_free) struct buf text = BUF_INIT, file = BUF_INIT;
    struct build_report r;
    struct titan_error err;
    char path[256];
    for (int i = 0; i < 20000; i++)
        buf_printf(&text, "{\"text\":\"%d\"}\n", i * 7919);
    put_gzip("x.jsonl.gz", text.data);
    assert_int_equal(file_read(at("x.jsonl.gz", path), 1 << 20, &file, NULL), TITAN_OK);
    put_file("x.jsonl.gz", file.data, file.len / 2);
    assert_int_equal(build("x.jsonl.gz", "out", 2, 1 << 20, &r, &err), TITAN_OK);
    assert_in_range(r.documents, 1000, 19999);
    assert_int_equal(r.bad_records, 1);
    assert_non_null(strstr(r.notes[0], "cut off"));
    file.data[file.len / 3] ^= 0x55;
    put_file("x.jsonl.gz", file.data, file.len);
    assert_int_equal(build("x.jsonl.gz", "out2", 2, 1 << 20, &r, &err), TITAN_OK);
    assert_true(r.bad_records >= 1);
}

/* What a file's bytes are read as: marks, encodings, packing by content, records of every layout. */
static void test_readings(void **state)
{
    (void)state;
#define BYTES(text) text, sizeof(text) - 1
    static const struct {
        const char *name, *bytes;
        size_t n;
        const char *field;
        enum text_encoding encoding;
        const char *want; /* documents, with '|' behind each; NULL: there is no text */
        uint64_t bad;
        const char *note; /* the first, or what the refusal has */
    } rows[] = {
        {"a.txt", BYTES("\xef\xbb\xbfmark"), NULL, 0, "mark|", 0, ""},
        {"b.txt", BYTES("\xff\xfeU\0\xe4\0\x3d\xd8\x00\xde\x00\xd8"), NULL, 0, "U\xc3\xa4\xf0\x9f\x98\x80\xef\xbf\xbd|",
         0, ""},
        {"c.txt", BYTES("\xfe\xff\0U\xd8\x3d\0V\0"), NULL, 0, "U\xef\xbf\xbdV\xef\xbf\xbd|", 0, ""},
        {"d.txt", BYTES("caf\xe9"), NULL, TEXT_LATIN1, "caf\xc3\xa9|", 0, ""},
        {"e.jsonl", BYTES("\xef\xbb\xbf{\"text\":\"a\"}\n{\"text\":\"b\"}\n"), NULL, 0, "a|b|", 0, ""},
        {"f.jsonl", BYTES("{\"text\":\"caf\xe9\"}\n"), NULL, TEXT_LATIN1, "caf\xc3\xa9|", 0, ""},
        {"g.jsonl", BYTES("{\"text\":\"caf\xe9\"}\n"), NULL, 0, NULL, 1, "1 bad records, the first: "},
        {"h.jsonl", BYTES("{\"d\":{\"text\":\"a\",\"e\":{\"text\":\"n\"}},\"text\":\"n\"}\n{\"d.text\":\"b\"}\n"),
         "d.text", 0, "a|b|", 0, ""},
        {"i.jsonl", BYTES("{\"d\":[{\"text\":\"a\"}]}\n{\"d\":{\"text\":1}}\n{\"d\":\"x\"}\n"), "d.text", 0, NULL, 3,
         "i.jsonl:1: no such field"},
        {"j.jsonl", BYTES("{\"x\":NaN,\"y\":[-Infinity,Infinity],\"text\":\"a\"}\n"), NULL, 0, "a|", 0, ""},
        {"k.json", BYTES(" [{\"text\":\"a]\\\"\"}, {\"text\":\n\"b\"},\n\n7,{\"text\":\"c\"}]\n"), NULL, 0, "a]\"|b|c|",
         1, "k.json:4: not a JSON object"},
        {"l.json", BYTES("{\n \"text\": \"a\"\n}\n{\n \"txt\": \"b\"\n}\n"), NULL, 0, "a|", 1,
         "l.json:4: no such field"},
        {"m.json", BYTES("[{\"text\":\"a\"},\n{\"text\":\"b"), NULL, 0, "a|", 1, "m.json:2: a string has no end"},
        {"n.json", BYTES("[{\"text\":\"a\"},\n"), NULL, 0, "a|", 1, "n.json:1: the array has no end"},
        {"o.json", BYTES("[]"), NULL, 0, NULL, 0, "there is no text"},
        {"p.txt", BYTES("\x1f\x8b\x08 is no gzip"), NULL, 0, NULL, 1, "p.txt: the compressed data is "},
    };
#undef BYTES
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        char from[256], to[256], want[256] = "";
        struct build_report r;
        struct titan_error err = {0};
        const char *const inputs[] = {at(rows[i].name, from)};
        put_file(rows[i].name, rows[i].bytes, rows[i].n);
        (void)snprintf(to, sizeof(to), "%s/out%zu", root, i);
        const struct build_options o = {.inputs = inputs,
                                        .n_inputs = 1,
                                        .out = to,
                                        .tokenizer = tokenizer,
                                        .tokenizer_name = "bytes",
                                        .field = rows[i].field,
                                        .encoding = rows[i].encoding,
                                        .threads = 1,
                                        .shard_tokens = 1000};
        const titan_status status = data_build(&o, &r, &err);
        if (!rows[i].want) {
            assert_int_equal(status, TITAN_EINVAL);
            if (!strstr(err.msg, rows[i].note))
                fail_msg("%s: %s", rows[i].name, err.msg);
            assert_int_not_equal(access(to, F_OK), 0); /* as it was */
            continue;
        }
        if (status != TITAN_OK)
            fail_msg("%s: %s", rows[i].name, err.msg);
        (void)snprintf(want, sizeof(want), "%s", rows[i].want);
        for (size_t k = strlen(want); k > 0; k--)
            want[k - 1] = want[k - 1] == '|' ? '\0' : want[k - 1];
        (void)snprintf(to, sizeof(to), "out%zu", i);
        check_content(to, want, strlen(rows[i].want));
        assert_int_equal(r.bad_records, rows[i].bad);
        if (!strstr(r.notes[0], rows[i].note))
            fail_msg("%s: %s", rows[i].name, r.notes[0]);
    }
}

/* Packed data is known by its first bytes, whatever the name. */
static void test_packed_by_content(void **state)
{
    (void)state;
    struct build_report r;
    struct titan_error err;
    put_gzip("x.jsonl", "{\"text\":\"a\"}\n");
    put_zstd("y.txt", "b");
    assert_int_equal(build("x.jsonl", "x", 1, 1000, &r, &err), TITAN_OK);
    check_content("x", "a", 2);
    assert_int_equal(build("y.txt", "y", 1, 1000, &r, &err), TITAN_OK);
    check_content("y", "b", 2);
}

/* --- the same bytes ----------------------------------------------------------------------------------------------- */

/* Documents of many lengths, with bad lines between them, in two files, one of them packed. */
static void put_corpus(void)
{
    _cleanup_(buf_free) struct buf a = BUF_INIT, b = BUF_INIT;
    char path[256];
    assert_int_equal(mkdir(at("in", path), 0755), 0);
    for (int i = 0; i < 60000; i++) {
        struct buf *to = i % 3 ? &a : &b;
        if (i % 1000 == 7)
            buf_puts(to, "broken\n\n");
        buf_printf(
            to, "{\"n\":%d,\"text\":\"%.*s %d\"}\n", i, i % 97,
            "The quick brown fox jumps over the lazy dog and goes on for as long as there is a line to be on, it seems",
            i);
    }
    put_file("in/a.jsonl", a.data, a.len);
    put_gzip("in/b.jsonl.gz", b.data);
}

static void same_files(const char *one, const char *other, size_t shards)
{
    char name[64], path[256];
    for (size_t i = 0; i <= shards; i++) {
        _cleanup_(buf_free) struct buf a = BUF_INIT, b = BUF_INIT;
        for (int k = 0; k < 2; k++) {
            const char *dir = k ? other : one;
            if (i == shards)
                (void)snprintf(name, sizeof(name), "%.20s/titan-data.json", dir);
            else
                (void)snprintf(name, sizeof(name), "%.20s/shard-%05zu.bin", dir, i);
            assert_int_equal(file_read(at(name, path), 1 << 28, k ? &b : &a, NULL), TITAN_OK);
        }
        assert_int_equal(a.len, b.len);
        assert_memory_equal(a.data, b.data, a.len);
    }
}

static void test_threads(void **state)
{
    (void)state;
    struct build_report one, four;
    struct titan_error err;
    put_corpus();
    if (build("in", "one", 1, 300000, &one, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    assert_int_equal(build("in", "four", 4, 300000, &four, &err), TITAN_OK);
    assert_int_equal(one.documents, 60000);
    assert_int_equal(one.bad_records, 60);
    assert_true(one.shards > 5);
    assert_int_equal(four.shards, one.shards);
    same_files("one", "four", one.shards);
    assert_int_equal(build("in", "one", 3, 300000, &four, &err), TITAN_OK);
    assert_true(four.there);
    assert_int_equal(build("in", "one", 3, 400000, &four, &err), TITAN_EEXIST); /* other bytes would come of it */
}

/* An array of records goes on behind a record, too: many lie on a line, and some over several. */
static void test_arrays_going_on(void **state)
{
    (void)state;
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    struct build_report whole, r;
    struct titan_error err;
    int ended = 0;
    buf_puts(&text, "[");
    for (int i = 0; i < 40000; i++)
        buf_printf(&text, "%s{\"n\":[%d],%s\"text\":\"%.*s %d\"}", i ? "," : "", i, i % 5 ? "" : "\n\t", i % 50,
                   "a text of up to fifty characters, of which some are many", i);
    buf_puts(&text, "]");
    put_file("a.json", text.data, text.len);
    assert_int_equal(build("a.json", "whole", 1, 200000, &whole, &err), TITAN_OK);
    assert_int_equal(whole.documents, 40000);
    assert_int_equal(failpoint_set("data.state=fail:EIO@1", NULL), TITAN_OK);
    while (build("a.json", "parts", 2, 200000, &r, &err) == TITAN_EIO && ++ended < 100)
        assert_int_equal(failpoint_set("data.state=fail:EIO@1", NULL), TITAN_OK);
    assert_int_equal(failpoint_set(NULL, NULL), TITAN_OK);
    assert_in_range(ended, 3, 99);
    assert_int_equal(build("a.json", "parts", 2, 200000, &r, &err), TITAN_OK);
    assert_int_equal(r.documents, 40000);
    same_files("whole", "parts", whole.shards);
}

/* Ended behind every shard in turn, before and after it was noted; each time it goes on, to the same bytes. */
static void test_going_on(void **state)
{
    (void)state;
    struct build_report whole, r;
    struct titan_error err;
    char path[256];
    put_corpus();
    assert_int_equal(build("in", "whole", 2, 500000, &whole, &err), TITAN_OK);
    assert_int_equal(mkdir(at("parts", path), 0755), 0); /* what a build leaves that is killed at its first note */
    put_file("parts/titan-build.json.0123abcd", "{", 1);
    put_file("parts/shard-00000.bin.part", "x", 1);
    const char *const places[] = {"data.shard=fail:ENOSPC@1", "data.state=fail:EIO@1"};
    for (int i = 0; i < 100; i++) {
        assert_int_equal(failpoint_set(places[i % 2], NULL), TITAN_OK);
        const titan_status status = build("in", "parts", 1 + i % 3, 500000, &r, &err);
        if (status == TITAN_OK)
            break;
        assert_int_equal(status, i % 2 ? TITAN_EIO : TITAN_ENOSPC);
        struct dataset *ds = NULL;
        const struct dataset_source source = {.path = at("parts", path)};
        const struct dataset_options o = {
            .sources = &source, .n_sources = 1, .tokenizer_name = "bytes", .tokenizer = tokenizer, .seq_len = 8};
        assert_int_equal(dataset_open(&o, &ds, &err), TITAN_EINVAL);
        assert_non_null(strstr(err.msg, "not finished"));
    }
    assert_int_equal(failpoint_set(NULL, NULL), TITAN_OK);
    assert_int_equal(build("in", "parts", 2, 500000, &r, &err), TITAN_OK);
    assert_int_equal(r.documents, whole.documents);
    assert_int_equal(r.bad_records, whole.bad_records);
    for (int i = 0; i < BUILD_NOTES; i++)
        assert_string_equal(r.notes[i], whole.notes[i]);
    same_files("whole", "parts", whole.shards);
    assert_int_not_equal(access(at("parts/titan-build.json.0123abcd", path), F_OK), 0);
}

/* --- pieces ------------------------------------------------------------------------------------------------------- */

static void test_cuts(void **state)
{
    (void)state;
    const size_t n = 3 * PIECE_BYTES;
    _cleanup_free_ char *text = malloc(n);
    memset(text, 'x', n);
    assert_int_equal(data_piece_cut(text, PIECE_BYTES), PIECE_BYTES);
    assert_int_equal(data_piece_cut(text, n), n); /* no line ends in it */
    text[PIECE_BYTES - 100] = '\n';
    assert_int_equal(data_piece_cut(text, n), PIECE_BYTES - 99);
    text[PIECE_BYTES - 99] = ' '; /* the next line begins with space */
    assert_int_equal(data_piece_cut(text, n), n);
    text[PIECE_BYTES + 5] = '\n';
    assert_int_equal(data_piece_cut(text, n), PIECE_BYTES + 6);
    text[PIECE_BYTES + 6] = '/'; /* o200k's pattern takes it with the line end */
    assert_int_equal(data_piece_cut(text, n), n);
    text[PIECE_BYTES + 6] = '\n';
    assert_int_equal(data_piece_cut(text, n), n);
}

/* A line of many pieces is one document, whole; so is a text. */
static void test_long_documents(void **state)
{
    (void)state;
    const size_t n = 5 * PIECE_BYTES + 12345;
    _cleanup_(buf_free) struct buf line = BUF_INIT, want = BUF_INIT;
    struct build_report r;
    struct titan_error err;
    assert_int_equal(buf_reserve(&want, n + 2), TITAN_OK);
    for (size_t i = 0; i < n; i++)
        want.data[i] = i % 71 == 70 && i / 71 % 3 ? '\n' : (char)('a' + i % 26);
    want.data[n] = '\0';
    want.len = n;
    put_file("long.txt", want.data, n);
    assert_int_equal(build("long.txt", "text", 3, 1000, &r, &err), TITAN_OK);
    assert_int_equal(r.documents, 1);
    assert_int_equal(r.text_bytes, n);
    check_content("text", want.data, n + 1);
    buf_puts(&line, "{\"text\":\"");
    for (size_t i = 0; i < n; i++)
        assert_int_equal(want.data[i] == '\n' ? buf_append(&line, "\\n", 2) : buf_append(&line, want.data + i, 1),
                         TITAN_OK);
    buf_puts(&line, "\"}\n{\"text\":\"z\"}\n");
    put_file("long.jsonl", line.data, line.len);
    assert_int_equal(build("long.jsonl", "lines", 3, 1000, &r, &err), TITAN_OK);
    assert_int_equal(r.documents, 2);
    assert_int_equal(r.shards, 2);
    want.data[n + 1] = 'z';
    _cleanup_(buf_free) struct buf got = BUF_INIT;
    read_back("lines", &got);
    assert_int_equal(got.len, n + 3);
    assert_memory_equal(got.data, want.data, n + 2);
}

/* --- straight into a run ------------------------------------------------------------------------------------------ */

static void sample_of(const char *path, const char *kind, const char *want)
{
    struct dataset *ds = NULL;
    struct titan_error err = {0};
    const struct dataset_source source = {.path = path, .kind = kind};
    const struct dataset_options o = {.sources = &source,
                                      .n_sources = 1,
                                      .tokenizer_name = "bytes",
                                      .tokenizer = tokenizer,
                                      .seq_len = (int64_t)strlen(want),
                                      .vocab_size = 256,
                                      .cache = root};
    int32_t in[64], out[64];
    if (dataset_open(&o, &ds, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    assert_int_equal(dataset_windows(ds), 1);
    assert_int_equal(dataset_sample(ds, 0, in, out, NULL, NULL), TITAN_OK);
    for (size_t i = 0; want[i]; i++)
        assert_int_equal(in[i], want[i]);
    dataset_close(ds);
}

static void test_c4_in_a_run(void **state)
{
    (void)state;
    char path[256], big[256];
    struct dataset *ds = NULL;
    struct titan_error err = {0};
    assert_int_equal(mkdir(at("c4", path), 0755), 0);
    put_gzip("c4/c4-train.00000-of-00001.json.gz", "{\"text\":\"to train with\"}\n");
    put_gzip("c4/c4-validation.00000-of-00001.json.gz", "{\"text\":\"to validate on\"}\n");
    put_file("c4/README.md", "no data", 7);
    sample_of(at("c4", path), "c4", "to train with");
    sample_of(path, "c4", "to train with"); /* it lies in the cache */
    sample_of(path, "c4_validation", "to validate on");
    sample_of(at("c4/c4-train.00000-of-00001.json.gz", path), "jsonl", "to train with");
    /* Too much to be tokenised now: the message is the command that does. */
    FILE *f = fopen(at("big.jsonl", big), "w");
    assert_int_equal(ftruncate(fileno(f), (off_t)300 << 20), 0);
    assert_int_equal(fclose(f), 0);
    const struct dataset_source source = {.path = big, .kind = "jsonl"};
    const struct dataset_options o = {
        .sources = &source, .n_sources = 1, .tokenizer_name = "bytes", .tokenizer = tokenizer, .seq_len = 8};
    assert_int_equal(dataset_open(&o, &ds, &err), TITAN_EINVAL);
    assert_non_null(strstr(err.msg, "300 MiB"));
    assert_non_null(strstr(err.hint, "titanctl data build --tokenizer 'bytes'"));
}

/* A temporary folder for tokens does not stay, whether they can be made or not. */
static void test_temporary_tokens(void **state)
{
    (void)state;
    char path[256], temporary[256];
    static const char *const lines[] = {"{\"text\":\"to train with\"}\n", "nonsense\n"};
    assert_int_equal(mkdir(at("temporary", temporary), 0755), 0);
    assert_int_equal(setenv("TMPDIR", temporary, 1), 0);
    for (int i = 0; i < 2; i++) {
        struct dataset *ds = NULL;
        put_file("x.jsonl", lines[i], strlen(lines[i]));
        const struct dataset_source source = {.path = at("x.jsonl", path), .kind = "jsonl"};
        const struct dataset_options o = {
            .sources = &source, .n_sources = 1, .tokenizer_name = "bytes", .tokenizer = tokenizer, .seq_len = 8};
        assert_int_equal(dataset_open(&o, &ds, NULL), i == 0 ? TITAN_OK : TITAN_EINVAL);
        dataset_close(ds);
    }
    assert_int_equal(unsetenv("TMPDIR"), 0);
    assert_int_equal(rmdir(temporary), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_kinds_of_files, make_root, end),
        cmocka_unit_test_setup_teardown(test_padded_gzip, make_root, end),
        cmocka_unit_test_setup_teardown(test_bad_records, make_root, end),
        cmocka_unit_test_setup_teardown(test_readings, make_root, end),
        cmocka_unit_test_setup_teardown(test_packed_by_content, make_root, end),
        cmocka_unit_test_setup_teardown(test_arrays_going_on, make_root, end),
        cmocka_unit_test_setup_teardown(test_cut_off, make_root, end),
        cmocka_unit_test_setup_teardown(test_threads, make_root, end),
        cmocka_unit_test_setup_teardown(test_going_on, make_root, end),
        cmocka_unit_test(test_cuts),
        cmocka_unit_test_setup_teardown(test_long_documents, make_root, end),
        cmocka_unit_test_setup_teardown(test_c4_in_a_run, make_root, end),
        cmocka_unit_test_setup_teardown(test_temporary_tokens, make_root, end),
    };
    if (tokenizer_open("bytes", &tokenizer, NULL) != TITAN_OK)
        return 1;
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    tokenizer_close(tokenizer);
    return failed;
}
