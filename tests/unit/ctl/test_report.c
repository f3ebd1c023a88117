/* SPDX-License-Identifier: Apache-2.0 */
/* test_report.c - what a report is made of: curves of any number of steps, events, text that is not markup. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/recipe.h"
#include "ctl/report_page.h"

static void add(struct curves *c, uint64_t step, double loss)
{
    Titan__V1__MetricPoint p = TITAN__V1__METRIC_POINT__INIT;
    p.step = step;
    p.at_ms = (int64_t)(step % 1000000) * 10;
    p.loss = loss;
    curves_add(c, &p);
}

/* Of three ranks one is the slowest of every tenth step, where it holds up the others for long. */
static void add_split(struct curves *c, uint64_t step, Titan__V1__MetricPoint *p)
{
    Titan__V1__StepSplit split = TITAN__V1__STEP_SPLIT__INIT;
    Titan__V1__ExpertLoad experts = TITAN__V1__EXPERT_LOAD__INIT;
    p->step = step;
    p->at_ms = (int64_t)step * 10;
    p->world_size = 3;
    split.compute_ms = 10;
    split.communication_ms = 2.5;
    split.straggler_ms = step % 10 ? 0.5 : 30;
    split.slowest_busy_ms = 11;
    split.slowest_rank = step % 10 ? 0 : 2;
    p->split = &split;
    experts.least = 3;
    experts.mean = 8;
    experts.most = 12;
    experts.dropped = 5;
    experts.further_rounds = 2;
    experts.room_needed = 1.5;
    p->experts = &experts;
    curves_add(c, p);
    p->split = NULL;
    p->experts = NULL;
}

/* Nothing is lost of a million steps but where in its range a value was. */
static void test_many_steps(void **state)
{
    (void)state;
    struct curves c;
    assert_true(curves_init(&c));
    for (uint64_t step = 1; step <= 1000000; step++)
        add(&c, step, step == 1 ? 2 : step == 777777 ? 99 : step == 555555 ? (double)NAN : 1);
    assert_in_range(c.n, CURVES_RANGES / 2, CURVES_RANGES);
    assert_int_equal(c.points, 1000000);
    uint64_t steps = 0, bad = 0;
    double max = 0, min = 99;
    for (size_t i = 0; i < c.n; i++) {
        const struct curves_values *v = &c.ranges[i].values[CURVES_LOSS];
        steps += v->n;
        bad += v->bad;
        max = fmax(max, v->max);
        min = fmin(min, v->min);
        assert_true(i == 0 || c.ranges[i].step == c.ranges[i - 1].last_step + 1);
        assert_true(c.ranges[i].last_step - c.ranges[i].step < c.stride);
        if (v->max > 2)
            assert_in_range(777777, c.ranges[i].step, c.ranges[i].last_step);
    }
    assert_int_equal(steps, 999999);
    assert_int_equal(bad, 1);
    assert_true(max == 99 && min == 1 && c.first_loss == 2 && c.last_loss == 1);
    curves_free(&c);
}

/* A range that only has values that are not finite is a gap; steps far apart are ranges of their own. */
static void test_gaps(void **state)
{
    (void)state;
    struct curves c;
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    struct json_writer w = {.out = &text};
    assert_true(curves_init(&c));
    add(&c, 1, 2.5);
    add(&c, 2, (double)INFINITY);
    add(&c, 2, 7); /* again: of steps in order there is no other */
    add(&c, UINT64_MAX / 4, -1);
    curves_put(&c, NULL, 10, &w);
    assert_non_null(strstr(text.data, "\"step\":[1,2,4611686018427387903]"));
    assert_non_null(strstr(text.data, "\"loss\":{\"mean\":[2.5,null,-1],\"bad\":[0,1,0]}"));
    assert_null(strstr(text.data, "validation"));
    curves_free(&c);
}

static void happen(struct history *t, const char *type, int64_t at_ms, const char *detail)
{
    Titan__V1__Event e = TITAN__V1__EVENT__INIT;
    e.type = (char *)(uintptr_t)type;
    e.at_ms = at_ms;
    e.rank = -1;
    e.message = (char *)(uintptr_t) "it <b>happened</b>";
    e.detail = (char *)(uintptr_t)detail;
    e.node = (char *)(uintptr_t) "node-a";
    assert_true(history_add(t, &e));
}

