/* SPDX-License-Identifier: Apache-2.0 */
/* The GPUs of an agent's slots, as a stand-in for NVML has them (tests/nvml/fake_nvml.c): which GPU a slot has, what
 * takes it out of use, what lets it back. */
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/file.h"
#include "daemon/agent/shell/gpu_watch.h"
#include "tests/support/patience.h"

#define LIBRARY TITAN_BUILD_DIR "/tests/nvml/libnvidia-ml.so.1"

static char folder[64], values[PATH_MAX];
static uv_loop_t loop;
static struct gpu_watch *watch;
static bool closed;

/* What NVML says from here on. */
static void say(const char *text)
{
    assert_int_equal(file_replace(values, text, strlen(text), NULL), TITAN_OK);
}

static void on_changed(void *data)
{
    (void)data;
}

static void on_closed(void *data)
{
    (void)data;
    closed = true;
}

static void on_timer(uv_timer_t *timer)
{
    *(bool *)timer->data = true;
}

static struct gpu_state state_of(uint32_t slot)
{
    struct gpu_state s;
    assert_true(gpu_watch_get(watch, slot, &s));
    return s;
}

/* Runs the loop until holds(slot) is true. */
static void await(bool (*holds)(const struct gpu_state *s, const void *with), uint32_t slot, const void *with)
{
    bool late = false;
    uv_timer_t limit;
    (void)uv_timer_init(&loop, &limit);
    limit.data = &late;
    (void)uv_timer_start(&limit, on_timer, (uint64_t)patience_ms(60), 0);
    for (struct gpu_state s = state_of(slot); !late && !holds(&s, with); s = state_of(slot))
        (void)uv_run(&loop, UV_RUN_ONCE);
    uv_close((uv_handle_t *)&limit, NULL);
    (void)uv_run(&loop, UV_RUN_NOWAIT);
    assert_false(late);
}

static bool is_well(const struct gpu_state *s, const void *with)
{
    (void)with;
    return s->health == GPU_WELL;
}

static bool is_out(const struct gpu_state *s, const void *with)
{
    return s->health == GPU_OUT && strstr(s->reason, with);
}

static bool has_xid(const struct gpu_state *s, const void *with)
{
    return s->xid == *(const uint32_t *)with;
}

static void open_watch(uint32_t slots)
{
    struct titan_error err = {0};
    assert_int_equal(gpu_watch_open(&loop, &(struct gpu_watch_options){slots, LIBRARY, on_changed, NULL}, &watch, &err),
                     TITAN_OK);
}

static int setup(void **state)
{
    (void)state;
    (void)snprintf(folder, sizeof(folder), "/tmp/titan-nvml-XXXXXX");
    assert_non_null(mkdtemp(folder));
    (void)snprintf(values, sizeof(values), "%s/gpus", folder);
    assert_int_equal(setenv("TITAN_FAKE_NVML", values, 1), 0);
    assert_int_equal(uv_loop_init(&loop), 0);
    closed = false;
    watch = NULL;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    gpu_watch_close(watch, on_closed, NULL);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    assert_true(closed);
    assert_int_equal(uv_loop_close(&loop), 0);
    return dir_remove(folder, NULL) == TITAN_OK ? 0 : -1;
}

#define WELL "GPU-aaaa H100 81559 1024 41 0 0 0:0\n"
#define THREE WELL "GPU-bbbb H100 81559 2048 50 -1 0 0:0\nGPU-cccc H200 143771 3 60 0 0 0:0\n"

static void test_values(void **state)
{
    (void)state;
    say("silent\n" THREE);
    assert_int_equal(setenv("CUDA_VISIBLE_DEVICES", "2,GPU-bb,0", 1), 0);
    open_watch(3);
    assert_int_equal(state_of(0).health, GPU_UNSEEN);
    assert_true(state_of(0).reason[0]);
    say(THREE);
    await(is_well, 0, NULL);
    struct gpu_state s = state_of(0);
    assert_string_equal(s.name, "H200");
    assert_string_equal(s.uuid, "GPU-cccc");
    assert_true(s.memory_total == UINT64_C(143771) << 20 && s.memory_used == UINT64_C(3) << 20);
    assert_int_equal(s.celsius, 60);
    assert_true(s.ecc && s.ecc_errors == 0 && s.xid == 0 && !s.reason[0]);
    s = state_of(1);
    assert_string_equal(s.uuid, "GPU-bbbb");
    assert_false(s.ecc);
    assert_string_equal(state_of(2).uuid, "GPU-aaaa");
    assert_false(gpu_watch_get(watch, 3, &s));
}

static void test_xid(void **state)
{
    (void)state;
    const uint32_t of_program = 31;
    say(WELL WELL);
    assert_int_equal(setenv("CUDA_VISIBLE_DEVICES", "0,1", 1), 0);
    open_watch(2);
    await(is_well, 1, NULL);
    say(WELL "GPU-bbbb H100 81559 1024 41 0 0 1:31\n");
    await(has_xid, 1, &of_program);
    assert_int_equal(state_of(1).health, GPU_WELL);
    say(WELL "GPU-bbbb H100 81559 1024 41 0 0 2:79\n");
    await(is_out, 1, "Xid 79");
    assert_int_equal(state_of(0).health, GPU_WELL);
    /* It stays out though nothing more is said, until an operator lets it back. */
    say(WELL "GPU-bbbb H100 81559 1024 41 0 0 3:31\n");
    await(has_xid, 1, &of_program);
    assert_int_equal(state_of(1).health, GPU_OUT);
    gpu_watch_release(watch, 1);
    await(is_well, 1, NULL);
}

