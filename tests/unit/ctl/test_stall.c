/* SPDX-License-Identifier: Apache-2.0 */
/* What holds up the ranks: from records to a sentence. Each case is an epoch of 4 ranks in one group, dumped at 20 s.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/cleanup.h"
#include "ctl/stall.h"
#include "daemon/agent/shell/flight_dumps.h"

#define WORLD 4
#define S INT64_C(1000000000)

static struct stall_dump dumps[WORLD];
static struct stall_report report;
static struct buf text;

static void set_up_dump(int rank, const char *cause)
{
    struct stall_dump *d = &dumps[rank];
    *d = (struct stall_dump){.worker = (uint64_t)rank + 10, .now_ns = 20 * S, .copy = calloc(1, sizeof *d->copy)};
    assert_non_null(d->copy);
    (void)snprintf(d->cause, sizeof d->cause, "%s", cause);
    d->copy->epoch = 3;
    d->copy->rank = rank;
    d->copy->world = WORLD;
    for (int g = 1; g < 4; g++) {
        (void)snprintf(d->copy->groups[g].name, sizeof d->copy->groups[g].name, "%s",
                       (const char *[]){"", "dp_shard", "tp", "pp"}[g]);
        d->copy->groups[g].members[0] = 15;
    }
}

static int set_up(void **state)
{
    (void)state;
    for (int rank = 0; rank < WORLD; rank++)
        set_up_dump(rank, "hang");
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    stall_report_free(&report);
    for (int rank = 0; rank < WORLD; rank++)
        stall_dump_free(&dumps[rank]);
    buf_free(&text);
    return 0;
}

/* Seconds; to 0: it is in it. */
static struct flight_entry *add(int rank, enum flight_kind kind, const char *op, uint32_t number, int64_t from,
                                int64_t to)
{
    struct flight_copy *c = dumps[rank].copy;
    struct flight_entry *e = &c->entries[c->n++];
    *e = (struct flight_entry){.ticket = (uint64_t)c->n,
                               .step = 41,
                               .bytes = kind == FLIGHT_ACTION ? 0 : 4096,
                               .began_ns = from * S,
                               .ended_ns = to * S,
                               .number = number,
                               .microbatch = 2,
                               .peer = -1,
                               .kind = kind,
                               .group = kind == FLIGHT_ACTION ? 0 : 1};
    (void)snprintf(e->op, sizeof e->op, "%s", op);
    return e;
}

static const char *say(void)
{
    struct titan_error err = {0};
    assert_int_equal(stall_find(dumps, WORLD, &report, &err), TITAN_OK);
    buf_clear(&text);
    if (report.n)
        stall_print(&report, &report.stalls[0], &text);
    else
        stall_print_none(&report, &text);
    return text.data;
}

static void test_missing_rank(void **state)
{
    (void)state;
    for (int rank = 0; rank < WORLD; rank++) {
        add(rank, FLIGHT_COLLECTIVE, "ALL_REDUCE", 117, 1, 2);
        if (rank != 2)
            add(rank, FLIGHT_COLLECTIVE, "ALL_REDUCE", 118, 7, 0);
    }
    struct flight_entry *e = add(2, FLIGHT_ACTION, "MATMUL", 0, 8, 0);
    (void)strcpy(e->place, "layers.7");
    (void)strcpy(e->phase, "dgrad");
    assert_string_equal(say(), "rank 2 has not entered all-reduce 118 of group dp_shard (epoch 3, step 41, microbatch "
                               "2); ranks 0, 1 and 3 have waited 13 s in it; rank 2 has been in matmul of layers.7 "
                               "(dgrad) for 12 s");
    assert_int_equal(report.n, 1);
    assert_true(report.stalls[0].root);
}

static void test_no_dumps(void **state)
{
    (void)state;
    struct titan_error err = {0};
    assert_int_equal(stall_find(NULL, 0, &report, &err), TITAN_OK);
    assert_int_equal(report.n, 0);
    assert_int_equal(report.epoch, 0);
}

/* It ended, or there is nothing of it. */
static void test_dead_rank(void **state)
{
    (void)state;
    for (int rank = 0; rank < 3; rank++)
        add(rank, FLIGHT_COLLECTIVE, "ALL_REDUCE", 1, 10, 0);
    add(3, FLIGHT_ACTION, "SILU", 0, 8, 9);
    (void)strcpy(dumps[3].cause, "exit");
    (void)strcpy(dumps[3].detail, "signal 9");
    assert_non_null(strstr(say(), "; rank 3 ended by signal 9, was last in silu, 11 s before its dump"));
    stall_report_free(&report);
    struct titan_error err = {0};
    assert_int_equal(stall_find(dumps, 3, &report, &err), TITAN_OK);
    buf_clear(&text);
    stall_print(&report, &report.stalls[0], &text);
    assert_non_null(strstr(text.data, "rank 3 has not entered all-reduce 1"));
    assert_non_null(strstr(text.data, "rank 3 has left no dump"));
}

