/* SPDX-License-Identifier: Apache-2.0 */
/* Seeded fuzzing of what a checkpoint is read from: safetensors headers and manifests. Whatever the bytes, the answer
 * is a status with a message; what is accepted keeps the promises of the headers. FUZZ_SEED and FUZZ_ROUNDS repeat or
 * lengthen a run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/crc32c.h"
#include "base/file.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/safetensors.h"
#include "tests/support/patience.h"
#include "tests/support/seeded.h"
#include "tests/support/sets.h"

static long rounds;

static int set_up(void **state)
{
    (void)state;
    seeded_open("checkpoint fuzz", 0);
    rounds = seeded_rounds(1000, 8000);
    return 0;
}

/* A few bytes of text changed, taken out or put in, mostly for others that mean something. */
static void mutate(struct buf *b)
{
    static const char *const words[] = {"0",
                                        "1",
                                        "-1",
                                        "4",
                                        "8",
                                        "9223372036854775807",
                                        "18446744073709551616",
                                        "[",
                                        "]",
                                        "{",
                                        "}",
                                        ",",
                                        ":",
                                        "\"",
                                        "null",
                                        "1e3",
                                        "F32",
                                        "BF16",
                                        "\\u0000",
                                        "data_offsets",
                                        "shape",
                                        "a"};
    for (uint32_t n = seeded_draw(4); n > 0 && b->len > 0; n--) {
        size_t at = seeded_draw((uint32_t)b->len), cut = seeded_draw(6);
        cut = MIN(cut, b->len - at);
        const char *word = words[seeded_draw(ARRAY_SIZE(words))], byte = (char)seeded_draw(256);
        struct buf out = BUF_INIT;
        assert_int_equal(buf_append(&out, b->data, at), TITAN_OK);
        if (seeded_draw(3))
            assert_int_equal(buf_append(&out, word, strlen(word)), TITAN_OK);
        else
            assert_int_equal(buf_append(&out, &byte, 1), TITAN_OK);
        assert_int_equal(buf_append(&out, b->data + at + cut, b->len - at - cut), TITAN_OK);
        buf_free(b);
        *b = out;
    }
}

/* --- safetensors -------------------------------------------------------------------------------------------------- */

static const char *const headers[] = {
    "{\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},\"b\":{\"dtype\":\"BF16\",\"shape\":[4],"
    "\"data_offsets\":[24,32]}}",
    "{\"__metadata__\":{\"format\":\"pt\"},\"x\":{\"dtype\":\"U8\",\"shape\":[32],\"data_offsets\":[0,32]}}",
    "{\"s\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[0,8]},\"e\":{\"dtype\":\"I64\",\"shape\":[0,7],"
    "\"data_offsets\":[8,8]},\"t\":{\"dtype\":\"F16\",\"shape\":[2,2,3],\"data_offsets\":[8,32]}}",
};

/* Length, header and 32 bytes of data; sometimes the length lies, or the file ends early. */
static void put_file(const char *path, const struct buf *header)
{
    unsigned char data[32] = {0}, length[8] = {0};
    uint64_t n = header->len;
    if (seeded_draw(10) == 0)
        n = seeded_draw(2) ? seeded_draw(1000) : ((uint64_t)seeded_draw(UINT32_MAX) << 32 | seeded_draw(UINT32_MAX));
    for (int i = 0; i < 8; i++)
        length[i] = (unsigned char)(n >> (8 * i));
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, length, 8), 8);
    assert_int_equal(write(fd, header->data ? header->data : "", header->len), header->len);
    assert_int_equal(write(fd, data, sizeof(data)), sizeof(data));
    if (seeded_draw(10) == 0)
        assert_int_equal(ftruncate(fd, seeded_draw((uint32_t)header->len + 40)), 0);
    (void)close(fd);
}