/* Which rank is waited for is counted over all steps, and in each range it is the one of the longest wait. */
static void test_slowest_ranks(void **state)
{
    (void)state;
    struct curves c;
    uint32_t ranks[2] = {9, 9};
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    struct json_writer w = {.out = &text};
    Titan__V1__MetricPoint p = TITAN__V1__METRIC_POINT__INIT;
    assert_true(curves_init(&c));
    assert_int_equal(curves_slowest(&c, 2, ranks), 0);
    for (uint64_t step = 1; step <= 100000; step++)
        add_split(&c, step, &p);
    add(&c, 100001, 1); /* was not measured */
    assert_true(c.stride >= 10 && c.splits == 100000);
    for (size_t i = 0; i < c.n; i++)
        assert_true(c.ranges[i].slowest == 2 && c.ranges[i].waited == 30);
    assert_int_equal(curves_slowest(&c, 2, ranks), 2);
    assert_true(ranks[0] == 2 && ranks[1] == 0);
    assert_true(c.ranks[2].steps == 10000 && c.ranks[2].waited_ms == 300000 && c.ranks[2].busy_ms == 110000);
    assert_int_equal(curves_slowest(&c, 1, ranks), 1);
    assert_int_equal(ranks[0], 2);
    assert_true(curves_mean_of_all(&c, CURVES_COMPUTE) == 10 && isnan(curves_mean_of_all(&c, CURVES_VALIDATION)));
    curves_put(&c, NULL, 0, &w);
    assert_non_null(strstr(text.data, "\"slowest\":[2,2,"));
    assert_non_null(strstr(text.data, "\"expert_tokens_max\":{\"mean\":[12,12,"));
    assert_non_null(strstr(text.data, "\"expert_tokens_dropped\":{\"mean\":[5,5,"));
    assert_non_null(strstr(text.data, "\"expert_further_rounds\":{\"mean\":[2,2,"));
    assert_non_null(strstr(text.data, "\"expert_room_needed\":{\"mean\":[1.5,1.5,"));
    Titan__V1__StepSplit bad = TITAN__V1__STEP_SPLIT__INIT;
    bad.slowest_rank = UINT32_MAX; /* of a server that is not ours */
    bad.straggler_ms = (double)NAN;
    p.step = 100002;
    p.split = &bad;
    curves_add(&c, &p);
    bad.straggler_ms = 1;
    p.step++;
    curves_add(&c, &p);
    assert_int_equal(curves_slowest(&c, 2, ranks), 2);
    curves_free(&c);
}

/* A rank's node is its worker's, in the newest epoch. */
static void test_nodes_of_ranks(void **state)
{
    (void)state;
    struct history t = {0};
    happen(&t, "worker.started", 1, "{\"worker\":7}");
    happen(&t, "worker.started", 1, "{\"worker\":8}");
    assert_string_equal(history_node_of(&t, 1), "");
    happen(&t, "epoch.forming", 2, "{\"world\":3,\"workers\":[9,7,\"x\"]}");
    assert_string_equal(history_node_of(&t, 0), "");
    assert_string_equal(history_node_of(&t, 1), "node-a");
    assert_string_equal(history_node_of(&t, 2), "");
    assert_string_equal(history_node_of(&t, UINT32_MAX), "");
    happen(&t, "epoch.formed", 3, "{\"world\":3}");
    assert_string_equal(history_node_of(&t, 1), "node-a");
    happen(&t, "worker.exited", 4, "{\"worker\":7,\"exit_code\":0,\"signal\":0}");
    happen(&t, "epoch.forming", 5, "{\"world\":2,\"workers\":[8,7]}");
    assert_string_equal(history_node_of(&t, 0), "node-a");
    assert_string_equal(history_node_of(&t, 1), "");
    assert_int_equal(t.n_workers, 1);
    history_free(&t);
}

