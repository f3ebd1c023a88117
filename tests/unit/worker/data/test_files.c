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

#include "base/buf.h"
#include "base/cleanup.h"
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

static const char *left_out(void)
{
    static char text[1024];
    _cleanup_(buf_free) struct buf out = BUF_INIT;
    data_left_out_print(&files.left_out, &out);
    (void)snprintf(text, sizeof(text), "%s", out.len ? out.data : "");
    return text;
}

/* By the bytes of their paths, one root behind the other; nothing empty, nothing that is no file. */
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
    assert_int_equal(data_files_add(&files, below("b"), &err), TITAN_OK);
    assert_int_equal(data_files_add(&files, below("a"), &err), TITAN_OK);
    assert_string_equal(listed(), "/b 1\n/a/B 5\n/a/b/10 10\n/a/b/2 2\n");
    assert_int_equal(files.bytes, 18);
    assert_int_equal(data_left_out_count(&files.left_out), 0);
    assert_int_equal(data_files_add(&files, below("a/empty"), &err), TITAN_OK);
    assert_int_equal(files.n, 4);
}

/* As a hub's cache has it: names are links to files elsewhere. What leads nowhere, or back, is counted; and what is
 * there under its own name comes once. */
static void test_links(void **state)
{
    (void)state;
    struct titan_error err = {0};
    assert_int_equal(mkdir(below("blobs"), 0755), 0);
    assert_int_equal(mkdir(below("a"), 0755), 0);
    put("blobs/x", 7);
    put("a/own", 3);
    assert_int_equal(symlink("../blobs/x", below("a/one")), 0);
    assert_int_equal(symlink("../blobs", below("a/folder")), 0);
    assert_int_equal(symlink("own", below("a/again")), 0);
    assert_int_equal(symlink("nowhere", below("a/broken")), 0);
    assert_int_equal(symlink("self", below("a/self")), 0);
    assert_int_equal(symlink("..", below("a/up")), 0);
    assert_int_equal(data_files_add(&files, below("a"), &err), TITAN_OK);
    data_files_select(&files, 0, below("a"), SPLIT_TRAINING);
    assert_string_equal(listed(), "/a/folder/x 7\n/a/one 7\n/a/own 3\n/a/up/blobs/x 7\n");
    assert_int_equal(files.bytes, 24);
    assert_int_equal(files.left_out.by[OMITTED_BROKEN].n, 3);
    assert_int_equal(files.left_out.by[OMITTED_TWICE].n, 1);
    assert_non_null(strstr(left_out(), "3 broken links (first /tmp/"));
    assert_non_null(strstr(left_out(), "1 links to files that are read anyway (/tmp/"));
}