static void test_ecc(void **state)
{
    (void)state;
    say(WELL);
    assert_int_equal(setenv("CUDA_VISIBLE_DEVICES", "GPU-aaaa", 1), 0);
    open_watch(1);
    await(is_well, 0, NULL);
    say("GPU-aaaa H100 81559 1024 41 2 0 0:0\n");
    await(is_out, 0, "2 uncorrected ECC errors");
    gpu_watch_release(watch, 0);
    await(is_well, 0, NULL);
    say("GPU-aaaa H100 81559 1024 41 3 0 0:0\n"); /* one that the operator has not seen */
    await(is_out, 0, "3 uncorrected");
}

static void test_lost(void **state)
{
    (void)state;
    say(WELL);
    assert_int_equal(setenv("CUDA_VISIBLE_DEVICES", "0,7", 1), 0);
    open_watch(2);
    await(is_out, 1, "no GPU '7'");
    assert_int_equal(state_of(0).health, GPU_WELL);
    say("GPU-aaaa H100 81559 1024 41 0 15 0:0\n");
    await(is_out, 0, "fallen off the bus");
    gpu_watch_release(watch, 0); /* it is lost still */
    (void)uv_run(&loop, UV_RUN_ONCE);
    assert_int_equal(state_of(0).health, GPU_OUT);
    say(WELL);
    gpu_watch_release(watch, 0);
    await(is_well, 0, NULL);
}

/* Any call can say so, and it stays with the slot after the GPU has stopped saying it. */
static void test_reset(void **state)
{
    (void)state;
    say(WELL WELL);
    assert_int_equal(setenv("CUDA_VISIBLE_DEVICES", "0,1", 1), 0);
    open_watch(2);
    await(is_well, 1, NULL);
    say(WELL "GPU-bbbb H100 81559 1024 41 0 16 0:0\n");
    gpu_watch_release(watch, 1); /* has it looked at at once */
    await(is_out, 1, "the GPU needs a reset (NVML: GPU requires reset)");
    assert_int_equal(state_of(0).health, GPU_WELL);
    say(WELL "GPU-bbbb H100 81559 1024 44 0 0 1:31\n"); /* the event has it looked at */
    await(has_xid, 1, &(const uint32_t){31});
    assert_int_equal(state_of(1).health, GPU_OUT);
    gpu_watch_release(watch, 1);
    await(is_well, 1, NULL);
}

/* A worker's device has failed: its GPU is not used before it has been looked at. */
static void test_look(void **state)
{
    (void)state;
    say(WELL WELL);
    assert_int_equal(setenv("CUDA_VISIBLE_DEVICES", "0,1", 1), 0);
    open_watch(2);
    await(is_well, 1, NULL);
    say("GPU-aaaa H100 81559 1024 41 0 0 0:0\nGPU-bbbb H100 81559 1024 41 0 15 0:0\n");
    gpu_watch_look(watch, 1);
    assert_int_not_equal(state_of(1).health, GPU_WELL);
    assert_true(state_of(1).reason[0]);
    await(is_out, 1, "fallen off the bus");
    gpu_watch_look(watch, 0);
    assert_int_not_equal(state_of(0).health, GPU_OUT);
    await(is_well, 0, NULL);
    assert_int_equal(state_of(1).health, GPU_OUT);
    gpu_watch_look(watch, 1); /* what was wrong stays wrong until it is released */
    assert_non_null(strstr(state_of(1).reason, "fallen off the bus"));
    gpu_watch_look(watch, 2);
    gpu_watch_look(NULL, 0);
}

static void test_no_nvml(void **state)
{
    (void)state;
    struct titan_error err = {0};
    struct gpu_state s;
    const struct gpu_watch_options missing = {1, "/nowhere/libnvidia-ml.so.1", on_changed, NULL};
    assert_int_equal(gpu_watch_open(&loop, &missing, &watch, &err), TITAN_ENOTFOUND);
    assert_non_null(strstr(err.msg, "/nowhere"));
    assert_null(watch);
    assert_false(gpu_watch_get(NULL, 0, &s));
    gpu_watch_release(NULL, 0);
    say("init 9\n"); /* it is there, its driver is not */
    open_watch(1);
    struct patience_wait wait = {0};
    while (gpu_watch_get(watch, 0, &s) && patience_left(&wait))
        (void)uv_run(&loop, UV_RUN_ONCE);
    assert_false(gpu_watch_get(watch, 0, &s));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_values, setup, teardown),
        cmocka_unit_test_setup_teardown(test_xid, setup, teardown),
        cmocka_unit_test_setup_teardown(test_ecc, setup, teardown),
        cmocka_unit_test_setup_teardown(test_lost, setup, teardown),
        cmocka_unit_test_setup_teardown(test_reset, setup, teardown),
        cmocka_unit_test_setup_teardown(test_look, setup, teardown),
        cmocka_unit_test_setup_teardown(test_no_nvml, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