static void check_open_file(const struct safetensors *st)
{
    uint64_t at = 0;
    for (size_t i = 0; i < st->ntensors; i++) {
        const struct safetensors_tensor *t = &st->tensors[i];
        uint64_t elements = 1;
        for (int d = 0; d < t->ndim; d++)
            elements *= (uint64_t)t->shape[d];
        assert_int_equal(elements * safetensors_dtype_bytes(t->dtype), t->bytes);
        assert_true(t->offset + t->bytes <= st->file_bytes && (i == 0 || t->offset == at));
        at = t->offset + t->bytes;
        assert_ptr_equal(safetensors_find(st, t->name), t);
        unsigned char data[32];
        assert_true(t->bytes <= sizeof(data));
        assert_int_equal(safetensors_read(st, t, 0, data, t->bytes, NULL), TITAN_OK);
        assert_int_equal(safetensors_read(st, t, 1, data, t->bytes, NULL), TITAN_EINVAL);
    }
    assert_null(safetensors_find(st, "not there"));
}

static void test_safetensors(void **state)
{
    (void)state;
    char path[] = "/tmp/titan-fuzz-XXXXXX";
    int fd = mkstemp(path);
    long accepted = 0;
    assert_true(fd >= 0);
    (void)close(fd);
    for (long i = 0; i < rounds / 4; i++) {
        struct buf header = BUF_INIT;
        struct safetensors *st = NULL;
        struct titan_error err = {0};
        const char *text = headers[seeded_draw(ARRAY_SIZE(headers))];
        assert_int_equal(buf_append(&header, text, strlen(text)), TITAN_OK);
        mutate(&header);
        put_file(path, &header);
        if (safetensors_open(path, &st, &err) == TITAN_OK) {
            accepted++;
            check_open_file(st);
            safetensors_close(st);
        } else {
            assert_true(err.msg[0] && !strchr(err.msg, '\n'));
        }
        buf_free(&header);
    }
    printf("# %ld of %ld accepted\n", accepted, rounds / 4);
    assert_true(accepted > rounds / 40);
    (void)unlink(path);
}

/* --- manifests ---------------------------------------------------------------------------------------------------- */

static void make_manifest(struct buf *out)
{
    struct tensor_spec tensors[2] = {{.name = "a", .shape = {4, 3}, .ndim = 2, .numel = 12},
                                     {.name = "b", .shape = {5}, .ndim = 1, .numel = 5}};
    struct manifest_slice first[2] = {{.slice = {.tensor = 0, .rows = 4, .cols = 2}, .range = -1},
                                      {.slice = {.tensor = 1, .rows = 1, .cols = 5}, .range = -1}};
    struct manifest_slice second[1] = {{.slice = {.tensor = 0, .rows = 4, .col = 2, .cols = 1}, .range = -1}};
    struct manifest_file files[2] = {
        {.name = "rank-00000.safetensors", .bytes = 100, .crc = 1, .slices = first, .nslices = 2},
        {.name = "rank-00001.safetensors", .bytes = 50, .slices = second, .nslices = 1}};
    char recipe[] = "steps = 1\n";
    struct manifest m = {.info = {.step = 3, .epoch = 2, .tokens = 9, .world = 2, .recipe = recipe},
                         .tensors = tensors,
                         .ntensors = 2,
                         .files = files,
                         .nfiles = 2};
    assert_int_equal(manifest_print(&m, out, NULL), TITAN_OK);
}

/* What make_manifest's said in version 1. */
static const char version_1[] =
    "{\"format\":\"titan-checkpoint\",\"version\":1,\"step\":3,\"epoch\":2,\"tokens\":9,\"world\":2,\"skipped_steps\":"
    "0,"
    "\"recipe_hash\":\"0000000000000000\",\"recipe\":\"\",\"tensors\":[{\"name\":\"a\",\"dtype\":\"F32\",\"shape\":[4,"
    "3]},"
    "{\"name\":\"b\",\"dtype\":\"F32\",\"shape\":[5]}],\"files\":[{\"name\":\"rank-00000.safetensors\",\"bytes\":100,"
    "\"crc32c\":\"00000001\",\"pieces\":[[0,0,7],[1,0,5]]},{\"name\":\"rank-00001.safetensors\",\"bytes\":50,"
    "\"crc32c\":\"00000000\",\"pieces\":[[0,7,5]]}],\"manifest_crc32c\":\"00000000\"}\n";

