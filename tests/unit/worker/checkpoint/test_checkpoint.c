/* Checkpoints: any cut into any cut, and every way a file can be wrong. TITAN_TEST_SEED repeats a run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/checkpoint/manifest.h"

#define TENSORS 5
#define WORLD_MAX 7
#define PIECES_MAX 64

static char dir[64];
static struct tensor_spec specs[TENSORS];
static const char recipe[] = "[model]\nname = \"llama3\" # \"quoted\"\n";

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

static float element(uint64_t step, int tensor, int64_t i)
{
    return (float)(step * 1000003 + (uint64_t)tensor * 10007 + (uint64_t)i % 9973) + 0.25f;
}

/* A cut of all tensors among `world` ranks: random bounds, sometimes several pieces a tensor, sometimes none. */
struct cut {
    int world;
    struct piece pieces[WORLD_MAX][PIECES_MAX];
    int n[WORLD_MAX];
};

static void make_cut(struct cut *c, int world, unsigned *seed)
{
    *c = (struct cut){.world = world};
    for (int t = 0; t < TENSORS; t++) {
        for (int64_t at = 0; at < specs[t].numel;) {
            int64_t left = specs[t].numel - at;
            int64_t count = 1 + rand_r(seed) % (2 * specs[t].numel / world + 1);
            int r = rand_r(seed) % world;
            count = count > left || c->n[r] > 8 ? left : count;
            struct piece *p = &c->pieces[r][c->n[r]++];
            *p = (struct piece){.tensor = t, .start = at, .count = count};
            p->data = malloc((size_t)count * sizeof(float));
            assert_non_null(p->data);
            at += count;
        }
    }
}

static void fill_cut(struct cut *c, uint64_t step)
{
    for (int r = 0; r < c->world; r++)
        for (int i = 0; i < c->n[r]; i++)
            for (int64_t j = 0; j < c->pieces[r][i].count; j++)
                c->pieces[r][i].data[j] = element(step, c->pieces[r][i].tensor, c->pieces[r][i].start + j);
}

static void free_cut(struct cut *c)
{
    for (int r = 0; r < c->world; r++)
        for (int i = 0; i < c->n[r]; i++)
            free(c->pieces[r][i].data);
}

static titan_status write_cut(struct cut *c, uint64_t step, uint64_t epoch, char path[PATH_MAX],
                              struct titan_error *err)
{
    struct checkpoint_info info = {.step = step,
                                   .epoch = epoch,
                                   .tokens = step * 4096,
                                   .world = c->world,
                                   .recipe_hash = 0xfedcba9876543210,
                                   .skipped_steps = 2,
                                   .recipe = (char *)recipe};
    struct buf entries[WORLD_MAX] = {0};
    titan_status status = TITAN_OK;
    for (int r = 0; r < c->world && status == TITAN_OK; r++)
        status = checkpoint_write_shard(dir, &info, r, specs, TENSORS, c->pieces[r], c->n[r], &entries[r], err);
    if (status == TITAN_OK)
        status = checkpoint_commit(dir, &info, specs, TENSORS, entries, c->world, path, err);
    for (int r = 0; r < c->world; r++)
        buf_free(&entries[r]);
    return status;
}

/* Write step with a world of 3; path of what was written. */
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
    struct piece pieces[TENSORS];
    for (int t = 0; t < TENSORS; t++) {
        pieces[t] = (struct piece){.tensor = t, .count = specs[t].numel};
        pieces[t].data = calloc((size_t)specs[t].numel, sizeof(float));
        assert_non_null(pieces[t].data);
    }
    titan_status status = checkpoint_load(path, specs, TENSORS, pieces, TENSORS, err);
    for (int t = 0; t < TENSORS; t++) {
        for (int64_t i = 0; i < specs[t].numel && status == TITAN_OK; i++)
            assert_true(pieces[t].data[i] == element(step, t, i));
        free(pieces[t].data);
    }
    return status;
}

