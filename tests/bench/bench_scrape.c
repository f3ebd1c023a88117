/* SPDX-License-Identifier: Apache-2.0 */
/* bench_scrape.c - what a scrape of /metrics takes of the coordinator's loop, with 1,000 nodes and 100 jobs of 8
 * workers that train. Prints one JSON object: the least and the median of some rounds in milliseconds, bytes, and
 * samples. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/vec.h"

/* core_bench.h asserts as a test does. */
#define assert_int_equal(a, b) titan_assert((intmax_t)(a) == (intmax_t)(b))
#define assert_non_null(a) titan_assert((a) != NULL)
#define assert_null(a) titan_assert((a) == NULL)
#define assert_string_equal(a, b) titan_assert(strcmp((a), (b)) == 0)
#include "support/core_bench.h"

#include "daemon/api/methods.h"
#include "daemon/common/exposition.h"
#include "daemon/coordinator/shell/shell.h"

enum { NODES = 1000, SLOTS = 8, JOBS = 100, ROUNDS = 101 };

struct started {
    uint64_t session, job, worker;
};

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void fill(struct bench *b)
{
    for (uint64_t i = 1; i <= NODES; i++) {
        char name[32];
        (void)snprintf(name, sizeof(name), "node-%04u.cluster.example", (unsigned)i);
        titan_assert(registration(b, i, name, SLOTS, NULL, 0) == TITAN_OK);
        heartbeat(b, i);
    }
    for (uint64_t id = 1; id <= JOBS; id++) {
        char name[40];
        struct job job = job_of(id, SLOTS, SLOTS);
        (void)snprintf(name, sizeof(name), "llama3-8b-ablation-%u", (unsigned)id);
        job.name = name;
        job.user = "eva";
        submit_job(b, &job);
    }

    /* Of many nodes, jobs are placed in the next tick. */
    struct started *all = NULL;
    size_t n = 0, cap = 0;
    tick(b, 1);
    for (const struct batch_message *m = b->out.messages; m; m = m->next)
        if ((int)m->message->kind_case == START)
            for (size_t i = 0; i < m->message->start->n_worker_ids; i++) {
                const struct started s = {m->session, m->message->start->job_id, m->message->start->worker_ids[i]};
                VEC_MUST_PUSH(all, n, cap, s);
            }
    titan_assert(n == (size_t)JOBS * SLOTS);
    for (size_t i = 0; i < n; i++)
        ready(b, .session = all[i].session, .job = all[i].job, .worker = all[i].worker);
    for (size_t i = 0; i < n; i++)
        progress(b, .session = all[i].session, .job = all[i].job, .worker = all[i].worker, .epoch = 1, .step = 1);
    for (size_t i = 0; i < n; i += SLOTS)
        checkpoint(b, .session = all[i].session, .job = all[i].job, .worker = all[i].worker, .epoch = 1, .step = 1);
    free(all);
}

int main(void)
{
    char dir[] = "/tmp/titan-bench-scrape-XXXXXX";
    uv_loop_t loop;
    struct coordinator *c = NULL;
    struct titan_error err = {0};
    struct coordinator_options options = {.observer = &api_observer, .state_dir = mkdtemp(dir)};
    double ms[ROUNDS];
    size_t samples = 0;
    struct buf text = BUF_INIT;
    titan_assert(options.state_dir && uv_loop_init(&loop) == 0);
    if (coordinator_open(&loop, &options, &c, &err) != TITAN_OK) {
        (void)fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    struct bench b = {.core = c->core, .now = clock_mono_ms()};
    batch_init(&b.out);
    fill(&b);
    for (int i = 0; i < ROUNDS; i++) {
        const int64_t begin_ns = clock_mono_ns();
        struct exposition e = {.out = &text, .format = EXPOSITION_TEXT};
        buf_free(&text); /* each scrape has memory of its own */
        api_scrape(c, &e);
        exposition_end(&e);
        ms[i] = (double)(clock_mono_ns() - begin_ns) / 1e6;
    }
    titan_assert(!buf_failed(&text));
    for (const char *line = text.data; line && *line; line = strchr(line, '\n') + 1)
        samples += *line != '#';
    qsort(ms, ROUNDS, sizeof(*ms), by_size);
    printf("{\"nodes\": %d, \"jobs\": %d, \"least_ms\": %.3f, \"median_ms\": %.3f, \"bytes\": %zu, \"samples\": %zu, "
           "\"target_ms\": 5, \"target_bytes\": 500000}\n",
           NODES, JOBS, ms[0], ms[ROUNDS / 2], text.len, samples);
    (void)fflush(stdout);
    char command[64]; /* the process ends without closing the coordinator, whose core has seen what its store has not */
    (void)snprintf(command, sizeof(command), "rm -rf %s", dir);
    _exit(system(command) != 0);
}