/* Make the checksum right again, so that what stands before it is looked at. */
static void sign(struct buf *text)
{
    static const char tail[] = ",\"manifest_crc32c\":\"00000000\"}\n";
    if (text->len < sizeof(tail) - 1)
        return;
    size_t body = text->len - (sizeof(tail) - 1);
    char fixed[sizeof(tail)];
    (void)snprintf(fixed, sizeof(fixed), ",\"manifest_crc32c\":\"%08x\"}\n", crc32c(0, text->data, body));
    memcpy(text->data + body, fixed, sizeof(tail) - 1);
}

static void test_manifest(void **state)
{
    (void)state;
    long accepted = 0, old = 0;
    struct buf originals[2] = {BUF_INIT, BUF_INIT};
    make_manifest(&originals[0]);
    assert_int_equal(buf_append(&originals[1], version_1, sizeof(version_1) - 1), TITAN_OK);
    for (long i = 0; i < rounds; i++) {
        struct buf text = BUF_INIT, again = BUF_INIT;
        struct titan_error err = {0};
        struct manifest m = {0};
        const struct buf *original = &originals[seeded_draw(2)];
        assert_int_equal(buf_append(&text, original->data, original->len), TITAN_OK);
        mutate(&text);
        if (seeded_draw(10))
            sign(&text);
        if (manifest_parse(text.data ? text.data : "", text.len, &m, &err) == TITAN_OK) {
            struct manifest back = {0};
            accepted++;
            old += m.version == 1;
            assert_int_equal(manifest_check_cover(&m, NULL), TITAN_OK);
            assert_int_equal(manifest_print(&m, &again, NULL), TITAN_OK);
            assert_int_equal(manifest_parse(again.data, again.len, &back, NULL), TITAN_OK);
            assert_int_equal(back.nfiles, m.nfiles);
            assert_int_equal(back.info.bytes, m.info.bytes);
            manifest_clear(&back);
        } else {
            assert_true(err.msg[0] && !strchr(err.msg, '\n'));
        }
        manifest_clear(&m);
        buf_free(&text);
        buf_free(&again);
    }
    printf("# %ld of %ld accepted\n", accepted, rounds);
    assert_true(accepted > rounds / 20 && old > rounds / 40);
    buf_free(&originals[0]);
    buf_free(&originals[1]);
}

/* --- a whole checkpoint ------------------------------------------------------------------------------------------- */

static const struct tensor_spec specs[2] = {{.name = "a", .shape = {4, 3}, .ndim = 2, .numel = 12},
                                            {.name = "b", .shape = {5}, .ndim = 1, .numel = 5}};
static const char *const files[] = {"manifest.json", "rank-00000.safetensors", "rank-00001.safetensors"};

static void write_whole(const char *dir, char path[PATH_MAX])
{
    float values[12] = {0};
    struct checkpoint_info info = {
        .step = 3, .epoch = 2, .tokens = 9, .world = 2, .recipe_hash = 7, .recipe = (char *)"steps = 1\n"};
    const struct shard_slice cuts[2][2] = {
        {{.tensor = 0, .rows = 4, .cols = 2, .data = values}, {.tensor = 1, .rows = 1, .cols = 5, .data = values}},
        {{.tensor = 0, .rows = 4, .col = 2, .cols = 1, .data = values}}};
    struct buf entries[2] = {BUF_INIT, BUF_INIT};
    for (int r = 0; r < 2; r++)
        assert_int_equal(checkpoint_write_shard(-1, dir, &info, &(struct checkpoint_part){specs, 2, cuts[r], 2 - r, r},
                                                &entries[r], NULL),
                         TITAN_OK);
    assert_int_equal(checkpoint_commit(-1, dir, &info, &(struct checkpoint_parts){specs, 2, entries, 2}, path, NULL),
                     TITAN_OK);
    for (int r = 0; r < 2; r++)
        buf_free(&entries[r]);
}