/* It ended in a collective that others had not come to: its end is the cause. */
static void test_dead_waiter(void **state)
{
    (void)state;
    for (int rank = 0; rank < WORLD; rank++)
        add(rank, rank == 1 ? FLIGHT_COLLECTIVE : FLIGHT_ACTION, rank == 1 ? "ALL_REDUCE" : "SILU", 1, 8,
            rank == 1 ? 0 : 9);
    (void)strcpy(dumps[1].cause, "exit");
    (void)strcpy(dumps[1].detail, "signal 9");
    assert_non_null(strstr(say(), "ranks 0, 2 and 3 have not entered all-reduce 1"));
    assert_true(strlen(text.data) > 26 && !strcmp(text.data + strlen(text.data) - 26, "; rank 1 ended by signal 9"));
}

/* It stands still in the collective that all are in. */
static void test_held_rank(void **state)
{
    (void)state;
    for (int rank = 0; rank < WORLD; rank++)
        add(rank, FLIGHT_COLLECTIVE, "ALL_GATHER", 8, 10, 0);
    (void)strcpy(dumps[1].detail, "stopped");
    assert_string_equal(say(), "rank 1 is held up (stopped) in all-gather 8 of group dp_shard (epoch 3, step 41, "
                               "microbatch 2); ranks 0, 2 and 3 have waited 10 s in it");
    assert_true(report.stalls[0].root);
    stall_report_free(&report);
    dumps[1].detail[0] = '\0';
    (void)say();
    assert_int_equal(report.stalls[0].kind, STALL_UNDER_WAY);
}

/* It is killed in a collective that the others are through with, or wait in; or outside of any. */
static void test_killed_rank(void **state)
{
    (void)state;
    for (int rank = 0; rank < WORLD; rank++)
        add(rank, FLIGHT_COLLECTIVE, "REDUCE_SCATTER", 101, 10, rank == 1 ? 0 : 12);
    (void)strcpy(dumps[1].cause, "exit");
    (void)strcpy(dumps[1].detail, "signal 9");
    assert_string_equal(say(), "rank 1 ended by signal 9 in reduce-scatter 101 of group dp_shard (epoch 3, step 41, "
                               "microbatch 2); no other rank was in it when its dump was made");
    assert_false(report.circle);
    assert_true(report.stalls[0].root);
    stall_report_free(&report);
    add(0, FLIGHT_COLLECTIVE, "ALL_GATHER", 102, 13, 0);
    assert_non_null(strstr(say(), "not entered all-gather 102"));
    assert_non_null(strstr(text.data, "rank 1 ended by signal 9, was in reduce-scatter 101"));
    assert_false(report.circle);
    stall_report_free(&report);
    dumps[0].copy->n = 1;
    dumps[0].copy->entries[0].ended_ns = 0;
    assert_string_equal(say(), "rank 1 ended by signal 9 in reduce-scatter 101 of group dp_shard (epoch 3, step 41, "
                               "microbatch 2); rank 0 has waited 10 s in it");
    stall_report_free(&report);
    dumps[0].copy->n = 0;
    dumps[1].copy->entries[0].ended_ns = 12 * S;
    assert_string_equal(say(), "rank 1 ended by signal 9, and no rank was in an operation (epoch 3, step 41, 4 ranks)");
    stall_report_free(&report);
    add(1, FLIGHT_ACTION, "MATMUL", 0, 13, 0);
    assert_non_null(strstr(say(), "rank 1 ended by signal 9 in matmul (epoch 3"));
}

/* A dump of an earlier moment says what its rank was in then, and nothing of what it waits for. */
static void test_old_dump(void **state)
{
    (void)state;
    for (int rank = 0; rank < 3; rank++)
        add(rank, FLIGHT_COLLECTIVE, "ALL_REDUCE", 8, 10, 0);
    add(3, FLIGHT_COLLECTIVE, "ALL_REDUCE", 2, 19, 0);
    for (int rank = 0; rank < 3; rank++)
        dumps[rank].time_ms = 60000;
    assert_non_null(strstr(say(), "rank 3 has not entered all-reduce 8"));
    assert_non_null(strstr(text.data, "has been in all-reduce 2 of group dp_shard for 1 s, which is 60 s older than "));
    assert_int_equal(report.n, 1);
}

