/* SPDX-License-Identifier: Apache-2.0 */
/* An NVML that stops answering, by its stand-in: the loop goes on, the slots wait, and take workers again when it does.
 * A build with 1.2 s in place of 30. */
#define GPU_WATCH_OLD_MS 1200
#include "daemon/agent/shell/gpu_watch.c"

#include <dirent.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "tests/support/patience.h"

#define LIBRARY TITAN_BUILD_DIR "/tests/nvml/libnvidia-ml.so.1"
#define WELL "GPU-aaaa H100 81559 1024 41 0 0 0:0\n"

static char folder[64], values[PATH_MAX];
static uv_loop_t loop;
static struct gpu_watch *watch;
static bool gone;
static int ticks;

static void say(const char *text)
{
    assert_int_equal(file_replace(values, text, strlen(text), NULL), TITAN_OK);
}

static void on_changed(void *data)
{
    ++*(int *)data;
}

static void on_gone(void *data)
{
    *(bool *)data = true;
}

static void on_tick(uv_timer_t *timer)
{
    (void)timer;
    ticks++;
}

/* Runs the loop until the slot is well, or is not. */
static struct gpu_state await(bool well)
{
    struct gpu_state s;
    struct patience_wait wait = {0};
    while (gpu_watch_get(watch, 0, &s) && (s.health == GPU_WELL) != well && patience_left(&wait))
        (void)uv_run(&loop, UV_RUN_ONCE);
    assert_int_equal(s.health == GPU_WELL, well);
    return s;
}

static void set_looked(int64_t ms)
{
    (void)pthread_mutex_lock(&watch->board->lock);
    watch->board->checked_ms = ms;
    (void)pthread_mutex_unlock(&watch->board->lock);
}

/* How often the agent hears of what the timer finds: once for each silence. */
static int received(int *news)
{
    on_age_timer(&watch->age_timer);
    *news = 0;
    on_age_timer(&watch->age_timer);
    on_age_timer(&watch->age_timer);
    return *news;
}

static int threads(void)
{
    DIR *tasks = opendir("/proc/self/task");
    int n = 0;
    while (readdir(tasks))
        n++;
    (void)closedir(tasks);
    return n;
}

static void test_silence(void **state)
{
    (void)state;
    struct titan_error err = {0};
    uv_timer_t tick;
    int news = 0;
    const int before = threads();

    (void)snprintf(folder, sizeof(folder), "/tmp/titan-nvml-XXXXXX");
    assert_non_null(mkdtemp(folder));
    (void)snprintf(values, sizeof(values), "%s/gpus", folder);
    assert_int_equal(setenv("TITAN_FAKE_NVML", values, 1), 0);
    assert_int_equal(setenv("CUDA_VISIBLE_DEVICES", "0", 1), 0);
    assert_int_equal(uv_loop_init(&loop), 0);
    (void)uv_timer_init(&loop, &tick);
    (void)uv_timer_start(&tick, on_tick, 10, 10);
    say(WELL);
    assert_int_equal(gpu_watch_open(&loop, &(struct gpu_watch_options){1, LIBRARY, on_changed, &news}, &watch, &err),
                     TITAN_OK);
    (void)await(true);
    set_looked(clock_mono_ms() + INT64_C(3600000)); /* not old, however busy the machine is */
    assert_int_equal(received(&news), 0);
    set_looked(clock_mono_ms());

    say("silent\n" WELL);
    news = ticks = 0;
    const struct gpu_state silent = await(false);
    assert_string_equal(silent.reason, "NVML has not answered for more than 1 s");
    assert_string_equal(silent.uuid, "GPU-aaaa"); /* what it said last is known still */
    assert_true(ticks > 5);
    for (struct patience_wait wait = {0}; news == 0 && patience_left(&wait);)
        (void)uv_run(&loop, UV_RUN_ONCE);
    assert_true(news > 0); /* the agent is told */
    assert_int_equal(received(&news), 0);

    say(WELL);
    assert_true(!await(true).reason[0]);
    /* It ends while NVML holds its thread. */
    say("silent\n" WELL);
    (void)await(false);
    gpu_watch_close(watch, on_gone, &gone);
    uv_close((uv_handle_t *)&tick, NULL);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    assert_true(gone);
    assert_int_equal(uv_loop_close(&loop), 0);
    say(WELL);
    AWAIT(threads() == before); /* the thread, left to itself, ends */
    assert_int_equal(dir_remove(folder, NULL), TITAN_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_silence)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
