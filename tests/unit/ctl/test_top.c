/* SPDX-License-Identifier: Apache-2.0 */
/* test_top.c - a frame of `titanctl top` fits its terminal, whatever is in it. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "ctl/output.h"
#include "ctl/top_screen.h"

enum { MANY = 100 };

static void fill(struct top_screen *s, struct top_job *jobs, struct top_node *nodes, struct top_worker *workers)
{
    static const double losses[] = {3, NAN, 2, INFINITY, 1};
    static const struct split_mean split = {
        .split = {1e9, 1e9, 1e9, 1e9, 1e9, .slowest_busy = 1e9, .slowest = 7}, .waited = 1e9, .steps = 64};
    for (int i = 0; i < MANY; i++) {
        jobs[i] = (struct top_job){.id = UINT64_MAX - (uint64_t)i,
                                   .step = 123456789,
                                   .steps = 1000000000,
                                   .state = TITAN__V1__JOB_STATE__RECOVERING,
                                   .loss = i % 2 ? (double)NAN : 1e300,
                                   .tokens_per_second = 1e15,
                                   .mfu = 0.5,
                                   .workers = 1024,
                                   .losses = losses,
                                   .n_losses = 5,
                                   .split = &split};
        (void)snprintf(jobs[i].name, sizeof(jobs[i].name), "名前名前名前名前名前名前名前-%d", i);
        (void)snprintf(jobs[i].reason, sizeof(jobs[i].reason), "%0200d", i);
        nodes[i] = (struct top_node){.state = "quarantined", .slots = 8};
        (void)snprintf(nodes[i].name, sizeof(nodes[i].name), "%0100d", i);
        workers[i] = (struct top_worker){.id = (uint64_t)i, .rank = i - 1, .state = "trains"};
        (void)snprintf(workers[i].note, sizeof(workers[i].note), "%0100d", i);
    }
    for (int i = 0; i < TOP_EVENTS; i++)
        (void)snprintf(s->events[i], sizeof(s->events[i]), "event %0200d", i);
    s->rest = UINT64_MAX;
    s->uncounted = true;
    s->jobs = jobs;
    s->nodes = nodes;
    s->workers = workers;
    s->server = "unix:/a/very/long/path/to/a/socket/that/is/longer/than/a/terminal/is/wide";
}

/* Columns without the sequences that colour them. */
static int columns_of(const char *line, size_t len)
{
    char plain[2048];
    size_t n = 0;
    for (size_t i = 0; i < len; i++) {
        if (line[i] == '\033')
            i += strcspn(line + i, "m");
        else
            plain[n++] = line[i];
    }
    plain[n] = '\0';
    return output_text_columns(plain);
}

static void test_fits(void **state)
{
    (void)state;
    static struct top_job jobs[MANY];
    static struct top_node nodes[MANY];
    static struct top_worker workers[MANY];
    struct top_screen s = {.selected = 0};
    fill(&s, jobs, nodes, workers);
    for (int width = 40; width <= 220; width += 9)
        for (int height = 12; height <= 70; height += 5)
            for (int how = 0; how < 16; how++) {
                _cleanup_(buf_free) struct buf text = BUF_INIT;
                s.width = width;
                s.height = height;
                s.color = how & 1;
                s.unicode = how & 2;
                s.live = how & 4;
                s.n_jobs = how & 8 ? top_screen_jobs(height) : 0;
                s.n_nodes = s.n_workers = how & 8 ? MANY : 0;
                s.selected = s.n_jobs ? s.n_jobs - 1 : 0;
                s.more = how & 1;
                s.trouble = how & 2 ? "the server does not answer" : NULL;
                top_screen_put(&s, &text);
                int lines = 0;
                for (const char *at = text.data; *at; lines++) {
                    const size_t len = strcspn(at, "\n");
                    assert_in_range(columns_of(at, len), 0, width);
                    at += len + 1;
                }
                assert_in_range(lines, s.live ? height : 1, height);
                size_t splits = 0; /* a line of each job, however many there are */
                for (const char *at = text.data; (at = strstr(at, " rank 7 in ")); at++)
                    splits++;
                assert_true(s.live || s.trouble || width < 80 || splits == s.n_jobs);
            }
}

