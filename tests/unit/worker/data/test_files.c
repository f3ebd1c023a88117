/* SPDX-License-Identifier: Apache-2.0 */
/* The files that a path of training data stands for: which, in what order, and what is no file of it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <limits.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "worker/data/files.h"

static char folder[64];
static struct data_files files;

static const char *below(const char *name)
{
    static char path[PATH_MAX];
    (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
    return path;
}

static void put(const char *name, size_t bytes)
{
    char text[64] = "";
    assert_true(bytes <= sizeof(text));
    FILE *f = fopen(below(name), "we");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, bytes, f), bytes);
    assert_int_equal(fclose(f), 0);
}

static int setup(void **state)
{
    (void)state;
    (void)snprintf(folder, sizeof(folder), "/tmp/titan-files-XXXXXX");
    assert_non_null(mkdtemp(folder));
    memset(&files, 0, sizeof(files));
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    data_files_clear(&files);
    return dir_remove(folder, NULL) == TITAN_OK ? 0 : -1;
}

/* Names below the folder, each with its bytes. */
static const char *listed(void)
{
    static char text[512];
    size_t n = 0;
    text[0] = '\0';
    for (size_t i = 0; i < files.n; i++) {
        assert_int_equal(strncmp(files.file[i].path, folder, strlen(folder)), 0);
        assert_true(files.file[i].changed_ns > 0);
        n += (size_t)snprintf(text + n, sizeof(text) - n, "%s %d\n", files.file[i].path + strlen(folder),
                              (int)files.file[i].bytes);
    }
    return text;
}

/* By the bytes of their paths, one root behind the other; no links, nothing empty, nothing that is no file. */
static void test_list(void **state)
{
    (void)state;
    struct titan_error err = {0};
    assert_int_equal(mkdir(below("a"), 0755), 0);
    assert_int_equal(mkdir(below("a/b"), 0755), 0);
    put("a/b/2", 2);
    put("a/b/10", 10);
    put("a/B", 5);
    put("a/empty", 0);
    put("b", 1);
    put("elsewhere", 9);
    assert_int_equal(mkfifo(below("a/fifo"), 0644), 0);
    assert_int_equal(symlink("../elsewhere", below("a/link")), 0);
    assert_int_equal(symlink("..", below("a/up")), 0);
    assert_int_equal(data_files_add(&files, below("b"), &err), TITAN_OK);
    assert_int_equal(data_files_add(&files, below("a"), &err), TITAN_OK);
    assert_string_equal(listed(), "/b 1\n/a/B 5\n/a/b/10 10\n/a/b/2 2\n");
    assert_int_equal(files.bytes, 18);
    assert_int_equal(files.left_out, 0);
    assert_int_equal(data_files_add(&files, below("a/empty"), &err), TITAN_OK);
    assert_int_equal(files.n, 4);
}

static void test_missing(void **state)
{
    (void)state;
    struct titan_error err = {0};
    assert_int_equal(data_files_add(&files, below("none"), &err), TITAN_ENOTFOUND);
    assert_non_null(strstr(err.msg, "/none': No such file or directory"));
    put("file", 1);
    assert_int_equal(data_files_add(&files, below("file/x"), &err), TITAN_EINVAL);
    assert_non_null(strstr(err.msg, "/file/x': Not a directory"));
    data_files_leave_out(&files, "/one", EACCES);
    data_files_leave_out(&files, "/two", EIO);
    assert_int_equal(files.left_out, 2);
    assert_string_equal(files.first_left.msg, "training data '/one': Permission denied");
}

static void test_names(void **state)
{
    (void)state;
    static const struct {
        const char *path, *packing;
        bool json;
    } rows[] = {{"a.json", "", true},
                {"/b/A.JSON", "", true},
                {"a.json.gz", ".gz", true},
                {"a.json.zst", ".zst", true},
                {"a.json.zst.gz", ".gz", false},
                {"ajson", "", false},
                {"a.json.g", "", false},
                {"json", "", false},
                {"", "", false},
                {"a.jsonl", "", false}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        assert_string_equal(data_file_packing(rows[i].path), rows[i].packing);
        assert_int_equal(data_file_is(rows[i].path, ".json"), rows[i].json);
    }
}

/* What a look takes it gives back; of a build with sanitizers they notice that, too. */
static void test_memory(void **state)
{
    (void)state;
    enum { LOOKS = 200, LEAST = 512 /* bytes that one look would keep */ };
    struct titan_error err = {0};
    size_t before = 0;
    put("file", 1);
    for (int i = 0; i < LOOKS; i++) {
        before = i == 10 ? mallinfo2().uordblks : before;
        assert_int_equal(data_files_add(&files, folder, &err), TITAN_OK);
        data_files_clear(&files);
    }
    assert_true(mallinfo2().uordblks < before + (size_t)LOOKS * LEAST);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_list, setup, teardown),
        cmocka_unit_test_setup_teardown(test_missing, setup, teardown),
        cmocka_unit_test_setup_teardown(test_names, setup, teardown),
        cmocka_unit_test_setup_teardown(test_memory, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
