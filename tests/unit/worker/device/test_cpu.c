/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU plug-in beside its operations: arithmetic, streams under load, same bits on any number of threads, errors. */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <math.h>
#include <pthread.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/progress.h"
#include "tests/support/child.h"
#include "tests/support/sets.h"
#include "worker/device/cpu/arith.h"
#include "worker/device/device.h"

static void open_cpu(struct device_handle *h, int threads)
{
    struct titan_error err = {0};
    struct device_options options = {.threads = threads};
    if (device_open("cpu", &options, h, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
}

/* --- arithmetic --------------------------------------------------------------------------------------------------- */

/* Every 1009th float in [-88, 0], against libm in double. */
static void test_exp(void **state)
{
    double worst = 0.0;
    (void)state;
    for (uint32_t u = 0x80000000u; u < 0xc2b00000u; u += 1009) {
        float x = f32_from_bits(u), got = exp_neg_f32(x);
        double want = exp((double)x);
        if (x < -87.33f) {
            assert_true(got == 0.0f);
            continue;
        }
        worst = fmax(worst, fabs(got - want) / (want * 0x1p-23));
    }
    print_message("# exp: at most %.2f ulp\n", worst);
    assert_true(worst < 2.0);
    assert_true(exp_neg_f32(0.0f) == 1.0f && exp_neg_f32(-0.0f) == 1.0f);
    assert_true(exp_neg_f32(-INFINITY) == 0.0f && exp_neg_f32(-1e30f) == 0.0f);
    assert_true(isnan(exp_neg_f32(NAN)));
}

static void test_sigmoid(void **state)
{
    double worst = 0.0;
    (void)state;
    for (int i = -400000; i <= 400000; i++) {
        float x = (float)i * 2e-4f;
        double want = 1.0 / (1.0 + exp(-(double)x));
        worst = fmax(worst, fabs(sigmoid_f32(x) - want) / want);
    }
    print_message("# sigmoid: relative error at most %.2g\n", worst);
    assert_true(worst < 4e-7);
    assert_true(sigmoid_f32(INFINITY) == 1.0f && sigmoid_f32(-INFINITY) == 0.0f && isnan(sigmoid_f32(NAN)));
}

static void test_bf16(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float x = bf16_to_f32((uint16_t)h);
        if (isnan(x))
            assert_true(isnan(bf16_to_f32(bf16_from_f32(x))));
        else
            assert_int_equal(bf16_from_f32(x), h);
    }
    assert_int_equal(bf16_from_f32(1.00390625f), 0x3f80); /* tie to even, down */
    assert_int_equal(bf16_from_f32(1.01171875f), 0x3f82); /* tie to even, up */
    assert_int_equal(bf16_from_f32(1.0039064f), 0x3f81);
    assert_int_equal(bf16_from_f32(3.4e38f), 0x7f80);                           /* beyond the largest: infinity */
    assert_true(isnan(bf16_to_f32(bf16_from_f32(f32_from_bits(0x7fffffffu))))); /* a carry would make this -0 */
}

/* --- opening ------------------------------------------------------------------------------------------------------ */

static void test_open(void **state)
{
    struct device_handle h = {0};
    struct titan_error err = {0};
    (void)state;
    assert_int_equal(device_open("tpu", NULL, &h, &err), TITAN_EINVAL);
    assert_non_null(strstr(err.msg, "tpu"));
    struct device_options options = {.threads = -1};
    assert_int_equal(device_open("cpu", &options, &h, &err), TITAN_EINVAL);
    assert_int_equal(device_open("cpu", NULL, &h, &err), TITAN_OK);
    print_message("# %s: %.0f GFLOP/s bf16, %.0f fp32\n", h.info.name, h.info.peak_flops_bf16 / 1e9,
                  h.info.peak_flops_f32 / 1e9);
    assert_true(h.info.host_memory && h.info.memory_bytes > (1u << 20));
    assert_true(h.info.peak_flops_f32 > 1e9 && h.info.peak_flops_bf16 >= h.info.peak_flops_f32);
    assert_true(h.info.share == 1); /* a thread for each processor */
    const uint64_t hardware = h.info.hardware;
    device_close(&h);
    open_cpu(&h, 1);
    assert_true(h.info.share > 0 && h.info.share <= 1 && h.info.hardware == hardware);
    device_close(&h);
    device_close(&h); /* closed already */
    device_close(NULL);
}

/* The best of many products of 512 x 512 x 512, FLOP/s: short, as others may have the core in between. */
static double product_rate(const struct device_handle *h, struct stream *s, enum dtype dt, float *x)
{
    enum { N = 512, TIMES = 60 };
    double best = 0.0;
    for (int i = 0; i < TIMES; i++) {
        const int64_t start = clock_mono_ns();
        assert_int_equal(
            h->ops->matmul(s, ARGS(matmul, .c = x, .c_dt = DTYPE_F32, .ldc = N, .a = x + N * N, .lda = N,
                                   .b = x + 2 * N * N, .tb = true, .ldb = N, .ab_dt = dt, .m = N, .n = N, .k = N)),
            TITAN_OK);
        assert_int_equal(h->ops->stream_sync(s, NULL), TITAN_OK);
        best = fmax(best, 2.0 * N * N * N * 1e9 / (double)(clock_mono_ns() - start));
    }
    return best;
}

/* The peak that MFU divides by is what the units do: products come near it and not beyond. */
static void test_peak(void **state)
{
    enum { N = 512, TRIES = 8 };
    struct titan_error err = {0};
    _cleanup_free_ float *x = aligned_alloc(64, 3ul * N * N * sizeof(float));
    bool plausible = false;
    (void)state;
    for (int i = 0; i < 3 * N * N; i++)
        x[i] = 1.0f + (float)(i % 7) / 8.0f;
    for (int try = 0; try < TRIES && !plausible;
         try++) { /* the machine may do something else in one of the two moments */
        struct device_handle h = {0};
        struct stream *s = NULL;
        open_cpu(&h, 1);
        assert_int_equal(h.ops->stream_open(h.dev, "compute", true, &s, &err), TITAN_OK);
        const double f32 = product_rate(&h, s, DTYPE_F32, x) / h.info.peak_flops_f32;
        const double bf16 = h.info.bf16_fast ? product_rate(&h, s, DTYPE_BF16, x) / h.info.peak_flops_bf16 : 1.0;
        print_message("# products reach %.0f %% of %.0f GFLOP/s fp32, %.0f %% of %.0f bf16\n", 100 * f32,
                      h.info.peak_flops_f32 / 1e9, 100 * bf16, h.info.peak_flops_bf16 / 1e9);
        plausible = f32 > 0.4 && f32 < 1.1 && bf16 > 0.3 && bf16 < 1.1;
        h.ops->stream_close(s);
        device_close(&h);
    }
    assert_true(plausible);
}

static void test_plugin_missing(void **state)
{
    struct device_handle h = {0};
    struct titan_error err = {0};
    (void)state;
    setenv("TITAN_PLUGIN_DIR", "/nonexistent", 1);
    titan_status status = device_open("cpu", NULL, &h, &err);
    setenv("TITAN_PLUGIN_DIR", TITAN_BUILD_DIR "/lib/titan", 1);
    assert_int_equal(status, TITAN_ENOTFOUND);
    assert_non_null(strstr(err.msg, "libtitan-cpu.so"));
    assert_non_null(strstr(err.hint, "TITAN_PLUGIN_DIR"));
}

static void test_plugin_damaged(void **state)
{
    char dir[] = "/tmp/titan-plugin-XXXXXX", path[64];
    struct device_handle h = {0};
    struct titan_error err = {0};
    (void)state;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof(path), "%s/libtitan-cpu.so", dir);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs("not a library", f);
    fclose(f);
    setenv("TITAN_PLUGIN_DIR", dir, 1);
    titan_status status = device_open("cpu", NULL, &h, &err);
    setenv("TITAN_PLUGIN_DIR", TITAN_BUILD_DIR "/lib/titan", 1);
    unlink(path);
    rmdir(dir);
    assert_int_equal(status, TITAN_EUNSUPPORTED);
    assert_non_null(strstr(err.msg, "cannot be loaded"));
}

