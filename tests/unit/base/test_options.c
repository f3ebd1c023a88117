/* SPDX-License-Identifier: Apache-2.0 */
/* options.h: a program of its own; tests/unit/ctl/test_options.c parses with titanctl's tables. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "base/cleanup.h"
#include "base/options.h"

#define LONG_HELP                                                                                                      \
    "how many of them there are to be, at least one, and as many as there are slots for when nothing is said about "   \
    "it at all, neither here nor in the file"

static titan_status run(void *with, const struct args *args, struct titan_error *err)
{
    (void)args;
    (void)err;
    ++*(int *)with;
    return TITAN_OK;
}

static const struct option_spec options[] = {{"help", 'h', NULL, "how it is used", WORD_NONE}, {NULL}};
static const struct command brew = {
    .name = "brew",
    .summary = "make some",
    .arguments = "POT [CUP]...",
    .min_args = 1,
    .max_args = ANY_NUMBER,
    .options = (const struct option_spec[]){{"cups", 'c', "N", LONG_HELP, WORD_NONE},
                                            {"strong", 0, NULL, "twice the beans", WORD_NONE},
                                            {NULL}},
    .examples = (const struct example[]){{"pot brew blue -c 2", "for two"}, {NULL}},
    .run = run,
};
static const struct command clean = {.name = "clean", .summary = "make none", .arguments = "", .run = run};
static const struct command_table pot = {.name = "pot",
                                         .noun = "verb",
                                         .commands = (const struct command *const[]){&brew, &clean, NULL},
                                         .options = options};

static void refused(const char *message, const char *hint, int argc, char **argv)
{
    struct args args;
    struct titan_error err = {0};
    assert_int_equal(args_parse(&pot, argc, argv, &args, &err), TITAN_EINVAL);
    assert_string_equal(err.msg, message);
    assert_string_equal(err.hint, hint);
}
#define REFUSED(message, hint, ...)                                                                                    \
    refused(message, hint, (int)ARRAY_SIZE(((char *[]){"pot", __VA_ARGS__})), (char *[]){"pot", __VA_ARGS__, NULL})

static void test_parse(void **state)
{
    (void)state;
    struct args args;
    struct titan_error err;
    int made = 0;
    assert_int_equal(args_parse(&pot, 5, (char *[]){"pot", "brew", "-c2", "blue", "--strong", NULL}, &args, &err), 0);
    assert_ptr_equal(args.command, &brew);
    assert_true(args_has(&args, "strong") && args.n == 1);
    assert_string_equal(args_text(&args, "cups", "1"), "2");
    assert_int_equal(args.command->run(&made, &args, &err), TITAN_OK);
    assert_int_equal(made, 1);
    assert_int_equal(args_parse(&pot, 1, (char *[]){"pot", NULL}, &args, &err), TITAN_OK);
    assert_null(args.command);
    REFUSED("unknown verb 'brw'", "did you mean brew?", "brw");
    REFUSED("unknown verb 'dance'", "pot --help lists them", "dance");
    REFUSED("brew: unknown option --cup", "did you mean --cups?", "brew", "--cup", "1");
    REFUSED("clean: unknown option -c", "pot clean --help lists them", "clean", "-c");
    REFUSED("brew: POT [CUP]... is missing", "usage: pot brew [OPTION]... POT [CUP]...", "brew");
    REFUSED("clean: unexpected argument 'all'", "usage: pot clean [OPTION]...", "clean", "all");
}

static void test_numbers(void **state)
{
    (void)state;
    int64_t n = 0;
    assert_true(args_read_int("-7", &n) && n == -7);
    assert_false(args_read_int("", &n) || args_read_int("7x", &n) || args_read_int("1e3", &n) ||
                 args_read_int("9223372036854775808", &n));
}

static void test_help(void **state)
{
    (void)state;
    _cleanup_(buf_free) struct buf out = BUF_INIT;
    help_put_commands(&pot, &out);
    assert_string_equal(out.data, "  brew         make some\n  clean        make none\n");
    buf_clear(&out);
    help_put_command(&pot, &clean, &out);
    assert_string_equal(out.data, "usage: pot clean [OPTION]...\n\nMake none.\n\noptions of all verbs\n"
                                  "  -h, --help                   how it is used\n");
    buf_clear(&out);
    help_put_command(&pot, &brew, &out);
    assert_non_null(strstr(out.data, "usage: pot brew [OPTION]... POT [CUP]...\n"));
    assert_non_null(strstr(out.data, "  -c, --cups N                 how many"));
    assert_non_null(strstr(out.data, "\n                               ")); /* its second line, below the first */
    assert_non_null(strstr(out.data, "examples\n  pot brew blue -c 2\n      for two\n"));
    for (const char *line = out.data; *line; line += strcspn(line, "\n") + 1)
        assert_true(strcspn(line, "\n") <= 118);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_parse), cmocka_unit_test(test_numbers),
                                       cmocka_unit_test(test_help)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
