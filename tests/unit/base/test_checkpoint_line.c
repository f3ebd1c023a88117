/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint_line.h: which checkpoints of a folder are on its run's line, whatever was written, left and damaged; lines
 * as text and back. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/checkpoint_line.h"
#include "base/cleanup.h"
#include "base/file.h"
#include "base/folder_owner.h"
#include "tests/support/root_dir.h"

/* line: as in a manifest; "": none; NULL: no manifest; "?": a damaged one. */
struct written {
    uint64_t step;
    const char *line;
};

static void write_all(const struct written *w)
{
    char name[128], text[512];
    for (; w->step; w++) {
        (void)snprintf(name, sizeof name, "folder/" CHECKPOINT_NAME, w->step);
        assert_int_equal(dir_make(root_path(name), NULL), TITAN_OK);
        (void)snprintf(name, sizeof name, "folder/" CHECKPOINT_NAME "/manifest.json", w->step);
        (void)snprintf(text, sizeof text,
                       "{\"format\":\"titan-checkpoint\",\"step\":%lu%s%s,\"recipe_hash\":\"0\",\"recipe\":\"\"}",
                       (unsigned long)w->step, w->line && *w->line ? ",\"line\":" : "", w->line ? w->line : "");
        if (w->line)
            assert_int_equal(file_replace(root_path(name), text, strlen(text), NULL), TITAN_OK);
    }
}

static void print_steps(const uint64_t *steps, size_t n, char ret[128])
{
    size_t used = 0;
    ret[0] = '\0';
    for (size_t i = 0; i < n; i++)
        used += (size_t)snprintf(ret + used, 128 - used, "%s%lu", i ? " " : "", (unsigned long)steps[i]);
}

static void test_folders(void **state)
{
    (void)state;
    static const struct {
        struct written all[8];
        const char *on, *left;
        uint64_t branches;
    } cases[] = {
        {{{0}}, "", "", 0},
        {{{10, ""}, {20, ""}}, "20 10", "", 0},
        {{{10, ""}, {20, ""}, {30, ""}, {25, "[[1,10]]"}}, "25 10", "30 20", 1}, /* back to 10 */
        {{{10, ""}, {20, "[[1,10]]"}, {30, ""}, {15, "[[1,10],[2,10]]"}}, "15 10", "30 20", 2},
        {{{10, ""}, {20, "[[1,10]]"}, {30, "[[1,10]]"}, {25, "[[1,10],[2,20]]"}}, "25 20 10", "30", 2},
        {{{10, ""}, {20, ""}, {25, "[[1,10]]"}, {30, "[[2,20]]"}}, "30 20 10", "25", 2}, /* back to what was left */
        {{{20, "[[1,10]]"}, {30, "[[1,10],[3,25]]"}, {40, "[[1,10],[2,20]]"}}, "30 20", "40", 3}, /* some are gone */
        {{{10, ""}, {20, ""}, {15, NULL}, {30, "?"}, {12, "[[1,10]]"}}, "30 15 12 10", "20", 1},
        {{{10, ""}, {20, "[[2,10],[1,5]]"}, {30, "[[1,-1]]"}}, "30 20 10", "", 0}, /* no such lines */
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        _cleanup_(checkpoint_line_list_clear) struct checkpoint_line_list list = {0};
        struct titan_error err = {0};
        char on[128], left[128];
        uint64_t newest;
        bool any;
        assert_int_equal(dir_remove(root_path("folder"), NULL), TITAN_OK);
        assert_int_equal(dir_make(root_path("folder"), NULL), TITAN_OK);
        write_all(cases[i].all);
        _cleanup_fd_ int at = open(root_path("folder"), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (checkpoint_line_list(at, &list, &err) != TITAN_OK)
            fail_msg("case %zu: %s", i, err.msg);
        print_steps(list.steps, list.n, on);
        print_steps(list.left, list.n_left, left);
        if (strcmp(on, cases[i].on) != 0 || strcmp(left, cases[i].left) != 0 || list.branches != cases[i].branches)
            fail_msg("case %zu: '%s' left '%s', %lu branches", i, on, left, (unsigned long)list.branches);
        assert_int_equal(folder_newest_step(root_path("folder"), &newest, &any, NULL), TITAN_OK);
        assert_true(any == (list.n > 0) && newest == (any ? list.steps[0] : 0));
        for (size_t k = 0; k < list.n; k++)
            assert_true(folder_has_step(root_path("folder"), list.steps[k]));
    }
}

/* A manifest that is of another step than its folder says nothing of the line. */
static void test_other_step(void **state)
{
    (void)state;
    _cleanup_(checkpoint_line_list_clear) struct checkpoint_line_list list = {0};
    assert_int_equal(dir_remove(root_path("folder"), NULL), TITAN_OK);
    assert_int_equal(dir_make(root_path("folder"), NULL), TITAN_OK);
    write_all((struct written[]){{10, ""}, {20, ""}, {12, "[[1,10]]"}, {0}});
    assert_int_equal(rename(root_path("folder/step-00000012"), root_path("folder/step-00000013")), 0);
    _cleanup_fd_ int at = open(root_path("folder"), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_int_equal(checkpoint_line_list(at, &list, NULL), TITAN_OK);
    assert_true(list.n == 3 && list.steps[0] == 20 && list.n_left == 0 && list.line.n == 0);
}

static void free_json(struct json **parsed)
{
    json_free(*parsed);
}

/* More branches than there is room for: the earliest go. */
static void test_going_back(void **state)
{
    (void)state;
    struct checkpoint_line line = {0}, again;
    for (uint64_t i = 1; i <= CHECKPOINT_BRANCHES_MAX + 3; i++)
        checkpoint_line_go_back(&line, i, 10 * i);
    assert_int_equal(line.n, CHECKPOINT_BRANCHES_MAX);
    assert_true(line.branch[0].number == 4 && line.branch[line.n - 1].from == 10 * (CHECKPOINT_BRANCHES_MAX + 3));
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    _cleanup_(free_json) struct json *parsed = NULL;
    struct json_writer w = {.out = &text};
    json_begin_object(&w, NULL);
    checkpoint_line_print(&line, &w);
    json_end_object(&w);
    assert_int_equal(json_parse(text.data, text.len, &parsed, NULL), TITAN_OK);
    assert_int_equal(checkpoint_line_parse(parsed, &again, NULL), TITAN_OK);
    assert_memory_equal(&again, &line, sizeof line);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_folders), cmocka_unit_test(test_other_step),
                                       cmocka_unit_test(test_going_back)};
    return cmocka_run_group_tests(tests, make_root, remove_root);
}