static void test_any_world_to_any_world(void **state)
{
    (void)state;
    const char *text = getenv("TITAN_TEST_SEED");
    unsigned seed = text ? (unsigned)strtoul(text, NULL, 10) : (unsigned)clock_wall_ms();
    printf("# TITAN_TEST_SEED=%u\n", seed);
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
            if (checkpoint_load(path, specs, TENSORS, to.pieces[r], to.n[r], &err) != TITAN_OK)
                fail_msg("%s", err.msg);
            for (int i = 0; i < to.n[r]; i++)
                for (int64_t j = 0; j < to.pieces[r][i].count; j++)
                    assert_true(to.pieces[r][i].data[j] ==
                                element(step, to.pieces[r][i].tensor, to.pieces[r][i].start + j));
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
    assert_int_equal(checkpoint_latest(dir, latest, &step, NULL), TITAN_OK);
    assert_string_equal(path, latest);
    assert_int_equal(step, 120);
    assert_int_equal(checkpoint_read_info(path, &info, NULL), TITAN_OK);
    assert_int_equal(info.step, 120);
    assert_int_equal(info.epoch, 9);
    assert_int_equal(info.tokens, 120 * 4096);
    assert_int_equal(info.world, 3);
    assert_int_equal(info.skipped_steps, 2);
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
    float x[20], y[2];
    struct piece pieces[2] = {{.tensor = 0, .start = 100, .count = 20, .data = x},
                              {.tensor = 1, .start = 5, .count = 2, .data = y}};
    assert_int_equal(checkpoint_load(path, wanted, 2, pieces, 2, &err), TITAN_OK);
    assert_true(x[0] == element(1, 3, 100) && x[19] == element(1, 3, 119) && y[1] == element(1, 1, 6));
    wanted[1].shape[0] = 8;
    assert_int_equal(checkpoint_load(path, wanted, 2, pieces, 2, &err), TITAN_ECONFLICT);
    assert_non_null(strstr(err.msg, "layers.1.weight"));
    (void)snprintf(wanted[1].name, sizeof(wanted[1].name), "unknown");
    assert_int_equal(checkpoint_load(path, wanted, 2, pieces, 2, &err), TITAN_ECONFLICT);
    assert_non_null(strstr(err.msg, "unknown"));
}

/* Damage: the file named `name` of the checkpoint. */
static void shard_path(char out[PATH_MAX], const char *path, const char *name)
{
    assert_true(snprintf(out, PATH_MAX, "%s/%s", path, name) < PATH_MAX);
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
        assert_int_equal(checkpoint_latest(dir, latest, &step, NULL), TITAN_OK);
        assert_string_equal(latest, older);
        flip_byte(file, at);
    }
    assert_int_equal(checkpoint_latest(dir, latest, &step, NULL), TITAN_OK);
    assert_int_equal(step, 2);
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
    assert_int_equal(checkpoint_latest(dir, path, &step, NULL), TITAN_ENOTFOUND);
    assert_int_equal(checkpoint_write_shard(dir, &info, 0, specs, TENSORS, c.pieces[0], c.n[0], &entry, NULL),
                     TITAN_OK);
    assert_int_equal(checkpoint_latest(dir, path, &step, NULL), TITAN_ENOTFOUND);
    /* Without the other rank's entry it must not become complete. */
    struct buf entries[2] = {entry, entry};
    struct titan_error err = {0};
    assert_int_equal(checkpoint_commit(dir, &info, specs, TENSORS, entries, 2, path, &err), TITAN_ECORRUPT);
    assert_int_equal(checkpoint_commit(dir, &info, specs, TENSORS, entries, 1, path, &err), TITAN_ECORRUPT);
    assert_int_equal(checkpoint_latest(dir, path, &step, NULL), TITAN_ENOTFOUND);
    checkpoint_sweep(dir, 3);
    assert_int_equal(count_entries(dir), 1);
    checkpoint_sweep(dir, 4);
    assert_int_equal(count_entries(dir), 0);
    buf_free(&entry);
    free_cut(&c);
}

