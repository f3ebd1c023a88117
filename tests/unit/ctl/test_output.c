/* SPDX-License-Identifier: Apache-2.0 */
/* test_output.c - results as tables. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "ctl/client.h"
#include "ctl/output.h"

static void test_table(void **state)
{
    (void)state;
    struct table_out t;
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    table_begin(&t, (const char *const[]){"JOB>", "NAME", "STATE", NULL});
    table_cell(&t, "%d", 1);
    table_cell(&t, "long name");
    table_cell(&t, "RUNNING");
    table_cell(&t, "%d", 1000);
    table_cell(&t, "%s", "");
    table_cell(&t, "FAILED");
    table_end(&t, &text, 2, false);
    assert_string_equal(text.data, " JOB  NAME       STATE\n"
                                   "   1  long name  RUNNING\n"
                                   "1000             FAILED\n");
    buf_clear(&text);
    table_begin(&t, (const char *const[]){"STATE", NULL});
    table_cell(&t, "RUNNING");
    table_end(&t, &text, 0, true);
    assert_string_equal(text.data, "STATE\n\033[32mRUNNING\033[0m\n");
    /* A column without a heading; what stands before it in memory is not its. */
    static const char before[] = {'>', '\0'};
    buf_clear(&text);
    table_begin(&t, (const char *const[]){"A", before + 1, "B", NULL});
    assert_false(t.right[1] || t.give[1]);
    table_cell(&t, "1");
    table_cell(&t, "ok");
    table_cell(&t, "2");
    table_end(&t, &text, 0, false);
    assert_string_equal(text.data, "A      B\n1  ok  2\n");
}

/* What a reply's strings would do to a terminal. */
static void test_fit(void **state)
{
    (void)state;
    char name[] = "n\u202eeman", cause[] = "\033[2Jcrash", was[] = "fine";
    Titan__V1__LossCount loss = TITAN__V1__LOSS_COUNT__INIT, *losses[] = {&loss};
    Titan__V1__Job job = TITAN__V1__JOB__INIT;
    Titan__V1__GetJobResponse reply = TITAN__V1__GET_JOB_RESPONSE__INIT;
    struct table_out t;
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    job.name = name;
    job.user = was;
    loss.cause = cause;
    job.losses = losses;
    job.n_losses = 1;
    reply.job = &job;
    output_fit(&reply.base);
    assert_string_equal(name, "n?eman");
    assert_string_equal(cause, "?[2Jcrash");
    assert_string_equal(was, "fine");
    table_begin(&t, (const char *const[]){"NAME", NULL});
    table_cell(&t, "a\u2066b");
    table_end(&t, &text, -1, false);
    assert_string_equal(text.data, "NAME\na?b\n");
}

static void cells(struct table_out *t, struct buf *text, int room)
{
    buf_clear(text);
    table_begin(t, (const char *const[]){"NAME~", "STATE", "REASON~", NULL});
    t->room = room;
    table_cell(t, "\u65e5\u672c\u8a9e e\u0301 \U0001f680");
    table_cell(t, "RUNNING");
    table_cell(t, "a reason that is long");
    table_cell(t, "x");
    table_cell(t, "FAILED");
    table_cell(t, "short");
    table_end(t, text, -1, false);
}

/* Columns are those of a terminal, not bytes or code points; where there is no room, what may give way does. */
static void test_table_columns(void **state)
{
    (void)state;
    struct table_out t;
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    assert_int_equal(output_text_columns("\u65e5\u672c\u8a9e e\u0301 \U0001f680"), 11);
    assert_int_equal(output_text_columns("\u26a1\u2705\u2b50"), 6);         /* emoji that are no pictographs by block */
    assert_int_equal(output_text_columns("\u0e01\u0e34\u05d0\u05b0"), 2);   /* vowels below and above */
    assert_int_equal(output_text_columns("\u2713 \u2190 \u00e9\u2014"), 6); /* of one column */
    cells(&t, &text, 0);
    assert_string_equal(text.data, "NAME         STATE    REASON\n"
                                   "\u65e5\u672c\u8a9e e\u0301 \U0001f680  RUNNING  a reason that is long\n"
                                   "x            FAILED   short\n");
    cells(&t, &text, 33);
    assert_string_equal(text.data, "NAME         STATE    REASON\n"
                                   "\u65e5\u672c\u8a9e e\u0301 \U0001f680  RUNNING  a reason t\u2026\n"
                                   "x            FAILED   short\n");
    cells(&t, &text, 27); /* no more to give */
    assert_string_equal(text.data, "NAME      STATE    REASON\n"
                                   "\u65e5\u672c\u8a9e \u2026  RUNNING  a reaso\u2026\n"
                                   "x         FAILED   short\n");
    cells(&t, &text, 20);
    assert_string_equal(text.data, "NAME      STATE\n"
                                   "\u65e5\u672c\u8a9e \u2026  RUNNING\n"
                                   "x         FAILED\n");
}