static void test_no_memory(void **state)
{
    struct device_handle h;
    struct titan_error err = {0};
    void *p = NULL;
    (void)state;
    open_cpu(&h, 1);
    assert_int_equal(h.ops->alloc(h.dev, SIZE_MAX - 100, &p, &err), TITAN_ENOMEM);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* those abort */
    assert_int_equal(h.ops->alloc(h.dev, (size_t)1 << 60, &p, &err), TITAN_ENOMEM);
#endif
    assert_null(p);
    h.ops->release(h.dev, NULL);
    device_close(&h);
}

/* A large block is advised to have huge pages: "hg" among the flags of its mapping. */
static void test_huge_pages(void **state)
{
    enum { BYTES = 16 << 20 };
    struct device_handle h;
    struct titan_error err = {0};
    void *p = NULL;
    char line[512];
    bool inside = false, advised = false;
    (void)state;
    if (access("/sys/kernel/mm/transparent_hugepage", F_OK) != 0)
        skip();
    open_cpu(&h, 1);
    assert_int_equal(h.ops->alloc(h.dev, BYTES, &p, &err), TITAN_OK);
    const uintptr_t middle = (uintptr_t)p + BYTES / 2;
    FILE *maps = fopen("/proc/self/smaps", "re");
    assert_non_null(maps);
    while (!advised && fgets(line, sizeof line, maps)) {
        char *rest = NULL;
        const uintptr_t begin = strtoull(line, &rest, 16);
        if (rest > line && *rest == '-')
            inside = middle >= begin && middle < strtoull(rest + 1, NULL, 16);
        advised = inside && strncmp(line, "VmFlags:", 8) == 0 && strstr(line, " hg");
    }
    (void)fclose(maps);
    assert_true(advised);
    h.ops->release(h.dev, p);
    device_close(&h);
}

/* --- streams ------------------------------------------------------------------------------------------------------ */

