/* SPDX-License-Identifier: Apache-2.0 */
/* test_help.c - what is printed about the commands, and the files made from it. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <string.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "ctl/completion.h"
#include "ctl/help.h"

/* The file in the tree is what the program prints. */
static void file_is(const char *path, void (*print)(struct buf *))
{
    _cleanup_(buf_free) struct buf stored = BUF_INIT, printed = BUF_INIT;
    char full[512];
    (void)snprintf(full, sizeof(full), "%s/%s", TITAN_SOURCE_DIR, path);
    assert_int_equal(file_read(full, 1 << 20, &stored, NULL), TITAN_OK);
    print(&printed);
    if (strcmp(stored.data, printed.data) != 0)
        fail_msg("%s is not what titanctl prints: write it again (first line says how)", path);
}

static void test_files(void **state)
{
    (void)state;
    file_is("docs/man/titanctl.1", help_man);
    file_is("ctl/titanctl.bash", completion_bash);
    file_is("ctl/titanctl.zsh", completion_zsh);
    file_is("ctl/titanctl.fish", completion_fish);
}

static void test_commands(void **state)
{
    (void)state;
    _cleanup_(buf_free) struct buf overview = BUF_INIT, man = BUF_INIT;
    help_overview(&overview);
    help_man(&man);
    for (size_t i = 0; titanctl.commands[i]; i++) {
        const struct command *c = titanctl.commands[i];
        _cleanup_(buf_free) struct buf text = BUF_INIT;
        assert_ptr_equal(command_find(&titanctl, c->name), c);
        assert_non_null(strstr(overview.data, c->name));
        assert_non_null(strstr(overview.data, c->summary));
        assert_true(c->examples && c->examples[0].line);
        for (const struct example *e = c->examples; e->line; e++) {
            assert_non_null(strstr(e->line, c->name));
            assert_non_null(e->what);
        }
        help_put_command(&titanctl, c, &text);
        assert_non_null(strstr(text.data, "examples\n"));
        for (const struct option_spec *o = c->options; o && o->name; o++) {
            assert_non_null(strstr(text.data, o->name));
            /* no letter twice, none of a global option's */
            for (const struct option_spec *other = o + 1; other->name; other++)
                assert_true(!o->letter || o->letter != other->letter);
            for (const struct option_spec *global = titanctl.options; global->name; global++)
                assert_true(!o->letter || o->letter != global->letter);
        }
    }
}

/* Lines of help fit a terminal of usual width. */
static void test_width(void **state)
{
    (void)state;
    for (size_t i = 0; titanctl.commands[i]; i++) {
        _cleanup_(buf_free) struct buf text = BUF_INIT;
        help_put_command(&titanctl, titanctl.commands[i], &text);
        for (const char *line = text.data; *line;) {
            size_t len = strcspn(line, "\n");
            if (len > 120)
                fail_msg("%s --help: %.*s", titanctl.commands[i]->name, (int)len, line);
            line += len + (line[len] == '\n');
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_files), cmocka_unit_test(test_commands),
                                       cmocka_unit_test(test_width)};
    return cmocka_run_group_tests_name("help", tests, NULL, NULL);
}
