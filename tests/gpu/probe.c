/* SPDX-License-Identifier: Apache-2.0 */
/* probe [quick] - how a GPU's queues, copies and allocations behave beside busy streams, and what a call costs the
 * host.
 *
 * Prints 'figure NAME VALUE' lines (tests/gpu/expected.tsv says what was expected of each). NAME_blocks is 1 when the
 * call did not return while the stream it uses, or another one, was busy. quick: small sizes and short kernels. Exit
 * code 1 when a call fails, 2 when the GPU cannot be opened. */
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "tests/gpu/spin.h"
#include "worker/device/device.h"

enum { STREAMS = 13, DEPTH_MOST = 8192 }; /* a step has as many streams */
#define HELD_MOST_NS 5000000000           /* a stream that is never let go goes on by itself */
#define BLOCKED_MS 200                    /* a call that takes longer is blocked */

struct probe {
    struct device_handle h;
    const struct device_ops *ops;
    struct stream *streams[STREAMS];
    int *go; /* pinned: lets held streams go on */
    bool quick;
};

static void figure(const char *name, double value)
{
    printf("figure %s %.5g\n", name, value);
    (void)fflush(stdout);
}

static void must(bool ok, const char *what, const struct titan_error *err)
{
    if (ok)
        return;
    (void)fprintf(stderr, "probe: %s: %s\n", what, err ? err->msg : "failed");
    exit(1);
}

static void finish(struct probe *p, int stream)
{
    struct titan_error err = {0};
    must(p->ops->stream_sync(p->streams[stream], &err) == TITAN_OK, "waiting for a stream", &err);
}

static void *native(const struct probe *p, int stream)
{
    return p->ops->stream_native(p->streams[stream]);
}

static void hold(struct probe *p, int stream)
{
    __atomic_store_n(p->go, 0, __ATOMIC_RELEASE);
    must(spin_until(native(p, stream), p->go, HELD_MOST_NS) == 0, "launching a kernel", NULL);
}

static void let_go(struct probe *p)
{
    __atomic_store_n(p->go, 1, __ATOMIC_RELEASE);
}

static double us_since(int64_t begin_ns, int count)
{
    return (double)(clock_mono_ns() - begin_ns) * 1e-3 / count;
}

/* --- what calls cost the host ------------------------------------------------------------------------------------- */

static void probe_costs(struct probe *p)
{
    enum { LAUNCHES = 400, PAIRS = 200, TRIPS = 200, SELECTS = 20000 }; /* fewer than a queue takes */
    const struct device_ops *ops = p->ops;
    struct titan_error err = {0};
    struct event *e = NULL;
    int64_t begin = 0;
    for (int warm = 0; warm < 2; warm++) { /* the first round loads the kernel */
        begin = clock_mono_ns();
        for (int i = 0; i < LAUNCHES; i++)
            must(spin_for(native(p, 0), 0) == 0, "launching a kernel", NULL);
        if (warm)
            figure("launch_us", us_since(begin, LAUNCHES));
        finish(p, 0);
    }
    must(ops->event_open(p->h.dev, &e, &err) == TITAN_OK, "opening an event", &err);
    begin = clock_mono_ns();
    for (int i = 0; i < PAIRS; i++) {
        must(ops->event_record(e, p->streams[0], &err) == TITAN_OK, "recording an event", &err);
        must(ops->event_wait(e, p->streams[1], &err) == TITAN_OK, "waiting for an event", &err);
    }
    figure("event_us", us_since(begin, PAIRS));
    finish(p, 1);
    ops->event_close(e);

    begin = clock_mono_ns();
    for (int i = 0; i < SELECTS; i++)
        must(cudaSetDevice(0) == cudaSuccess, "selecting the GPU", NULL);
    figure("set_device_us", us_since(begin, SELECTS));
    begin = clock_mono_ns();
    for (int i = 0; i < TRIPS; i++) {
        must(spin_for(native(p, 0), 0) == 0, "launching a kernel", NULL);
        finish(p, 0);
    }
    figure("round_trip_us", us_since(begin, TRIPS));
}

