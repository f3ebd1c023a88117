/* SPDX-License-Identifier: Apache-2.0 */
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

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/file.h"
#include "worker/data/dataset.h"

static char root[64];

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

static int make_root(void **state)
{
    (void)state;
    (void)snprintf(root, sizeof(root), "/tmp/titan-dataset-XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static int remove_root(void **state)
{
    (void)state;
    return dir_remove(root, NULL) == TITAN_OK ? 0 : -1;
}

static struct dataset *must_open(int64_t seq_len, uint64_t seed, uint64_t max)
{
    struct dataset *ds = NULL;
    struct titan_error err = {0};
    struct dataset_options o = {
        .path = root, .tokenizer = "bytes", .seq_len = seq_len, .seed = seed, .corpus_bytes_max = max};
    if (dataset_open(&o, &ds, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    return ds;
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
        dataset_sample(ds, g, in, out);
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
    assert_int_equal(symlink("z", link), 0); /* not followed: its text would come twice */
    struct dataset *ds = must_open(5, 1, 0);
    check_pass(ds, (const uint8_t *)stream, sizeof(stream) - 1, 5, 0);
    check_pass(ds, (const uint8_t *)stream, sizeof(stream) - 1, 5, 3);
    assert_int_equal(dataset_vocabulary(ds), 256);
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
    struct dataset *ds = must_open(70000, 9, 0);
    check_pass(ds, text, n + 5, 70000, 0);
    dataset_close(ds);
}

static void test_corpus_limit(void **state)
{
    (void)state;
    put_file("a", "0123456789", 10);
    put_file("b", "0123456789", 10);
    put_file("c", "0123456789", 10);
    struct dataset *ds = must_open(3, 1, 15);
    check_pass(ds,
               (const uint8_t *)"0123456789\0"
                                "0123\0",
               16, 3, 0);
    dataset_close(ds);
}

static uint64_t hash_now(void)
{
    struct dataset *ds = must_open(3, 1, 0);
    const uint64_t hash = dataset_hash(ds);
    const char *first;
    assert_int_equal(dataset_left_out(ds, &first), 0);
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
    struct dataset *a = must_open(16, 42, 0), *b = must_open(16, 42, 0), *c = must_open(16, 43, 0);
    uint64_t windows = dataset_windows(a);
    int same_seed = 0, other_seed = 0, next_pass = 0;
    for (uint64_t g = 0; g < windows; g++) {
        int32_t x[4][16], t[16];
        dataset_sample(a, g, x[0], t);
        dataset_sample(b, g, x[1], t);
        dataset_sample(c, g, x[2], t);
        dataset_sample(a, g + windows, x[3], t);
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

static void test_refusals(void **state)
{
    (void)state;
    struct dataset *ds = NULL;
    struct titan_error err = {0};
    struct dataset_options o = {.path = root, .tokenizer = "bytes", .seq_len = 100, .seed = 1};
    put_file("short", "only a few bytes", 16);
    assert_int_equal(dataset_open(&o, &ds, &err), TITAN_EINVAL);
    assert_non_null(strstr(err.msg, "17"));
    assert_non_null(strstr(err.msg, "101"));
    o.path = "/nonexistent/data";
    assert_int_equal(dataset_open(&o, &ds, &err), TITAN_ENOTFOUND);
    assert_non_null(strstr(err.msg, "/nonexistent/data"));
    o.path = root;
    o.tokenizer = "words";
    assert_int_equal(dataset_open(&o, &ds, &err), TITAN_EUNSUPPORTED);
    dataset_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_stream_is_files_in_path_order, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_large_files_are_mapped, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_corpus_limit, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_hash_of_the_corpus, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_order_is_a_function_of_the_seed, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_refusals, make_root, remove_root),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