/* However many events there are, the newest are kept, and sums are of all. */
static void test_many_events(void **state)
{
    (void)state;
    struct history t = {0};
    happen(&t, "worker.started", 1, "{}");
    for (int i = 0; i < 5 * HISTORY_MOST; i++) {
        happen(&t, "epoch.formed", 10 * i, "{\"world\":4}");
        happen(&t, "checkpoint.committed", 10 * i + 1, "{\"step\":3}");
        happen(&t, "worker.exited", 10 * i + 2, "{\"exit_code\":0,\"signal\":9}");
        happen(&t, "worker.exited", 10 * i + 2, "{\"exit_code\":0,\"signal\":0}");
        happen(&t, "worker.exited", 10 * i + 2, "{\"exit_code\":-1,\"signal\":9,\"asked\":true}");
        happen(&t, "epoch.revoked", 10 * i + 3, "not JSON");
        happen(&t, "recovery.finished", 10 * i + 4, "{\"recovery_ms\":2.5,\"from_step\":7,\"rung\":\"replica\"}");
    }
    history_end(&t);
    assert_int_equal(t.n_events, HISTORY_MOST);
    assert_int_equal(t.all_events, 10 * HISTORY_MOST);
    assert_int_equal(t.n_worlds, HISTORY_MOST);
    assert_int_equal(t.n_changes, HISTORY_MOST);
    assert_int_equal(t.recoveries, 5 * HISTORY_MOST);
    assert_true(t.recovery_ms == 2.5 * 5 * HISTORY_MOST && isnan(t.changes[0].form_ms));
    assert_string_equal(t.events[HISTORY_MOST - 1].kind, "recovery");
    assert_int_equal(t.events[HISTORY_MOST - 1].at_ms, 10 * (5 * HISTORY_MOST - 1) + 4);
    assert_true(t.n_checkpoints <= HISTORY_MOST && t.checkpoints[0].at_ms == 1);
    assert_int_equal(t.all_checkpoints, 5 * HISTORY_MOST);
    assert_int_equal(t.n_nodes, 1);
    history_free(&t);
}

static void test_escape(void **state)
{
    (void)state;
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    report_page_escape("a\t<b class='x'>&\"é\"</b>\n\033[31m \xe2\x80\xae!", &text);
    assert_string_equal(text.data, "a    &lt;b class=&#39;x&#39;&gt;&amp;&quot;é&quot;&lt;/b&gt;\n?[31m ?!");
}

/* What is trained again takes the place of what was lost. */
static void test_trained_again(void **state)
{
    (void)state;
    struct curves c;
    assert_true(curves_init(&c));
    for (uint64_t step = 1; step <= 10; step++)
        add(&c, step, 1);
    Titan__V1__MetricPoint p = TITAN__V1__METRIC_POINT__INIT;
    p.epoch = 2;
    for (p.step = 5; p.step <= 6; p.step++) {
        p.loss = 2;
        curves_add(&c, &p);
    }
    assert_int_equal(c.n, 6);
    assert_true(curves_mean(&c.ranges[3].values[CURVES_LOSS]) == 1 && c.ranges[3].last_step == 4);
    assert_true(curves_mean(&c.ranges[4].values[CURVES_LOSS]) == 2 && c.ranges[5].last_step == 6 && c.last_loss == 2);
    curves_free(&c);
}

/* Speed is tokens over time: fast steps do not hide slow ones, as they would in a mean of rates. */
static void test_speed(void **state)
{
    (void)state;
    struct curves c;
    struct history t = {0};
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    Titan__V1__Job job = TITAN__V1__JOB__INIT;
    assert_true(curves_init(&c));
    for (uint64_t step = 1; step <= 8; step++) { /* 16 tokens each; the last four take 1, 1, 1 and 97 ms */
        Titan__V1__MetricPoint p = TITAN__V1__METRIC_POINT__INIT;
        p.step = step;
        p.step_ms = step == 8 ? 97 : 1;
        p.tokens_per_second = 16000 / p.step_ms;
        curves_add(&c, &p);
    }
    job.name = job.reason = job.user = job.directory = job.checkpoint = (char *)(uintptr_t) "";
    const struct report_page page = {.job = &job, .recipe = "", .curves = &c, .history = &t};
    assert_true(report_page_put(&page, &text));
    assert_non_null(strstr(text.data, "<dt>tokens/s</dt><dd>640</dd>"));
    curves_free(&c);
    history_free(&t);
}

