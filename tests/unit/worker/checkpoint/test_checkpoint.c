/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints: any cut into any cut, and every way a file can be wrong. TITAN_TEST_SEED repeats a run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/bf16.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/crc32c.h"
#include "base/file.h"
#include "base/folder_owner.h"
#include "tests/support/child.h"
#include "tests/support/patience.h"
#include "tests/support/random_layout.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/safetensors.h"

#define TENSORS 5
#define WORLD_MAX 7
#define PIECES_MAX 256
#define BOX_CUTS 24

static char dir[64];
static struct tensor_spec specs[TENSORS];
static const char recipe[] = "[model]\nname = \"llama3\" # \"quoted\"\n";

/* In place of libc's: the read with this number, from 1, fails as on a disk with a fault. 0: none does. */
static int reads, failing_read;

ssize_t read(int fd, void *out, size_t n)
{
    errno = EIO;
    return ++reads == failing_read ? -1 : syscall(SYS_read, fd, out, n);
}

ssize_t pread(int fd, void *out, size_t n, off_t at)
{
    errno = EIO;
    return ++reads == failing_read ? -1 : syscall(SYS_pread64, fd, out, n, at);
}

/* The same of lists of folders: the entry with this number is the one that cannot be read. */
static int listed, failing_listed;

struct dirent *readdir(DIR *d)
{
    struct dirent *(*const real)(DIR *) = (struct dirent * (*)(DIR *)) dlsym(RTLD_NEXT, "readdir");
    if (++listed != failing_listed)
        return real(d);
    errno = EIO;
    return NULL;
}

/* As on NFS, which has no exchange. */
static bool no_exchange;

int renameat2(int from_at, const char *from, int to_at, const char *to, unsigned flags)
{
    errno = EINVAL;
    return no_exchange && flags ? -1 : (int)syscall(SYS_renameat2, from_at, from, to_at, to, flags);
}