struct relay {
    int value, seen;
    pthread_t caller;
    int by_caller; /* steps that ran on its thread */
};
static titan_status relay_step(void *arg, struct titan_error *err)
{
    struct relay *r = arg;
    (void)err;
    r->seen = r->value++;
    r->by_caller += pthread_equal(pthread_self(), r->caller) != 0;
    return TITAN_OK;
}

/* Two queued streams and the compute stream hand a plain int round by events only: a race detector sees any gap. Where
 * the compute stream waits, its caller runs what is queued (the compute stream's own steps are a third). */
static void test_relay(void **state)
{
    enum { ROUNDS = 2000 };
    struct device_handle h;
    struct titan_error err = {0};
    struct stream *s[3];
    struct event *e[3];
    struct relay relay = {.caller = pthread_self()};
    (void)state;
    open_cpu(&h, 1);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(h.ops->stream_open(h.dev, "relay", i == 0, &s[i], &err), TITAN_OK);
        assert_int_equal(h.ops->event_open(h.dev, &e[i], &err), TITAN_OK);
    }
    for (int n = 0; n < 3 * ROUNDS; n++) {
        int at = n % 3;
        if (n > 0)
            assert_int_equal(h.ops->event_wait(e[(n - 1) % 3], s[at], &err), TITAN_OK);
        assert_int_equal(h.ops->stream_call(s[at], relay_step, &relay, &err), TITAN_OK);
        assert_int_equal(h.ops->event_record(e[at], s[at], &err), TITAN_OK);
    }
    for (int i = 0; i < 3; i++)
        assert_int_equal(h.ops->stream_sync(s[i], &err), TITAN_OK);
    assert_int_equal(relay.value, 3 * ROUNDS);
    assert_int_equal(relay.seen, 3 * ROUNDS - 1);
    print_message("# %d of %d queued steps ran where they were waited for\n", relay.by_caller - ROUNDS, 2 * ROUNDS);
    assert_true(relay.by_caller > ROUNDS);
    for (int i = 0; i < 3; i++) {
        h.ops->stream_close(s[i]);
        h.ops->event_close(e[i]);
    }
    device_close(&h);
}

static titan_status block_on_pipe(void *arg, struct titan_error *err)
{
    char c;
    if (read(*(int *)arg, &c, 1) != 1)
        return titan_fail(err, TITAN_EIO, "pipe closed");
    return TITAN_OK;
}

