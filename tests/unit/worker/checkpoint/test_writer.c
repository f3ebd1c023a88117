/* SPDX-License-Identifier: Apache-2.0 */
/* writer.h: shards written by several ranks' threads become one checkpoint; a rank that fails or leaves costs the
 * checkpoint, not the wait. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/failpoint.h"
#include "base/file.h"
#include "tests/support/random_layout.h"
#include "tests/support/patience.h"
#include "worker/checkpoint/load_state.h"
#include "worker/checkpoint/writer.h"

#define WORLD 4 /* two replicas of two */

static const struct model_dims dims = {.dim = 32,
                                       .n_layers = 2,
                                       .n_heads = 2,
                                       .n_kv_heads = 1,
                                       .ffn_hidden = 64,
                                       .vocab_size = 256, /* of bytes */
                                       .rope_theta = 1e4,
                                       .norm_eps = 1e-5};

struct fixture {
    char dir[64], checkpoints[96];
    struct device_handle device;
    struct stream *stream;
    struct model *model;
    struct train_state *states[WORLD];
    struct checkpoint_writer *writers[WORLD];
    uint32_t linger_ms;
};

/* That the checkpoints are of; lr: another one. */
static const struct recipe *recipe_of_run(double lr)
{
    static struct recipe r;
    recipe_init(&r);
    r.training.steps = 100;
    r.optimizer.lr = lr;
    return &r;
}
#define LR 8e-4

static struct checkpoint_info info_of(uint64_t step)
{
    return (struct checkpoint_info){.step = step,
                                    .epoch = 3,
                                    .tokens = 99,
                                    .world = WORLD,
                                    .recipe_hash = recipe_hash(recipe_of_run(LR)),
                                    .recipe = (char *)"x = 1\n"};
}

/* One rank of one, or of WORLD. */
static struct train_state *open_state(struct fixture *f, int rank, int world, enum dtype dt)
{
    const int half = (world + 1) / 2;
    const struct layout_options o = {.model = f->model,
                                     .mesh = {.world = world, .size = {1, world / half, half, 1, 1}, .ep = 1},
                                     .kinds = adamw_kinds()};
    struct layout *l = NULL;
    struct train_state *s = NULL;
    assert_int_equal(layout_open(&o, &l, NULL), TITAN_OK);
    const struct state_options options = {.device = &f->device, .layout = l, .rank = rank, .types.compute = dt};
    assert_int_equal(state_open(&options, &s, NULL), TITAN_OK);
    return s;
}