/* What another user may have made of a file. */
static void spoil(const char *path, const char *name)
{
    char file[PATH_MAX + 64];
    struct buf text = BUF_INIT;
    (void)snprintf(file, sizeof(file), "%s/%s", path, name);
    switch (seeded_draw(8)) {
    case 0:
        assert_int_equal(unlink(file), 0);
        break;
    case 1:
        assert_int_equal(unlink(file), 0);
        assert_int_equal(mkfifo(file, 0600), 0);
        break;
    case 2:
        assert_int_equal(unlink(file), 0);
        assert_int_equal(mkdir(file, 0700), 0);
        break;
    case 3:
        assert_int_equal(unlink(file), 0);
        assert_int_equal(symlink(seeded_draw(2) ? "/dev/zero" : file, file), 0);
        break;
    default:
        assert_int_equal(file_read(file, 1 << 20, &text, NULL), TITAN_OK);
        mutate(&text);
        if (strcmp(name, files[0]) == 0 && seeded_draw(8))
            sign(&text);
        assert_int_equal(file_replace(file, text.data ? text.data : "", text.len, NULL), TITAN_OK);
        buf_free(&text);
    }
}

#define CANARY 0x5eed5eedu

/* Whatever stands in the files, loading ends, writes nowhere else, and says what is wrong. */
static void test_load(void **state)
{
    (void)state;
    char dir[] = "/tmp/titan-fuzz-load-XXXXXX";
    long accepted = 0, n = rounds / 50 + 1;
    assert_non_null(mkdtemp(dir));
    (void)alarm((unsigned)patience_ms(300) / 1000); /* for a reader that waits */
    for (long i = 0; i < n; i++) {
        char path[PATH_MAX];
        struct {
            uint32_t before;
            float a[12];
            uint32_t between;
            float b[5];
            uint32_t behind;
        } to = {CANARY, {0}, CANARY, {0}, CANARY};
        const struct shard_slice wanted[2] = {{.tensor = 0, .rows = 4, .cols = 3, .data = to.a},
                                              {.tensor = 1, .rows = 1, .cols = 5, .data = to.b}};
        struct checkpoint_info info = {0};
        struct titan_error err = {0};
        const struct checkpoint_info run = {.step = UINT64_MAX, .recipe_hash = 7};
        struct spared_checkpoints spared;
        uint64_t *steps = NULL;
        size_t n_steps = 0;
        write_whole(dir, path);
        spoil(path, files[seeded_draw(3)]);
        if (checkpoint_load(path, &(struct checkpoint_part){specs, 2, wanted, 2, 0}, NULL, &err) == TITAN_OK)
            accepted++;
        else
            assert_true(err.msg[0] && !strchr(err.msg, '\n'));
        assert_true(to.before == CANARY && to.between == CANARY && to.behind == CANARY);
        if (checkpoint_read_info(path, &info, NULL) == TITAN_OK)
            checkpoint_info_clear(&info);
        assert_int_equal(checkpoint_prune(-1, dir, 1, &run, &spared, NULL), TITAN_OK);
        assert_int_equal(checkpoint_steps(-1, dir, &steps, &n_steps, NULL), TITAN_OK);
        assert_int_equal(n_steps, 1);
        free(steps);
        assert_int_equal(dir_remove(path, NULL), TITAN_OK);
    }
    (void)alarm(0);
    printf("# %ld of %ld accepted\n", accepted, n);
    assert_int_equal(dir_remove(dir, NULL), TITAN_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {longer(test_safetensors), longer(test_manifest), longer(test_load)};
    return cmocka_run_group_tests(tests, set_up, NULL);
}