/* The wait that explains the other one comes first. */
static void test_chain(void **state)
{
    (void)state;
    add(0, FLIGHT_COLLECTIVE, "ALL_REDUCE", 5, 1, 0);
    add(1, FLIGHT_COLLECTIVE, "ALL_REDUCE", 5, 1, 0);
    for (int rank = 0; rank < WORLD; rank++)
        dumps[rank].copy->groups[2].members[0] = rank < 2 ? 3 : 12;
    add(2, FLIGHT_COLLECTIVE, "ALL_GATHER", 9, 6, 0)->group = 2;
    add(3, FLIGHT_ACTION, "MATMUL", 0, 2, 0);
    add(3, FLIGHT_COLLECTIVE, "ALL_REDUCE", 5, 1, 2);
    assert_non_null(strstr(say(), "rank 3 has not entered all-gather 9 of group tp"));
    assert_int_equal(report.n, 2);
    assert_false(report.circle);
    assert_false(report.stalls[1].root);
}

static void test_different_order(void **state)
{
    (void)state;
    for (int rank = 0; rank < WORLD; rank++)
        add(rank, FLIGHT_COLLECTIVE, rank == 3 ? "ALL_GATHER" : "REDUCE_SCATTER", 4, 10, 0);
    assert_string_equal(say(), "the ranks' collectives differ in reduce-scatter 4 of group dp_shard (epoch 3, step 41, "
                               "microbatch 2): rank 0 in reduce-scatter, rank 3 in all-gather");
    assert_int_equal(report.stalls[0].kind, STALL_DIFFERENT);
}

/* Two groups, and each rank has begun with another one. */
static void test_circle(void **state)
{
    (void)state;
    for (int rank = 0; rank < WORLD; rank++)
        add(rank, FLIGHT_COLLECTIVE, "ALL_REDUCE", 4, 10, 0)->group = rank < 2 ? 1 : 2;
    (void)say();
    assert_int_equal(report.n, 2);
    assert_true(report.circle);
}

static void test_sizes(void **state)
{
    (void)state;
    for (int rank = 0; rank < WORLD; rank++)
        add(rank, FLIGHT_COLLECTIVE, "ALL_REDUCE", 4, 10, 0)->bytes = rank == 1 ? 8192 : 4096;
    assert_string_equal(say(), "sizes differ in all-reduce 4 of group dp_shard (epoch 3, step 41, microbatch 2): "
                               "rank 0 in all-reduce with 4096 bytes, rank 1 in all-reduce with 8192 bytes");
}

static void message(int rank, enum flight_kind kind, int peer, uint32_t number, int64_t from, int64_t to)
{
    struct flight_entry *e = add(rank, kind, kind == FLIGHT_SEND ? "SEND" : "RECV", number, from, to);
    e->peer = peer;
    e->group = 3;
}

static void test_receive_without_send(void **state)
{
    (void)state;
    message(0, FLIGHT_SEND, 1, 6, 1, 2);
    message(1, FLIGHT_RECEIVE, 0, 6, 1, 2);
    message(1, FLIGHT_RECEIVE, 0, 7, 3, 0);
    add(0, FLIGHT_ACTION, "ATTENTION", 0, 2, 0);
    assert_string_equal(say(), "rank 0 has not come to send for recv 7 of group pp from rank 0 (epoch 3, step 41, "
                               "microbatch 2); rank 1 has waited 17 s; rank 0 has been in attention for 18 s");
    stall_report_free(&report);
    message(0, FLIGHT_SEND, 1, 7, 19, 0); /* now it has */
    (void)say();
    assert_int_equal(report.stalls[0].kind, STALL_UNDER_WAY);
}

static void test_send_without_receive(void **state)
{
    (void)state;
    message(2, FLIGHT_SEND, 3, 1, 15, 0);
    (void)say();
    assert_int_equal(report.stalls[0].kind, STALL_UNTAKEN);
    assert_int_equal(report.stalls[0].missing[0].rank, 3);
}

static void test_all_idle(void **state)
{
    (void)state;
    for (int rank = 0; rank < WORLD; rank++)
        add(rank, FLIGHT_COLLECTIVE, "ALL_REDUCE", 4, 10, 11);
    assert_string_equal(say(), "no rank was in an operation (epoch 3, step 41, 4 ranks)");
}

static void test_busy(void **state)
{
    (void)state;
    add(1, FLIGHT_ACTION, "MATMUL", 0, 8, 0);
    assert_string_equal(say(), "rank 1 is in matmul (epoch 3, step 41, microbatch 2) for 12 s, and no rank waits for "
                               "another");
}

