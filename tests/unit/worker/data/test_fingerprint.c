/* SPDX-License-Identifier: Apache-2.0 */
/* fingerprint.h: equal where the tokens are, whatever the names; another with any byte of what is small, with sizes,
 * order and indices; of shards by their headers alone, of large files by blocks. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "tests/support/root_dir.h"
#include "worker/data/fingerprint.h"
#include "worker/data/formats.h"
#include "worker/data/shard.h"

static void put_file(const char *name, const void *data, size_t len)
{
    assert_int_equal(file_replace(root_path(name), data, len, NULL), TITAN_OK);
}

static uint64_t fingerprint_of(const char *name, enum data_format format)
{
    _cleanup_(data_files_clear) struct data_files files = {0};
    const char *path = root_path(name);
    struct corpus c = {0};
    struct titan_error err = {0};
    int32_t separator;
    bool encoded;
    titan_status status = data_format_files(path, format, SPLIT_TRAINING, &files, &err);
    if (status == TITAN_OK)
        status = format == DATA_TEXT ? corpus_open_text(&c, &files, false, &encoded, &err)
                                     : corpus_open_tokens(&c, &files, format, &separator, &err);
    if (status != TITAN_OK)
        fail_msg("%s", err.msg);
    const uint64_t hash = fingerprint_of_corpus(&c);
    corpus_close(&c);
    return hash;
}

static uint64_t fingerprint_of_text(const char *name)
{
    return fingerprint_of(name, DATA_TEXT);
}

static uint64_t fingerprint_of_tokens(const char *name)
{
    return fingerprint_of(name, data_format_of(root_path(name)));
}

static void test_text(void **state)
{
    (void)state;
    char text[20000];
    memset(text, 'x', sizeof text);
    assert_int_equal(dir_make(root_path("a"), NULL), TITAN_OK);
    put_file("a/1", "one", 3);
    put_file("a/2", text, sizeof text);
    const uint64_t hash = fingerprint_of_text("a");
    assert_int_equal(rename(root_path("a/1"), root_path("a/0")), 0);
    assert_true(fingerprint_of_text("a") == hash);
    assert_int_equal(rename(root_path("a/0"), root_path("a/3")), 0); /* another order */
    assert_false(fingerprint_of_text("a") == hash);
    assert_int_equal(rename(root_path("a/3"), root_path("a/1")), 0);
    for (size_t at = 0; at < sizeof text; at += 1999) {
        text[at] ^= 1;
        put_file("a/2", text, sizeof text);
        assert_false(fingerprint_of_text("a") == hash);
        text[at] ^= 1;
    }
    put_file("a/2", text, sizeof text - 1);
    assert_false(fingerprint_of_text("a") == hash);
    put_file("a/2", text, sizeof text);
    assert_true(fingerprint_of_text("a") == hash);
    put_file("a/1", "onex", 4); /* the same bytes, cut otherwise */
    put_file("a/2", text, sizeof text - 1);
    assert_false(fingerprint_of_text("a") == hash);
}

/* A hole of 200 MiB: blocks are looked at, the ends among them, and what lies between two is not. */
static void test_large(void **state)
{
    (void)state;
    const uint64_t bytes = UINT64_C(200) << 20, last = bytes - FINGERPRINT_BLOCK_BYTES;
    const uint64_t first = last / (FINGERPRINT_BLOCKS - 1), seventh = last * 7 / (FINGERPRINT_BLOCKS - 1);
    const uint64_t seen[] = {0, bytes - 1, last, first, seventh + FINGERPRINT_BLOCK_BYTES - 1};
    const uint64_t unseen[] = {FINGERPRINT_BLOCK_BYTES, first - 1, seventh + FINGERPRINT_BLOCK_BYTES};
    _cleanup_fd_ int fd = open(root_path("large.u32.bin"), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0);
    const uint64_t hash = fingerprint_of_tokens("large.u32.bin");
    for (size_t i = 0; i < ARRAY_SIZE(seen) + ARRAY_SIZE(unseen); i++) {
        const bool checked = i < ARRAY_SIZE(seen);
        const uint64_t at = checked ? seen[i] : unseen[i - ARRAY_SIZE(seen)];
        assert_int_equal(pwrite(fd, "x", 1, (off_t)at), 1);
        if ((fingerprint_of_tokens("large.u32.bin") == hash) == checked)
            fail_msg("byte %lu of %lu", (unsigned long)at, (unsigned long)bytes);
        assert_int_equal(pwrite(fd, "", 1, (off_t)at), 1);
    }
    assert_int_equal(unlink(root_path("large.u32.bin")), 0);
}

static void write_shard(const char *name, uint16_t last)
{
    const uint16_t ids[] = {1, 2, 3, last};
    struct shard_writer *w = NULL;
    struct shard_info info;
    uint32_t id_max;
    assert_int_equal(shard_writer_open(root_path(name), 2, 5, 0, &w, NULL), TITAN_OK);
    assert_int_equal(shard_writer_add(w, ids, NULL, 4, 9, NULL), TITAN_OK);
    assert_int_equal(shard_writer_end_document(w, NULL), TITAN_OK);
    assert_int_equal(shard_writer_finish(w, &info, &id_max, NULL), TITAN_OK);
}

static uint64_t fingerprint_of_shard(const char *name)
{
    struct corpus c = {0};
    struct shard_set set;
    struct titan_error err = {0};
    if (corpus_open_shards(&c, root_path(name), &set, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    const uint64_t hash = fingerprint_of_corpus(&c);
    corpus_close(&c);
    shard_set_clear(&set);
    return hash;
}

static void test_shards(void **state)
{
    (void)state;
    write_shard("one.bin", 7);
    write_shard("same.bin", 7);
    write_shard("other.bin", 8);
    const uint64_t hash = fingerprint_of_shard("one.bin");
    assert_true(fingerprint_of_shard("same.bin") == hash);
    assert_false(fingerprint_of_shard("other.bin") == hash);
    /* Nothing behind the header is read. */
    _cleanup_fd_ int fd = open(root_path("one.bin"), O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0 && pwrite(fd, "x", 1, SHARD_HEADER_BYTES) == 1);
    assert_true(fingerprint_of_shard("one.bin") == hash);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_text), cmocka_unit_test(test_large),
                                       cmocka_unit_test(test_shards)};
    return cmocka_run_group_tests(tests, make_root, remove_root);
}
