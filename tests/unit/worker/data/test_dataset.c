/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/file.h"
#include "tests/support/root_dir.h"
#include "worker/data/dataset.h"
#include "worker/data/mixture.h"

static void put_file(const char *name, const void *data, size_t len)
{
    char path[256];
    (void)snprintf(path, sizeof(path), "%s/%s", root, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, len, f), len);
    assert_int_equal(fclose(f), 0);
}

static void put_folder(const char *name)
{
    char path[256];
    (void)snprintf(path, sizeof(path), "%s/%s", root, name);
    assert_int_equal(mkdir(path, 0755), 0);
}

static struct tokenizer *tokenizer;

static titan_status open_path(const char *path, const char *kind, int64_t seq_len, uint64_t seed, int64_t vocab_size,
                              struct dataset **ret, struct titan_error *err)
{
    const struct dataset_source source = {.path = path, .kind = kind};
    const struct dataset_options o = {.sources = &source,
                                      .n_sources = 1,
                                      .tokenizer_name = "bytes",
                                      .tokenizer = tokenizer,
                                      .seq_len = seq_len,
                                      .vocab_size = vocab_size,
                                      .seed = seed};
    return dataset_open(&o, ret, err);
}

static struct dataset *must_open(int64_t seq_len, uint64_t seed)
{
    struct dataset *ds = NULL;
    struct titan_error err = {0};
    if (open_path(root, NULL, seq_len, seed, 0, &ds, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    return ds;
}

static void sample(const struct dataset *ds, uint64_t g, int32_t *in, int32_t *out)
{
    assert_int_equal(dataset_sample(ds, g, in, out, NULL, NULL), TITAN_OK);
}

/* Every sample of a pass is a window of the stream, each window comes once, and targets are inputs moved by one. */
static void check_pass(const struct dataset *ds, const uint8_t *stream, size_t len, int64_t seq_len, uint64_t pass)
{
    uint64_t windows = (len - 1) / (uint64_t)seq_len;
    assert_int_equal(dataset_tokens(ds), len);
    assert_int_equal(dataset_windows(ds), windows);
    _cleanup_free_ unsigned char *seen = calloc(windows, 1);
    _cleanup_free_ int32_t *in = calloc((size_t)seq_len, sizeof(*in)), *out = calloc((size_t)seq_len, sizeof(*out));
    for (uint64_t g = pass * windows; g < (pass + 1) * windows; g++) {
        sample(ds, g, in, out);
        uint64_t w;
        for (w = 0; w < windows; w++) {
            int64_t i = 0;
            const uint8_t *at = stream + w * (uint64_t)seq_len;
            while (i < seq_len && in[i] == at[i] && out[i] == at[i + 1])
                i++;
            if (i == seq_len && !seen[w])
                break;
        }
        assert_true(w < windows);
        seen[w] = 1;
    }
}

static void test_stream_is_files_in_path_order(void **state)
{
    (void)state;
    const char binary[] = "ELF\0\1\2", stream[] = "the first file\0second, below\0and the third one\0";
    put_file("a.txt", "the first file", 14);
    put_folder("b");
    put_file("b/x", "second, below", 13);
    put_file("binary", binary, sizeof(binary));
    put_file("empty", "", 0);
    put_file("z", "and the third one", 17);
    char link[128];
    (void)snprintf(link, sizeof(link), "%s/link", root);
    assert_int_equal(symlink("z", link), 0); /* its text would come twice */
    struct dataset *ds = must_open(5, 1);
    check_pass(ds, (const uint8_t *)stream, sizeof(stream) - 1, 5, 0);
    check_pass(ds, (const uint8_t *)stream, sizeof(stream) - 1, 5, 3);
    dataset_close(ds);
}

static void test_large_files_are_mapped(void **state)
{
    (void)state;
    size_t n = (2 << 20) + 17;
    _cleanup_free_ uint8_t *text = malloc(n + 5);
    for (size_t i = 0; i < n; i++)
        text[i] = (uint8_t)(1 + (i * 2654435761u >> 7) % 255);
    put_file("large", text, n);
    put_file("small", "abc", 3);
    memcpy(text + n, "\0abc", 5);
    struct dataset *ds = must_open(70000, 9);
    check_pass(ds, text, n + 5, 70000, 0);
    dataset_close(ds);
}

/* A file with nothing but text at both ends of so many bytes; it takes no room. false: this file system has no such. */
static bool put_sparse(const char *name, off_t bytes, const char *ends)
{
    char path[256];
    (void)snprintf(path, sizeof(path), "%s/%s", root, name);
    const int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    const size_t len = strlen(ends);
    char text[4096];
    assert_true(fd >= 0);
    memset(text, ' ', sizeof(text)); /* what is looked at to tell text */
    memcpy(text, ends, len);
    const bool fits = ftruncate(fd, bytes) == 0;
    if (fits) {
        assert_int_equal(pwrite(fd, text, sizeof(text), 0), sizeof(text));
        assert_int_equal(pwrite(fd, ends, len, bytes - (off_t)len), len);
    }
    assert_int_equal(close(fd), 0);
    return fits;
}

/* 2^17 windows whatever the size, of which the last ends with the last token: some sample of the first pass reads it.
 */
static void check_last_token(off_t bytes)
{
    static const char ends[] = "where it begins and ends";
    const int64_t n = sizeof(ends) - 1, seq_len = bytes >> 17;
    const uint64_t windows = UINT64_C(1) << 17;
    struct titan_error err = {0};
    struct dataset *ds = NULL;
    struct mixture m;
    uint64_t g = 0;
    if (!put_sparse("large", bytes, ends)) {
        print_message("skipped: no files of %lld bytes here\n", (long long)bytes);
        return;
    }
    if (open_path(root, NULL, seq_len, 1, 256, &ds, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    assert_int_equal(dataset_tokens(ds), (uint64_t)bytes + 1);
    assert_int_equal(dataset_windows(ds), windows);
    assert_int_equal(mixture_init(&m, 1, 1, &windows, (const double[]){0}, &err), TITAN_OK);
    while (mixture_pick(&m, g).window != windows - 1)
        g++;
    _cleanup_free_ int32_t *in = calloc((size_t)seq_len, sizeof(*in)), *out = calloc((size_t)seq_len, sizeof(*out));
    sample(ds, g, in, out);
    assert_int_equal(out[seq_len - 1], 0);
    for (int64_t i = 0; i < n; i++)
        assert_int_equal(in[seq_len - n + i], ends[i]);
    dataset_close(ds);
}

static void test_no_limit_of_size(void **state)
{
    (void)state;
    check_last_token((off_t)3 << 30);
    check_last_token((off_t)2 << 40);
}

static uint64_t hash_now(void)
{
    struct dataset *ds = must_open(3, 1);
    const uint64_t hash = dataset_hash(ds);
    const struct data_left_out *left_out = &dataset_found(ds, 0)->left_out;
    assert_int_equal(data_left_out_count(left_out), left_out->by[OMITTED_BINARY].n);
    dataset_close(ds);
    return hash;
}

/* Names and sizes count, and which bytes of which file; neither the place of the folder nor what is no text. */
static void test_hash_of_the_corpus(void **state)
{
    char old[sizeof(root)], from[128], to[128];
    put_file("a", "0123456789", 10);
    put_file("b", "01234567", 8);
    const uint64_t hash = hash_now();
    put_file("binary", "a\0b", 3);
    put_file("empty", "", 0);
    assert_true(hash_now() == hash);
    put_file("b", "0123456", 7);
    assert_true(hash_now() != hash);
    put_file("a", "012345678", 9); /* as many bytes as before in all */
    put_file("b", "012345678", 9);
    assert_true(hash_now() != hash);
    put_file("a", "0123456789", 10);
    put_file("b", "01234567", 8);
    (void)snprintf(from, sizeof(from), "%s/b", root);
    (void)snprintf(to, sizeof(to), "%s/c", root);
    assert_int_equal(rename(from, to), 0);
    assert_true(hash_now() != hash);
    memcpy(old, root, sizeof(root));
    assert_int_equal(make_root(state), 0);
    put_file("a", "0123456789", 10);
    put_file("b", "01234567", 8);
    assert_true(hash_now() == hash);
    assert_int_equal(remove_root(state), 0);
    memcpy(root, old, sizeof(root));
}

/* Two opens with one seed give one order, another seed another, another pass another. */
static void test_order_is_a_function_of_the_seed(void **state)
{
    (void)state;
    uint8_t text[4096];
    for (size_t i = 0; i < sizeof(text); i++)
        text[i] = (uint8_t)(1 + i % 251);
    put_file("text", text, sizeof(text));
    struct dataset *a = must_open(16, 42), *b = must_open(16, 42), *c = must_open(16, 43);
    uint64_t windows = dataset_windows(a);
    int same_seed = 0, other_seed = 0, next_pass = 0;
    for (uint64_t g = 0; g < windows; g++) {
        int32_t x[4][16], t[16];
        sample(a, g, x[0], t);
        sample(b, g, x[1], t);
        sample(c, g, x[2], t);
        sample(a, g + windows, x[3], t);
        same_seed += memcmp(x[0], x[1], sizeof(x[0])) == 0;
        other_seed += memcmp(x[0], x[2], sizeof(x[0])) == 0;
        next_pass += memcmp(x[0], x[3], sizeof(x[0])) == 0;
    }
    assert_int_equal(same_seed, windows);
    assert_true(other_seed < 16 && next_pass < 16);
    dataset_close(a);
    dataset_close(b);
    dataset_close(c);
}

/* Files of tokens, as others have made them: their ids are the stream. */
static void test_tokens(void **state)
{
    (void)state;
    struct dataset *ds = NULL;
    struct titan_error err = {0};
    char path[256];
    int32_t in[4], out[4];
    const uint16_t ids[] = {7, 300, 65535, 0, 1};
    put_file("train.bin", ids, sizeof(ids));
    (void)snprintf(path, sizeof(path), "%s/train.bin", root);
    if (open_path(path, NULL, 4, 1, 65536, &ds, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    assert_int_equal(dataset_tokens(ds), 5);
    sample(ds, 0, in, out);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(in[i], ids[i]);
        assert_int_equal(out[i], ids[i + 1]);
    }
    dataset_close(ds);
    assert_int_equal(open_path(path, NULL, 4, 1, 65535, &ds, &err), TITAN_EINVAL); /* the model has fewer ids */
}

/* A mark is no text, and UTF-16 and packed files are read as what they hold; then all of it is tokenised. */
static void test_decoded(void **state)
{
    (void)state;
    const char stream[] = "first\0second\0third\0";
    put_file("a",
             "\xef\xbb\xbf"
             "first",
             8);
    put_file("b", "second", 6);
    put_file("c", "third", 5);
    struct dataset *ds = must_open(3, 1);
    check_pass(ds, (const uint8_t *)stream, sizeof(stream) - 1, 3, 0);
    dataset_close(ds);
    put_file("b", "\xff\xfes\0e\0c\0o\0n\0d\0", 14);
    ds = must_open(3, 1);
    check_pass(ds, (const uint8_t *)stream, sizeof(stream) - 1, 3, 0);
    assert_int_equal(dataset_found(ds, 0)->documents, 3);
    dataset_close(ds);
}

/* Which files of tokens are trained on is not guessed; those that are held out are what an evaluation reads. */
static void test_held_out_tokens(void **state)
{
    (void)state;
    struct dataset *ds = NULL;
    struct titan_error err = {0};
    const uint16_t train[] = {1, 2, 3, 4}, held_out[] = {5, 6, 7};
    char pattern[256];
    put_file("train.bin", train, sizeof(train));
    put_file("val.bin", held_out, sizeof(held_out));
    (void)snprintf(pattern, sizeof(pattern), "%s/train*.bin", root);
    assert_int_equal(open_path(root, NULL, 1, 1, 0, &ds, &err), TITAN_EINVAL);
    assert_non_null(strstr(err.msg, "val.bin"));
    assert_non_null(strstr(err.hint, "train.bin"));
    assert_int_equal(open_path(pattern, NULL, 1, 1, 0, &ds, &err), TITAN_OK);
    assert_int_equal(dataset_tokens(ds), 4);
    dataset_close(ds);
    const struct dataset_source source = {.path = root};
    const struct dataset_options o = {.sources = &source,
                                      .n_sources = 1,
                                      .tokenizer_name = "bytes",
                                      .tokenizer = tokenizer,
                                      .seq_len = 1,
                                      .split = SPLIT_HELD_OUT};
    assert_int_equal(dataset_open(&o, &ds, &err), TITAN_OK);
    assert_int_equal(dataset_tokens(ds), 3);
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    dataset_found_print(dataset_found(ds, 0), &text);
    assert_non_null(
        strstr(text.data, "1 file of nanoGPT, 3 tokens (as ids without a header); left out: 1 of training (/"));
    dataset_close(ds);
}

/* Whole documents in each sample, in the first with room; a place without one has no target and is apart. */
static void test_packing(void **state)
{
    (void)state;
    static const struct {
        const char *inputs, *targets; /* . for 0 and - for no target */
        int starts[6];
    } samples[] = {{"abcxyz", "bc.yz.", {0, 0, 0, 3, 3, 3}}, {"defg..", "efg.--", {0, 0, 0, 0, 4, 4}}};
    struct dataset *ds = NULL;
    struct titan_error err = {0};
    bool seen[2] = {false};
    put_file("1", "abc", 3);
    put_file("2", "defg", 4);
    put_file("3", "toolong", 7);
    put_file("4", "xyz", 3);
    const struct dataset_source source = {.path = root};
    struct dataset_options o = {.sources = &source,
                                .n_sources = 1,
                                .tokenizer_name = "bytes",
                                .tokenizer = tokenizer,
                                .seq_len = 6,
                                .packs = true};
    if (dataset_open(&o, &ds, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    assert_int_equal(dataset_windows(ds), 2);
    for (uint64_t g = 0; g < 2; g++) {
        int32_t in[6], out[6], starts[6];
        assert_int_equal(dataset_sample(ds, g, in, out, starts, &err), TITAN_OK);
        const int k = in[0] == 'd';
        assert_false(seen[k]);
        seen[k] = true;
        for (int i = 0; i < 6; i++) {
            assert_int_equal(in[i], samples[k].inputs[i] == '.' ? 0 : samples[k].inputs[i]);
            assert_int_equal(out[i], samples[k].targets[i] == '.'   ? 0
                                     : samples[k].targets[i] == '-' ? -1
                                                                    : samples[k].targets[i]);
            assert_int_equal(starts[i], samples[k].starts[i]);
        }
    }
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    dataset_found_print(dataset_found(ds, 0), &text);
    assert_non_null(
        strstr(text.data, "packed into 2 samples with 2 places of padding; 1 documents are longer than a sample"));
    dataset_close(ds);
    o.seq_len = 2;
    assert_int_equal(dataset_open(&o, &ds, &err), TITAN_EINVAL);
    assert_non_null(strstr(err.msg, "it has no document of 2 to 3 tokens"));
    const uint16_t ids[] = {1, 2, 3, 4};
    char path[256];
    put_file("train.bin", ids, sizeof(ids));
    (void)snprintf(path, sizeof(path), "%s/train.bin", root);
    const struct dataset_source flat = {.path = path};
    o.sources = &flat;
    assert_int_equal(dataset_open(&o, &ds, &err), TITAN_EINVAL);
    assert_non_null(strstr(err.msg, "its files have no index of documents"));
}

static void test_refusals(void **state)
{
    (void)state;
    struct dataset *ds = NULL;
    struct titan_error err = {0};
    put_file("short", "only a few bytes", 16);
    assert_int_equal(open_path(root, NULL, 100, 1, 0, &ds, &err), TITAN_EINVAL);
    assert_non_null(strstr(err.msg, "17"));
    assert_non_null(strstr(err.msg, "101"));
    assert_int_equal(open_path("/nonexistent/data", NULL, 100, 1, 0, &ds, &err), TITAN_ENOTFOUND);
    assert_non_null(strstr(err.msg, "/nonexistent/data"));
    dataset_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_stream_is_files_in_path_order, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_large_files_are_mapped, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_no_limit_of_size, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_hash_of_the_corpus, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_order_is_a_function_of_the_seed, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_tokens, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_decoded, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_held_out_tokens, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_packing, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_refusals, make_root, remove_root),
    };
    if (tokenizer_open("bytes", &tokenizer, NULL) != TITAN_OK)
        return 1;
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    tokenizer_close(tokenizer);
    return failed;
}
