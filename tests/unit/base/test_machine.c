/* SPDX-License-Identifier: Apache-2.0 */
/* Which GPUs this process may use: from a made-up environment and a made-up /dev. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/machine.h"

static char devices[64];

static int setup(void **state)
{
    (void)state;
    (void)snprintf(devices, sizeof(devices), "/tmp/titan-dev-XXXXXX");
    return mkdtemp(devices) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    return dir_remove(devices, NULL) == TITAN_OK ? 0 : -1;
}

static void device(const char *name)
{
    char path[128];
    (void)snprintf(path, sizeof(path), "%s/%s", devices, name);
    assert_int_equal(file_replace(path, "", 0, NULL), TITAN_OK);
}

static void slot_is(const char *visible, uint32_t slot, const char *expected)
{
    char out[128] = "untouched";
    assert_int_equal(machine_gpu_in(visible, devices, slot, out), expected != NULL);
    assert_string_equal(out, expected ? expected : "untouched");
}

/* Two of eight, as Slurm gives them: slots are these two, and a third gets none. */
static void test_visible(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++) {
        char name[16];
        (void)snprintf(name, sizeof(name), "nvidia%d", i);
        device(name);
    }
    assert_int_equal(machine_gpus_in("4,6", devices), 2);
    slot_is("4,6", 0, "4");
    slot_is("4,6", 1, "6");
    slot_is("4,6", 2, NULL);
    slot_is("4,6", 7, NULL);
    assert_int_equal(machine_gpus_in("GPU-8932f937-d72c,MIG-5c89852c", devices), 2);
    slot_is("GPU-8932f937-d72c, MIG-5c89852c", 1, "MIG-5c89852c");
}

/* A name of 127 letters is one; the list ends at a longer one. */
static void test_longest_name(void **state)
{
    (void)state;
    char name[129];
    (void)snprintf(name, sizeof(name), "GPU-%0123d", 7);
    assert_int_equal(machine_gpus_in(name, devices), 1);
    slot_is(name, 0, name);
    (void)snprintf(name, sizeof(name), "GPU-%0124d", 7);
    assert_int_equal(machine_gpus_in(name, devices), 0);
    slot_is(name, 0, NULL);
}

/* CUDA stops at the first entry that names no GPU. */
static void test_none_visible(void **state)
{
    (void)state;
    device("nvidia0");
    static const char *const none[] = {"", "-1", "NoDevFiles", ",0", " ", "none"};
    for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++) {
        assert_int_equal(machine_gpus_in(none[i], devices), 0);
        slot_is(none[i], 0, NULL);
    }
    assert_int_equal(machine_gpus_in("0,-1,1", devices), 1);
    slot_is("0,-1,1", 2, NULL);
}

/* Without the variable: what can be opened, counted from 0 as CUDA does. */
static void test_devices(void **state)
{
    (void)state;
    char path[128];
    static const char *const names[] = {"nvidia0", "nvidia3", "nvidiactl", "nvidia-uvm"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        device(names[i]);
    (void)snprintf(path, sizeof(path), "%s/nvidia1", devices);
    assert_int_equal(symlink("/nowhere/at/all", path), 0); /* is there, cannot be opened */
    assert_int_equal(machine_gpus_in(NULL, devices), 2);
    slot_is(NULL, 1, "1");
    slot_is(NULL, 2, NULL);
    assert_int_equal(machine_gpus_in(NULL, "/nowhere/at/all"), 0);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {TEST(test_visible), TEST(test_longest_name), TEST(test_none_visible),
                                       TEST(test_devices)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
