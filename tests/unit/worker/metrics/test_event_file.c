/* SPDX-License-Identifier: Apache-2.0 */
/* event_file.h: framing and checksums of records, and a disk that is full in the middle of one. What is in them is read
 * by TensorBoard's own package in tests/interop/test_tensorboard.py. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/crc32c.h"
#include "base/file.h"
#include "tests/support/patience.h"
#include "worker/metrics/event_file.h"

static const struct event_scalar scalars[] = {{"loss", 2.5}, {"lr", 1e-3}};

static char folder[] = "/tmp/titan-events-XXXXXX";

static uint32_t masked(const char *data, size_t len)
{
    const uint32_t crc = crc32c_portable(0, data, len);
    return (uint32_t)((crc >> 15 | (uint64_t)crc << 17) + 0xa282ead8U);
}

/* Records in the open file, all whole and with the checksums of the format. */
static int records(const struct event_file *f)
{
    char path[64], text[4096];
    size_t at = 0;
    int n = 0;

    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", f->fd);
    FILE *file = fopen(path, "re");
    assert_non_null(file);
    const size_t all = fread(text, 1, sizeof text, file);
    (void)fclose(file);
    while (at < all) {
        uint64_t len;
        uint32_t crc[2];
        assert_true(all - at >= 16);
        memcpy(&len, text + at, 8);
        memcpy(&crc[0], text + at + 8, 4);
        assert_int_equal(crc[0], masked(text + at, 8));
        assert_true(len <= all - at - 16);
        memcpy(&crc[1], text + at + 12 + len, 4);
        assert_int_equal(crc[1], masked(text + at + 12, (size_t)len));
        at += 16 + (size_t)len;
        n++;
    }
    return n;
}

static void records_are_framed(void **state)
{
    struct event_file f = {.fd = -1};
    struct titan_error err = {0};

    (void)state;
    assert_int_equal(event_file_open(&f, folder, &err), TITAN_OK);
    assert_int_equal(records(&f), 1); /* the version */
    assert_int_equal(event_file_add(&f, 1, 1000, scalars, 2, &err), TITAN_OK);
    assert_int_equal(records(&f), 3); /* and the session's start */
    assert_int_equal(event_file_add(&f, 2, 2000, scalars, 1, &err), TITAN_OK);
    assert_int_equal(records(&f), 4);
    event_file_close(&f);
    assert_int_equal(f.fd, -1);
}

static void a_full_disk_leaves_whole_records(void **state)
{
    struct event_file f = {.fd = -1};
    struct titan_error err = {0};
    struct rlimit before, limit;
    struct stat st;

    (void)state;
    patience_pause_ms(2, "files are named by the millisecond");
    assert_int_equal(event_file_open(&f, folder, &err), TITAN_OK);
    assert_int_equal(event_file_add(&f, 1, 1000, scalars, 2, &err), TITAN_OK);
    assert_int_equal(fstat(f.fd, &st), 0);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    (void)signal(SIGXFSZ, SIG_IGN);
    limit = before;
    limit.rlim_cur = (rlim_t)st.st_size + 20; /* in the middle of a record */
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    assert_int_not_equal(event_file_add(&f, 2, 2000, scalars, 2, &err), TITAN_OK);
    assert_non_null(strstr(err.msg, "event file"));
    assert_int_equal(records(&f), 3);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(event_file_add(&f, 3, 3000, scalars, 2, &err), TITAN_OK);
    assert_int_equal(records(&f), 4);
    event_file_close(&f);
}

static void a_full_disk_leaves_no_empty_file(void **state)
{
    char empty[] = "/tmp/titan-events-XXXXXX";
    struct event_file f = {.fd = -1};
    struct titan_error err = {0};
    struct rlimit before, limit;

    (void)state;
    assert_non_null(mkdtemp(empty));
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    (void)signal(SIGXFSZ, SIG_IGN);
    limit = before;
    limit.rlim_cur = 20; /* in the middle of the version */
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    assert_int_not_equal(event_file_open(&f, empty, &err), TITAN_OK);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(f.fd, -1);
    assert_int_equal(rmdir(empty), 0);
}

static void a_folder_that_cannot_be_made(void **state)
{
    struct event_file f = {.fd = -1};
    struct titan_error err = {0};

    (void)state;
    assert_int_not_equal(event_file_open(&f, "/proc/titan/tb", &err), TITAN_OK);
    assert_non_null(strstr(err.msg, "/proc/titan"));
    assert_int_equal(f.fd, -1);
}

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    return dir_remove(folder, NULL) == TITAN_OK ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(records_are_framed),
        cmocka_unit_test(a_full_disk_leaves_whole_records),
        cmocka_unit_test(a_full_disk_leaves_no_empty_file),
        cmocka_unit_test(a_folder_that_cannot_be_made),
    };
    return cmocka_run_group_tests_name("event_file", tests, make_folder, remove_folder);
}