/* A record on another stream would complete the ticket of one that is not complete: that is an error of the caller. */
static void test_event_of_two_streams(void **state)
{
    int pipe_fds[2], status = 0;
    (void)state;
    assert_int_equal(pipe(pipe_fds), 0);
    const pid_t child = child_fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct device_handle h;
        struct titan_error err;
        struct stream *compute = NULL, *other = NULL;
        struct event *e = NULL;
        (void)!freopen("/dev/null", "w", stderr);
        open_cpu(&h, 1);
        const bool opened = h.ops->stream_open(h.dev, "compute", true, &compute, &err) == TITAN_OK &&
                            h.ops->stream_open(h.dev, "other", false, &other, &err) == TITAN_OK &&
                            h.ops->event_open(h.dev, &e, &err) == TITAN_OK &&
                            h.ops->event_record(e, compute, &err) == TITAN_OK && /* complete at once */
                            h.ops->stream_call(other, block_on_pipe, &pipe_fds[0], &err) == TITAN_OK &&
                            h.ops->event_record(e, other, &err) == TITAN_OK;
        (void)!h.ops->event_record(e, compute, &err);
        _exit(opened ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    (void)close(pipe_fds[0]);
    (void)close(pipe_fds[1]);
}

/* A stream that is stuck does not hold up the others, and closing runs what is queued. */
static void test_stuck_stream(void **state)
{
    struct device_handle h;
    struct titan_error err = {0};
    struct stream *stuck, *free_one;
    struct relay relay = {0}, last = {0};
    int fd[2];
    (void)state;
    open_cpu(&h, 1);
    assert_int_equal(pipe(fd), 0);
    assert_int_equal(h.ops->stream_open(h.dev, "stuck", false, &stuck, &err), TITAN_OK);
    assert_int_equal(h.ops->stream_open(h.dev, "free", false, &free_one, &err), TITAN_OK);
    assert_int_equal(h.ops->stream_call(stuck, block_on_pipe, &fd[0], &err), TITAN_OK);
    for (int i = 0; i < 1000; i++) /* more than the queue first holds */
        assert_int_equal(h.ops->stream_call(stuck, relay_step, &last, &err), TITAN_OK);
    assert_int_equal(h.ops->stream_call(free_one, relay_step, &relay, &err), TITAN_OK);
    assert_int_equal(h.ops->stream_sync(free_one, &err), TITAN_OK);
    assert_int_equal(relay.value, 1);
    assert_int_equal(last.value, 0);
    assert_int_equal(write(fd[1], "x", 1), 1);
    h.ops->stream_close(stuck);
    assert_int_equal(last.value, 1000);
    h.ops->stream_close(free_one);
    h.ops->stream_close(NULL);
    h.ops->event_close(NULL);
    close(fd[0]);
    close(fd[1]);
    device_close(&h);
}

/* What only shows when the operation runs: on a queued stream it sticks, on the compute stream too. */
static void test_rows_outside(void **state)
{
    struct device_handle h;
    struct titan_error err = {0};
    int32_t chosen[3] = {0, 7, 1}, place[3], counts[4], rank_counts[2], received[4] = {1, 0, 2, 1};
    float x[16] = {0};
    (void)state;
    open_cpu(&h, 1);
    for (int compute = 0; compute < 2; compute++) {
        struct stream *s;
        assert_int_equal(h.ops->stream_open(h.dev, "s", compute, &s, &err), TITAN_OK);
        assert_int_equal(h.ops->permute(s, ARGS(permute, .place = place, .counts = counts, .rank_counts = rank_counts,
                                                .chosen = chosen, .n = 3, .top_k = 1, .experts = 4, .ranks = 2)),
                         TITAN_OK);
        assert_int_equal(h.ops->stream_sync(s, &err), TITAN_EINVAL);
        assert_non_null(strstr(err.msg, "choice 1 is expert 7 of 4"));
        h.ops->stream_clear(s);
        assert_int_equal(
            h.ops->permute_received(s, ARGS(received, .place = place, .counts = counts, .rank_counts = rank_counts,
                                            .received = received, .ld = 2, .ranks = 2, .experts = 2, .rows = 3)),
            TITAN_OK);
        assert_int_equal(h.ops->stream_sync(s, &err), TITAN_EINVAL);
        assert_non_null(strstr(err.msg, "rank 1 sent 1 rows to expert 1, after 3 others of 3"));
        h.ops->stream_clear(s);
        assert_int_equal(h.ops->matmul_grouped(s, ARGS(matmul, .c = x, .c_dt = DTYPE_F32, .ldc = 1, .a = x, .lda = 1,
                                                       .b = x, .ldb = 1, .ab_dt = DTYPE_F32, .counts = received,
                                                       .groups = 4, .parts = 1, .m = 3, .n = 1, .k = 1)),
                         TITAN_OK);
        assert_int_equal(h.ops->stream_sync(s, &err), TITAN_EINVAL);
        assert_non_null(strstr(err.msg, "group 3 has 1 rows, after 3 others of 3"));
        h.ops->stream_close(s);
    }
    device_close(&h);
}

/* --- threads ------------------------------------------------------------------------------------------------------ */

static void noise(void *p, int64_t n, enum dtype dt, uint32_t seed)
{
    for (int64_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        store_f32_as(p, i, dt, (float)(int32_t)seed * 0x1p-31f);
    }
}

struct outputs {
    char *bytes;
    size_t used, cap;
};
static void *take(struct outputs *o, size_t bytes)
{
    o->used = (o->used + 63) & ~(size_t)63;
    void *p = o->bytes + o->used;
    o->used += bytes;
    assert_true(o->used <= o->cap);
    return p;
}

/* Attention with masks, and a layer of experts there and back. */
static titan_status run_sparse(const struct device_ops *ops, struct stream *s, enum dtype dt, struct outputs *o,
                               const char *x, const char *y, void *work)
{
    enum { T = 70, H = 4, K = 2, D = 16, W = 136, E = 6, TOP = 2, N = 210 };
    static int32_t index[N], start[N], chosen[N * TOP], place[N * TOP], counts[E], ranks[2];
    const size_t e = dtype_bytes(dt);
    for (int i = 0; i < N; i++) {
        index[i] = i / T * T + i * 29 % T;
        start[i] = index[i] / 31 * 31;
    }
    const struct attention_shape shape = {dt, 3, T, T, H, K, D, D, index, start, index, 0, ATTENTION_FIXED, 0};
    const struct router_shape router = {dt, N, E, TOP, true, true, 1.0f, 0, 0, 0};
    char *out = take(o, N * H * D * e), *dq = take(o, N * H * D * e), *dk = take(o, N * K * D * e);
    char *dv = take(o, N * K * D * e), *packed = take(o, N * TOP * W * e), *product = take(o, N * TOP * W * e);
    float *lse = take(o, H * N * 4), *weights = take(o, N * TOP * 4), *dw = take(o, E * W * W * 4);
    titan_status st = ops->attention(s, ARGS(attention, .out = out, .ldo = H * D, .lse = lse, .q = x, .ldq = H * D,
                                             .k = y, .ldk = K * D, .v = x, .ldv = K * D, .shape = shape));
    st |= ops->attention_dgrad(s, ARGS(attention, .dq = dq, .lddq = H * D, .dk = dk, .lddk = K * D, .dv = dv,
                                       .lddv = K * D, .dout = y, .lddo = H * D, .out = out, .ldo = H * D, .lse = lse,
                                       .q = x, .ldq = H * D, .k = y, .ldk = K * D, .v = x, .ldv = K * D, .shape = shape,
                                       .work = work));
    st |= ops->router(s, ARGS(router, .chosen = chosen, .weights = weights, .logits = x, .shape = router));
    st |= ops->router_dgrad(s, ARGS(router, .dlogits = take(o, N * E * e), .dweights = weights, .logits = x,
                                    .chosen = chosen, .shape = router));
    const struct token_rows rows = {N, 3, T, 0, 1};
    float *stats = take(o, 3 * BALANCE_STATS(E) * 4), *losses = take(o, 3 * 4), *dscores = take(o, 3 * E * 4);
    st |= ops->balance_stats(s, ARGS(balance, .stats = stats, .logits = x, .chosen = chosen, .targets = index,
                                     .shape = router, .rows = rows));
    st |= ops->balance_loss(s, ARGS(balance_loss, .losses = losses, .dscores = dscores, .stats = stats, .parts = 1,
                                    .sequences = 3, .experts = E, .top_k = TOP, .tokens = T, .factor = 0.5f));
    char *dlogits = take(o, N * E * e);
    st |= ops->copy(s, dlogits, x, N * E * e);
    st |= ops->balance_dgrad(
        s, ARGS(balance, .dlogits = dlogits, .logits = x, .dscores = dscores, .shape = router, .rows = rows));
    st |= ops->permute(s, ARGS(permute, .place = place, .counts = counts, .rank_counts = ranks, .chosen = chosen,
                               .n = N, .top_k = TOP, .experts = E, .ranks = 2));
    st |= ops->scatter_rows(s, ARGS(placed, .dst = packed, .src = x, .place = place, .weights = weights, .dt = dt,
                                    .n = N, .top_k = TOP, .c = W));
    st |= ops->matmul_grouped(s, ARGS(matmul, .c = product, .c_dt = dt, .ldc = W, .a = packed, .lda = W, .b = y,
                                      .tb = true, .ldb = W, .ab_dt = dt, .counts = counts, .groups = E, .parts = 1,
                                      .m = N * TOP, .n = W, .k = W));
    st |= ops->matmul_grouped(s, ARGS(matmul, .c = dw, .c_dt = DTYPE_F32, .ldc = W, .a = packed, .ta = true, .lda = W,
                                      .b = product, .ldb = W, .ab_dt = dt, .counts = counts, .groups = E, .parts = 1,
                                      .m = W, .n = W, .k = N * TOP));
    st |= ops->combine_rows(s, ARGS(placed, .dst = take(o, N * W * e), .src = product, .place = place,
                                    .weights = weights, .dt = dt, .n = N, .top_k = TOP, .c = W));
    return st | ops->combine_dweights(s, ARGS(placed, .dweights = take(o, N * TOP * 4), .dout = x, .src = product,
                                              .place = place, .dt = dt, .n = N, .top_k = TOP, .c = W));
}

/* A router of as many experts as make it worth several threads. */
static titan_status run_router(const struct device_ops *ops, struct stream *s, enum dtype dt, struct outputs *o,
                               const char *x)
{
    enum { E = 128, TOP = 8, N = 2000 };
    const struct router_shape shape = {dt, N, E, TOP, true, true, 1.0f, 0, 0, 0};
    int32_t *chosen = take(o, N * TOP * sizeof(*chosen));
    float *weights = take(o, N * TOP * sizeof(*weights));
    titan_status st = ops->router(s, ARGS(router, .chosen = chosen, .weights = weights, .logits = x, .shape = shape));
    return st | ops->router_dgrad(s, ARGS(router, .dlogits = take(o, N * E * dtype_bytes(dt)), .dweights = weights,
                                          .logits = x, .chosen = chosen, .shape = shape));
}

/* One of each operation with work that is shared out, on `threads` threads; all results into o. */
static void run_all(int threads, enum dtype dt, struct outputs *o)
{
    enum { B = 3, T = 70, H = 4, K = 2, D = 16, C = 200, F = 136, V = 50, N = B * T };
    struct device_handle h;
    struct titan_error err = {0};
    struct stream *s;
    size_t e = dtype_bytes(dt);
    const int64_t q = (H + 2 * K) * D;
    open_cpu(&h, threads);
    const struct device_ops *ops = h.ops;
    assert_int_equal(ops->stream_open(h.dev, "compute", true, &s, &err), TITAN_OK);
    _cleanup_free_ char *x = aligned_alloc(64, 1 << 20), *y = aligned_alloc(64, 1 << 20);
    _cleanup_free_ float *grad = aligned_alloc(64, 1 << 20);
    int32_t tokens[N];
    noise(x, (1 << 20) / (int64_t)e, dt, 1);
    noise(y, (1 << 20) / (int64_t)e, dt, 2);
    noise(grad, 1 << 18, DTYPE_F32, 3);
    for (int i = 0; i < N; i++)
        tokens[i] = (i * 31) % V;
    float *rstd = take(o, N * 4), *lse = take(o, H * N * 4), *gain = take(o, C * 4), *table = take(o, V * C * 4);
    titan_status st = ops->rmsnorm(s, ARGS(norm, .out = take(o, N * C * e), .rstd = rstd, .x = x, .gain = y, .dt = dt,
                                           .n = N, .c = C, .eps = 1e-5f));
    st |= ops->rmsnorm_dgrad(s, ARGS(norm, .dx = take(o, N * C * e), .residual = y, .dout = x, .x = y, .gain = x,
                                     .rstd = rstd, .dt = dt, .n = N, .c = C, .offset = true));
    st |= ops->rmsnorm_dgain(s, ARGS(norm, .dgain = gain, .dout = x, .x = y, .rstd = rstd, .dt = dt, .n = N, .c = C));
    char *sum = take(o, N * C * e);
    st |= ops->add_rmsnorm(s, ARGS(norm, .h = sum, .out = take(o, N * C * e), .rstd = take(o, N * 4), .a = x, .b = y,
                                   .gain = y, .dt = dt, .n = N, .c = C, .eps = 1e-5f, .offset = true));
    st |= ops->embed_wgrad(s,
                           ARGS(embed, .dtable = table, .tokens = tokens, .dout = x, .dt = dt, .n = N, .c = C, .v = V));
    st |= ops->softcap(s, ARGS(softcap, .out = take(o, N * C * e), .x = x, .dt = dt, .cap = 1.5f, .n = N * C));
    st |= ops->softcap_dgrad(
        s, ARGS(softcap, .out = take(o, N * C * e), .dout = y, .x = x, .dt = dt, .cap = 1.5f, .n = N * C));
    st |= ops->scale(s, take(o, N * C * e), x, dt, 0.3f, N * C);
    st |= ops->add_bias(s, ARGS(bias, .x = sum, .ld = C, .bias = y, .dt = dt, .n = N, .c = C));
    const int32_t rows[3] = {20, 100, N - 120};
    st |= ops->add_bias_grouped(
        s, ARGS(bias, .x = sum, .ld = C, .bias = y, .dt = dt, .counts = rows, .groups = 3, .parts = 1, .n = N, .c = C));
    st |= ops->bias_wgrad_grouped(s, ARGS(bias, .dbias = take(o, 3 * C * 4), .dout = x, .ld = C, .dt = dt,
                                          .counts = rows, .groups = 3, .parts = 1, .n = N, .c = C));
    st |= ops->swiglu(s, ARGS(swiglu, .out = take(o, N * F * e), .gate = x, .up = x + F * e, .ldgu = 2 * F, .dt = dt,
                              .n = N, .f = F, .limit = 1, .alpha = 1.7f));
    st |= ops->window(s, take(o, N * 4), tokens, tokens, N, 7);
    st |= ops->bias_wgrad(s, ARGS(bias, .dbias = take(o, C * 4), .dout = x, .ld = C, .dt = dt, .n = N, .c = C));
    char *out = take(o, N * H * D * e), *dqkv = take(o, (size_t)(N * q) * e);
    const struct attention_shape shape = {.dt = dt, .b = B, .tq = T, .tk = T, .h = H, .kv = K, .d = D, .dv = D};
    char *k = x + H * D * e, *v = x + (H + K) * D * e, *dk = dqkv + H * D * e, *dv = dqkv + (H + K) * D * e;
    st |= ops->attention(s, ARGS(attention, .out = out, .ldo = H * D, .lse = lse, .q = x, .ldq = q, .k = k, .ldk = q,
                                 .v = v, .ldv = q, .shape = shape));
    st |=
        ops->attention_sink(s, ARGS(sink, .out = take(o, N * H * D * e), .lse = take(o, H * N * 4), .x = out,
                                    .x_lse = lse, .ldo = H * D, .sinks = y, .dt = dt, .b = B, .t = T, .h = H, .dv = D));
    st |= ops->attention_sink_dgrad(s, ARGS(sink, .dsinks = take(o, H * 4), .dout = x, .lddo = H * D, .x = out,
                                            .ldo = H * D, .x_lse = lse, .sinks = y, .dt = dt, .b = B, .t = T, .h = H,
                                            .dv = D));
    void *work = NULL;
    st |= ops->alloc(h.dev, ops->attention_work_bytes(h.dev, &shape), &work, &err);
    st |= ops->attention_dgrad(s, ARGS(attention, .dq = dqkv, .lddq = q, .dk = dk, .lddk = q, .dv = dv, .lddv = q,
                                       .dout = y, .lddo = H * D, .out = out, .ldo = H * D, .lse = lse, .q = x, .ldq = q,
                                       .k = k, .ldk = q, .v = v, .ldv = q, .shape = shape, .work = work));
    st |= run_sparse(ops, s, dt, o, x, y, work);
    st |= run_router(ops, s, dt, o, x);
    st |= ops->swiglu(s, ARGS(swiglu, .out = take(o, N * F * e), .gate = x, .up = x + F * e, .ldgu = 2 * F, .dt = dt,
                              .n = N, .f = F, .gelu = true));
    float *stats = take(o, N * 3 * 4), *losses = take(o, N * 4);
    st |= ops->loss_stats(s, ARGS(loss, .stats = stats, .logits = x, .targets = tokens, .dt = dt, .n = N, .v = V));
    st |= ops->loss_finish(s, ARGS(loss, .losses = losses, .dlogits = take(o, N * V * e), .logits = x,
                                   .targets = tokens, .stats = stats, .parts = 1, .dt = dt, .n = N, .v = V));
    st |= ops->loss(s, ARGS(loss, .losses = losses, .stats = stats, .dlogits = take(o, N * V * e), .logits = x,
                            .targets = tokens, .dt = dt, .n = N, .v = V));
    st |= ops->block_sums(s, take(o, 100 * 8), grad, 100000, 1000, true);
    st |= ops->matmul(s, ARGS(matmul, .c = take(o, N * C * e), .c_dt = dt, .ldc = C, .a = x, .lda = F, .b = y,
                              .tb = true, .ldb = F, .ab_dt = dt, .m = N, .n = C, .k = F));
    st |= ops->matmul(s, ARGS(matmul, .c = take(o, C * F * 4), .c_dt = DTYPE_F32, .ldc = F, .a = x, .ta = true,
                              .lda = C, .b = y, .ldb = F, .ab_dt = dt, .m = C, .n = F, .k = N, .beta = 1.0f));
    _cleanup_free_ char *float8 = aligned_alloc(64, ops->matmul_f8_work_bytes(h.dev, dt, false, N, N, N));
    for (int i = 0; i < 3; i++) {
        const struct float8_product how = {.a = i == 2 ? FLOAT8_E4M3 : FLOAT8_E5M2,
                                           .a_lines = i == 1,
                                           .b_lines = i == 1,
                                           .power_of_two = i == 1,
                                           .blocks = i == 2};
        st |= ops->matmul_f8(s, ARGS(matmul, .c = take(o, N * C * e), .c_dt = dt, .ldc = C, .a = x, .lda = F, .b = y,
                                     .tb = true, .ldb = F, .ab_dt = dt, .m = N, .n = C, .k = F, .how = &how,
                                     .work = float8));
        st |= ops->matmul_f8(s, ARGS(matmul, .c = take(o, C * F * 4), .c_dt = DTYPE_F32, .ldc = F, .a = x, .ta = true,
                                     .lda = C, .b = y, .ldb = F, .ab_dt = dt, .m = C, .n = F, .k = N, .beta = 1.0f,
                                     .how = &how, .work = float8));
    }
    assert_int_equal(st, TITAN_OK);
    assert_int_equal(ops->stream_sync(s, &err), TITAN_OK);
    ops->release(h.dev, work);
    ops->stream_close(s);
    device_close(&h);
}

static void test_threads_same_bits(void **state)
{
    static const enum dtype types[] = {DTYPE_F32, DTYPE_BF16};
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct outputs one = {.cap = 8 << 20};
        one.bytes = calloc(1, one.cap);
        run_all(1, types[i], &one);
        for (int threads = 2; threads <= 5; threads++) {
            struct outputs many = {.cap = one.cap};
            many.bytes = calloc(1, many.cap);
            run_all(threads, types[i], &many);
            assert_int_equal(many.used, one.used);
            for (size_t j = 0; j < one.used; j++)
                if (many.bytes[j] != one.bytes[j])
                    fail_msg("%d threads: byte %zu of %zu differs", threads, j, one.used);
            free(many.bytes);
        }
        free(one.bytes);
    }
}