static char *facts(const Titan__V1__Job *job, const struct curves *c, const struct history *t)
{
    static char text[2000];
    _cleanup_(buf_free) struct buf page = BUF_INIT;
    const struct report_page p = {.job = job, .recipe = "", .curves = c, .history = t, .now_ms = 5000};
    assert_true(report_page_put(&p, &page));
    const char *begin = strstr(page.data, "<dl class=\"facts\""), *end = strstr(begin, "</dl>");
    size_t n = 0;
    for (const char *at = strstr(begin, "<dt>"); at && at < end; at = strstr(at, "<dt>")) {
        const char *name = at + 4, *value = strstr(at, "<dd>") + 4;
        n += (size_t)snprintf(text + n, sizeof(text) - n, "%.*s: %.*s\n", (int)(strstr(name, "</dt>") - name), name,
                              (int)(strstr(value, "</dd>") - value), value);
        at = value;
    }
    return text;
}

/* What is known stands at the top, and nothing of what is not. */
static void test_facts(void **state)
{
    (void)state;
    struct curves c;
    struct history t = {0};
    Titan__V1__Job job = TITAN__V1__JOB__INIT;
    Titan__V1__Evaluation validation = TITAN__V1__EVALUATION__INIT;
    assert_true(curves_init(&c));
    job.name = job.reason = job.user = job.directory = job.checkpoint = (char *)(uintptr_t) "";
    job.steps = 20;
    job.mfu = -0.5; /* not known */
    assert_string_equal(facts(&job, &c, &t), "step: 0 of 20\nrecoveries: 0\n");
    for (uint64_t step = 1; step <= 8; step++) {
        Titan__V1__MetricPoint p = TITAN__V1__METRIC_POINT__INIT;
        p.loss = 2.5;
        p.tokens = 128 * step;
        p.step_ms = 100;
        p.tokens_per_second = 1280;
        p.skipped_steps = 3;
        add_split(&c, step, &p);
    }
    validation.loss = 2.75;
    job.step = 8;
    job.mfu = 0.125;
    job.validation = &validation;
    job.started_at_ms = 2000;
    happen(&t, "recovery.finished", 1, "{\"recovery_ms\":2500}");
    happen(&t, "recovery.finished", 2, "{\"recovery_ms\":500}");
    history_end(&t);
    assert_string_equal(facts(&job, &c, &t), "step: 8 of 20\n"
                                             "last loss: 2.5000\n"
                                             "last validation loss: 2.7500\n"
                                             "tokens: 1.02k\n"
                                             "tokens/s: 1.28k\n"
                                             "last MFU: 12.5 %\n"
                                             "since its start: 3.0s\n"
                                             "recoveries: 2 in 3.0s\n"
                                             "waited for longest: rank 0\n"
                                             "steps skipped: 3\n");
    job.finished_at_ms = 62000;
    assert_string_equal(strstr(facts(&job, &c, &t), "since its start"), "since its start: 1m 00s\n"
                                                                        "recoveries: 2 in 3.0s\n"
                                                                        "waited for longest: rank 0\n"
                                                                        "steps skipped: 3\n");
    curves_free(&c);
    history_free(&t);
}

/* What a reader sees of a part of the page: cells end with a bar. */
static char *seen(const struct report_page *p, const char *from, const char *to)
{
    static char text[4000];
    _cleanup_(buf_free) struct buf page = BUF_INIT;
    assert_true(report_page_put(p, &page));
    const char *at = strstr(page.data, from), *end = strstr(page.data, to);
    size_t n = 0;
    assert_true(at && end && at < end);
    while (at < end) {
        if (strncmp(at, "</td>", 5) == 0 || strncmp(at, "</th>", 5) == 0)
            text[n++] = '|';
        if (strncmp(at, "</h2>", 5) == 0 || strncmp(at, "</thead>", 8) == 0)
            text[n++] = '\n';
        if (*at == '<')
            at = strchr(at, '>') + 1;
        else if (*at == '\n' && n > 0 && text[n - 1] == '\n')
            at++;
        else
            text[n++] = *at++;
        assert_true(n + 8 < sizeof(text));
    }
    text[n] = '\0';
    return text;
}