/* A run that none complains of always has ranks that wait for a moment. */
static void test_short_waits(void **state)
{
    (void)state;
    for (int rank = 0; rank < WORLD; rank++)
        (void)strcpy(dumps[rank].cause, "request");
    add(0, FLIGHT_COLLECTIVE, "ALL_REDUCE", 4, 20, 0);
    assert_string_equal(say(), "no rank has waited for a second (epoch 3, step 41, 4 ranks)");
    stall_report_free(&report);
    (void)strcpy(dumps[2].cause, "hang");
    assert_non_null(strstr(say(), "ranks 1, 2 and 3 have not entered"));
}

static const char *say_slowest(int n)
{
    struct stall_slowest slowest;
    struct titan_error err = {0};
    assert_int_equal(stall_slowest(dumps, n, &slowest, &err), TITAN_OK);
    buf_clear(&text);
    stall_print_slowest(&slowest, &text);
    return text.len ? text.data : "";
}

/* The others are a second longer in each collective that rank 2 is in, by clocks that have nothing in common. */
static void test_slowest(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 9; i++)
        for (int rank = 0; rank < WORLD; rank++)
            add(rank, FLIGHT_COLLECTIVE, "ALL_REDUCE", i + 1, 2 * i + (rank == 2 ? 2 : 1), 2 * i + 3);
    for (int rank = 0; rank < 3; rank++) /* the last rank has not come to it: none is measured by it */
        add(rank, FLIGHT_COLLECTIVE, "ALL_REDUCE", 10, 20, rank == 0 ? 20 : 0);
    for (int i = 0; i < dumps[1].copy->n; i++) {
        dumps[1].copy->entries[i].began_ns += 1000 * S;
        dumps[1].copy->entries[i].ended_ns += dumps[1].copy->entries[i].ended_ns ? 1000 * S : 0;
    }
    assert_string_equal(say_slowest(WORLD),
                        "; rank 2 is the slowest: the last in 9 of 9 collectives, and in some for 53 % of the time, "
                        "the others for 98 %");
    assert_string_equal(say_slowest(3), ""); /* a dump is missing */
}

/* Ranks with nothing that has ended, or with records of no length, wait for none: the others are so much less on
 * average. */
static void test_slowest_of_idle_ranks(void **state)
{
    (void)state;
    struct stall_slowest slowest;
    struct titan_error err = {0};
    for (int rank = 0; rank < WORLD; rank++)
        dumps[rank].copy->groups[1].members[0] = 3; /* ranks 0 and 1 */
    for (uint32_t i = 0; i < 8; i++) {
        add(0, FLIGHT_COLLECTIVE, "ALL_REDUCE", i + 1, 4 * i, 4 * i + 4);
        add(1, FLIGHT_COLLECTIVE, "ALL_REDUCE", i + 1, 4 * i + 3, 4 * i + 4);
    }
    add(2, FLIGHT_ACTION, "MATMUL", 0, 1, 0);
    add(3, FLIGHT_COLLECTIVE, "ALL_GATHER", 1, 5, 5)->group = 2;
    assert_int_equal(stall_slowest(dumps, WORLD, &slowest, &err), TITAN_OK);
    assert_int_equal(slowest.rank, -1);
    assert_int_equal(slowest.collectives, 8);
    assert_int_equal(slowest.last, 8);
    assert_true(slowest.share > 0.27 && slowest.share < 0.28 && slowest.others * 3 == 1);
    assert_int_equal(stall_slowest(dumps, 2, &slowest, &err), TITAN_OK);
    assert_int_equal(slowest.rank, 1);
    assert_true(slowest.others == 1);
}

static void come_last(int slowest, uint32_t number, int64_t from)
{
    for (int rank = 0; rank < WORLD; rank++)
        add(rank, FLIGHT_COLLECTIVE, "ALL_REDUCE", number, from + (rank == slowest), from + 2);
}

/* There are too few collectives; the waits are a small part of the time; each rank comes last now and then. */
static void test_none_slowest(void **state)
{
    (void)state;
    assert_string_equal(say_slowest(0), "");
    for (uint32_t i = 1; i < 8; i++)
        come_last(2, i, 2 * i);
    assert_string_equal(say_slowest(WORLD), "");
    come_last(2, 8, 16);
    assert_non_null(strstr(say_slowest(WORLD), "rank 2 is the slowest: the last in 8 of 8"));
    for (int rank = 0; rank < WORLD; rank++)
        add(rank, FLIGHT_ACTION, "MATMUL", 0, 1, 2)->began_ns -= 80 * S;
    assert_string_equal(say_slowest(WORLD), "");
    for (int rank = 0; rank < WORLD; rank++)
        dumps[rank].copy->entries[8].began_ns += 80 * S;
    assert_string_not_equal(say_slowest(WORLD), "");
    for (uint32_t i = 9; i < 17; i++)
        come_last((int)i % 2, i, 16);
    assert_string_equal(say_slowest(WORLD), "");
}