static int next_thread(DIR *dir)
{
    struct dirent *e;
    do
        e = readdir(dir);
    while (e && e->d_name[0] == '.');
    return e ? atoi(e->d_name) : 0;
}

/* The last thread that this process has started: its numbers only grow. */
static int newest_thread(void)
{
    DIR *dir = opendir("/proc/self/task");
    int newest = 0;
    assert_non_null(dir);
    for (int id; (id = next_thread(dir)); newest = MAX(newest, id))
        ;
    closedir(dir);
    return newest;
}

/* Operations that are worth two threads, between such that are worth four, start none. */
static void test_threads_stay(void **state)
{
    enum { GRAIN = 1 << 15, N = 8 * GRAIN };
    struct device_handle h;
    struct titan_error err = {0};
    struct stream *s;
    _cleanup_free_ float *x = calloc(N, sizeof *x);
    _cleanup_free_ uint16_t *y = malloc(N * sizeof *y);
    int newest = 0;
    (void)state;
    open_cpu(&h, 4);
    assert_int_equal(h.ops->stream_open(h.dev, "compute", true, &s, &err), TITAN_OK);
    for (int round = 0; round < 4; round++) {
        const size_t n = round % 2 ? 2 * GRAIN : N;
        assert_int_equal(h.ops->cast(s, y, DTYPE_BF16, x, DTYPE_F32, n), TITAN_OK);
        assert_int_equal(h.ops->stream_sync(s, &err), TITAN_OK);
        if (round == 0)
            newest = newest_thread();
        assert_true(newest_thread() <= newest); /* one of a test before may end meanwhile */
    }
    h.ops->stream_close(s);
    device_close(&h);
}