/* Tables: of what is known each cell, of what is not an empty one; how many of all are shown. */
static void test_tables(void **state)
{
    (void)state;
    const char *text;
    struct curves c;
    struct recipe resolved;
    struct titan_error err = {0};
    Titan__V1__Job job = TITAN__V1__JOB__INIT;
    Titan__V1__Node node = TITAN__V1__NODE__INIT, *list = &node;
    Titan__V1__ListNodesResponse nodes = TITAN__V1__LIST_NODES_RESPONSE__INIT;
    struct history_change changes[] = {
        {1000, false, -1, 5, 3, 2, "replica", 1500.4, NAN, NAN, NAN, NAN, NAN, NAN},
        {2000, true, 0, 7, 4, 9, "", 0.6, 1, 2, 3, 4, 5, 6},
    };
    struct history_world worlds[] = {
        {1000, 1, 0, 4}, {61000, 1, 6, 0}, {62000, 2, 6, 2}, {63000, 3, 9, 1}, {64000, 4, 9, 5}};
    struct history_event events[] = {{1000, 1, 2, 0, "loss", "worker.lost", "it & that"},
                                     {2000, 1, 2, -1, "state", "job.state", ""}};
    struct history_checkpoint checkpoints[] = {{1500, 3}};
    struct history_node started[] = {{(char *)(uintptr_t) "a", 2}, {(char *)(uintptr_t) "b", 1}};
    struct history t = {.changes = changes,
                        .n_changes = 2,
                        .all_changes = 3,
                        .worlds = worlds,
                        .n_worlds = 5,
                        .events = events,
                        .n_events = 2,
                        .all_events = 2,
                        .checkpoints = checkpoints,
                        .n_checkpoints = 1,
                        .all_checkpoints = 4,
                        .nodes = started,
                        .n_nodes = 2};
    struct report_page p = {.job = &job,
                            .why_no_recipe = "it is another's",
                            .curves = &c,
                            .history = &t,
                            .nodes = &nodes,
                            .resolved = &resolved,
                            .server_version = "1.2.3",
                            .now_ms = 124000};
    recipe_init(&resolved);
    assert_int_equal(recipe_parse(&resolved,
                                  "[model]\nflavor = \"tiny\"\ntokenizer = \"bytes\"\n[elastic]\n"
                                  "max_workers = 4\n[parallelism]\ncontext_parallel_degree = 1\n",
                                  "f", &err),
                     TITAN_OK);
    assert_int_equal(recipe_resolve(&resolved, &err), TITAN_OK);
    assert_true(curves_init(&c));
    job.name = job.reason = job.user = job.checkpoint = (char *)(uintptr_t) "";
    job.directory = (char *)(uintptr_t) "/jobs/7";
    node.name = (char *)(uintptr_t) "b";
    node.device = (char *)(uintptr_t) "cpu";
    node.version = (char *)(uintptr_t) "1.2.2";
    node.state = (char *)(uintptr_t) "ready";
    node.slots = 8;
    nodes.nodes = &list;
    nodes.n_nodes = 1;
    text = seen(&p, "<h2 id=\"h-recoveries\"", "<h2 id=\"h-epochs\"");
    assert_string_equal(
        text,
        "Recoveries and resizes\n"
        "The newest 2 of 3 recoveries and resizes.\n"
        "Time|What|From step|Goes on at|Workers|State from|Epochs lost|Total ms|Detect|Decide|Quiet|Form|State|Step|\n"
        "1970-01-01T00:00:01.000Z|recovery||5|3|replica|2|1500|||||||\n"
        "1970-01-01T00:00:02.000Z|resize|0|7|4|||1|1|2|3|4|5|6|\n");
    text = seen(&p, "<h2 id=\"h-epochs\"", "<h2 id=\"h-events\"");
    assert_string_equal(text, "Epochs\n"
                              "From|Epoch|Behind step|Workers|Mesh|For|\n"
                              "1970-01-01T00:00:01.000Z|1|0|4|dp_shard 4|1m 00s|\n"
                              "1970-01-01T00:01:02.000Z|2|6|2|dp_shard 2|1.0s|\n"
                              "1970-01-01T00:01:03.000Z|3|9|1|one rank|1.0s|\n"
                              "1970-01-01T00:01:04.000Z|4|9|5||1m 00s|\n");
    job.finished_at_ms = 65000;
    assert_non_null(strstr(seen(&p, "<h2 id=\"h-epochs\"", "<h2 id=\"h-events\""), "|4|9|5||1.0s|\n"));
    text = seen(&p, "<h2 id=\"h-events\"", "<h2 id=\"h-environment\"");
    assert_string_equal(text, "Events\n"
                              "Besides: 4 checkpoints.\n"
                              "Time|Event|Epoch|Step|Rank|Message|\n"
                              "1970-01-01T00:00:01.000Z|worker.lost|1|2|0|it &amp; that|\n"
                              "1970-01-01T00:00:02.000Z|job.state|1|2|||\n");
    text = strstr(seen(&p, "<h2 id=\"h-environment\"", "<footer>"), "folder");
    assert_string_equal(text, "folder|/jobs/7|\n"
                              "Node|Workers started|Slots|Device|Version|State now|\n"
                              "a|2||||not known|\n"
                              "b|1|8|cpu|1.2.2|ready|\n"
                              "Recipe\n"
                              "it is another&#39;s\n");
    p.nodes = NULL;
    t.n_changes = t.n_worlds = t.n_nodes = 0;
    t.all_changes = 0;
    text = seen(&p, "<h2 id=\"h-recoveries\"", "<h2 id=\"h-events\"");
    assert_string_equal(text, "Recoveries and resizes\n"
                              "None.\n"
                              "Epochs\n"
                              "None.\n");
    curves_free(&c);
}

