/* SPDX-License-Identifier: Apache-2.0 */
/* test_options.c - command lines, right and wrong. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <string.h>

#include "base/cleanup.h"
#include "ctl/args.h"
#include "ctl/command.h"

enum { WORDS = 32 };

/* Split text at blanks and parse it as a command line; '_' stands for a blank inside a word. */
static titan_status parse(const char *text, struct args *args, struct titan_error *err)
{
    static char copy[4096];
    static char *argv[WORDS];
    int argc = 0;
    argv[argc++] = "titanctl";
    (void)snprintf(copy, sizeof(copy), "%s", text);
    for (char *word = strtok(copy, " "); word && argc < WORDS - 1; word = strtok(NULL, " ")) {
        for (char *c = word; *c; c++)
            if (*c == '_')
                *c = ' ';
        argv[argc++] = word;
    }
    argv[argc] = NULL;
    memset(err, 0, sizeof(*err));
    return args_parse(&titanctl, argc, argv, args, err);
}

static void refused(const char *text, const char *message, const char *hint)
{
    struct args args;
    struct titan_error err;
    assert_int_equal(parse(text, &args, &err), TITAN_EINVAL);
    assert_string_equal(err.msg, message);
    if (hint)
        assert_string_equal(err.hint, hint);
}

static void test_accepted(void **state)
{
    (void)state;
    struct args args;
    struct titan_error err;
    int64_t n;
    uint64_t job;
    assert_int_equal(parse("-s unix:/x -o json logs 12 --tail=5 -f -r 3", &args, &err), TITAN_OK);
    assert_ptr_equal(args.command, &command_logs);
    assert_string_equal(args_text(&args, "server", ""), "unix:/x");
    assert_string_equal(args_text(&args, "output", ""), "json");
    assert_true(args_has(&args, "follow"));
    assert_int_equal(args_int(&args, "tail", (struct int_range){1, 10}, 0, &n, &err), TITAN_OK);
    assert_int_equal(n, 5);
    assert_int_equal(args_int(&args, "rank", (struct int_range){0, 10}, -1, &n, &err), TITAN_OK);
    assert_int_equal(n, 3);
    assert_int_equal(args_job(&args, 0, &job, &err), TITAN_OK);
    assert_int_equal(job, 12);
}

/* Global options also stand behind the command, the last of one kind counts, and -- ends options. */
static void test_order(void **state)
{
    (void)state;
    struct args args;
    struct titan_error err;
    assert_int_equal(parse("-o table cancel 1 -o json 2 -- 3", &args, &err), TITAN_OK);
    assert_string_equal(args_text(&args, "output", ""), "json");
    assert_int_equal(args.n, 3);
    assert_string_equal(args.words[2], "3");
    assert_int_equal(parse("generate 1 --prompt --x", &args, &err), TITAN_OK);
    assert_string_equal(args_text(&args, "prompt", ""), "--x");
}

static void test_repeated(void **state)
{
    (void)state;
    struct args args;
    struct titan_error err;
    assert_int_equal(parse("submit --set a.b=1 run.toml --set c.d=2", &args, &err), TITAN_OK);
    assert_string_equal(args_each(&args, "set", 0), "a.b=1");
    assert_string_equal(args_each(&args, "set", 1), "c.d=2");
    assert_null(args_each(&args, "set", 2));
    assert_int_equal(args.n, 1);
    assert_string_equal(args.words[0], "run.toml");
}

static void test_refused(void **state)
{
    (void)state;
    refused("statsu", "unknown command 'statsu'", "did you mean status?");
    refused("frobnicate", "unknown command 'frobnicate'", "titanctl --help lists them");
    refused("submit --folow x", "submit: unknown option --folow", "did you mean --follow?");
    refused("submit --folow=1 x", "submit: unknown option --folow", "did you mean --follow?");
    refused("submit --follo x", "submit: unknown option --follo", "did you mean --follow?");
    refused("--sevrer x list", "unknown option --sevrer", "did you mean --server?");
    refused("list -x", "list: unknown option -x", "titanctl list --help lists them");
    refused("list -ux -y", "list: unknown option -y", NULL);
    refused("list --limit", "--limit wants N", NULL);
    refused("list -n", "--limit wants N", NULL);
    refused("logs 1 --follow=yes", "--follow takes no value", NULL);
    refused("run", "run: FILE is missing", "usage: titanctl run [OPTION]... FILE");
    refused("status 1 2", "status: unexpected argument '2'", "usage: titanctl status [OPTION]... JOB");
    refused("list all", "list: unexpected argument 'all'", NULL);
}

static void test_values(void **state)
{
    (void)state;
    struct args args;
    struct titan_error err;
    uint64_t job;
    int64_t n;
    double x;
    static const char *const bad_jobs[] = {"twelve", "0", "-1", "+1", "1x", "99999999999999999999", "_1"};
    for (size_t i = 0; i < ARRAY_SIZE(bad_jobs); i++) {
        char line[64];
        (void)snprintf(line, sizeof(line), "status -- %s", bad_jobs[i]);
        assert_int_equal(parse(line, &args, &err), TITAN_OK);
        assert_int_equal(args_job(&args, 0, &job, &err), TITAN_EINVAL);
    }
    static const char *const bad_numbers[] = {"x", "1.5", "", "11", "0", "99999999999999999999"};
    for (size_t i = 0; i < ARRAY_SIZE(bad_numbers); i++) {
        char line[64];
        (void)snprintf(line, sizeof(line), "list --limit=%s", bad_numbers[i]);
        assert_int_equal(parse(line, &args, &err), TITAN_OK);
        assert_int_equal(args_int(&args, "limit", (struct int_range){1, 10}, 5, &n, &err), TITAN_EINVAL);
    }
    assert_int_equal(parse("wait 1 --timeout 2.5", &args, &err), TITAN_OK);
    assert_int_equal(args_real(&args, "timeout", (struct real_range){0, 10}, 0, &x, &err), TITAN_OK);
    assert_true(x == 2.5);
    static const char *const bad_reals[] = {"nan", "inf", "11", "-1", "1s"};
    for (size_t i = 0; i < ARRAY_SIZE(bad_reals); i++) {
        char line[64];
        (void)snprintf(line, sizeof(line), "wait 1 --timeout=%s", bad_reals[i]);
        assert_int_equal(parse(line, &args, &err), TITAN_OK);
        assert_int_equal(args_real(&args, "timeout", (struct real_range){0, 10}, 0, &x, &err), TITAN_EINVAL);
    }
    assert_int_equal(parse("list", &args, &err), TITAN_OK);
    assert_int_equal(args_int(&args, "limit", (struct int_range){1, 10}, 5, &n, &err), TITAN_OK);
    assert_int_equal(n, 5); /* not given */
}

/* --help works without the arguments the command wants. */
static void test_help(void **state)
{
    (void)state;
    struct args args;
    struct titan_error err;
    assert_int_equal(parse("submit --help", &args, &err), TITAN_OK);
    assert_true(args_has(&args, "help"));
    assert_int_equal(parse("--help", &args, &err), TITAN_OK);
    assert_null(args.command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_accepted), cmocka_unit_test(test_order),  cmocka_unit_test(test_repeated),
        cmocka_unit_test(test_refused),  cmocka_unit_test(test_values), cmocka_unit_test(test_help),
    };
    return cmocka_run_group_tests_name("options", tests, NULL, NULL);
}