static int set_up_lingering(void **state, uint32_t linger_ms)
{
    static struct fixture f;
    struct titan_error err = {0};
    const struct device_options options = {.threads = 1};
    memset(&f, 0, sizeof f);
    f.linger_ms = linger_ms;
    (void)setenv("TITAN_PLUGIN_DIR", TITAN_BUILD_DIR "/lib/titan", 0);
    (void)snprintf(f.dir, sizeof f.dir, "/tmp/titan-writer-XXXXXX");
    assert_non_null(mkdtemp(f.dir));
    (void)snprintf(f.checkpoints, sizeof f.checkpoints, "%s/checkpoint", f.dir);
    if (device_open("cpu", &options, &f.device, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    assert_int_equal(f.device.ops->stream_open(f.device.dev, "test", true, &f.stream, &err), TITAN_OK);
    assert_int_equal(model_open(&dims, &f.model, &err), TITAN_OK);
    for (int r = 0; r < WORLD; r++) {
        f.states[r] = open_state(&f, r, WORLD, DTYPE_F32);
        assert_int_equal(state_init(f.states[r], 11, f.stream, &err), TITAN_OK);
        const struct writer_options o = {.dir = f.checkpoints,
                                         .rank = r,
                                         .world = WORLD,
                                         .keep = 2,
                                         .layout = f.states[r]->layout,
                                         .wait_ms = 20000,
                                         .show_ms = 50,
                                         .linger_ms = f.linger_ms};
        assert_int_equal(checkpoint_writer_open(&o, &f.writers[r], &err), TITAN_OK);
    }
    *state = &f;
    return 0;
}

static int set_up(void **state)
{
    return set_up_lingering(state, 0);
}

/* For a disk that takes its time. */
static int set_up_patient(void **state)
{
    return set_up_lingering(state, 20000);
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    for (int r = 0; r < WORLD; r++) {
        checkpoint_writer_close(f->writers[r]);
        state_close(f->states[r]);
    }
    f->device.ops->stream_close(f->stream);
    device_close(&f->device);
    model_close(f->model);
    return dir_remove(f->dir, NULL) == TITAN_OK ? 0 : -1;
}

static void start(struct fixture *f, int rank, uint64_t step)
{
    const struct checkpoint_info info = info_of(step);
    struct titan_error err = {0};
    if (checkpoint_writer_start(f->writers[rank], f->states[rank], &info, f->stream, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
}

/* There is something to collect. */
static titan_status collect(struct checkpoint_writer *w, struct written_checkpoint *ret, struct titan_error *err)
{
    bool fresh = false;
    const titan_status status = checkpoint_writer_collect(w, true, &fresh, ret, err);
    assert_true(fresh);
    return status;
}

static void expect_nothing(struct checkpoint_writer *w, bool wait)
{
    struct written_checkpoint none;
    bool fresh = true;
    assert_int_equal(checkpoint_writer_collect(w, wait, &fresh, &none, NULL), TITAN_OK);
    assert_false(fresh);
}

/* One rank alone loads what four have written: the initial weights. */
static void assert_initial(struct fixture *f, const char *path, uint64_t step)
{
    struct titan_error err = {0};
    struct train_state *alone = open_state(f, 0, 1, DTYPE_BF16);
    struct load_source source = {.path = path};
    assert_int_equal(load_state(alone, &source, recipe_of_run(2 * LR), &(struct apart_limit){0, NULL}, f->stream, &err),
                     TITAN_ECONFLICT);
    if (load_state(alone, &source, recipe_of_run(LR), &(struct apart_limit){0, NULL}, f->stream, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    assert_int_equal(alone->step, step);
    assert_int_equal(alone->tokens, 99);
    for (int t = 0; t < f->model->n_tensors; t++) {
        const struct model_tensor *mt = &f->model->tensors[t];
        const float *master =
            (float *)alone->values + 3 * alone->layout->units[mt->unit].offset + alone->layout->tensors[t].offset;
        float *expected = malloc((size_t)mt->numel * sizeof *expected);
        model_init_tensor(f->model, 11, t, 0, mt->numel, expected);
        assert_memory_equal(master, expected, (size_t)mt->numel * sizeof *expected);
        free(expected);
    }
    state_close(alone);
}

static void test_complete(void **state)
{
    struct fixture *f = *state;
    struct written_checkpoint w;
    struct titan_error err = {0};
    expect_nothing(f->writers[0], false);
    for (uint64_t step = 10; step <= 40; step += 10) {
        const int64_t began_ns = clock_mono_ns();
        for (int r = 0; r < WORLD; r++)
            start(f, r, step);
        for (int r = 0; r < WORLD; r++) {
            if (collect(f->writers[r], &w, &err) != TITAN_OK)
                fail_msg("%s", err.msg);
            assert_int_equal(w.step, r == 0 ? step : 0);
            if (r == 0)
                assert_true(w.bytes > 0 && w.world == WORLD && access(w.path, F_OK) == 0);
            if (r == 0)
                assert_in_range(w.ns, 1, clock_mono_ns() - began_ns); /* of this write, not since the machine began */
            expect_nothing(f->writers[r], true);
        }
    }
    /* Two are kept. */
    char path[PATH_MAX];
    uint64_t step;
    assert_int_equal(checkpoint_latest(f->checkpoints, NULL, path, &step, &err), TITAN_OK);
    assert_int_equal(step, 40);
    (void)snprintf(path, sizeof path, "%s/step-00000020", f->checkpoints);
    assert_int_equal(access(path, F_OK), -1);
    (void)snprintf(path, sizeof path, "%s/step-00000030", f->checkpoints);
    assert_int_equal(access(path, F_OK), 0);
    assert_initial(f, path, 30);
}

static sem_t disk;
static atomic_int disk_moved;

/* A disk that gets on only when the test says so. */
static titan_status await_disk(void *arg, const char *name, struct titan_error *err)
{
    (void)arg;
    const int64_t until = clock_mono_ns() + patience_ms(60) * INT64_C(1000000);
    const struct timespec at = {.tv_sec = until / 1000000000, .tv_nsec = until % 1000000000};
    const bool reported = sem_clockwait(&disk, CLOCK_MONOTONIC, &at) == 0;
    atomic_store(&disk_moved, 1);
    return reported ? TITAN_OK : titan_fail(err, TITAN_ETIMEDOUT, "%s", name);
}

/* An update as soon as the copy is awaited changes nothing of what is written; it does not wait for the disk. */
static void test_update_behind_the_copy(void **state)
{
    struct fixture *f = *state;
    struct written_checkpoint w;
    struct titan_error err = {0};

    assert_int_equal(sem_init(&disk, 0, 0), 0);
    failpoint_on_call(await_disk, NULL);
    assert_int_equal(failpoint_set("checkpoint.begun=sleep:100@1+,checkpoint.write=call@1+", &err), TITAN_OK);
    for (int r = 0; r < WORLD; r++)
        start(f, r, 30);
    for (int r = 0; r < WORLD; r++) {
        checkpoint_writer_await_copy(f->writers[r]);
        memset(f->states[r]->values, 0x41, state_bytes(f->states[r]));
    }
    for (int r = 0; r < WORLD; r++)
        assert_int_equal(sem_post(&disk), 0);
    for (int r = WORLD - 1; r >= 0; r--)
        if (collect(f->writers[r], &w, &err) != TITAN_OK)
            fail_msg("%s", err.msg);
    assert_int_equal(failpoint_set(NULL, NULL), TITAN_OK);
    assert_initial(f, w.path, 30);
    (void)sem_destroy(&disk);
}

static void test_peer_leaves(void **state)
{
    struct fixture *f = *state;
    struct written_checkpoint w;
    struct titan_error err = {0};

    start(f, 0, 50);
    start(f, 1, 50); /* rank 2 is gone */
    assert_int_equal(collect(f->writers[1], &w, &err), TITAN_OK);
    checkpoint_writer_cancel(f->writers[0]);
    assert_int_equal(collect(f->writers[0], &w, &err), TITAN_EREVOKED);
    assert_non_null(strstr(err.msg, "rank 2"));
}

static void test_cancelled_but_complete(void **state)
{
    struct fixture *f = *state;
    struct written_checkpoint w;
    struct titan_error err = {0};

    for (int r = 1; r < WORLD; r++) {
        start(f, r, 60);
        assert_int_equal(collect(f->writers[r], &w, &err), TITAN_OK);
    }
    checkpoint_writer_cancel(f->writers[0]);
    start(f, 0, 60);
    assert_int_equal(collect(f->writers[0], &w, &err), TITAN_OK);
    assert_int_equal(w.step, 60);
}

/* The disk of rank 1 stands still: a rank that has to leave the epoch does not wait for it. */
static void test_slow_disk(void **state)
{
    struct fixture *f = *state;
    struct written_checkpoint w;
    struct titan_error err = {0};

    assert_int_equal(sem_init(&disk, 0, 0), 0);
    atomic_store(&disk_moved, 0);
    failpoint_on_call(await_disk, NULL);
    assert_int_equal(failpoint_set("checkpoint.write=call", &err), TITAN_OK);
    start(f, 1, 60);
    checkpoint_writer_cancel(f->writers[1]);
    assert_int_equal(collect(f->writers[1], &w, &err), TITAN_EREVOKED);
    assert_non_null(strstr(err.msg, "step 60"));
    checkpoint_writer_close(f->writers[1]);
    f->writers[1] = NULL;
    assert_int_equal(atomic_load(&disk_moved), 0);
    assert_int_equal(sem_post(&disk), 0);
    /* It ends by itself, and before the folder goes. */
    char path[PATH_MAX];
    const struct checkpoint_info info = info_of(60);
    assert_int_equal(checkpoint_unfinished_path(path, f->checkpoints, &info, &err), TITAN_OK);
    (void)strncat(path, "/entry-00001.json", sizeof path - strlen(path) - 1);
    AWAIT(access(path, F_OK) == 0);
    assert_int_equal(failpoint_set(NULL, NULL), TITAN_OK);
}

static void test_peer_fails(void **state)
{
    struct fixture *f = *state;
    struct written_checkpoint w;
    struct titan_error err = {0};
    char path[PATH_MAX];
    const struct checkpoint_info info = info_of(70);

    /* The shard of rank 2 cannot be written: a folder has its name. */
    assert_int_equal(checkpoint_unfinished_path(path, f->checkpoints, &info, &err), TITAN_OK);
    (void)strncat(path, "/rank-00002.safetensors", sizeof path - strlen(path) - 1);
    assert_int_equal(dir_make(path, &err), TITAN_OK);
    for (int r = WORLD - 1; r >= 0; r--)
        start(f, r, 70);
    assert_int_not_equal(collect(f->writers[2], &w, &err), TITAN_OK);
    checkpoint_writer_part_failed(f->writers[0], 2, err.msg);
    assert_int_equal(collect(f->writers[1], &w, &err), TITAN_OK);
    assert_int_equal(collect(f->writers[0], &w, &err), TITAN_EIO);
    assert_non_null(strstr(err.msg, "rank 2: "));
    /* What is listed is whole: the newest is the one before. */
    uint64_t step;
    assert_int_equal(checkpoint_latest(f->checkpoints, NULL, path, &step, &err), TITAN_ENOTFOUND);
}

/* A rank has written into a folder of its own node that has the same name. */
static void test_part_elsewhere(void **state)
{
    struct fixture *f = *state;
    struct written_checkpoint w;
    struct titan_error err = {0};

    start(f, 0, 80);
    start(f, 1, 80);
    assert_int_equal(collect(f->writers[1], &w, &err), TITAN_OK);
    checkpoint_writer_parts_over(f->writers[0]);
    assert_int_equal(collect(f->writers[0], &w, &err), TITAN_EIO);
    assert_non_null(strstr(err.msg, "rank 2 has written its part, and it is not in '"));
}

static int entries_of(const char *dir)
{
    int n = 0;
    DIR *d = opendir(dir);
    for (const struct dirent *e; d && (e = readdir(d));)
        n += e->d_name[0] != '.' || strncmp(e->d_name, ".step-", 6) == 0;
    if (d)
        (void)closedir(d);
    return n;
}

/* The folder is moved when rank 0 has begun to write there and before the others do: they cannot tell it that they have
 * failed. */
static void test_folder_moved(void **state)
{
    struct fixture *f = *state;
    struct written_checkpoint w;
    struct titan_error err = {0};
    char path[PATH_MAX], aside[128];
    const struct checkpoint_info info = info_of(75);

    assert_int_equal(checkpoint_unfinished_path(path, f->checkpoints, &info, &err), TITAN_OK);
    (void)snprintf(aside, sizeof aside, "%s/aside", f->dir);
    start(f, 0, 75);
    AWAIT(access(path, F_OK) == 0);
    assert_int_equal(rename(f->checkpoints, aside), 0);
    FILE *const in_the_way = fopen(f->checkpoints, "w");
    assert_non_null(in_the_way);
    assert_int_equal(fclose(in_the_way), 0);
    for (int r = 1; r < WORLD; r++) {
        start(f, r, 75);
        assert_int_not_equal(collect(f->writers[r], &w, &err), TITAN_OK);
    }
    const titan_status status = collect(f->writers[0], &w, &err);
    assert_int_not_equal(status, TITAN_OK);
    assert_int_not_equal(status, TITAN_ETIMEDOUT);
    assert_non_null(strstr(err.msg, "checkpoint of step 75 dropped: folder"));
    assert_int_equal(entries_of(aside), 0);

    /* Another folder has its name. */
    assert_int_equal(unlink(f->checkpoints), 0);
    assert_int_equal(rename(aside, f->checkpoints), 0);
    start(f, 0, 75);
    AWAIT(access(path, F_OK) == 0);
    assert_int_equal(rename(f->checkpoints, aside), 0);
    assert_int_equal(mkdir(f->checkpoints, 0755), 0);
    assert_int_equal(collect(f->writers[0], &w, &err), TITAN_EIO);
    assert_non_null(strstr(err.msg, "another folder is at"));
}

/* Fails as a system call with the errno that is set. */
static titan_status fail_with(void *arg, const char *name, struct titan_error *err)
{
    (void)name;
    errno = *(const int *)arg;
    return titan_fail_errno(err, "the disk");
}

/* A failure is told as one, whatever it was: no errno stands for "there is nothing to tell". */
static void test_every_errno(void **state)
{
    struct fixture *f = *state;
    int number;

    failpoint_on_call(fail_with, &number);
    assert_int_equal(failpoint_set("checkpoint.write=call@1+", NULL), TITAN_OK);
    for (number = 1; number < 134; number++) {
        struct written_checkpoint w;
        struct titan_error err = {0};
        start(f, 1, (uint64_t)number);
        const titan_status status = collect(f->writers[1], &w, &err);
        if (status == TITAN_OK || !strstr(err.msg, "the disk") || w.step != (uint64_t)number)
            fail_msg("errno %d (%s): %s, \"%s\"", number, strerror(number), titan_status_name(status), err.msg);
        expect_nothing(f->writers[1], true);
    }
    assert_int_equal(failpoint_set(NULL, NULL), TITAN_OK);
}

/* What a checkpoint that fails has written is removed, when all ranks have ended with it. */
static void test_failure_leaves_nothing(void **state)
{
    struct fixture *f = *state;
    struct written_checkpoint w;
    struct titan_error err = {0};

    for (int i = 0; i < 2 * WORLD; i++) {
        const int bad = i / 2;
        const char *where = i % 2 ? "checkpoint.write=call@1+" : "checkpoint.begun=call@1+"; /* no copy of the state */
        int number = ENOSPC;
        failpoint_on_call(fail_with, &number);
        for (int r = WORLD - 1; r >= 0; r--) {
            assert_int_equal(failpoint_set(r == bad ? where : NULL, NULL), TITAN_OK);
            start(f, r, 80);
            if (r > 0)
                assert_int_equal(collect(f->writers[r], &w, &err) == TITAN_OK, r != bad);
        }
        if (bad > 0)
            checkpoint_writer_part_failed(f->writers[0], bad, err.msg);
        assert_int_not_equal(collect(f->writers[0], &w, &err), TITAN_OK);
        assert_non_null(strstr(err.msg, "No space left"));
        assert_int_equal(entries_of(f->checkpoints), 0);
    }
    assert_int_equal(failpoint_set(NULL, NULL), TITAN_OK);
}

/* A link in the place of the folder that weights are exported to: nothing is written or removed where it leads. */
static void expect_no_export(struct fixture *f, const char *target)
{
    struct checkpoint_info info = {.step = 91, .epoch = 3, .world = 1, .recipe_hash = 5, .model_only = true};
    struct train_state *alone = open_state(f, 0, 1, DTYPE_F32);
    const struct writer_options o = {
        .dir = f->checkpoints, .world = 1, .hf_dtype = "F32", .layout = alone->layout, .wait_ms = 20000};
    struct checkpoint_writer *writer = NULL;
    struct written_checkpoint w;
    struct titan_error err = {0};
    struct recipe r;
    char path[PATH_MAX], link[PATH_MAX + 8], weights[160];
    _cleanup_(buf_free) struct buf text = BUF_INIT;

    recipe_init(&r);
    assert_int_equal(recipe_load(&r, TITAN_SOURCE_DIR "/recipes/tiny.toml", &err), TITAN_OK);
    assert_int_equal(recipe_resolve(&r, &err), TITAN_OK);
    r.model.dims.dim = dims.dim;
    r.model.dims.n_layers = dims.n_layers;
    r.model.dims.n_heads = dims.n_heads;
    r.model.dims.n_kv_heads = dims.n_kv_heads;
    r.model.dims.head_dim = dims.dim / dims.n_heads;
    r.model.dims.ffn_hidden = dims.ffn_hidden;
    r.model.dims.vocab_size = dims.vocab_size;
    recipe_print(&r, &text);
    info.recipe = text.data;
    assert_int_equal(checkpoint_unfinished_path(path, f->checkpoints, &info, &err), TITAN_OK);
    assert_int_equal(dir_make(path, &err), TITAN_OK);
    (void)snprintf(link, sizeof link, "%s/.hf", path);
    (void)snprintf(weights, sizeof weights, "%s/model.safetensors", target);
    assert_int_equal(file_replace(weights, "precious", 8, &err), TITAN_OK);
    assert_int_equal(symlink(target, link), 0);
    const int before = entries_of(target);
    assert_int_equal(checkpoint_writer_open(&o, &writer, &err), TITAN_OK);
    assert_int_equal(state_init(alone, 11, f->stream, &err), TITAN_OK);
    assert_int_equal(checkpoint_writer_start(writer, alone, &info, f->stream, &err), TITAN_OK);
    assert_int_not_equal(collect(writer, &w, &err), TITAN_OK);
    checkpoint_writer_close(writer);
    state_close(alone);
    if (!strstr(err.msg, "'.hf' is a symbolic link"))
        fail_msg("%s", err.msg);
    assert_int_equal(entries_of(target), before);
    assert_int_equal(access(weights, F_OK), 0);
}

/* A link in the place of the folder that is written into leads somewhere else, and nothing is written there. */
static void test_links_are_refused(void **state)
{
    struct fixture *f = *state;
    struct written_checkpoint w;
    struct titan_error err = {0};
    char path[PATH_MAX], target[128];
    const struct checkpoint_info info = info_of(90);

    (void)snprintf(target, sizeof target, "%s/target", f->dir);
    assert_int_equal(dir_make(target, &err), TITAN_OK);
    assert_int_equal(dir_make(f->checkpoints, &err), TITAN_OK);
    assert_int_equal(checkpoint_unfinished_path(path, f->checkpoints, &info, &err), TITAN_OK);
    assert_int_equal(symlink(target, path), 0);
    start(f, 1, 90);
    assert_int_not_equal(collect(f->writers[1], &w, &err), TITAN_OK);
    assert_non_null(strstr(err.msg, "symbolic link"));
    assert_int_equal(entries_of(target), 0);

    /* A folder of that name with a link in it: the file the link leads to stays as it is. */
    char link[PATH_MAX + 64], file[160];
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    assert_int_equal(unlink(path), 0);
    assert_int_equal(dir_make(path, &err), TITAN_OK);
    (void)snprintf(file, sizeof file, "%s/precious", target);
    assert_int_equal(file_replace(file, "precious", 8, &err), TITAN_OK);
    (void)snprintf(link, sizeof link, "%s/rank-00001.safetensors", path);
    assert_int_equal(symlink(file, link), 0);
    start(f, 1, 90);
    assert_int_equal(collect(f->writers[1], &w, &err), TITAN_OK);
    assert_int_equal(file_read(file, 100, &text, &err), TITAN_OK);
    assert_string_equal(text.data, "precious");
    expect_no_export(f, target);
}

/* Another file system in the folder's place is a share that is not mounted any more. */
static void test_other_file_system(void **state)
{
    struct fixture *f = *state;
    struct checkpoint_writer *w = NULL;
    struct written_checkpoint written;
    struct titan_error err = {0};
    struct stat st;
    const struct checkpoint_info info = info_of(5);

    assert_int_equal(stat(f->dir, &st), 0);
    for (int other = 0; other < 2; other++) {
        const struct writer_options o = {.dir = f->checkpoints,
                                         .device = st.st_dev + (dev_t)other,
                                         .rank = 1,
                                         .world = WORLD,
                                         .layout = f->states[1]->layout};
        assert_int_equal(checkpoint_writer_open(&o, &w, &err), TITAN_OK);
        assert_int_equal(checkpoint_writer_start(w, f->states[1], &info, f->stream, &err), TITAN_OK);
        assert_int_equal(collect(w, &written, &err) == TITAN_OK, other == 0);
        checkpoint_writer_close(w);
    }
    assert_non_null(strstr(err.msg, "is it mounted?"));
}

/* Another folder of that name: another run's is left alone, one without an owner is written in. */
static void test_folder_of_another_run(void **state)
{
    struct fixture *f = *state;
    static const char owner[] = "{\"format\":\"titan-owner\",\"id\":\"b\",\"name\":\"job 2\",\"recipe_hash\":\"0\"}";
    struct checkpoint_writer *w = NULL;
    struct written_checkpoint written;
    struct titan_error err = {0};
    struct stat st;
    char path[PATH_MAX];
    const struct checkpoint_info info = info_of(5);

    assert_int_equal(dir_make(f->checkpoints, &err), TITAN_OK);
    assert_int_equal(stat(f->checkpoints, &st), 0);
    (void)snprintf(path, sizeof path, "%s/titan-owner.json", f->checkpoints);
    for (int i = 0; i < 4; i++) {
        const bool own = i == 1, same = i == 2, none = i == 3;
        const struct writer_options o = {.dir = f->checkpoints,
                                         .device = st.st_dev,
                                         .inode = st.st_ino + (same ? 0 : 1),
                                         .run = own ? "b" : "a",
                                         .rank = 1,
                                         .world = WORLD,
                                         .layout = f->states[1]->layout};
        assert_int_equal(none ? unlink(path) : file_replace(path, owner, sizeof owner - 1, &err), 0);
        assert_int_equal(checkpoint_writer_open(&o, &w, &err), TITAN_OK);
        assert_int_equal(checkpoint_writer_start(w, f->states[1], &info, f->stream, &err), TITAN_OK);
        assert_int_equal(collect(w, &written, &err) == TITAN_OK, own || same || none);
        checkpoint_writer_close(w);
        if (i == 0)
            assert_non_null(strstr(err.msg, "has become that of another run"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_complete, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_update_behind_the_copy, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_peer_leaves, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_folder_moved, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_every_errno, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_failure_leaves_nothing, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_links_are_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_other_file_system, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_folder_of_another_run, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_cancelled_but_complete, set_up_patient, tear_down),
        cmocka_unit_test_setup_teardown(test_slow_disk, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_peer_fails, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_part_elsewhere, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