/* The largest page there is, with markup wherever text can be. */
static void test_page(void **state)
{
    (void)state;
    struct curves c;
    struct history t = {0};
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    Titan__V1__Job job = TITAN__V1__JOB__INIT;
    Titan__V1__Evaluation evaluation = TITAN__V1__EVALUATION__INIT;
    static const char evil[] = "</script><script>alert(1)</script><!--";
    char recipe[1 << 18];
    assert_true(curves_init(&c));
    for (uint64_t step = 1; step <= 1000000; step++) {
        Titan__V1__MetricPoint p = TITAN__V1__METRIC_POINT__INIT;
        p.at_ms = (int64_t)step * 1000000;
        p.tflops = p.mfu_causal = p.loss = p.grad_norm = p.learning_rate = p.tokens_per_second = p.mfu = p.step_ms =
            -1.23456789e-200 * (double)step;
        p.memory_bytes = UINT64_MAX - step;
        p.validation = &evaluation;
        if (step % 1000 == 7)
            p.loss = step % 2000 == 7 ? (double)NAN : (double)INFINITY;
        if (step == 123457)
            p.grad_norm = 77777;
        add_split(&c, step + 1000000000, &p);
    }
    for (int i = 0; i < HISTORY_MOST; i++) {
        happen(&t, "recovery.finished", i, "{\"rung\":\"<script>\"}");
        happen(&t, "epoch.formed", i, "{\"world\":9}");
    }
    history_end(&t);
    memset(recipe, '<', sizeof(recipe) - 1);
    recipe[sizeof(recipe) - 1] = '\0';
    job.name = job.reason = job.user = job.directory = job.checkpoint = (char *)(uintptr_t)evil;
    const struct report_page page = {
        .job = &job, .recipe = recipe, .server_version = evil, .curves = &c, .history = &t};
    assert_true(report_page_put(&page, &text));
    const char *at = text.data;
    int scripts = 0;
    while ((at = strstr(at, "<script")) != NULL) {
        scripts++;
        at++;
    }
    assert_int_equal(scripts, 2);
    assert_null(strstr(text.data, "<b>happened"));
    assert_null(strstr(text.data, "<!--"));
    assert_true(text.len < 3500000);
    assert_null(strstr(text.data, "nan"));
    assert_null(strstr(text.data, "inf"));
    assert_non_null(strstr(text.data, ",77777,"));
    assert_non_null(strstr(text.data,
                           "<b>rank 2</b>: it was the slowest in 100000 of 1000000 steps, busy 11.0 ms in each, "
                           "and the others waited 30.0 ms for it"));
    assert_non_null(strstr(text.data, "<dt>waited for longest</dt><dd>rank 2</dd>"));
    assert_non_null(strstr(text.data, "<td>compute</td><td class=\"n\">10.0</td><td class=\"n\">62.7 %</td>"));
    curves_free(&c);
    history_free(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_many_steps),    cmocka_unit_test(test_gaps),
        cmocka_unit_test(test_slowest_ranks), cmocka_unit_test(test_nodes_of_ranks),
        cmocka_unit_test(test_many_events),   cmocka_unit_test(test_escape),
        cmocka_unit_test(test_facts),         cmocka_unit_test(test_tables),
        cmocka_unit_test(test_page),          cmocka_unit_test(test_speed),
        cmocka_unit_test(test_trained_again),
    };
    return cmocka_run_group_tests_name("report", tests, NULL, NULL);
}