/* What a person looks for is there. */
static void test_frame(void **state)
{
    (void)state;
    static const double losses[] = {4, 3, 2, 1};
    const struct split_mean split = {.split = {1, 40, 3.25, 0, 20, .slowest_busy = 61, .slowest = 1},
                                     .waited = 21.5,
                                     .steps = 64,
                                     .slowest_steps = 60};
    struct top_job jobs[] = {{.id = 7,
                              .step = 10,
                              .steps = 20,
                              .state = TITAN__V1__JOB_STATE__RUNNING,
                              .name = "one",
                              .loss = NAN,
                              .tokens_per_second = 61234,
                              .mfu = 0.25,
                              .workers = 4,
                              .losses = losses,
                              .n_losses = 4,
                              .split = &split},
                             {.id = 6, .steps = 5, .state = TITAN__V1__JOB_STATE__PENDING, .name = "two"}};
    const struct top_node nodes[] = {{.name = "a", .state = "ready", .device = "cpu", .slots = 4, .slots_used = 4}};
    const struct top_worker workers[] = {{.id = 3, .rank = 0, .node = "a", .state = "trains", .note = "slow"},
                                         {.id = 4, .rank = 1, .node = "b", .state = "trains"}};
    struct top_screen s = {.width = 100,
                           .height = 22,
                           .server = "unix:/x",
                           .jobs = jobs,
                           .n_jobs = 2,
                           .nodes = nodes,
                           .n_nodes = 1,
                           .workers = workers,
                           .n_workers = 2,
                           .more = true,
                           .events = {[TOP_EVENTS - 1] = "10:00:00  epoch 1 running"}};
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    top_screen_put(&s, &text);
    assert_non_null(strstr(text.data, "page 1, there are more"));
    assert_non_null(strstr(text.data, ">    7  one   RUNNING  10/20   nan  ^=._      61.2k   25.0        4\n"));
    assert_non_null(strstr(text.data, "     6  two   PENDING    0/5     - "));
    assert_non_null(strstr(text.data, "a     ready     4      4  cpu"));
    assert_non_null(strstr(text.data, "trains"));
    assert_non_null(
        strstr(text.data, "\nstep 64.2 ms: data 2%, compute 62%, comm. 5%, checkpoint 0%, stragglers 31%\n"));
    assert_non_null(
        strstr(text.data, "\nslowest: rank 1 in 60 of 64 steps, busy 61.0 ms, the others wait 21.5, on b\n"));
    assert_non_null(strstr(text.data, "slowest in 60 of 64 steps\n"));
    assert_non_null(strstr(text.data, "10:00:00  epoch 1 running\n"));
    buf_clear(&text);
    s.rest = 9986;
    top_screen_put(&s, &text);
    assert_non_null(strstr(text.data, "page 1, 9986 more jobs  unix:/x\n"));
    buf_clear(&text);
    s.uncounted = true;
    top_screen_put(&s, &text);
    assert_non_null(strstr(text.data, "page 1, over 9986 more jobs  unix:/x\n"));
    assert_null(strstr(text.data, "SLOWEST"));
    buf_clear(&text);
    const struct split_mean alone = {.split = {1, 9, 0, 0, 0, .slowest = -1}, .steps = 64};
    jobs[1].state = TITAN__V1__JOB_STATE__RUNNING;
    jobs[1].split = &alone;
    top_screen_put(&s, &text);
    assert_non_null(strstr(text.data, "JOB  STEP MS  DATA  COMPUTE  COMM.  CHECKP.  STRAGGL.  SLOWEST"));
    assert_non_null(
        strstr(text.data,
               "  7     64.2    2%      62%     5%       0%       31%  rank 1 in 60 of 64     61.0         21.5\n"));
    assert_non_null(strstr(text.data, "  6     10.0   10%      90%     0%       0%        0%  -"));
    assert_null(strstr(text.data, "slowest: rank"));
    buf_clear(&text);
    s.live = true; /* keys select the other one */
    top_screen_put(&s, &text);
    assert_null(strstr(text.data, "SLOWEST"));
    assert_non_null(strstr(text.data, "\nslowest: rank 1 in 60 of 64 steps"));
}

static void add(struct split_window *w, uint64_t step, uint64_t epoch, uint32_t world, uint32_t slowest, double waited)
{
    Titan__V1__MetricPoint p = TITAN__V1__METRIC_POINT__INIT;
    Titan__V1__StepSplit split = TITAN__V1__STEP_SPLIT__INIT;
    p.step = step;
    p.epoch = epoch;
    p.world_size = world;
    split.compute_ms = 10;
    split.straggler_ms = waited;
    split.slowest_busy_ms = 12;
    split.slowest_rank = slowest;
    p.split = &split;
    split_window_add(w, &p);
}

/* The rank that the others waited for longest, not the one that was last most often; of one epoch. */
static void test_slowest(void **state)
{
    (void)state;
    static struct split_window w;
    struct split_mean m;
    Titan__V1__MetricPoint none = TITAN__V1__METRIC_POINT__INIT;
    none.epoch = 9;
    assert_false(split_window_mean(&w, &m));
    for (uint64_t step = 1; step <= 3 * SPLIT_WINDOW; step++) {
        add(&w, step, 1, 4, step % 4 == 0 ? 2 : 3, step % 4 == 0 ? 9 : 1);
        split_window_add(&w, &none); /* was not measured */
    }
    assert_true(split_window_mean(&w, &m));
    assert_int_equal(m.steps, SPLIT_WINDOW);
    assert_int_equal(m.split.slowest, 2);
    assert_int_equal(m.slowest_steps, SPLIT_WINDOW / 4);
    assert_true(m.waited == 9 && m.split.slowest_busy == 12 && m.split.compute == 10 && m.split.stragglers == 3);
    add(&w, 1000, 2, 4, 0, 0);
    assert_true(split_window_mean(&w, &m));
    assert_true(m.steps == 1 && m.split.slowest == 0);
    add(&w, 1001, 3, 1, 0, 0); /* alone: none is the slowest */
    assert_true(split_window_mean(&w, &m));
    assert_int_equal(m.split.slowest, -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_fits), cmocka_unit_test(test_frame),
                                       cmocka_unit_test(test_slowest)};
    return cmocka_run_group_tests_name("top", tests, NULL, NULL);
}
