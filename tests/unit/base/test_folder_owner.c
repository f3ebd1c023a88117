/* SPDX-License-Identifier: Apache-2.0 */
/* Users of folders: as text and back, and which two are the same. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/folder_owner.h"

static struct folder_user user(const char *name, int64_t uid)
{
    struct folder_user u = {.uid = uid};
    (void)snprintf(u.name, sizeof(u.name), "%s", name);
    return u;
}

static void test_texts(void **state)
{
    (void)state;
    static const struct {
        const char *name, *text;
        int64_t uid;
    } cases[] = {{"alice", "uid:1001 alice", 1001},
                 {"uid:7", "uid:7 uid:7", 7},
                 {"ci", "user:ci", -1},
                 {"uid:5 root", "user:uid:5 root", -1}};
    static const char *const bad[] = {
        "", "alice", "uid:", "uid:5", "uid:5 ", "uid:-1 root", "uid:x y", "user:", "uid:4294967295 x", "uid: 0 root"};
    char text[FOLDER_USER_TEXT];
    struct folder_user again;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        const struct folder_user u = user(cases[i].name, cases[i].uid);
        folder_user_print(&u, text);
        assert_string_equal(text, cases[i].text);
        assert_true(folder_user_parse(text, &again));
        assert_string_equal(again.name, u.name);
        assert_int_equal(again.uid, u.uid);
    }
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        assert_false(folder_user_parse(bad[i], &again));
        assert_true(!again.name[0] && again.uid == -1);
    }
}

static void test_same(void **state)
{
    (void)state;
    const struct folder_user alice = user("alice", 1001), renamed = user("alicia", 1001), other = user("alice", 1002),
                             token = user("alice", -1), none = user("", -1);
    assert_true(folder_user_same(&alice, &renamed));
    assert_false(folder_user_same(&alice, &other));
    assert_true(folder_user_same(&alice, &token) && folder_user_same(&token, &alice));
    assert_false(folder_user_same(&none, &none) || folder_user_same(&none, &alice));
}

/* The file governs the folder and what lies in it, three levels deep; what is not there yet as well. */
static void test_above(void **state)
{
    (void)state;
    static const char file[] = "{\"format\":\"titan-owner\",\"id\":\"job-5-0\",\"user\":\"alice\",\"uid\":1001}";
    static const struct {
        const char *below;
        bool there;
    } cases[] = {{"", true},           {"/step-00000004", true}, {"/step-00000004/hf/tokenizer.json", true},
                 {"/not/there", true}, {"/a/b/c/d", false},      {"/..", false}};
    char dir[] = "/tmp/titan-owner-XXXXXX", path[256];
    struct folder_found found = {0};
    assert_non_null(mkdtemp(dir));
    (void)snprintf(path, sizeof(path), "%s/step-00000004/hf", dir);
    assert_int_equal(dir_make(path, NULL), TITAN_OK);
    (void)snprintf(path, sizeof(path), "%s/a/b/c/d", dir);
    assert_int_equal(dir_make(path, NULL), TITAN_OK);
    (void)snprintf(path, sizeof(path), "%s/step-00000004/hf/tokenizer.json", dir);
    assert_int_equal(file_replace(path, "{}", 2, NULL), TITAN_OK);
    (void)snprintf(path, sizeof(path), "%s/" FOLDER_OWNER_NAME, dir);
    assert_int_equal(file_replace(path, file, strlen(file), NULL), TITAN_OK);
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        (void)snprintf(path, sizeof(path), "%s%s", dir, cases[i].below);
        assert_int_equal(folder_owner_above(path, &found, NULL), TITAN_OK);
        assert_true(found.there == cases[i].there);
        assert_int_equal(found.user.uid, cases[i].there ? 1001 : 0);
    }
    assert_int_equal(folder_owner_above("relative", &found, NULL), TITAN_EINVAL);
    folder_found_clear(&found);
    _cleanup_fd_ int at = open("/tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_int_equal(dir_remove_at(at, dir + strlen("/tmp/"), NULL), TITAN_OK);
}

/* What the coordinator has seen is admitted as long as it is still that. */
static void test_admits(void **state)
{
    (void)state;
    const struct folder_user bob = user("bob", 1002);
    struct folder_found f = {.there = true, .id = "job-5-0", .user = user("alice", 1001)};
    assert_false(folder_admits(&f, &bob, "") || folder_admits(&f, &bob, "uid:1003 carol"));
    assert_true(folder_admits(&f, &bob, "uid:1001 alice") && folder_admits(&f, &bob, "*"));
    f.user = user("", -1);
    assert_false(folder_admits(&f, &bob, "") || folder_admits(&f, &bob, "run:job-6-0"));
    assert_true(folder_admits(&f, &bob, "run:job-5-0"));
    f.user = user("robert", 1002);
    assert_true(folder_admits(&f, &bob, ""));
    f.there = false;
    assert_true(folder_admits(&f, &bob, ""));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_texts),
        cmocka_unit_test(test_same),
        cmocka_unit_test(test_above),
        cmocka_unit_test(test_admits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
