/* SPDX-License-Identifier: Apache-2.0 */
/* segments.c on a device that writes down what it is asked for: which actions are of a run, that a run is kept once and
 * launched from then on, and what becomes of it where the device keeps none. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/cleanup.h"
#include "worker/exec/executor.h"

struct segment {
    int operations;
};

static char asked[256]; /* a letter a call: z operation, ( ) begin and end, L launch, x close */
static bool keeps_none, fails;
static int operations; /* since the last begin */

static void ask(char letter)
{
    const size_t n = strlen(asked);
    assert_true(n + 1 < sizeof asked);
    asked[n] = letter;
    asked[n + 1] = 0;
}

static titan_status zero(struct stream *s, void *dst, size_t bytes)
{
    (void)s, (void)dst, (void)bytes;
    ask('z');
    operations++;
    return fails ? TITAN_EDEVICE : TITAN_OK;
}

static titan_status segment_begin(struct stream *s, struct titan_error *err)
{
    (void)s, (void)err;
    ask('(');
    operations = 0;
    return TITAN_OK;
}

static titan_status segment_end(struct stream *s, struct segment **ret, struct titan_error *err)
{
    (void)s;
    ask(')');
    if (keeps_none)
        return titan_fail(err, TITAN_EUNSUPPORTED, "no graphs here");
    *ret = malloc(sizeof **ret);
    (*ret)->operations = operations;
    return TITAN_OK;
}

static titan_status segment_launch(struct segment *g, struct stream *s)
{
    (void)s;
    assert_true(g->operations >= 2);
    ask('L');
    return TITAN_OK;
}

static void segment_close(struct segment *g)
{
    ask('x');
    free(g);
}

static const struct device_ops ops = {.zero = zero,
                                      .segment_begin = segment_begin,
                                      .segment_end = segment_end,
                                      .segment_launch = segment_launch,
                                      .segment_close = segment_close};

/* --- a program ---------------------------------------------------------------------------------------------------- */

enum { ACTIONS = 24, EVERY = 4 };

static struct action actions[ACTIONS];
static struct op_params params[1];
static struct operand operands[1];
static struct program program = {.actions = actions, .params = params, .operands = operands};
static struct final finals[1];
static void *address[1];
static struct exec e;

static void open_exec(bool wanted)
{
    memset(actions, 0, sizeof actions);
    for (int i = 0; i < ACTIONS; i++)
        actions[i] =
            (struct action){.op = OP_ZERO, .stream = STREAM_COMPUTE, .n_operands = 1, .unit = -1, .channel = -1};
    actions[0].op = OP_LOAD;
    actions[3].stream = STREAM_COMPUTE + 1; /* another stream's, between members of a run */
    actions[4].signal = true;               /* the run's last */
    actions[7].n_waits = 1;                 /* its first */
    actions[15].op = OP_ALL_REDUCE;
    actions[17].op = OP_ZERO; /* alone, as 18 is a gradient's last */
    finals[0].writer = 18;
    actions[ACTIONS - 2].op = OP_AGREE;
    actions[ACTIONS - 1].op = OP_DECIDE;
    program.n_actions = ACTIONS;
    e = (struct exec){.p = &program,
                      .ops = &ops,
                      .address = address,
                      .agree = ACTIONS - 2,
                      .sync_point = 21,
                      .finals = finals,
                      .n_finals = 1};
    e.opt.segments = wanted;
    e.lookahead.every = EVERY;
    asked[0] = 0;
    keeps_none = fails = false;
    assert_int_equal(segments_open(&e, NULL), TITAN_OK);
}

/* "1-4", or "" where the action is of none. */
static void is_run(int index, int first, int last, int n)
{
    const struct run *const r = segments_run_of(&e, index);
    assert_non_null(r);
    assert_int_equal(r->first, first);
    assert_int_equal(r->last, last);
    assert_int_equal(r->n, n);
}

static void second_step(void)
{
    assert_int_equal(segments_begin(&e, NULL), TITAN_OK);
    assert_null(segments_run_of(&e, 1)); /* nothing is kept in the first */
    assert_int_equal(segments_begin(&e, NULL), TITAN_OK);
}

static void test_runs(void **state)
{
    (void)state;
    open_exec(true);
    second_step();
    is_run(1, 1, 4, 3); /* behind LOAD, without the other stream's, to the one that signals */
    is_run(2, 1, 4, 3);
    assert_null(segments_run_of(&e, 0));
    assert_null(segments_run_of(&e, 3));
    is_run(5, 5, 6, 2);  /* to the one that waits */
    is_run(7, 7, 10, 4); /* as many as lie between two marks */
    is_run(11, 11, 14, 4);
    assert_null(segments_run_of(&e, 15)); /* a transfer */
    is_run(16, 16, 17, 2);
    assert_null(segments_run_of(&e, 18)); /* a gradient is handed on behind it */
    is_run(19, 19, 20, 2);
    assert_null(segments_run_of(&e, 21)); /* the sync point */
    assert_null(segments_run_of(&e, 22));
    e.timed = true;
    assert_null(segments_run_of(&e, 1)); /* times are of single actions */
    segments_close(&e);
}

static void test_kept_once(void **state)
{
    bool done = false;

    (void)state;
    open_exec(true);
    second_step();
    struct run *const r = segments_run_of(&e, 1);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(segments_launch(&e, r, &done, NULL), TITAN_OK);
        assert_true(done);
    }
    assert_string_equal(asked, "(zzz)LLL");
    segments_close(&e);
    assert_string_equal(asked, "(zzz)LLLx");
}

static void test_none_kept(void **state)
{
    struct titan_error err;
    bool done = true;

    (void)state;
    open_exec(true);
    second_step();
    keeps_none = true;
    assert_int_equal(segments_launch(&e, segments_run_of(&e, 1), &done, &err), TITAN_OK);
    assert_false(done); /* the caller enqueues them */
    assert_null(segments_run_of(&e, 1));
    assert_null(segments_run_of(&e, 5));
    segments_close(&e);
    /* An operation that the device does not take while it keeps a segment may be taken by itself. */
    open_exec(true);
    second_step();
    fails = true;
    assert_int_equal(segments_launch(&e, segments_run_of(&e, 1), &done, &err), TITAN_OK);
    assert_false(done);
    assert_string_equal(asked, "(z)x");
    segments_close(&e);
}

static void test_not_wanted(void **state)
{
    (void)state;
    open_exec(false);
    second_step();
    for (int i = 0; i < ACTIONS; i++)
        assert_null(segments_run_of(&e, i));
    segments_close(&e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_runs),
        cmocka_unit_test(test_kept_once),
        cmocka_unit_test(test_none_kept),
        cmocka_unit_test(test_not_wanted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
