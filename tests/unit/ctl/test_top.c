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
                                   .n_losses = 5};
        (void)snprintf(jobs[i].name, sizeof(jobs[i].name), "名前名前名前名前名前名前名前-%d", i);
        (void)snprintf(jobs[i].reason, sizeof(jobs[i].reason), "%0200d", i);
        nodes[i] = (struct top_node){.state = "quarantined", .slots = 8};
        (void)snprintf(nodes[i].name, sizeof(nodes[i].name), "%0100d", i);
        workers[i] = (struct top_worker){.id = (uint64_t)i, .rank = i - 1, .state = "trains"};
        (void)snprintf(workers[i].note, sizeof(workers[i].note), "%0100d", i);
    }
    for (int i = 0; i < TOP_EVENTS; i++)
        (void)snprintf(s->events[i], sizeof(s->events[i]), "event %0200d", i);
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
                s.trouble = how & 2 ? "the server does not answer" : NULL;
                top_screen_put(&s, &text);
                int lines = 0;
                for (const char *at = text.data; *at; lines++) {
                    const size_t len = strcspn(at, "\n");
                    assert_in_range(columns_of(at, len), 0, width);
                    at += len + 1;
                }
                assert_in_range(lines, s.live ? height : 1, height);
            }
}

/* What a person looks for is there. */
static void test_frame(void **state)
{
    (void)state;
    static const double losses[] = {4, 3, 2, 1};
    const struct top_job jobs[] = {{.id = 7,
                                    .step = 10,
                                    .steps = 20,
                                    .state = TITAN__V1__JOB_STATE__RUNNING,
                                    .name = "one",
                                    .loss = NAN,
                                    .tokens_per_second = 61234,
                                    .mfu = 0.25,
                                    .workers = 4,
                                    .losses = losses,
                                    .n_losses = 4},
                                   {.id = 6, .steps = 5, .state = TITAN__V1__JOB_STATE__PENDING, .name = "two"}};
    const struct top_node nodes[] = {{.name = "a", .state = "ready", .device = "cpu", .slots = 4, .slots_used = 4}};
    const struct top_worker workers[] = {{.id = 3, .rank = 0, .node = "a", .state = "trains", .note = "slow"}};
    const struct top_screen s = {.width = 100,
                                 .height = 20,
                                 .server = "unix:/x",
                                 .jobs = jobs,
                                 .n_jobs = 2,
                                 .nodes = nodes,
                                 .n_nodes = 1,
                                 .workers = workers,
                                 .n_workers = 1,
                                 .more = true,
                                 .events = {[TOP_EVENTS - 1] = "10:00:00  epoch 1 running"}};
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    top_screen_put(&s, &text);
    assert_non_null(strstr(text.data, "page 1, there are more"));
    assert_non_null(strstr(text.data, ">    7  one   RUNNING  10/20   nan  ^=._      61.2k   25.0        4\n"));
    assert_non_null(strstr(text.data, "     6  two   PENDING    0/5     - "));
    assert_non_null(strstr(text.data, "a     ready     4      4  cpu"));
    assert_non_null(strstr(text.data, "trains"));
    assert_non_null(strstr(text.data, "10:00:00  epoch 1 running\n"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_fits), cmocka_unit_test(test_frame)};
    return cmocka_run_group_tests_name("top", tests, NULL, NULL);
}