/* --- attention ---------------------------------------------------------------------------------------------------- */

/* Rows that start at odd elements cannot be read in pairs: bf16 attention then runs as fp32 does, and differs from the
 * paired one (where the processor has it) by the rounding of P and dS only. */
static void run_attention(const struct device_handle *h, const uint16_t *packed, int64_t pad, uint16_t *out,
                          uint16_t *grads)
{
    enum { B = 2, T = 45, H = 4, K = 2, D = 32, WQ = H * D, WK = K * D, W = WQ + 2 * WK, N = B * T };
    struct titan_error err = {0};
    struct stream *s;
    const struct attention_shape shape = {.dt = DTYPE_BF16, .b = B, .tq = T, .tk = T, .h = H, .kv = K, .d = D, .dv = D};
    int64_t ld = W + pad;
    void *qkv, *dqkv, *lse, *work;
    assert_int_equal(h->ops->stream_open(h->dev, "compute", true, &s, &err), TITAN_OK);
    assert_int_equal(h->ops->alloc(h->dev, (size_t)(N * ld) * 2, &qkv, &err), TITAN_OK);
    assert_int_equal(h->ops->alloc(h->dev, (size_t)(N * ld) * 2, &dqkv, &err), TITAN_OK);
    assert_int_equal(h->ops->alloc(h->dev, H * N * 4, &lse, &err), TITAN_OK);
    assert_int_equal(h->ops->alloc(h->dev, h->ops->attention_work_bytes(h->dev, &shape), &work, &err), TITAN_OK);
    for (int i = 0; i < N; i++)
        memcpy((uint16_t *)qkv + i * ld, packed + i * W, W * 2);
    const uint16_t *q = qkv;
    uint16_t *dq = dqkv;
    titan_status st = h->ops->attention(s, ARGS(attention, .out = out, .ldo = WQ, .lse = lse, .q = q, .ldq = ld,
                                                .k = q + WQ, .ldk = ld, .v = q + WQ + WK, .ldv = ld, .shape = shape));
    st |= h->ops->attention_dgrad(s, ARGS(attention, .dq = dq, .lddq = ld, .dk = dq + WQ, .lddk = ld,
                                          .dv = dq + WQ + WK, .lddv = ld, .dout = packed, .lddo = WQ, .out = out,
                                          .ldo = WQ, .lse = lse, .q = q, .ldq = ld, .k = q + WQ, .ldk = ld,
                                          .v = q + WQ + WK, .ldv = ld, .shape = shape, .work = work));
    assert_int_equal(st, TITAN_OK);
    assert_int_equal(h->ops->stream_sync(s, &err), TITAN_OK);
    for (int i = 0; i < N; i++)
        memcpy(grads + i * W, dq + i * ld, W * 2);
    h->ops->stream_close(s);
    h->ops->release(h->dev, qkv);
    h->ops->release(h->dev, dqkv);
    h->ops->release(h->dev, lse);
    h->ops->release(h->dev, work);
}

