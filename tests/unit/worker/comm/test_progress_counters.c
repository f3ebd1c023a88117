/* SPDX-License-Identifier: Apache-2.0 */
/* What hangs and what waits, as an agent sees it: two members over shared memory or sockets, one of which stands still
 * in an operation of its own while the other waits for it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/progress.h"
#include "support/patience.h"
#include "support/ranks.h"

#define SAMPLES 40
#define SAMPLE_MS 2

enum where { ON_COMPUTE, ON_COMM };

struct words {
    _Atomic uint64_t actions, busy_ns;
    _Atomic uint32_t waiting;
};
struct scene {
    struct words words[2];
    enum where where;
    atomic_int stands, go;
};

/* An operation that begins, and goes on only when told to. */
static titan_status stand_still(void *arg, struct titan_error *err)
{
    struct scene *scene = arg;
    (void)err;
    atomic_store(&scene->stands, 1);
    while (!atomic_load(&scene->go))
        ;
    return TITAN_OK;
}

struct place {
    struct device_handle device;
    struct stream *compute, *comm;
    struct event *done;
    struct comm *sums;
};

/* As a step does it: something on the compute stream, a sum beside it, the compute stream waits for the sum. */
static void take_step(struct rank_context *ctx, const struct place *p)
{
    const struct device_ops *ops = p->device.ops;
    struct scene *scene = ctx->arg;
    float x[16] = {0};

    if (ctx->rank == 0)
        RANK_CHECK(ctx, ops->stream_call(scene->where == ON_COMPUTE ? p->compute : p->comm, stand_still, scene, NULL) ==
                            TITAN_OK);
    RANK_CHECK(ctx, ctx->ops->all_reduce(p->sums, x, 16, DTYPE_F32, p->comm) == TITAN_OK);
    RANK_CHECK(ctx, ops->event_record(p->done, p->comm, NULL) == TITAN_OK);
    RANK_CHECK(ctx, ops->event_wait(p->done, p->compute, NULL) == TITAN_OK);
    RANK_CHECK(ctx, ops->stream_sync(p->compute, NULL) == TITAN_OK);
}

static void member(struct rank_context *ctx)
{
    struct scene *scene = ctx->arg;
    struct words *w = &scene->words[ctx->rank];
    struct place p;
    struct titan_error err;

    progress_attach(
        &(struct progress_counters){.actions = &w->actions, .waiting = &w->waiting, .busy_ns = &w->busy_ns});
    RANK_CHECK(ctx, device_open("cpu", &(struct device_options){.threads = 1}, &p.device, &err) == TITAN_OK);
    const struct device_ops *ops = p.device.ops;
    RANK_CHECK(ctx, ops->stream_open(p.device.dev, "compute", true, &p.compute, &err) == TITAN_OK);
    RANK_CHECK(ctx, ops->stream_open(p.device.dev, "comm", false, &p.comm, &err) == TITAN_OK);
    RANK_CHECK(ctx, ops->event_open(p.device.dev, &p.done, &err) == TITAN_OK);
    ctx->config.device = &p.device;
    RANK_CHECK(ctx, ctx->ops->open(&ctx->config, NULL, &p.sums, &err) == TITAN_OK);

    progress_work_begin();
    const int64_t began = clock_mono_ns(), idle = progress_idle_ns();
    take_step(ctx, &p);
    progress_busy(clock_mono_ns() - began - (progress_idle_ns() - idle));
    progress_work_end();

    ctx->ops->close(p.sums);
    ops->event_close(p.done);
    ops->stream_close(p.comm);
    ops->stream_close(p.compute);
    device_close(&p.device);
}

/* For a while nothing moves where it hangs, which is no wait; the other waits, but for a wake now and then, to look
 * after its peer. Not so at first, while operations are still being queued. */
static bool stands_still(struct scene *scene)
{
    struct words *hangs = &scene->words[0], *waits = &scene->words[1];
    const uint64_t at = atomic_load(&hangs->actions), other = atomic_load(&waits->actions);
    int waiting = 0;
    bool still = atomic_load(&scene->stands) && other > 0;
    for (int i = 0; i < SAMPLES && still; i++) {
        still = atomic_load(&hangs->waiting) == 0;
        waiting += atomic_load(&waits->waiting) != 0;
        patience_pause_ms(SAMPLE_MS, "a sample");
    }
    return still && waiting > SAMPLES * 3 / 4 && atomic_load(&hangs->actions) == at &&
           atomic_load(&waits->actions) == other;
}

/* Is the rank that waited less busy than the rank that hung? Not always on a machine that lets it wait for a processor.
 */
static bool watch(const struct comm_ops *ops, enum where where)
{
    struct ranks ranks;
    struct scene *scene = mmap(NULL, sizeof *scene, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct words *hangs = &scene->words[0], *waits = &scene->words[1];

    assert_true(scene != MAP_FAILED);
    scene->where = where;
    ranks_init(&ranks, ops, 2, RANKS_THREAD);
    ranks_start(&ranks, false, member, scene);
    AWAIT(stands_still(scene));
    const uint64_t at = atomic_load(&hangs->actions), other = atomic_load(&waits->actions);
    atomic_store(&scene->go, 1);
    assert_int_equal(ranks_join(&ranks), 0);
    assert_true(atomic_load(&hangs->actions) > at);
    assert_true(atomic_load(&waits->actions) > other);
    assert_int_equal(atomic_load(&hangs->waiting), 1); /* idle */
    print_message("# %s: busy %.1f ms where it stood still, %.1f ms where it waited\n", ops->name,
                  (double)hangs->busy_ns * 1e-6, (double)waits->busy_ns * 1e-6);
    assert_true(hangs->busy_ns > (uint64_t)SAMPLES * SAMPLE_MS * 1000000);
    const bool less = waits->busy_ns < hangs->busy_ns / 2;
    ranks_free(&ranks);
    (void)munmap(scene, sizeof *scene);
    return less;
}

static void test_compute(void **state)
{
    (void)state;
    AWAIT(watch(&comm_shm, ON_COMPUTE));
    AWAIT(watch(&comm_tcp, ON_COMPUTE));
}

/* A communication thread that is stuck, but not in a wait for a peer. */
static void test_comm(void **state)
{
    (void)state;
    AWAIT(watch(&comm_shm, ON_COMM));
    AWAIT(watch(&comm_tcp, ON_COMM));
}

int main(void)
{
    (void)setenv("TITAN_PLUGIN_DIR", TITAN_BUILD_DIR "/lib/titan", 0);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_compute), cmocka_unit_test(test_comm)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