static void spared(struct table_out *t, struct buf *text, int room)
{
    buf_clear(text);
    table_begin(t, (const char *const[]){"JOB>", "NAME~", "?USER", "STATE", "?WORKERS>", "REASON~", NULL});
    t->room = room;
    table_cell(t, "1");
    table_cell(t, "a name of 17 here");
    table_cell(t, "alice");
    table_cell(t, "RUNNING");
    table_cell(t, "4");
    table_cell(t, "%s", "");
    table_end(t, text, 3, false);
}

/* What can be spared goes from the right, and only when cutting is not enough. */
static void test_table_spares(void **state)
{
    (void)state;
    struct table_out t;
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    spared(&t, &text, 0);
    assert_string_equal(text.data, "JOB  NAME               USER   STATE    WORKERS  REASON\n"
                                   "  1  a name of 17 here  alice  RUNNING        4  \n");
    spared(&t, &text, 46);
    assert_string_equal(text.data, "JOB  NAME      USER   STATE    WORKERS  REASON\n"
                                   "  1  a name \u2026  alice  RUNNING        4  \n");
    spared(&t, &text, 45);
    assert_string_equal(text.data, "JOB  NAME              USER   STATE    REASON\n"
                                   "  1  a name of 17 he\u2026  alice  RUNNING  \n");
    spared(&t, &text, 36);
    assert_string_equal(text.data, "JOB  NAME            STATE    REASON\n"
                                   "  1  a name of 17 \u2026  RUNNING  \n");
    spared(&t, &text, 29);
    assert_string_equal(text.data, "JOB  NAME      STATE\n"
                                   "  1  a name \u2026  RUNNING\n");
    spared(&t, &text, 10);
    assert_string_equal(text.data, "JOB\n"
                                   "  1\n");
}

static void test_states(void **state)
{
    (void)state;
    assert_int_equal(ctl_state_parse("running"), TITAN__V1__JOB_STATE__RUNNING);
    assert_int_equal(ctl_state_parse("RUN"), -1);
    assert_int_equal(ctl_state_parse("JOB_STATE_UNSPECIFIED"), -1);
    assert_string_equal(ctl_state_name(TITAN__V1__JOB_STATE__COMPLETED), "COMPLETED");
    assert_string_equal(ctl_state_name((Titan__V1__JobState)77), "UNKNOWN"); /* of a newer server */
    assert_true(ctl_state_final(TITAN__V1__JOB_STATE__CANCELLED));
    assert_false(ctl_state_final(TITAN__V1__JOB_STATE__CANCELLING));
}

static void test_times(void **state)
{
    (void)state;
    char text[48];
    assert_string_equal(output_ago(0, 1000, text), "-");
    assert_string_equal(output_ago(1000, 1500, text), "now");
    assert_string_equal(output_ago(5000, 4000, text), "now"); /* clocks differ between machines */
    assert_string_equal(output_ago(1000, 201000, text), "3m 20s ago");
    assert_string_equal(output_clock(INT64_C(1763668800123), text), "20:00:00Z"); /* wherever one is */
}

/* A stream of lines goes on while they can be written. */
static void test_lines(void **state)
{
    (void)state;
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    const int out = dup(STDOUT_FILENO);
    buf_printf(&text, "a line");
    for (int full = 0; full < 2; full++) {
        const int to = open(full ? "/dev/full" : "/dev/null", O_WRONLY);
        assert_true(out >= 0 && to >= 0 && fflush(stdout) == 0 && dup2(to, STDOUT_FILENO) >= 0);
        const bool written = output_line(&text);
        clearerr(stdout);
        assert_true(dup2(out, STDOUT_FILENO) >= 0 && close(to) == 0);
        assert_int_equal(written, !full);
    }
    (void)close(out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),  cmocka_unit_test(test_table_columns), cmocka_unit_test(test_table_spares),
        cmocka_unit_test(test_states), cmocka_unit_test(test_times),         cmocka_unit_test(test_fit),
        cmocka_unit_test(test_lines),
    };
    return cmocka_run_group_tests_name("output", tests, NULL, NULL);
}