static int make_dir(void **state)
{
    (void)state;
    static const int64_t shapes[TENSORS][2] = {{1, 1}, {7, 1}, {33, 17}, {128, 64}, {1000, 3}};
    for (int i = 0; i < TENSORS; i++) {
        (void)snprintf(specs[i].name, sizeof(specs[i].name), "layers.%d.weight", i);
        specs[i].ndim = shapes[i][1] == 1 ? 1 : 2;
        specs[i].shape[0] = shapes[i][0];
        specs[i].shape[1] = specs[i].ndim == 2 ? shapes[i][1] : 0;
        specs[i].numel = shapes[i][0] * shapes[i][1];
    }
    (void)snprintf(dir, sizeof(dir), "/tmp/titan-checkpoint-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state)
{
    (void)state;
    return dir_remove(dir, NULL) == TITAN_OK ? 0 : -1;
}

/* Of an element by its place in the matrix. */
static float element(uint64_t step, int tensor, int64_t row, int64_t col)
{
    return (float)(step * 1000003 + (uint64_t)tensor * 10007 + (uint64_t)(row * 101 + col) % 9973) + 0.25f;
}

static void fill_slice(const struct shard_slice *p, uint64_t step)
{
    for (int64_t i = 0; i < p->rows * p->cols; i++)
        p->data[i] = element(step, p->tensor, p->row + i / p->cols, p->col + i % p->cols);
}

static void check_slice(const struct shard_slice *p, uint64_t step)
{
    for (int64_t i = 0; i < p->rows * p->cols; i++)
        assert_true(p->data[i] == element(step, p->tensor, p->row + i / p->cols, p->col + i % p->cols));
}

static struct shard_slice whole(int tensor)
{
    struct shard_slice p = {.tensor = tensor};
    shard_slice_matrix(&specs[tensor], &p.rows, &p.cols);
    return p;
}

/* A cut of all tensors among `world` ranks: boxes cut again and again at random, some ranks may have none. */
struct cut {
    int world;
    struct shard_slice slices[WORLD_MAX][PIECES_MAX];
    int n[WORLD_MAX];
};

/* Cut a random box of boxes[0..n) in two where it can be; how many there are then. */
static int cut_once(struct shard_slice *cuts, int n, unsigned *seed)
{
    struct shard_slice *p = &cuts[rand_r(seed) % n], rest = *p;
    if (rand_r(seed) % 2 && p->rows > 1) {
        p->rows = 1 + rand_r(seed) % (p->rows - 1);
        rest.row += p->rows;
        rest.rows -= p->rows;
    } else if (p->cols > 1) {
        p->cols = 1 + rand_r(seed) % (p->cols - 1);
        rest.col += p->cols;
        rest.cols -= p->cols;
    } else {
        return n;
    }
    cuts[n] = rest;
    return n + 1;
}

static void make_cut(struct cut *c, int world, unsigned *seed)
{
    *c = (struct cut){.world = world};
    for (int t = 0; t < TENSORS; t++) {
        struct shard_slice cuts[BOX_CUTS + 1] = {whole(t)};
        int n = 1;
        for (int left = rand_r(seed) % BOX_CUTS; left > 0; left--)
            n = cut_once(cuts, n, seed);
        for (int i = 0; i < n; i++) {
            const int r = rand_r(seed) % world;
            cuts[i].data = malloc((size_t)(cuts[i].rows * cuts[i].cols) * sizeof(float));
            assert_non_null(cuts[i].data);
            c->slices[r][c->n[r]++] = cuts[i];
        }
    }
}

static void fill_cut(struct cut *c, uint64_t step)
{
    for (int r = 0; r < c->world; r++)
        for (int i = 0; i < c->n[r]; i++)
            fill_slice(&c->slices[r][i], step);
}

static void free_cut(struct cut *c)
{
    for (int r = 0; r < c->world; r++)
        for (int i = 0; i < c->n[r]; i++)
            free(c->slices[r][i].data);
}

static char writer[64];

static bool weights_alone; /* what write_cut() writes */

static titan_status write_cut(struct cut *c, uint64_t step, uint64_t epoch, char path[PATH_MAX],
                              struct titan_error *err)
{
    struct checkpoint_info info = {.step = step,
                                   .epoch = epoch,
                                   .tokens = step * 4096,
                                   .world = c->world,
                                   .recipe_hash = 0xfedcba9876543210,
                                   .skipped = {.total = MIN(step, UINT64_C(2))},
                                   .recipe = (char *)recipe,
                                   .model_only = weights_alone};
    struct buf entries[WORLD_MAX] = {0};
    titan_status status = TITAN_OK;
    snprintf(info.owner, sizeof(info.owner), "%s", writer);
    for (int r = 0; r < c->world && status == TITAN_OK; r++)
        status = checkpoint_write_shard(
            -1, dir, &info, &(struct checkpoint_part){specs, TENSORS, c->slices[r], c->n[r], r}, &entries[r], err);
    if (status == TITAN_OK)
        status =
            checkpoint_commit(-1, dir, &info, &(struct checkpoint_parts){specs, TENSORS, entries, c->world}, path, err);
    for (int r = 0; r < c->world; r++)
        buf_free(&entries[r]);
    return status;
}

/* Write step with a world of 3, by writer; path of what was written. */
static void write_some(uint64_t step, uint64_t epoch, char path[PATH_MAX])
{
    unsigned seed = 5;
    struct cut c;
    struct titan_error err = {0};
    make_cut(&c, 3, &seed);
    fill_cut(&c, step);
    if (write_cut(&c, step, epoch, path, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    free_cut(&c);
}

static titan_status load_all(const char *path, uint64_t step, struct titan_error *err)
{
    struct shard_slice slices[TENSORS];
    for (int t = 0; t < TENSORS; t++) {
        slices[t] = whole(t);
        slices[t].data = calloc((size_t)specs[t].numel, sizeof(float));
        assert_non_null(slices[t].data);
    }
    titan_status status =
        checkpoint_load(path, &(struct checkpoint_part){specs, TENSORS, slices, TENSORS, 0}, NULL, err);
    for (int t = 0; t < TENSORS; t++) {
        if (status == TITAN_OK)
            check_slice(&slices[t], step);
        free(slices[t].data);
    }
    return status;
}

static void test_any_world_to_any_world(void **state)
{
    (void)state;
    unsigned seed = random_seed();
    for (int round = 0; round < 20; round++) {
        struct cut from, to;
        struct titan_error err = {0};
        char path[PATH_MAX];
        uint64_t step = (uint64_t)round + 1;
        make_cut(&from, 1 + rand_r(&seed) % WORLD_MAX, &seed);
        make_cut(&to, 1 + rand_r(&seed) % WORLD_MAX, &seed);
        fill_cut(&from, step);
        if (write_cut(&from, step, 1, path, &err) != TITAN_OK)
            fail_msg("%s", err.msg);
        for (int r = 0; r < to.world; r++) {
            if (checkpoint_load(path, &(struct checkpoint_part){specs, TENSORS, to.slices[r], to.n[r], 0}, NULL,
                                &err) != TITAN_OK)
                fail_msg("%s", err.msg);
            for (int i = 0; i < to.n[r]; i++)
                check_slice(&to.slices[r][i], step);
        }
        free_cut(&from);
        free_cut(&to);
    }
}

static void test_info_comes_back(void **state)
{
    (void)state;
    char path[PATH_MAX], latest[PATH_MAX];
    uint64_t step = 0;
    struct checkpoint_info info = {0};
    write_some(120, 9, path);
    assert_non_null(strstr(path, "/step-00000120"));
    assert_int_equal(checkpoint_latest(dir, NULL, latest, &step, NULL), TITAN_OK);
    assert_string_equal(path, latest);
    assert_int_equal(step, 120);
    assert_int_equal(checkpoint_read_info(path, &info, NULL), TITAN_OK);
    assert_int_equal(info.step, 120);
    assert_int_equal(info.epoch, 9);
    assert_int_equal(info.tokens, 120 * 4096);
    assert_int_equal(info.world, 3);
    assert_int_equal(info.skipped.total, 2);
    assert_true(info.recipe_hash == 0xfedcba9876543210);
    assert_true(info.bytes > 4 * (1 + 7 + 33 * 17 + 128 * 64 + 3000));
    assert_string_equal(info.recipe, recipe);
    checkpoint_info_clear(&info);
}

static void test_subset_and_conflicts(void **state)
{
    (void)state;
    char path[PATH_MAX];
    struct titan_error err = {0};
    write_some(1, 1, path);
    struct tensor_spec wanted[2] = {specs[3], specs[1]};
    float x[16], y[2];
    struct shard_slice slices[2] = {{.tensor = 0, .row = 100, .rows = 4, .col = 60, .cols = 4, .data = x},
                                    {.tensor = 1, .row = 0, .rows = 1, .col = 5, .cols = 2, .data = y}};
    assert_int_equal(checkpoint_load(path, &(struct checkpoint_part){wanted, 2, slices, 2, 0}, NULL, &err), TITAN_OK);
    assert_true(x[0] == element(1, 3, 100, 60) && x[15] == element(1, 3, 103, 63) && y[1] == element(1, 1, 0, 6));
    struct apart_watch watch = {.stop = 1}; /* a rank that has to leave does not read on */
    assert_int_equal(checkpoint_load(path, &(struct checkpoint_part){wanted, 2, slices, 2, 0}, &watch, &err),
                     TITAN_EREVOKED);
    atomic_store(&watch.stop, 0);
    assert_int_equal(checkpoint_load(path, &(struct checkpoint_part){wanted, 2, slices, 2, 0}, &watch, &err), TITAN_OK);
    assert_true(atomic_load(&watch.moved) >= 2);
    wanted[1].shape[0] = 8;
    assert_int_equal(checkpoint_load(path, &(struct checkpoint_part){wanted, 2, slices, 2, 0}, NULL, &err),
                     TITAN_ECONFLICT);
    assert_non_null(strstr(err.msg, "layers.1.weight"));
    (void)snprintf(wanted[1].name, sizeof(wanted[1].name), "unknown");
    assert_int_equal(checkpoint_load(path, &(struct checkpoint_part){wanted, 2, slices, 2, 0}, NULL, &err),
                     TITAN_ECONFLICT);
    assert_non_null(strstr(err.msg, "unknown"));
}

/* Columns of what is stored whole, and whole rows of what is stored as columns, more than is read at a time. */
static void test_columns_of_large_slices(void **state)
{
    (void)state;
    const struct tensor_spec large = {.name = "large", .shape = {3000, 200}, .ndim = 2, .numel = 600000};
    struct checkpoint_info info = {.step = 1, .epoch = 1, .world = 1};
    _cleanup_free_ float *in = malloc((size_t)large.numel * sizeof(*in)),
                         *out = malloc((size_t)large.numel * sizeof(*out));
    struct shard_slice whole_one = {.rows = 3000, .cols = 200, .data = in};
    struct shard_slice columns[2] = {{.rows = 3000, .cols = 150, .data = in},
                                     {.rows = 3000, .col = 150, .cols = 50, .data = in + 3000 * 150}};
    struct shard_slice want[2] = {{.rows = 2990, .row = 10, .col = 50, .cols = 100, .data = out},
                                  {.rows = 2995, .row = 5, .cols = 200, .data = out}};
    char path[PATH_MAX];
    for (int i = 0; i < 2; i++) {
        struct shard_slice *const stored = i == 0 ? &whole_one : columns;
        _cleanup_(buf_free) struct buf entry = BUF_INIT;
        for (int p = 0; p <= i; p++)
            fill_slice(&stored[p], 1);
        assert_int_equal(checkpoint_write_shard(-1, dir, &info, &(struct checkpoint_part){&large, 1, stored, i + 1, 0},
                                                &entry, NULL),
                         TITAN_OK);
        assert_int_equal(
            checkpoint_commit(-1, dir, &info, &(struct checkpoint_parts){&large, 1, &entry, 1}, path, NULL), TITAN_OK);
        assert_int_equal(checkpoint_load(path, &(struct checkpoint_part){&large, 1, &want[i], 1, 0}, NULL, NULL),
                         TITAN_OK);
        check_slice(&want[i], 1);
    }
}

/* Damage: the file named `name` of the checkpoint. */
static void shard_path(char out[PATH_MAX], const char *path, const char *name)
{
    assert_true(snprintf(out, PATH_MAX, "%s/%s", path, name) < PATH_MAX);
}

static float as_stored(float x, const char *dtype)
{
    return strcmp(dtype, "BF16") == 0 ? bf16_to_f32(bf16_from_f32(x)) : x;
}

/* The checksum of a manifest with its text changed. */
static void sign(struct buf *text)
{
    char *const sum = strstr(text->data, ",\"manifest_crc32c\":");
    const uint32_t crc = crc32c(0, text->data, (size_t)(sum - text->data));
    text->len = (size_t)(sum - text->data);
    buf_printf(text, ",\"manifest_crc32c\":\"%08x\"}\n", crc);
}

/* Tensors of one type and of several: the oldest version that can say it, shards of these types, values rounded to
 * them. A version that has one type for all is not believed when it has two. */
static void test_types_of_tensors(void **state)
{
    (void)state;
    static const struct {
        const char *types[TENSORS], *version;
    } cases[] = {
        {{"", "", "", "", ""}, "\"version\":2,"},
        {{"BF16", "BF16", "BF16", "BF16", "BF16"}, "\"version\":3,"},
        {{"F32", "BF16", "BF16", "F32", "BF16"}, "\"version\":4,"},
        {{"BF16", "BF16", "BF16", "BF16", "F32"}, "\"version\":4,"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        char path[PATH_MAX], file[PATH_MAX];
        struct titan_error err = {0};
        unsigned seed = 7;
        struct cut from, to;
        _cleanup_(buf_free) struct buf text = BUF_INIT;
        struct manifest m;
        for (int t = 0; t < TENSORS; t++)
            (void)snprintf(specs[t].dtype, sizeof specs[t].dtype, "%s", cases[i].types[t]);
        make_cut(&from, 3, &seed);
        make_cut(&to, 2, &seed);
        fill_cut(&from, i + 1);
        if (write_cut(&from, i + 1, 1, path, &err) != TITAN_OK)
            fail_msg("%s", err.msg);
        for (int r = 0; r < to.world; r++) {
            assert_int_equal(
                checkpoint_load(path, &(struct checkpoint_part){specs, TENSORS, to.slices[r], to.n[r], 0}, NULL, &err),
                TITAN_OK);
            for (int k = 0; k < to.n[r]; k++) {
                const struct shard_slice *p = &to.slices[r][k];
                for (int64_t e = 0; e < p->rows * p->cols; e++)
                    assert_true(p->data[e] ==
                                as_stored(element(i + 1, p->tensor, p->row + e / p->cols, p->col + e % p->cols),
                                          cases[i].types[p->tensor]));
            }
        }
        shard_path(file, path, MANIFEST_NAME);
        assert_int_equal(file_read(file, 1 << 20, &text, &err), TITAN_OK);
        char *const version = strstr(text.data, cases[i].version);
        assert_non_null(version);
        assert_int_equal(manifest_parse(text.data, text.len, &m, &err), TITAN_OK);
        for (int t = 0; t < TENSORS; t++)
            assert_string_equal(m.tensors[t].dtype, cases[i].types[t][0] ? cases[i].types[t] : "F32");
        manifest_clear(&m);
        if (strstr(version, "\"version\":4,") == version) {
            version[strlen("\"version\":")] = '3';
            sign(&text);
            assert_int_equal(manifest_parse(text.data, text.len, &m, &err), TITAN_ECORRUPT);
            assert_non_null(strstr(err.msg, "not '"));
            manifest_clear(&m);
        }
        free_cut(&from);
        free_cut(&to);
    }
    for (int t = 0; t < TENSORS; t++)
        specs[t].dtype[0] = '\0';
}

/* Of a last checkpoint in f16: what f16 has not is refused by its tensor, not written as an infinity. */
static void test_beyond_f16(void **state)
{
    (void)state;
    char path[PATH_MAX];
    struct titan_error err = {0};
    unsigned seed = 7;
    struct cut from;
    for (int t = 0; t < TENSORS; t++)
        (void)snprintf(specs[t].dtype, sizeof specs[t].dtype, "F16");
    make_cut(&from, 1, &seed);
    for (int i = 0; i < from.n[0]; i++)
        memset(from.slices[0][i].data, 0, (size_t)(from.slices[0][i].rows * from.slices[0][i].cols) * sizeof(float));
    const struct shard_slice *const last = &from.slices[0][from.n[0] - 1];
    last->data[0] = 65520.0F;
    assert_int_equal(write_cut(&from, 91, 1, path, &err), TITAN_EINVAL);
    assert_non_null(strstr(err.msg, specs[last->tensor].name));
    assert_non_null(strstr(err.msg, "has magnitudes up to 65520, f16 none above 65504"));
    last->data[0] = 65504.0F;
    if (write_cut(&from, 91, 1, path, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    free_cut(&from);
    for (int t = 0; t < TENSORS; t++)
        specs[t].dtype[0] = '\0';
}

static void flip_byte(const char *file, off_t at)
{
    unsigned char b;
    int fd = open(file, O_RDWR);
    assert_true(fd >= 0);
    if (at < 0)
        at += lseek(fd, 0, SEEK_END);
    assert_int_equal(pread(fd, &b, 1, at), 1);
    b ^= 0x10;
    assert_int_equal(pwrite(fd, &b, 1, at), 1);
    (void)close(fd);
}

static void expect_corrupt(const char *path, const char *name)
{
    struct titan_error err = {0};
    assert_int_equal(load_all(path, 1, &err), TITAN_ECORRUPT);
    if (!strstr(err.msg, name))
        fail_msg("'%s' is not named in: %s", name, err.msg);
}

static void test_damaged_shards_are_named(void **state)
{
    (void)state;
    static const char name[] = "rank-00001.safetensors";
    char path[PATH_MAX], file[PATH_MAX], aside[PATH_MAX];
    struct stat st;
    write_some(1, 1, path);
    assert_int_equal(load_all(path, 1, NULL), TITAN_OK);
    shard_path(file, path, name);
    shard_path(aside, path, "aside");
    assert_int_equal(stat(file, &st), 0);
    for (off_t at = 0; at < st.st_size; at += 997) {
        flip_byte(file, at);
        expect_corrupt(path, name);
        flip_byte(file, at);
    }
    assert_int_equal(rename(file, aside), 0);
    expect_corrupt(path, name);
    assert_int_equal(rename(aside, file), 0);
    assert_int_equal(load_all(path, 1, NULL), TITAN_OK);
    assert_int_equal(rename(file, aside), 0);
    assert_int_equal(mkfifo(file, 0600), 0);
    (void)alarm((unsigned)patience_ms(60) / 1000); /* for a reader that waits */
    expect_corrupt(path, name);
    (void)alarm(0);
    assert_int_equal(unlink(file), 0);
    assert_int_equal(symlink("aside", file), 0); /* good content, but not this folder's own */
    expect_corrupt(path, name);
    assert_int_equal(rename(aside, file), 0);
    assert_int_equal(truncate(file, st.st_size - 1), 0);
    expect_corrupt(path, name);
}

static void test_damaged_manifest(void **state)
{
    (void)state;
    char path[PATH_MAX], older[PATH_MAX], latest[PATH_MAX], file[PATH_MAX];
    struct stat st;
    uint64_t step;
    write_some(1, 1, older);
    write_some(2, 1, path);
    shard_path(file, path, MANIFEST_NAME);
    assert_int_equal(stat(file, &st), 0);
    for (off_t at = 0; at < st.st_size; at += 31) {
        struct titan_error err = {0};
        flip_byte(file, at);
        assert_int_equal(load_all(path, 2, &err), TITAN_ECORRUPT);
        assert_non_null(strstr(err.msg, MANIFEST_NAME));
        assert_int_equal(checkpoint_latest(dir, NULL, latest, &step, NULL), TITAN_OK);
        assert_string_equal(latest, older);
        flip_byte(file, at);
    }
    assert_int_equal(checkpoint_latest(dir, NULL, latest, &step, NULL), TITAN_OK);
    assert_int_equal(step, 2);
    struct titan_error err = {0};
    assert_int_equal(checkpoint_check(path, 2, NULL), TITAN_OK);
    assert_int_equal(checkpoint_check(path, 3, &err), TITAN_ECORRUPT);
    assert_non_null(strstr(err.msg, "is of step 2"));
    assert_int_equal(checkpoint_check("/nowhere/step-00000002", 2, NULL), TITAN_ENOTFOUND);
}

static int count_entries(const char *path)
{
    int n = 0;
    DIR *d = opendir(path);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));)
        n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    (void)closedir(d);
    return n;
}

static void test_unfinished_is_not_listed(void **state)
{
    (void)state;
    char path[PATH_MAX];
    uint64_t step;
    unsigned seed = 1;
    struct cut c;
    struct buf entry = BUF_INIT;
    struct checkpoint_info info = {.step = 4, .epoch = 3, .world = 2};
    make_cut(&c, 2, &seed);
    fill_cut(&c, 4);
    assert_int_equal(checkpoint_latest(dir, NULL, path, &step, NULL), TITAN_ENOTFOUND);
    assert_int_equal(checkpoint_write_shard(-1, dir, &info,
                                            &(struct checkpoint_part){specs, TENSORS, c.slices[0], c.n[0], 0}, &entry,
                                            NULL),
                     TITAN_OK);
    assert_int_equal(checkpoint_latest(dir, NULL, path, &step, NULL), TITAN_ENOTFOUND);
    /* Without the other rank's entry it must not become complete. */
    struct buf entries[2] = {entry, entry};
    struct titan_error err = {0};
    assert_int_equal(
        checkpoint_commit(-1, dir, &info, &(struct checkpoint_parts){specs, TENSORS, entries, 2}, path, &err),
        TITAN_ECORRUPT);
    assert_int_equal(
        checkpoint_commit(-1, dir, &info, &(struct checkpoint_parts){specs, TENSORS, entries, 1}, path, &err),
        TITAN_ECORRUPT);
    assert_int_equal(checkpoint_latest(dir, NULL, path, &step, NULL), TITAN_ENOTFOUND);
    const int at = open(dir, O_RDONLY | O_DIRECTORY);
    assert_true(at >= 0);
    checkpoint_sweep(at, 3);
    assert_int_equal(count_entries(dir), 1);
    checkpoint_sweep(at, 4);
    assert_int_equal(count_entries(dir), 0);
    (void)close(at);
    buf_free(&entry);
    free_cut(&c);
}

/* A run that was set back writes a step again over its own, not over another recipe's. */
static void test_another_recipes_step_stays(void **state)
{
    (void)state;
    char path[PATH_MAX], manifest[PATH_MAX + 16];
    struct titan_error err = {0};
    struct stat before, after;
    struct buf entry = BUF_INIT;
    struct checkpoint_info other = {.step = 7, .epoch = 9, .world = 1, .recipe_hash = 42, .recipe = (char *)recipe};
    struct cut c;
    unsigned seed = 3;

    write_some(7, 1, path);
    (void)snprintf(manifest, sizeof(manifest), "%s/manifest.json", path);
    assert_int_equal(stat(manifest, &before), 0);
    make_cut(&c, 1, &seed);
    fill_cut(&c, 7);
    assert_int_equal(checkpoint_write_shard(-1, dir, &other,
                                            &(struct checkpoint_part){specs, TENSORS, c.slices[0], c.n[0], 0}, &entry,
                                            NULL),
                     TITAN_OK);
    assert_int_equal(
        checkpoint_commit(-1, dir, &other, &(struct checkpoint_parts){specs, TENSORS, &entry, 1}, path, &err),
        TITAN_ECONFLICT);
    assert_non_null(strstr(err.msg, "another recipe"));
    assert_int_equal(stat(manifest, &after), 0);
    assert_int_equal(before.st_ino, after.st_ino);
    assert_int_equal(checkpoint_drop(-1, dir, &other, NULL), TITAN_OK);
    write_some(7, 2, path);
    assert_int_equal(stat(manifest, &after), 0);
    assert_int_not_equal(before.st_ino, after.st_ino);
    buf_free(&entry);
    free_cut(&c);
}

static titan_status prune(int keep, uint64_t recipe_hash, const char *owner)
{
    struct checkpoint_info of = {.step = UINT64_MAX, .recipe_hash = recipe_hash};
    struct spared_checkpoints spared;

    snprintf(of.owner, sizeof of.owner, "%s", owner);
    return checkpoint_prune(-1, dir, keep, &of, &spared, NULL);
}

static void test_prune_and_remove(void **state)
{
    (void)state;
    char path[PATH_MAX];
    uint64_t step;
    for (uint64_t s = 1; s <= 5; s++)
        write_some(s * 10, 1, path);
    assert_int_equal(prune(0, 0, ""), TITAN_OK);
    assert_int_equal(count_entries(dir), 5);
    uint64_t *steps = NULL;
    size_t before = 0, after = 0;
    assert_int_equal(checkpoint_steps(-1, dir, &steps, &before, NULL), TITAN_OK);
    free(steps);
    assert_int_equal(prune(1, 0x1234, ""), TITAN_OK); /* another recipe's are left alone */
    assert_int_equal(checkpoint_steps(-1, dir, &steps, &after, NULL), TITAN_OK);
    free(steps);
    assert_true(before > 2 && before == after);
    assert_int_equal(prune(2, 0xfedcba9876543210, ""), TITAN_OK);
    assert_int_equal(count_entries(dir), 2);
    assert_int_equal(checkpoint_latest(dir, NULL, path, &step, NULL), TITAN_OK);
    assert_int_equal(step, 50);
    assert_int_equal(prune(1, 0xfedcba9876543210, "user:bob"), TITAN_OK);
    assert_int_equal(count_entries(dir), 2); /* and so are those of another user, or of none */
    snprintf(writer, sizeof(writer), "user:bob \"b\"");
    write_some(60, 1, path);
    write_some(70, 1, path);
    assert_int_equal(prune(1, 0xfedcba9876543210, writer), TITAN_OK);
    assert_int_equal(count_entries(dir), 3);
    struct checkpoint_info info = {0};
    assert_int_equal(checkpoint_read_info(path, &info, NULL), TITAN_OK);
    assert_string_equal(info.owner, writer);
    checkpoint_info_clear(&info);
    snprintf(writer, sizeof(writer), "user:eve");
    struct cut c;
    unsigned seed = 5;
    struct titan_error err = {0};
    make_cut(&c, 3, &seed);
    fill_cut(&c, 70);
    assert_int_equal(write_cut(&c, 70, 2, path, &err), TITAN_ECONFLICT); /* bob's is not exchanged */
    free_cut(&c);
    assert_non_null(strstr(err.msg, "by another user"));
    writer[0] = '\0';
}

/* The same step again in a later epoch replaces the first. */
static void test_same_step_again(void **state)
{
    (void)state;
    char path[PATH_MAX];
    struct checkpoint_info info = {0};
    write_some(7, 1, path);
    write_some(7, 2, path);
    assert_int_equal(checkpoint_read_info(path, &info, NULL), TITAN_OK);
    assert_int_equal(info.epoch, 2);
    checkpoint_info_clear(&info);
    assert_int_equal(count_entries(dir), 1);
    assert_int_equal(load_all(path, 7, NULL), TITAN_OK);
}

/* On a file system without an exchange, too; the checkpoint that was there is not left under another name. */
static void test_same_step_without_exchange(void **state)
{
    (void)state;
    no_exchange = true;
    test_same_step_again(state);
    no_exchange = false;
}

/* A list that breaks off is not taken for all there is: a run would begin anew beside its checkpoints. */
static void test_list_that_breaks_off(void **state)
{
    (void)state;
    char path[PATH_MAX];
    uint64_t *steps = NULL, step;
    size_t n = 0;
    bool any;
    write_some(1, 1, path);
    write_some(2, 1, path);
    listed = 0;
    assert_int_equal(checkpoint_steps(-1, dir, &steps, &n, NULL), TITAN_OK);
    assert_int_equal(n, 2);
    free(steps);
    const int all = listed;
    for (int i = 1; i <= all; i++) {
        struct titan_error err = {0};
        listed = 0;
        failing_listed = i;
        assert_int_equal(checkpoint_steps(-1, dir, &steps, &n, &err), TITAN_EIO);
        assert_non_null(strstr(err.msg, dir));
        listed = 0;
        assert_int_equal(folder_newest_step(dir, &step, &any, &err), TITAN_EIO);
    }
    failing_listed = 0;
}

/* A disk that fails a read, whichever: that is said, and is no damage, for it may be read later. */
static void test_read_that_fails(void **state)
{
    (void)state;
    char path[PATH_MAX];
    struct checkpoint_info info;
    write_some(1, 1, path);
    reads = 0;
    assert_int_equal(load_all(path, 1, NULL), TITAN_OK);
    const int n = reads;
    assert_true(n > 2 + 3 * 2); /* the manifest; of each shard its checksum and slices */
    for (int i = 1; i <= n; i++) {
        struct titan_error err = {0};
        reads = 0;
        failing_read = i;
        const titan_status status = load_all(path, 1, &err);
        if (status != TITAN_EIO || !strstr(err.msg, path) || !strstr(err.msg, strerror(EIO)))
            fail_msg("read %d of %d: %s, \"%s\"", i, n, titan_status_name(status), err.msg);
    }
    reads = 0;
    failing_read = 1;
    assert_int_equal(checkpoint_read_info(path, &info, NULL), TITAN_EIO);
    failing_read = 0;
    assert_int_equal(load_all(path, 1, NULL), TITAN_OK);
}

/* The folder is gone, with all in it: there is nothing to wait for, and looking makes no new one. */
static void test_folder_that_is_gone(void **state)
{
    (void)state;
    char path[PATH_MAX], aside[PATH_MAX];
    uint64_t step = 0, *steps = NULL;
    size_t n = 0;
    write_some(1, 1, path);
    (void)snprintf(aside, sizeof(aside), "%s-aside", dir);
    assert_int_equal(rename(dir, aside), 0);
    assert_int_equal(load_all(path, 1, NULL), TITAN_ENOTFOUND);
    assert_int_equal(checkpoint_steps(-1, dir, &steps, &n, NULL), TITAN_ENOTFOUND);
    assert_int_equal(checkpoint_latest(dir, NULL, path, &step, NULL), TITAN_ENOTFOUND);
    assert_int_equal(access(dir, F_OK), -1);
    assert_int_equal(rename(aside, dir), 0);
}

/* No room: a clear error, no shard left, nothing listed. */
static void test_no_room(void **state)
{
    (void)state;
    pid_t pid = child_fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        char path[PATH_MAX];
        uint64_t step;
        unsigned seed = 5;
        struct cut c;
        struct titan_error err = {0};
        struct rlimit limit = {.rlim_cur = 4096, .rlim_max = 4096};
        (void)signal(SIGXFSZ, SIG_IGN);
        make_cut(&c, 2, &seed);
        fill_cut(&c, 1);
        if (setrlimit(RLIMIT_FSIZE, &limit) < 0 || write_cut(&c, 1, 1, path, &err) == TITAN_OK)
            _exit(1);
        if (!strstr(err.msg, "safetensors") || !strstr(err.msg, "File too large"))
            _exit(2);
        if (checkpoint_latest(dir, NULL, path, &step, NULL) != TITAN_ENOTFOUND)
            _exit(3);
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

/* A checkpoint of version 1, as it was: ranges of elements, stored as vectors. */
static void write_version_1(char path[PATH_MAX])
{
    static const struct {
        int tensor;
        int64_t start, count;
    } ranges[] = {{0, 0, 1}, {1, 0, 7}, {2, 0, 200}, {2, 200, 361}, {3, 0, 8192}, {4, 0, 2}, {4, 2, 2998}};
    struct safetensors_entry entries[ARRAY_SIZE(ranges)];
    char names[ARRAY_SIZE(ranges)][128], file[PATH_MAX];
    struct safetensors_writer *w = NULL;
    uint64_t bytes;
    uint32_t crc;
    _cleanup_(buf_free) struct buf text = BUF_INIT;

    assert_true(snprintf(path, PATH_MAX, "%s/step-00000009", dir) < PATH_MAX);
    assert_int_equal(dir_make(path, NULL), TITAN_OK);
    for (size_t i = 0; i < ARRAY_SIZE(ranges); i++) {
        (void)snprintf(names[i], sizeof(names[i]), "%s@%ld", specs[ranges[i].tensor].name, (long)ranges[i].start);
        entries[i] =
            (struct safetensors_entry){.name = names[i], .dtype = "F32", .shape = {ranges[i].count}, .ndim = 1};
    }
    shard_path(file, path, "rank-00000.safetensors");
    assert_int_equal(
        safetensors_create(AT_FDCWD, file, &(struct safetensors_header){entries, ARRAY_SIZE(ranges), NULL}, &w, NULL),
        TITAN_OK);
    for (size_t i = 0; i < ARRAY_SIZE(ranges); i++) {
        const int64_t cols = whole(ranges[i].tensor).cols;
        for (int64_t e = ranges[i].start; e < ranges[i].start + ranges[i].count; e++) {
            const float x = element(9, ranges[i].tensor, e / cols, e % cols);
            assert_int_equal(safetensors_append(w, &x, sizeof(x), NULL), TITAN_OK);
        }
    }
    assert_int_equal(safetensors_finish(w, &bytes, &crc, NULL), TITAN_OK);
    buf_printf(&text, "{\"format\":\"titan-checkpoint\",\"version\":1,\"step\":9,\"epoch\":1,\"tokens\":0,\"world\":1,"
                      "\"skipped_steps\":0,\"recipe_hash\":\"0000000000000000\",\"recipe\":\"\",\"tensors\":[");
    for (int t = 0; t < TENSORS; t++) {
        buf_printf(&text, "%s{\"name\":\"%s\",\"dtype\":\"F32\",\"shape\":[%ld", t ? "," : "", specs[t].name,
                   (long)specs[t].shape[0]);
        if (specs[t].ndim == 2)
            buf_printf(&text, ",%ld", (long)specs[t].shape[1]);
        buf_printf(&text, "]}");
    }
    buf_printf(&text,
               "],\"files\":[{\"name\":\"rank-00000.safetensors\",\"bytes\":%lu,\"crc32c\":\"%08x\",\"pieces\":[",
               (unsigned long)bytes, crc);
    for (size_t i = 0; i < ARRAY_SIZE(ranges); i++)
        buf_printf(&text, "%s[%d,%ld,%ld]", i ? "," : "", ranges[i].tensor, (long)ranges[i].start,
                   (long)ranges[i].count);
    buf_printf(&text, "]}]");
    const uint32_t sum = crc32c(0, text.data, text.len);
    buf_printf(&text, ",\"manifest_crc32c\":\"%08x\"}\n", sum);
    shard_path(file, path, MANIFEST_NAME);
    assert_int_equal(file_replace(file, text.data, text.len, NULL), TITAN_OK);
}

static void assert_steps(const uint64_t *wanted, size_t n)
{
    uint64_t *steps = NULL;
    size_t there = 0;

    assert_int_equal(checkpoint_steps(-1, dir, &steps, &there, NULL), TITAN_OK);
    assert_int_equal(there, n);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(steps[i], wanted[i]);
    free(steps);
}

/* Beyond what is counted stay the newest that can be resumed from, and while steps are skipped one from before. */
static void test_prune_spares(void **state)
{
    (void)state;
    char path[PATH_MAX], file[PATH_MAX + 32];
    struct checkpoint_info of = {.step = 80, .recipe_hash = 0xfedcba9876543210};
    const struct tensor_spec first = specs[0];
    struct spared_checkpoints spared;
    struct stat st;

    writer[0] = '\0';
    (void)snprintf(specs[0].name, sizeof specs[0].name, "optim.m.layers.0.weight");
    for (uint64_t s = 1; s <= 6; s++)
        write_some(s * 10, 1, path);
    /* Without moments a run does not go on. */
    specs[0] = first;
    weights_alone = true;
    write_some(70, 1, path);
    write_some(80, 1, path);
    weights_alone = false;
    /* The newest with moments lacks a file's end: the one before can be resumed from. */
    (void)snprintf(file, sizeof file, "%s/step-00000060/rank-00000.safetensors", dir);
    assert_int_equal(stat(file, &st), 0);
    assert_int_equal(truncate(file, st.st_size - 1), 0);
    of.skipped = (struct skipped_steps){3, 0, 35, 38};
    assert_int_equal(checkpoint_prune(-1, dir, 1, &of, &spared, NULL), TITAN_OK);
    assert_steps((const uint64_t[]){80, 50, 30}, 3);
    assert_true(spared.resumable == 50 && spared.sound == 30);
    /* The stretch is over. */
    of.step = 38 + SKIPPED_GAP + 1;
    assert_int_equal(checkpoint_prune(-1, dir, 1, &of, &spared, NULL), TITAN_OK);
    assert_steps((const uint64_t[]){80, 50}, 2);
    assert_true(spared.resumable == 50 && spared.sound == 0);
}

/* Values that are no number are counted, wherever they stand, and their tensor is named. */
static void test_verify_values(void **state)
{
    (void)state;
    char path[PATH_MAX];
    struct titan_error err = {0};
    struct verified_checkpoint v;
    unsigned seed = 11;

    writer[0] = '\0';
    for (int bad = 0; bad <= 3; bad++) {
        _cleanup_(buf_free) struct buf faults = BUF_INIT;
        struct cut c;
        make_cut(&c, 2, &seed);
        fill_cut(&c, 7);
        for (int i = 0; i < bad; i++) {
            const struct shard_slice *p = &c.slices[1][i % c.n[1]];
            p->data[i / c.n[1] % (p->rows * p->cols)] = i % 2 ? -INFINITY : NAN;
        }
        assert_int_equal(write_cut(&c, 7, 1, path, &err), TITAN_OK);
        assert_int_equal(checkpoint_verify(path, &faults, &v, &err), TITAN_OK);
        assert_int_equal(faults.len, 0);
        assert_int_equal(v.not_finite, bad);
        assert_int_equal(strncmp(v.not_finite_name, "layers.", 7) == 0, bad > 0);
        checkpoint_info_clear(&v.info);
        free_cut(&c);
    }
}

/* What a run is, as text and back; the version is the oldest that says how to go on; what cannot be is damage. */
static void test_identity(void **state)
{
    (void)state;
    struct manifest m = {
        .info = {.step = 10, .epoch = 1, .tokens = 640, .world = 1, .run = "run-a", .recipe = (char *)recipe}};
    struct run_identity *const its = &m.info.identity;
    struct titan_error err = {0};
    for (int round = 0; round < 4; round++) {
        _cleanup_(manifest_clear) struct manifest back = {0};
        _cleanup_(buf_free) struct buf text = BUF_INIT;
        *its = (struct run_identity){0};
        if (round > 0)
            *its = (struct run_identity){.known = true,
                                         .tokenizer = UINT64_MAX,
                                         .samples = 80,
                                         .from_run = "run-b",
                                         .from_step = 4,
                                         .moved = round == 2,
                                         .data = {.seq_len = 8,
                                                  .n = 2,
                                                  .first = round == 2 ? 40 : 0,
                                                  .source = {{1, 1000, 1 << 19, 3}, {UINT64_MAX, 7, 1 << 19, 0}}}};
        if (round >= 2)
            its->scales = (struct held_scales){.step = 10, .n = 3, .power = {INT8_MIN, INT8_MAX, -3}};
        if (round == 3)
            its->line = (struct checkpoint_line){.n = 2, .branch = {{1, 5}, {4, 9}}};
        assert_int_equal(manifest_print(&m, &text, &err), TITAN_OK);
        if (manifest_parse(text.data, text.len, &back, &err) != TITAN_OK)
            fail_msg("%s", err.msg);
        assert_int_equal(back.version, round < 2 ? 2 : 5);
        its->moved = false; /* said by the version */
        assert_memory_equal(&back.info.identity.data, &its->data, sizeof its->data);
        assert_memory_equal(&back.info.identity.line, &its->line, sizeof its->line);
        assert_memory_equal(&back.info.identity.scales, &its->scales, sizeof its->scales);
        assert_true(back.info.identity.known == its->known && back.info.identity.tokenizer == its->tokenizer &&
                    back.info.identity.samples == its->samples && back.info.identity.from_step == its->from_step);
        assert_string_equal(back.info.identity.from_run, its->from_run);
        assert_string_equal(back.info.run, "run-a");
    }
    static const struct {
        struct run_identity identity;
        const char *why;
    } bad[] = {
        {{.known = true, .samples = 80, .data = {.seq_len = 0, .n = 1}}, "'identity' cannot be one"},
        {{.known = true, .samples = 80, .data = {.seq_len = 8, .n = 0}}, "'identity' cannot be one"},
        {{.known = true, .samples = 80, .data = {.seq_len = 8, .n = 1, .first = 81}}, "'identity' cannot be one"},
        {{.known = true, .samples = UINT64_C(1) << 61, .data = {.seq_len = 8, .n = 1}}, "'identity' cannot be one"},
        {{.known = true, .data = {.seq_len = 8, .n = 1, .source = {{.share = 1 << 21}}}}, "'identity' cannot be one"},
        {{.known = true, .data = {.seq_len = 8, .n = 1, .source = {{.from = UINT64_C(1) << 61}}}},
         "'identity' cannot be one"},
        {{.line = {.n = 2, .branch = {{2, 1}, {1, 1}}}}, "'line' is no list of branches"},
        {{.line = {.n = 1, .branch = {{1, UINT64_C(1) << 50}}}}, "'line' is no list of branches"},
        {{.from_run = "x", .from_step = UINT64_C(1) << 50}, "'from' names no step"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        struct manifest back;
        _cleanup_(buf_free) struct buf text = BUF_INIT;
        *its = bad[i].identity;
        assert_int_equal(manifest_print(&m, &text, &err), TITAN_OK);
        const titan_status status = manifest_parse(text.data, text.len, &back, &err);
        manifest_clear(&back);
        if (status != TITAN_ECORRUPT || !strstr(err.msg, bad[i].why))
            fail_msg("case %zu: %s, %s", i, titan_status_name(status), err.msg);
    }
}

/* Exponents of held scales that none can be; the text is right otherwise. */
static void test_held_scales(void **state)
{
    (void)state;
    static const char *const bad[] = {"[128]", "[-129]", "[1.5]", "[\"1\"]", "[7,null]", "{}", "7", "\"7\""};
    static const char right[] = "\"held_scales\":[7]";
    struct manifest m = {.info = {.step = 10, .epoch = 1, .tokens = 640, .world = 1, .recipe = (char *)recipe}};
    struct titan_error err = {0};
    m.info.identity.scales = (struct held_scales){.step = 10, .n = 1, .power = {7}};
    for (size_t i = 0; i <= ARRAY_SIZE(bad) + 1; i++) {
        _cleanup_(manifest_clear) struct manifest back = {0};
        _cleanup_(buf_free) struct buf text = BUF_INIT, changed = BUF_INIT;
        assert_int_equal(manifest_print(&m, &text, &err), TITAN_OK);
        char *const at = strstr(text.data, right);
        assert_non_null(at);
        buf_printf(&changed, "%.*s\"held_scales\":", (int)(at - text.data), text.data);
        if (i < ARRAY_SIZE(bad)) {
            buf_puts(&changed, bad[i]);
        } else { /* as many as there may be, and one more */
            for (size_t k = 0; k < HELD_SCALES_MAX + (i - ARRAY_SIZE(bad)); k++)
                buf_puts(&changed, k == 0 ? "[1" : ",1");
            buf_puts(&changed, "]");
        }
        buf_puts(&changed, at + sizeof right - 1);
        sign(&changed);
        const titan_status status = manifest_parse(changed.data, changed.len, &back, &err);
        if (status != (i == ARRAY_SIZE(bad) ? TITAN_OK : TITAN_ECORRUPT) ||
            (status != TITAN_OK && !strstr(err.msg, "'held_scales' are no exponents")))
            fail_msg("case %zu: %s, %s", i, titan_status_name(status), err.msg);
        assert_true(status != TITAN_OK || back.info.identity.scales.n == HELD_SCALES_MAX);
    }
}

/* Numbers that no run comes to; the text is right otherwise. */
static void test_numbers_in_range(void **state)
{
    (void)state;
    static const struct {
        uint64_t step, epoch, tokens;
        struct skipped_steps skipped;
        bool right;
    } cases[] = {
        {10, 1, 40960, {0}, true},
        {0, 1, 0, {0}, true},
        {10, 1, UINT64_C(1) << 62, {0}, false},
        {10, 1, 40960, {11, 0, 0, 0}, false},
        {10, 1, 40960, {3, 0, 0, 0}, true}, /* before "skipped" was written */
        {10, 1, 40960, {3, 2, 6, 10}, true},
        {10, 1, 40960, {3, 4, 6, 10}, false},
        {10, 1, 40960, {3, 2, 10, 6}, false},
        {10, 1, 40960, {3, 2, 6, 11}, false},
        {0, 1, 5, {0}, false},
        {UINT64_C(1) << 62, 1, 0, {0}, false},
        {10, UINT64_C(1) << 62, 40960, {0}, false},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct manifest m = {.info = {.step = cases[i].step,
                                      .epoch = cases[i].epoch,
                                      .tokens = cases[i].tokens,
                                      .skipped = cases[i].skipped,
                                      .world = 1,
                                      .recipe = (char *)recipe}};
        struct manifest back;
        struct titan_error err = {0};
        _cleanup_(buf_free) struct buf text = BUF_INIT;
        assert_int_equal(manifest_print(&m, &text, &err), TITAN_OK);
        const titan_status status = manifest_parse(text.data, text.len, &back, &err);
        manifest_clear(&back);
        if ((status == TITAN_OK) != cases[i].right)
            fail_msg("case %zu: %s, %s", i, titan_status_name(status), err.msg);
    }
}

static void test_version_1(void **state)
{
    (void)state;
    char path[PATH_MAX];
    struct titan_error err = {0};
    unsigned seed = 3;
    struct cut c;
    write_version_1(path);
    if (load_all(path, 9, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    make_cut(&c, 3, &seed);
    for (int r = 0; r < 3; r++) {
        assert_int_equal(
            checkpoint_load(path, &(struct checkpoint_part){specs, TENSORS, c.slices[r], c.n[r], 0}, NULL, &err),
            TITAN_OK);
        for (int i = 0; i < c.n[r]; i++)
            check_slice(&c.slices[r][i], 9);
    }
    free_cut(&c);
}

/* Tensors of (2,5) and 4 elements in two files: what covers them exactly once, and what does not. */
static void test_cover(void **state)
{
    (void)state;
    static const struct {
        struct shard_slice cuts[5]; /* tensor, row, rows, col, cols */
        int n;
        const char *says; /* NULL = covered */
    } cases[] = {
        {{{0, 0, 2, 0, 5, 0, 0, SLICE_FLOATS}, {1, 0, 1, 0, 4, 0, 0, SLICE_FLOATS}}, 2, NULL},
        {{{1, 0, 1, 2, 2, 0, 0, SLICE_FLOATS},
          {0, 1, 1, 0, 5, 0, 0, SLICE_FLOATS},
          {1, 0, 1, 0, 2, 0, 0, SLICE_FLOATS},
          {0, 0, 1, 0, 5, 0, 0, SLICE_FLOATS}},
         4,
         NULL},
        {{{0, 0, 2, 3, 2, 0, 0, SLICE_FLOATS},
          {0, 1, 1, 0, 3, 0, 0, SLICE_FLOATS},
          {0, 0, 1, 0, 3, 0, 0, SLICE_FLOATS},
          {1, 0, 1, 0, 4, 0, 0, SLICE_FLOATS}},
         4,
         NULL},
        {{{0, 0, 2, 0, 4, 0, 0, SLICE_FLOATS}, {1, 0, 1, 0, 4, 0, 0, SLICE_FLOATS}},
         2,
         "'ten': elements from row 0, column 4 on are missing"},
        {{{0, 1, 1, 0, 5, 0, 0, SLICE_FLOATS}, {1, 0, 1, 0, 4, 0, 0, SLICE_FLOATS}},
         2,
         "'ten': elements from row 0, column 0 on are missing"},
        {{{0, 0, 1, 0, 5, 0, 0, SLICE_FLOATS}, {1, 0, 1, 0, 4, 0, 0, SLICE_FLOATS}},
         2,
         "'ten': elements from row 1, column 0 on are missing"},
        {{{0, 0, 2, 0, 3, 0, 0, SLICE_FLOATS},
          {0, 0, 2, 2, 3, 0, 0, SLICE_FLOATS},
          {1, 0, 1, 0, 4, 0, 0, SLICE_FLOATS}},
         3,
         "'ten': elements from row 0, column 2 on are there"},
        {{{0, 0, 2, 2, 3, 0, 0, SLICE_FLOATS},
          {0, 0, 1, 0, 2, 0, 0, SLICE_FLOATS},
          {0, 1, 1, 0, 3, 0, 0, SLICE_FLOATS},
          {1, 0, 1, 0, 4, 0, 0, SLICE_FLOATS}},
         4,
         "column 2 on are there twice"},
        {{{0, 0, 2, 0, 5, 0, 0, SLICE_FLOATS},
          {0, 0, 2, 0, 5, 0, 0, SLICE_FLOATS},
          {1, 0, 1, 0, 4, 0, 0, SLICE_FLOATS}},
         3,
         "'ten': elements from row 0, column 0 on are there"},
        {{{0, 0, 2, 0, 5, 0, 0, SLICE_FLOATS}}, 1, "'four': elements from row 0, column 0"},
        {{{1, 0, 1, 0, 4, 0, 0, SLICE_FLOATS}}, 1, "'ten': elements from row 0, column 0"},
    };
    struct tensor_spec tensors[2] = {{.name = "ten", .shape = {2, 5}, .ndim = 2, .numel = 10},
                                     {.name = "four", .shape = {4}, .ndim = 1, .numel = 4}};
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct titan_error err = {0};
        struct manifest_slice slices[5];
        for (int p = 0; p < cases[i].n; p++)
            slices[p] = (struct manifest_slice){.slice = cases[i].cuts[p], .range = -1};
        struct manifest_file files[2] = {{.slices = slices, .nslices = 1},
                                         {.slices = slices + 1, .nslices = cases[i].n - 1}};
        struct manifest m = {.tensors = tensors, .ntensors = 2, .files = files, .nfiles = 2};
        assert_int_equal(manifest_check_cover(&m, &err), cases[i].says ? TITAN_ECORRUPT : TITAN_OK);
        if (cases[i].says && !strstr(err.msg, cases[i].says))
            fail_msg("case %zu: %s", i, err.msg);
    }
}

#define SIDE 9

/* Random boxes of a small matrix, mostly a tiling with one of them changed, against counting. */
static void test_random_covers(void **state)
{
    (void)state;
    unsigned seed = random_seed();
    int covered = 0;
    for (int round = 0; round < 20000; round++) {
        struct shard_slice cuts[8] = {{.rows = 1 + rand_r(&seed) % SIDE, .cols = 1 + rand_r(&seed) % SIDE}};
        const int64_t rows = cuts[0].rows, cols = cuts[0].cols;
        struct tensor_spec tensor = {.name = "x", .shape = {rows, cols}, .ndim = 2, .numel = rows * cols};
        int n = 1, times[SIDE][SIDE] = {0};
        bool once = true;
        for (int left = rand_r(&seed) % 7; left > 0; left--)
            n = cut_once(cuts, n, &seed);
        struct shard_slice *p = &cuts[rand_r(&seed) % n];
        if (rand_r(&seed) % 2) { /* somewhere else, or of another size, or twice */
            p->rows = 1 + rand_r(&seed) % rows;
            p->cols = 1 + rand_r(&seed) % cols;
            p->row = rand_r(&seed) % (rows - p->rows + 1);
            p->col = rand_r(&seed) % (cols - p->cols + 1);
        }
        struct manifest_slice slices[8];
        for (int i = 0; i < n; i++) {
            slices[i] = (struct manifest_slice){.slice = cuts[i], .range = -1};
            for (int64_t e = 0; e < cuts[i].rows * cuts[i].cols; e++)
                times[cuts[i].row + e / cuts[i].cols][cuts[i].col + e % cuts[i].cols]++;
        }
        for (int64_t e = 0; e < rows * cols; e++)
            once = once && times[e / cols][e % cols] == 1;
        struct manifest_file file = {.slices = slices, .nslices = n};
        const struct manifest m = {.tensors = &tensor, .ntensors = 1, .files = &file, .nfiles = 1};
        assert_int_equal(manifest_check_cover(&m, NULL), once ? TITAN_OK : TITAN_ECORRUPT);
        covered += once;
    }
    assert_true(covered > 8000 && covered < 18000);
}

static void test_overlap(void **state)
{
    (void)state;
    struct shard_slice a = {.tensor = 1, .row = 2, .rows = 8, .col = 10, .cols = 10};
    struct shard_slice b = {.tensor = 1, .row = 0, .rows = 5, .col = 15, .cols = 10};
    struct shard_slice o = shard_slice_overlap(&a, &b);
    assert_true(o.row == 2 && o.rows == 3 && o.col == 15 && o.cols == 5);
    assert_int_equal(shard_slice_place(&a, &o), 5);
    assert_int_equal(shard_slice_place(&b, &o), 20);
    b.col = 20;
    assert_int_equal(shard_slice_overlap(&a, &b).rows, 0);
    b.col = 15, b.rows = 2;
    assert_int_equal(shard_slice_overlap(&a, &b).rows, 0);
    b = a;
    assert_int_equal(shard_slice_overlap(&b, &a).rows, 8);
    b.tensor = 2;
    assert_int_equal(shard_slice_overlap(&b, &a).rows, 0);
}

/* Every range of a small matrix: in order, without gap, in three boxes at most. */
static void test_boxes_of_ranges(void **state)
{
    (void)state;
    for (int64_t cols = 1; cols <= 5; cols++)
        for (int64_t from = 0; from <= 20; from++)
            for (int64_t to = from; to <= 20; to++) {
                struct shard_slice cuts[SHARD_SLICES_BETWEEN_MAX];
                int64_t at = from;
                const int n = shard_slices_between(cols, from, to, cuts);
                assert_in_range(n, 0, SHARD_SLICES_BETWEEN_MAX);
                for (int i = 0; i < n; i++) {
                    assert_int_equal(cuts[i].row * cols + cuts[i].col, at);
                    assert_true(cuts[i].rows == 1 || cuts[i].cols == cols);
                    assert_true(cuts[i].col + cuts[i].cols <= cols);
                    at += cuts[i].rows * cuts[i].cols;
                }
                assert_int_equal(at, to);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_overlap),
        cmocka_unit_test(test_boxes_of_ranges),
        cmocka_unit_test(test_cover),
        cmocka_unit_test(test_random_covers),
        cmocka_unit_test(test_identity),
        cmocka_unit_test(test_held_scales),
        cmocka_unit_test(test_numbers_in_range),
        cmocka_unit_test_setup_teardown(test_version_1, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_any_world_to_any_world, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_columns_of_large_slices, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_types_of_tensors, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_beyond_f16, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_info_comes_back, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_subset_and_conflicts, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_damaged_shards_are_named, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_damaged_manifest, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_unfinished_is_not_listed, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_prune_and_remove, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_prune_spares, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_verify_values, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_another_recipes_step_stays, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_same_step_again, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_same_step_without_exchange, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_list_that_breaks_off, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_read_that_fails, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_folder_that_is_gone, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_no_room, make_dir, remove_dir),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