/* --- queues ------------------------------------------------------------------------------------------------------- */

struct filler {
    void *stream;
    atomic_int launched;
    atomic_bool bad;
};

static void *fill_queue(void *arg)
{
    struct filler *f = arg;
    bool ok = cudaSetDevice(0) == cudaSuccess;
    for (int i = 0; ok && i < DEPTH_MOST; i++) {
        ok = spin_for(f->stream, 0) == 0;
        f->launched++;
    }
    f->bad = !ok;
    return NULL;
}

/* How many launches a stream takes before one of them waits: the count behind a held stream that has stopped growing.
 */
static void probe_depth(struct probe *p)
{
    const struct timespec look = {.tv_nsec = 50000000};
    struct filler f = {.stream = native(p, 0)};
    pthread_t thread;
    hold(p, 0);
    must(pthread_create(&thread, NULL, fill_queue, &f) == 0, "starting a thread", NULL);
    for (int before = -1, now = 0; (now != before || now == 0) && now < DEPTH_MOST; now = f.launched) {
        before = now;
        (void)nanosleep(&look, NULL);
    }
    const int depth = f.launched;
    let_go(p);
    (void)pthread_join(thread, NULL);
    must(!f.bad, "launching kernels", NULL);
    finish(p, 0);
    figure("depth", depth);
}

/* Kernels of one thread on as many streams as a step has: side by side they take the time of one. */
static void probe_streams(struct probe *p)
{
    const int64_t each_ns = p->quick ? 1000000 : 10000000;
    for (int i = 0; i < STREAMS; i++)
        finish(p, i);
    const int64_t begin = clock_mono_ns();
    for (int i = 0; i < STREAMS; i++)
        must(spin_for(native(p, i), each_ns) == 0, "launching a kernel", NULL);
    for (int i = 0; i < STREAMS; i++)
        finish(p, i);
    figure("streams_ms", us_since(begin, 1) * 1e-3 * (1e7 / (double)each_ns));
}

/* --- calls beside a busy stream ----------------------------------------------------------------------------------- */

struct attempt {
    struct probe *p;
    void (*call)(struct attempt *a);
    void *to, *memory;
    const void *from;
    size_t bytes;
    sem_t returned;
};

static void *attempt_main(void *arg)
{
    struct attempt *a = arg;
    a->call(a);
    (void)sem_post(&a->returned);
    return NULL;
}

static void call_copy(struct attempt *a)
{
    must(a->p->ops->copy(a->p->streams[0], a->to, a->from, a->bytes) == TITAN_OK, "copying", NULL);
}
static void call_alloc(struct attempt *a)
{
    struct titan_error err = {0};
    must(a->p->ops->alloc(a->p->h.dev, a->bytes, &a->memory, &err) == TITAN_OK, "allocating", &err);
}
static void call_release(struct attempt *a)
{
    a->p->ops->release(a->p->h.dev, a->memory);
}

/* Does the call return while stream 0 is held? */
static void probe_call(const char *name, struct attempt *a)
{
    struct timespec until;
    pthread_t thread;
    hold(a->p, 0);
    must(sem_init(&a->returned, 0, 0) == 0 && pthread_create(&thread, NULL, attempt_main, a) == 0, "starting a thread",
         NULL);
    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += BLOCKED_MS * 1000000L;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    const bool returned = sem_clockwait(&a->returned, CLOCK_MONOTONIC, &until) == 0;
    let_go(a->p);
    (void)pthread_join(thread, NULL);
    (void)sem_destroy(&a->returned);
    finish(a->p, 0);
    figure(name, !returned);
}

struct memories {
    void *device, *pinned, *pageable;
    size_t bytes;
};