static const char *selected(const char *path, enum data_split split)
{
    struct titan_error err = {0};
    data_files_clear(&files);
    if (data_files_add(&files, path, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    data_files_select(&files, 0, path, split);
    return listed();
}

/* What is held out from training goes by words of names, unless the path has such a word itself. */
static void test_held_out(void **state)
{
    (void)state;
    static const char *const names[] = {"a/interval.txt", "a/fineweb_val_0.bin", "a/VALID-1", "a/test.txt", "a/evals"};
    assert_int_equal(mkdir(below("a"), 0755), 0);
    assert_int_equal(mkdir(below("a/validation"), 0755), 0);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        put(names[i], 1);
    put("a/validation/x", 1);
    assert_string_equal(selected(below("a"), SPLIT_TRAINING), "/a/evals 1\n/a/interval.txt 1\n/a/test.txt 1\n");
    assert_int_equal(files.left_out.by[OMITTED_HELD_OUT].n, 3);
    assert_string_equal(selected(below("a"), SPLIT_HELD_OUT),
                        "/a/VALID-1 1\n/a/fineweb_val_0.bin 1\n/a/validation/x 1\n");
    assert_int_equal(files.left_out.by[OMITTED_TRAINING].n, 3);
    put("a/train.0", 1); /* names of splits: a test is one, too */
    assert_string_equal(selected(below("a"), SPLIT_TRAINING), "/a/evals 1\n/a/interval.txt 1\n/a/train.0 1\n");
    assert_string_equal(selected(below("a/validation"), SPLIT_TRAINING), "/a/validation/x 1\n");
    assert_string_equal(selected(below("a/VALID-1"), SPLIT_TRAINING), "/a/VALID-1 1\n");
    assert_string_equal(selected(below("a/*_val_*"), SPLIT_TRAINING), "/a/fineweb_val_0.bin 1\n");
    assert_string_equal(selected(below("a/*.bin"), SPLIT_HELD_OUT), "/a/fineweb_val_0.bin 1\n");
    struct titan_error err = {0};
    assert_string_equal(selected(below("a/*.bin"), SPLIT_TRAINING), "");
    assert_int_equal(data_files_none(&files, "X", &err), TITAN_EINVAL);
    assert_non_null(strstr(err.msg, "'X' has no files to read; left out: 1 held out by name (/tmp/"));
    assert_non_null(strstr(err.hint, "names it"));
}

static void test_patterns(void **state)
{
    (void)state;
    struct titan_error err = {0};
    char many[64] = "x";
    assert_int_equal(mkdir(below("a"), 0755), 0);
    assert_int_equal(mkdir(below("b"), 0755), 0);
    put("a/1.txt", 1);
    put("a/2.txt", 2);
    put("a/3", 3);
    put("b/1.txt", 4);
    put("b/[1].txt", 5);
    assert_string_equal(selected(below("a/*.txt"), SPLIT_TRAINING), "/a/1.txt 1\n/a/2.txt 2\n");
    assert_int_equal(strcmp(files.file[0].path + files.file[0].name, "/1.txt"), 0);
    assert_string_equal(selected(below("{b,a}/1*"), SPLIT_TRAINING), "/a/1.txt 1\n/b/1.txt 4\n");
    assert_string_equal(selected(below("a/{1,?}.txt"), SPLIT_TRAINING), "/a/1.txt 1\n/a/2.txt 2\n"); /* each once */
    assert_int_equal(files.bytes, 3);
    assert_string_equal(selected(below("[ab]"), SPLIT_TRAINING),
                        "/a/1.txt 1\n/a/2.txt 2\n/a/3 3\n/b/1.txt 4\n/b/[1].txt 5\n");
    assert_string_equal(selected(below("b/[1].txt"), SPLIT_TRAINING), "/b/[1].txt 5\n"); /* the very name comes first */
    assert_int_equal(data_files_add(&files, below("c/*"), &err), TITAN_ENOTFOUND);
    assert_non_null(strstr(err.msg, "/c/*': no file matches the pattern"));
    /* of a list each path must be there */
    assert_string_equal(selected(below("{a/3,b/{1,9}.txt,a/?.txt}"), SPLIT_TRAINING),
                        "/a/1.txt 1\n/a/2.txt 2\n/a/3 3\n/b/1.txt 4\n");
    assert_int_equal(strcmp(files.file[0].path + files.file[0].name, "/a/1.txt"), 0);
    assert_int_equal(data_files_add(&files, below("{a,none}"), &err), TITAN_ENOTFOUND);
    assert_non_null(strstr(err.msg, "/none': No such file or directory"));
    assert_int_equal(data_files_add(&files, below("{a,b/*.md}"), &err), TITAN_ENOTFOUND);
    assert_non_null(strstr(err.msg, "/b/*.md': no file matches the pattern"));
    assert_int_equal(data_files_add(&files, below("{a"), &err), TITAN_ENOTFOUND);
    for (int i = 0; i < 11; i++)
        memcpy(many + 1 + i * 5, "{a,b}", 6);
    assert_int_equal(data_files_add(&files, many, &err), TITAN_EINVAL);
    assert_non_null(strstr(err.msg, "more than 1024 patterns"));
}

/* Where the process refuses links, they are counted. It does for good: the last of the tests. */
static void test_refused_links(void **state)
{
    (void)state;
    struct titan_error err = {0};
    assert_int_equal(mkdir(below("a"), 0755), 0);
    assert_int_equal(mkdir(below("b"), 0755), 0);
    put("a/own", 3);
    put("b/x", 1);
    assert_int_equal(symlink("../b/x", below("a/link")), 0);
    assert_int_equal(symlink("../b", below("a/folder")), 0);
    file_refuse_links();
    assert_string_equal(selected(below("a"), SPLIT_TRAINING), "/a/own 3\n");
    assert_int_equal(files.left_out.by[OMITTED_LINK].n, 2);
    assert_int_equal(data_files_add(&files, below("a/folder/*"), &err), TITAN_ENOTFOUND);
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
    data_leave_out(&files.left_out, OMITTED_UNREADABLE, "/one", EACCES);
    data_leave_out(&files.left_out, OMITTED_UNREADABLE, "/two", EIO);
    assert_int_equal(data_left_out_count(&files.left_out), 2);
    assert_string_equal(left_out(), "2 unreadable (first /one: Permission denied)");
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
        cmocka_unit_test_setup_teardown(test_links, setup, teardown),
        cmocka_unit_test_setup_teardown(test_held_out, setup, teardown),
        cmocka_unit_test_setup_teardown(test_patterns, setup, teardown),
        cmocka_unit_test_setup_teardown(test_missing, setup, teardown),
        cmocka_unit_test_setup_teardown(test_names, setup, teardown),
        cmocka_unit_test_setup_teardown(test_memory, setup, teardown),
        cmocka_unit_test_setup_teardown(test_refused_links, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