static void test_prune_and_remove(void **state)
{
    (void)state;
    char path[PATH_MAX];
    uint64_t step;
    for (uint64_t s = 1; s <= 5; s++)
        write_some(s * 10, 1, path);
    assert_int_equal(checkpoint_prune(dir, 0, NULL), TITAN_OK);
    assert_int_equal(count_entries(dir), 5);
    assert_int_equal(checkpoint_prune(dir, 2, NULL), TITAN_OK);
    assert_int_equal(count_entries(dir), 2);
    assert_int_equal(checkpoint_latest(dir, path, &step, NULL), TITAN_OK);
    assert_int_equal(step, 50);
    assert_int_equal(checkpoint_remove(path, NULL), TITAN_OK);
    assert_int_equal(checkpoint_latest(dir, path, &step, NULL), TITAN_OK);
    assert_int_equal(step, 40);
    assert_int_equal(checkpoint_remove("/tmp", NULL), TITAN_EINVAL);
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

/* No room: a clear error, no shard left, nothing listed. */
static void test_no_room(void **state)
{
    (void)state;
    pid_t pid = fork();
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
        if (checkpoint_latest(dir, path, &step, NULL) != TITAN_ENOTFOUND)
            _exit(3);
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

/* Tensors of 10 and 4 elements in two files: what covers them exactly once, and what does not. */
static void test_cover(void **state)
{
    (void)state;
    static const struct {
        struct manifest_piece pieces[4];
        int n;
        const char *says; /* NULL = covered */
    } cases[] = {
        {{{0, 0, 10}, {1, 0, 4}}, 2, NULL},
        {{{1, 2, 2}, {0, 5, 5}, {1, 0, 2}, {0, 0, 5}}, 4, NULL},
        {{{0, 0, 9}, {1, 0, 4}}, 2, "'ten': elements from 9"},
        {{{0, 1, 9}, {1, 0, 4}}, 2, "'ten': elements from 0"},
        {{{0, 0, 4}, {0, 5, 5}, {1, 0, 4}}, 3, "'ten': elements from 4"},
        {{{0, 0, 6}, {0, 5, 5}, {1, 0, 4}}, 3, "'ten': elements from 5"},
        {{{0, 0, 10}}, 1, "'four': elements from 0"},
        {{{1, 0, 4}}, 1, "'ten': elements from 0"},
    };
    struct tensor_spec tensors[2] = {{.name = "ten", .numel = 10}, {.name = "four", .numel = 4}};
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct titan_error err = {0};
        struct manifest_file files[2] = {{.pieces = (struct manifest_piece *)cases[i].pieces, .npieces = 1},
                                         {.pieces = (struct manifest_piece *)cases[i].pieces + 1}};
        files[1].npieces = cases[i].n - 1;
        struct manifest m = {.tensors = tensors, .ntensors = 2, .files = files, .nfiles = 2};
        assert_int_equal(manifest_check_cover(&m, &err), cases[i].says ? TITAN_ECORRUPT : TITAN_OK);
        if (cases[i].says && !strstr(err.msg, cases[i].says))
            fail_msg("case %zu: %s", i, err.msg);
    }
}

static void test_overlap(void **state)
{
    (void)state;
    struct piece a = {.tensor = 1, .start = 10, .count = 10}, b = {.tensor = 1, .start = 15, .count = 10};
    assert_int_equal(piece_overlap(&a, &b).start, 15);
    assert_int_equal(piece_overlap(&a, &b).count, 5);
    b.start = 20;
    assert_int_equal(piece_overlap(&a, &b).count, 0);
    b.start = 12, b.count = 3;
    assert_int_equal(piece_overlap(&b, &a).count, 3);
    b.tensor = 2;
    assert_int_equal(piece_overlap(&b, &a).count, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_overlap),
        cmocka_unit_test(test_cover),
        cmocka_unit_test_setup_teardown(test_any_world_to_any_world, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_info_comes_back, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_subset_and_conflicts, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_damaged_shards_are_named, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_damaged_manifest, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_unfinished_is_not_listed, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_prune_and_remove, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_same_step_again, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_no_room, make_dir, remove_dir),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