/* --- the text of a dump ------------------------------------------------------------------------------------------- */

static void print_dump(int rank, struct buf *out)
{
    const struct dump_head head = {.job_id = 7,
                                   .worker_id = dumps[rank].worker,
                                   .cause = DUMP_HANG,
                                   .detail = "stop\033ped",
                                   .node = "n1",
                                   .wall_ms = 1000,
                                   .mono_ns = dumps[rank].now_ns};
    dump_print(&head, dumps[rank].copy, out);
}

static void test_reads_what_the_agent_writes(void **state)
{
    _cleanup_(buf_free) struct buf out = BUF_INIT;
    struct stall_dump d;
    struct titan_error err = {0};
    (void)state;
    message(1, FLIGHT_RECEIVE, 0, 7, 3, 0);
    add(1, FLIGHT_COLLECTIVE, "ALL_REDUCE", 4, 10, 11);
    add(1, FLIGHT_ACTION, "MATMUL", 0, 12, 0);
    dumps[1].copy->damaged = 5;
    print_dump(1, &out);
    assert_int_equal(strncmp(out.data, "{\"flight\":", 10), 0);
    assert_int_equal(stall_read(out.data, out.len, &d, &err), TITAN_OK);
    assert_string_equal(d.cause, "hang");
    assert_string_equal(d.detail, "stop?ped");
    assert_int_equal(d.worker, 11);
    assert_int_equal(d.copy->damaged, 5);
    assert_int_equal(d.copy->n, 3);
    assert_memory_equal(d.copy->entries, dumps[1].copy->entries, 3 * sizeof d.copy->entries[0]);
    assert_memory_equal(d.copy->groups, dumps[1].copy->groups, sizeof d.copy->groups);
    stall_dump_free(&d);
}

/* One field after the other is wrong; and the text ends early anywhere. */
static void test_damaged_dumps(void **state)
{
    static const char *const changes[][2] = {
        {"\"flight\":1", "\"flight\":2"},
        {"\"world\":4", "\"world\":4000"},
        {"\"rank\":1", "\"rank\":4"},
        {"\"members\":[0", "\"members\":[9"},
        {"\"kind\":\"receive\"", "\"kind\":\"resolve\""},
        {"\"peer\":0", "\"peer\":7"},
        {"\"number\":7", "\"number\":0"},
        {"\"began_ns\":3", "\"began_ns\":9"},
        {"\"group\":3,\"number\"", "\"group\":9,\"number\""},
        {"\"epoch\":3", "\"epoch\":-"},
    };
    _cleanup_(buf_free) struct buf out = BUF_INIT;
    struct stall_dump d;
    (void)state;
    message(1, FLIGHT_RECEIVE, 0, 7, 3, 0);
    dumps[1].now_ns = 5 * S;
    print_dump(1, &out);
    for (size_t i = 0; i < ARRAY_SIZE(changes); i++) {
        _cleanup_free_ char *bad = strdup(out.data);
        char *at = strstr(bad, changes[i][0]);
        assert_non_null(at);
        const size_t n = strlen(changes[i][0]), with = strlen(changes[i][1]);
        _cleanup_free_ char *whole = malloc(out.len + with + 1);
        const int len = sprintf(whole, "%.*s%s%s", (int)(at - bad), bad, changes[i][1], at + n);
        struct titan_error err = {0};
        if (stall_read(whole, (size_t)len, &d, &err) != TITAN_ECORRUPT)
            fail_msg("taken: %s", changes[i][1]);
    }
    for (size_t len = 0; len + 1 < out.len; len++)
        assert_int_equal(stall_read(out.data, len, &d, NULL), TITAN_ECORRUPT);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        T(test_missing_rank),
        T(test_no_dumps),
        T(test_dead_waiter),
        T(test_dead_rank),
        T(test_held_rank),
        T(test_old_dump),
        T(test_chain),
        T(test_different_order),
        T(test_circle),
        T(test_killed_rank),
        T(test_sizes),
        T(test_receive_without_send),
        T(test_send_without_receive),
        T(test_all_idle),
        T(test_busy),
        T(test_short_waits),
        T(test_slowest),
        T(test_slowest_of_idle_ranks),
        T(test_none_slowest),
        T(test_reads_what_the_agent_writes),
        T(test_damaged_dumps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
