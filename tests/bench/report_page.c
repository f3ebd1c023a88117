/* SPDX-License-Identifier: Apache-2.0 */
/* report_page.c - the page of `titanctl report` of a job that there is not, with as many steps as are asked for.
 *
 *   report_page STEPS FILE
 *
 * Every curve has values, some of them not finite, and there are as many events as a page takes. Prints one JSON
 * object: what adding the steps and writing the page took, and its size. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "ctl/report_page.h"

enum { WORLD = 8 };

/* Sums of numbers that hardly repeat, so that no two values of a curve are the same. */
static double noise(uint64_t step, uint64_t of)
{
    const uint64_t x = (step * UINT64_C(0x9e3779b97f4a7c15)) ^ (of * UINT64_C(0xd1b54a32d192ed03));
    return (double)((x ^ x >> 29) * UINT64_C(0xbf58476d1ce4e5b9) >> 40) / (1 << 24);
}

static void add_step(struct curves *c, uint64_t step)
{
    Titan__V1__MetricPoint p = TITAN__V1__METRIC_POINT__INIT;
    Titan__V1__StepSplit split = TITAN__V1__STEP_SPLIT__INIT;
    Titan__V1__ExpertLoad experts = TITAN__V1__EXPERT_LOAD__INIT;
    Titan__V1__Evaluation evaluation = TITAN__V1__EVALUATION__INIT;

    p.step = step;
    p.at_ms = INT64_C(1700000000000) + (int64_t)step * 250;
    p.loss = step % 5000 == 17 ? (double)NAN : 2 + 9 / (1 + (double)step / 1000) + noise(step, 1);
    p.grad_norm = step % 7000 == 19 ? (double)INFINITY : 0.5 + noise(step, 2);
    p.learning_rate = 3e-4 * (1 - (double)step / 2e6);
    p.tokens_per_second = 10000 + 100 * noise(step, 3);
    p.tflops = 400 + noise(step, 4);
    p.mfu = 0.4 + 0.01 * noise(step, 4);
    p.mfu_causal = 0.35 + 0.01 * noise(step, 4);
    p.step_ms = 250 + 10 * noise(step, 5);
    p.memory_bytes = UINT64_C(70) << 30;
    p.tokens = step * 4096;
    p.world_size = WORLD;
    p.epoch = 1;
    split.data_ms = noise(step, 6);
    split.compute_ms = 200 + noise(step, 7);
    split.communication_ms = 30 + noise(step, 8);
    split.checkpoint_ms = step % 500 == 0 ? 15 : 0;
    split.straggler_ms = 5 * noise(step, 9);
    split.slowest_busy_ms = 220;
    split.slowest_rank = (uint32_t)(WORLD * noise(step, 10));
    p.split = &split;
    experts.least = 10 + noise(step, 11);
    experts.mean = 64;
    experts.most = 100 + 50 * noise(step, 12);
    p.experts = &experts;
    evaluation.loss = 2 + noise(step, 13);
    if (step % 1000 == 0)
        p.validation = &evaluation;
    curves_add(c, &p);
}

static bool add_event(struct history *t, uint64_t i, const char *type, const char *detail)
{
    Titan__V1__Event e = TITAN__V1__EVENT__INIT;
    e.id = i;
    e.at_ms = INT64_C(1700000000000) + (int64_t)i * 100000;
    e.epoch = i;
    e.step = i * 400;
    e.rank = (int32_t)(i % WORLD);
    e.type = (char *)(uintptr_t)type;
    e.message = (char *)(uintptr_t) "worker 17 of rank 3 on node-0123 was lost: signal 9; the run goes on from memory";
    e.node = (char *)(uintptr_t) "node-0123";
    e.detail = (char *)(uintptr_t)detail;
    return history_add(t, &e);
}

static bool add_events(struct history *t)
{
    bool ok = true;
    for (uint64_t i = 1; i <= 2 * HISTORY_MOST && ok; i++)
        ok = add_event(t, i, "worker.lost", "{}") && add_event(t, i, "epoch.formed", "{\"world\":8}") &&
             add_event(t, i, "checkpoint.committed", "{\"step\":400}") &&
             add_event(t, i, "recovery.finished", "{\"recovery_ms\":300,\"from_step\":7,\"rung\":\"replica\"}");
    history_end(t);
    return ok;
}

int main(int argc, char **argv)
{
    const uint64_t steps = argc == 3 ? strtoull(argv[1], NULL, 10) : 0;
    struct history history = {0};
    struct curves curves;
    struct titan_error err = {0};
    Titan__V1__Job job = TITAN__V1__JOB__INIT;
    _cleanup_(buf_free) struct buf text = BUF_INIT;

    if (steps == 0) {
        (void)fprintf(stderr, "usage: report_page STEPS FILE\n");
        return 2;
    }
    if (!curves_init(&curves) || !add_events(&history))
        return 1;
    const int64_t began_ns = clock_mono_ns();
    for (uint64_t step = 1; step <= steps; step++)
        add_step(&curves, step);
    const int64_t added_ns = clock_mono_ns();
    job.id = 1;
    job.name = (char *)(uintptr_t) "long";
    job.state = TITAN__V1__JOB_STATE__RUNNING;
    job.step = job.steps = steps;
    job.submitted_at_ms = job.started_at_ms = INT64_C(1700000000000);
    const struct report_page page = {.job = &job,
                                     .recipe = "[training]\nsteps = 1000000\n",
                                     .curves = &curves,
                                     .history = &history,
                                     .now_ms = INT64_C(1700000000000) + (int64_t)steps * 250};
    if (!report_page_put(&page, &text))
        return 1;
    const int64_t put_ns = clock_mono_ns();
    if (file_replace(argv[2], text.data, text.len, &err) != TITAN_OK) {
        (void)fprintf(stderr, "report_page: %s\n", err.msg);
        return 1;
    }
    (void)printf("{\"steps\": %llu, \"bytes\": %zu, \"add_ms\": %.1f, \"page_ms\": %.1f}\n", (unsigned long long)steps,
                 text.len, (double)(added_ns - began_ns) * 1e-6, (double)(put_ns - added_ns) * 1e-6);
    curves_free(&curves);
    history_free(&history);
    return 0;
}