static double difference(const uint16_t *a, const uint16_t *b, int64_t n)
{
    double error = 0.0, power = 0.0;
    for (int64_t i = 0; i < n; i++) {
        double x = bf16_to_f32(a[i]), y = bf16_to_f32(b[i]);
        error += (x - y) * (x - y);
        power += x * x;
    }
    return sqrt(error / power);
}

static void test_attention_odd_rows(void **state)
{
    enum { N = 90, W = 256, WQ = 128 };
    struct device_handle h;
    (void)state;
    open_cpu(&h, 1);
    uint16_t *packed = malloc(N * W * 2), *out[2], *grads[2];
    noise(packed, N * W, DTYPE_BF16, 7);
    for (int i = 0; i < 2; i++) {
        out[i] = malloc(N * WQ * 2);
        grads[i] = malloc(N * W * 2);
        const uint64_t actions = progress_actions();
        run_attention(&h, packed, i, out[i], grads[i]);
        assert_true(progress_actions() >=
                    actions + 4); /* two heads each way: a long operation is not taken for a hang */
    }
    double forward = difference(out[0], out[1], N * WQ), backward = difference(grads[0], grads[1], N * W);
    print_message("# rows at odd elements: out differs by %.2g, gradients by %.2g\n", forward, backward);
    assert_true(forward < 4e-3 && backward < 8e-3);
    for (int i = 0; i < 2; i++) {
        free(out[i]);
        free(grads[i]);
    }
    free(packed);
    device_close(&h);
}

int main(void)
{
    setenv("TITAN_PLUGIN_DIR", TITAN_BUILD_DIR "/lib/titan", 1);
    const struct CMUnitTest tests[] = {
        quick(test_exp),
        quick(test_sigmoid),
        quick(test_bf16),
        quick(test_open),
        slow(test_peak),
        quick(test_plugin_missing),
        quick(test_plugin_damaged),
        quick(test_no_memory),
        quick(test_huge_pages),
        quick(test_relay),
        quick(test_event_of_two_streams),
        quick(test_stuck_stream),
        quick(test_rows_outside),
        quick(test_threads_same_bits),
        quick(test_threads_stay),
        quick(test_attention_odd_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