static void probe_blocking(struct probe *p, const struct memories *m)
{
    const size_t large = (size_t)16 << 20 < m->bytes ? (size_t)16 << 20 : m->bytes;
    struct attempt calls[] = {
        {.p = p, .call = call_copy, .to = m->device, .from = m->pageable, .bytes = 160 << 10},
        {.p = p, .call = call_copy, .to = m->device, .from = m->pageable, .bytes = large},
        {.p = p, .call = call_copy, .to = m->pageable, .from = m->device, .bytes = large},
        {.p = p, .call = call_copy, .to = m->pinned, .from = m->device, .bytes = large},
        {.p = p, .call = call_alloc, .bytes = large},
        {.p = p, .call = call_release},
    };
    static const char *const names[] = {"pageable_in_160KiB_blocks",
                                        "pageable_in_16MiB_blocks",
                                        "pageable_out_16MiB_blocks",
                                        "pinned_out_16MiB_blocks",
                                        "alloc_blocks",
                                        "release_blocks"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (calls[i].call == call_release)
            calls[i].memory = calls[i - 1].memory;
        probe_call(names[i], &calls[i]);
    }
}

static void probe_rate(struct probe *p, const char *name, void *to, const void *from, size_t bytes)
{
    double best = 0;
    for (int i = 0; i < 3; i++) {
        const int64_t begin = clock_mono_ns();
        must(p->ops->copy(p->streams[2], to, from, bytes) == TITAN_OK, "copying", NULL);
        finish(p, 2);
        const double rate = (double)bytes * 1e-3 / us_since(begin, 1);
        best = rate > best ? rate : best;
    }
    figure(name, best);
}

int main(int argc, char **argv)
{
    struct probe p = {.quick = argc > 1 && strcmp(argv[1], "quick") == 0};
    struct titan_error err = {0};
    struct memories m = {.bytes = p.quick ? (size_t)1 << 20 : (size_t)256 << 20};
    int64_t begin = clock_mono_ns();
    if (device_open("cuda", NULL, &p.h, &err) != TITAN_OK) {
        (void)fprintf(stderr, "probe: %s\n", err.msg);
        return 2;
    }
    p.ops = p.h.ops;
    for (int i = 0; i < STREAMS; i++)
        must(p.ops->stream_open(p.h.dev, "probe", i == 0, &p.streams[i], &err) == TITAN_OK, "opening a stream", &err);
    figure("context_ms", us_since(begin, 1) * 1e-3);
    void *go = NULL;
    must(p.ops->alloc_host(p.h.dev, sizeof(int), &go, &err) == TITAN_OK, "pinned memory", &err);
    p.go = go;
    must(p.ops->alloc(p.h.dev, m.bytes, &m.device, &err) == TITAN_OK, "memory", &err);
    must(p.ops->alloc_host(p.h.dev, m.bytes, &m.pinned, &err) == TITAN_OK, "pinned memory", &err);
    m.pageable = malloc(m.bytes);
    must(m.pageable != NULL, "memory", NULL);
    memset(m.pageable, 1, m.bytes);

    probe_costs(&p);
    probe_depth(&p);
    probe_streams(&p);
    probe_blocking(&p, &m);
    probe_rate(&p, "pageable_in_gb_s", m.device, m.pageable, m.bytes);
    probe_rate(&p, "pinned_in_gb_s", m.device, m.pinned, m.bytes);
    probe_rate(&p, "pageable_out_gb_s", m.pageable, m.device, m.bytes);
    probe_rate(&p, "pinned_out_gb_s", m.pinned, m.device, m.bytes);

    free(m.pageable);
    p.ops->release_host(p.h.dev, m.pinned);
    p.ops->release_host(p.h.dev, p.go);
    p.ops->release(p.h.dev, m.device);
    for (int i = 0; i < STREAMS; i++)
        p.ops->stream_close(p.streams[i]);
    device_close(&p.h);
    return 0;
}
