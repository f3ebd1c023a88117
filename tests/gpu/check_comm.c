/* SPDX-License-Identifier: Apache-2.0 */
/* check_comm [RANKS] - the NCCL communicator among processes of this machine: every collective, the same in groups
 * split off, windows given back, then the death of a rank: noticed with a full queue of launches, revoke, an update
 * that must not happen, a new communicator. All ranks use GPU 0 unless there are enough GPUs. TAP; figures in
 * $OUT/comm-RANKS.json.
 *
 * check_comm probe [quick] - two ranks: what forming, splitting and collectives take, and how long a death is unknown
 * and the GPU busy when kernels are queued behind a collective. 'figure NAME VALUE' lines, as tests/gpu/probe.c prints,
 * and TAP. probe-alive [quick]: without the death. */
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "worker/comm/comm.h"

#define RANKS_MAX 16
#define COUNT ((size_t)10007) /* odd, so that nothing is a round number */
#define FLOATS_16_MIB ((size_t)4 << 20)

extern char **environ;

/* --- a rank ------------------------------------------------------------------------------------------------------- */

struct rank {
    struct device_handle h;
    const struct device_ops *ops;
    const struct comm_ops *comm_ops;
    struct stream *s;
    struct comm *comm;
    int rank, world;
    bool bad;
};

static void verdict(struct rank *r, bool ok, const char *what)
{
    if (!ok || r->rank == 0)
        printf("%sok - %d ranks: %s%s\n", ok ? "" : "not ", r->world, what, r->rank ? " (not on rank 0)" : "");
    (void)fflush(stdout);
    r->bad = r->bad || !ok;
}

static void must(titan_status st, const struct titan_error *err, const char *what)
{
    if (st == TITAN_OK)
        return;
    printf("not ok - %s: %s: %s\n", what, titan_status_name(st), err->msg);
    (void)fflush(stdout);
    _exit(1);
}

static float *device_floats(struct rank *r, size_t n)
{
    void *p = NULL;
    struct titan_error err = {0};
    must(r->ops->alloc(r->h.dev, n * sizeof(float), &p, &err), &err, "alloc");
    return p;
}

/* Element i of rank `rank`: small whole numbers, so that every order of a sum gives the same bits, in bf16 as well. */
static double element(int rank, size_t i)
{
    return (double)((i * 7 + (size_t)rank * 3) % 5) - 1.0;
}

static void fill(struct rank *r, void *p, enum dtype dt, int rank, size_t first, size_t n)
{
    struct titan_error err = {0};
    float *host = malloc(n * sizeof *host), *wide = device_floats(r, n);
    for (size_t i = 0; i < n; i++)
        host[i] = (float)element(rank, first + i);
    titan_status st = r->ops->copy(r->s, wide, host, n * sizeof *host);
    if (st == TITAN_OK)
        st = r->ops->cast(r->s, p, dt, wide, DTYPE_F32, n);
    if (st == TITAN_OK)
        st = r->ops->stream_sync(r->s, &err);
    must(st, &err, "fill");
    r->ops->release(r->h.dev, wide);
    free(host);
}

static double *fetch(struct rank *r, const void *p, enum dtype dt, size_t n)
{
    struct titan_error err = {0};
    double *host = malloc(n * sizeof *host);
    void *wide = NULL;
    must(r->ops->alloc(r->h.dev, n * sizeof *host, &wide, &err), &err, "alloc");
    titan_status st = r->ops->cast(r->s, wide, DTYPE_F64, p, dt, n);
    if (st == TITAN_OK)
        st = r->ops->copy(r->s, host, wide, n * sizeof *host);
    if (st == TITAN_OK)
        st = r->ops->stream_sync(r->s, &err);
    must(st, &err, "fetch");
    r->ops->release(r->h.dev, wide);
    return host;
}

static double sum_at(const struct rank *r, size_t i)
{
    double sum = 0;
    for (int rank = 0; rank < r->world; rank++)
        sum += element(rank, i);
    return sum;
}

static void check_sums(struct rank *r, enum dtype dt, const char *name)
{
    struct titan_error err = {0};
    char what[64];
    const size_t all = COUNT * (size_t)r->world, bytes = dtype_bytes(dt);
    void *data = NULL;
    must(r->ops->alloc(r->h.dev, all * bytes, &data, &err), &err, "alloc");

    fill(r, data, dt, r->rank, 0, all);
    bool ok = r->comm_ops->all_reduce(r->comm, data, all, dt, r->s) == TITAN_OK;
    double *got = fetch(r, data, dt, all);
    for (size_t i = 0; i < all; i++)
        ok = ok && got[i] == sum_at(r, i);
    free(got);
    (void)snprintf(what, sizeof what, "all-reduce %s", name);
    verdict(r, ok, what);

    fill(r, data, dt, r->rank, 0, all);
    char *own = (char *)data + (size_t)r->rank * COUNT * bytes;
    ok = r->comm_ops->reduce_scatter(r->comm, own, data, COUNT, dt, r->s) == TITAN_OK;
    got = fetch(r, own, dt, COUNT);
    for (size_t i = 0; i < COUNT; i++)
        ok = ok && got[i] == sum_at(r, (size_t)r->rank * COUNT + i);
    free(got);
    (void)snprintf(what, sizeof what, "reduce-scatter %s in place", name);
    verdict(r, ok, what);

    fill(r, own, dt, r->rank, 0, COUNT);
    ok = r->comm_ops->all_gather(r->comm, data, own, COUNT, dt, r->s) == TITAN_OK;
    got = fetch(r, data, dt, all);
    for (size_t i = 0; i < all; i++)
        ok = ok && got[i] == element((int)(i / COUNT), i % COUNT);
    free(got);
    (void)snprintf(what, sizeof what, "all-gather %s in place", name);
    verdict(r, ok, what);
    r->ops->release(r->h.dev, data);
}

static void check_moves(struct rank *r)
{
    const size_t all = COUNT * (size_t)r->world, bytes = COUNT * sizeof(float);
    float *from = device_floats(r, all), *to = device_floats(r, all);
    fill(r, from, DTYPE_F32, r->rank, 0, all);
    bool ok = r->comm_ops->all_to_all(r->comm, to, from, bytes, r->s) == TITAN_OK;
    double *got = fetch(r, to, DTYPE_F32, all);
    for (size_t i = 0; i < all; i++)
        ok = ok && got[i] == element((int)(i / COUNT), (size_t)r->rank * COUNT + i % COUNT);
    free(got);
    verdict(r, ok, "all-to-all");

    ok = r->comm_ops->broadcast(r->comm, from, all * sizeof(float), r->world - 1, r->s) == TITAN_OK;
    got = fetch(r, from, DTYPE_F32, all);
    for (size_t i = 0; i < all; i++)
        ok = ok && got[i] == element(r->world - 1, i);
    free(got);
    verdict(r, ok, "broadcast");

    /* Neighbours in pairs: the even one sends first. */
    const int peer = r->rank ^ 1;
    if (r->world % 2 == 0) {
        fill(r, from, DTYPE_F32, r->rank, 0, COUNT);
        for (int turn = 0; turn < 2; turn++) {
            titan_status st = (r->rank + turn) % 2 == 0 ? r->comm_ops->send(r->comm, from, bytes, peer, r->s)
                                                        : r->comm_ops->recv(r->comm, to, bytes, peer, r->s);
            ok = ok && st == TITAN_OK;
        }
        got = fetch(r, to, DTYPE_F32, COUNT);
        for (size_t i = 0; i < COUNT; i++)
            ok = ok && got[i] == element(peer, i);
        free(got);
        verdict(r, ok, "send and receive");
    }
    struct titan_error err = {0};
    ok = r->comm_ops->barrier(r->comm, r->s) == TITAN_OK && r->ops->stream_sync(r->s, &err) == TITAN_OK;
    verdict(r, ok, "barrier");
    r->ops->release(r->h.dev, from);
    r->ops->release(r->h.dev, to);
}

static void check_shift(struct rank *r)
{
    const size_t bytes = COUNT * sizeof(float);
    float *from = device_floats(r, COUNT), *to = device_floats(r, COUNT);
    bool ok = true;
    fill(r, from, DTYPE_F32, r->rank, 0, COUNT);
    for (int distance = -1; distance <= r->world; distance++) {
        const int source = ((r->rank - distance) % r->world + r->world) % r->world;
        ok = ok && r->comm_ops->shift(r->comm, to, from, bytes, distance, r->s) == TITAN_OK;
        double *got = fetch(r, to, DTYPE_F32, COUNT);
        for (size_t i = 0; i < COUNT; i++)
            ok = ok && got[i] == element(source, i);
        free(got);
    }
    verdict(r, ok, "shift");
    r->ops->release(r->h.dev, from);
    r->ops->release(r->h.dev, to);
}

/* Rows from one rank to another: some pairs have none. */
static int32_t rows_of(int from, int to)
{
    return (from + 2 * to) % 3 == 0 ? 0 : 100 * from + 10 * to + 5;
}

static void check_rows(struct rank *r)
{
    enum { ROW = 7 };
    struct titan_error err = {0};
    int32_t counts[2][RANKS_MAX] = {{0}};
    size_t rows[2] = {0};
    for (int peer = 0; peer < r->world; peer++) {
        counts[0][peer] = rows_of(peer, r->rank);
        counts[1][peer] = rows_of(r->rank, peer);
        rows[0] += (size_t)counts[0][peer];
        rows[1] += (size_t)counts[1][peer];
    }
    void *on_device = NULL;
    must(r->ops->alloc(r->h.dev, sizeof counts, &on_device, &err), &err, "alloc");
    must(r->ops->copy(r->s, on_device, counts, sizeof counts), &err, "copy");
    const int32_t *recv_counts = on_device, *send_counts = recv_counts + RANKS_MAX;
    float *from = device_floats(r, rows[1] * ROW + 1), *to = device_floats(r, rows[0] * ROW + 1);
    fill(r, from, DTYPE_F32, r->rank, 0, rows[1] * ROW);
    const struct comm_rows exchanged = {
        .recv = to, .send = from, .recv_counts = recv_counts, .send_counts = send_counts, .bytes = ROW * sizeof(float)};
    bool ok = r->comm_ops->all_to_all_v(r->comm, &exchanged, r->s) == TITAN_OK;
    double *got = fetch(r, to, DTYPE_F32, rows[0] * ROW + 1);
    size_t at = 0;
    for (int peer = 0; peer < r->world; peer++) {
        size_t first = 0; /* where the peer's rows for this rank lie among all it sends */
        for (int before = 0; before < r->rank; before++)
            first += (size_t)rows_of(peer, before) * ROW;
        for (size_t i = 0; i < (size_t)counts[0][peer] * ROW; i++)
            ok = ok && got[at++] == element(peer, first + i);
    }
    free(got);
    verdict(r, ok, "all-to-all of different sizes");
    r->ops->release(r->h.dev, on_device);
    r->ops->release(r->h.dev, from);
    r->ops->release(r->h.dev, to);
}

/* All send to all before any receives, with a sum before and after: together, or no rank gets anywhere. */
static void check_group(struct rank *r)
{
    const size_t all = COUNT * (size_t)r->world, bytes = COUNT * sizeof(float);
    float *from = device_floats(r, COUNT), *to = device_floats(r, all), *sums = device_floats(r, 2);
    fill(r, from, DTYPE_F32, r->rank, 0, COUNT);
    fill(r, sums, DTYPE_F32, r->rank, 0, 2);
    bool ok = r->comm_ops->group_begin(r->comm) == TITAN_OK;
    ok = ok && r->comm_ops->all_reduce(r->comm, sums, 1, DTYPE_F32, r->s) == TITAN_OK;
    for (int i = 0; i < 2 * r->world; i++) {
        const int peer = i % r->world;
        if (peer == r->rank)
            continue;
        titan_status st = i < r->world ? r->comm_ops->send(r->comm, from, bytes, peer, r->s)
                                       : r->comm_ops->recv(r->comm, to + (size_t)peer * COUNT, bytes, peer, r->s);
        ok = ok && st == TITAN_OK;
    }
    ok = ok && r->comm_ops->all_reduce(r->comm, sums + 1, 1, DTYPE_F32, r->s) == TITAN_OK;
    ok = r->comm_ops->group_end(r->comm) == TITAN_OK && ok;
    double *got = fetch(r, to, DTYPE_F32, all), *got_sums = fetch(r, sums, DTYPE_F32, 2);
    for (size_t i = 0; i < all; i++)
        ok = ok && (i / COUNT == (size_t)r->rank || got[i] == element((int)(i / COUNT), i % COUNT));
    ok = ok && got_sums[0] == sum_at(r, 0) && got_sums[1] == sum_at(r, 1);
    free(got);
    free(got_sums);
    verdict(r, ok, "a group of calls");
    r->ops->release(r->h.dev, from);
    r->ops->release(r->h.dev, to);
    r->ops->release(r->h.dev, sums);
}

/* The communicator of those of the same colour; the rest is this rank's. */
static struct rank split(struct rank *r, const int *colours)
{
    struct titan_error err = {0};
    struct rank child = *r;
    int members[RANKS_MAX];
    child.world = 0;
    for (int i = 0; i < r->world; i++) {
        if (i == r->rank)
            child.rank = child.world;
        if (colours[i] == colours[r->rank])
            members[child.world++] = i;
    }
    must(r->comm_ops->split(r->comm, members, child.world, NULL, &child.comm, &err), &err, "split");
    return child;
}

static int colour_of(int shape, int rank, int world)
{
    const int colours[] = {0, rank, rank / 2, rank % 2, rank == world - 1};
    return colours[shape];
}
enum { SHAPES = 5 };

/* Every operation in groups of each shape, all of them open; then two at once, on streams of their own. */
static void check_splits(struct rank *r)
{
    struct titan_error err = {0};
    struct rank children[SHAPES];
    struct stream *other = NULL;
    bool ok = true;
    for (int shape = 0; shape < SHAPES; shape++) {
        int colours[RANKS_MAX];
        for (int i = 0; i < r->world; i++)
            colours[i] = colour_of(shape, i, r->world);
        children[shape] = split(r, colours);
    }
    for (int shape = 0; shape < SHAPES; shape++) {
        struct rank *child = &children[shape];
        check_sums(child, DTYPE_F32, "fp32, split off");
        check_moves(child);
        check_shift(child);
        check_rows(child);
        check_group(child);
        r->bad = r->bad || child->bad;
    }
    must(r->ops->stream_open(r->h.dev, "other", false, &other, &err), &err, "stream");
    float *x = device_floats(r, COUNT), *y = device_floats(r, COUNT);
    fill(r, x, DTYPE_F32, r->rank, 0, COUNT);
    fill(r, y, DTYPE_F32, children[2].rank, 0, COUNT);
    ok = r->comm_ops->all_reduce(r->comm, x, COUNT, DTYPE_F32, r->s) == TITAN_OK;
    ok = r->comm_ops->all_reduce(children[2].comm, y, COUNT, DTYPE_F32, other) == TITAN_OK && ok;
    ok = r->ops->stream_sync(other, &err) == TITAN_OK && r->ops->stream_sync(r->s, &err) == TITAN_OK && ok;
    double *got_x = fetch(r, x, DTYPE_F32, COUNT), *got_y = fetch(r, y, DTYPE_F32, COUNT);
    for (size_t i = 0; i < COUNT; i++)
        ok = ok && got_x[i] == sum_at(r, i) && got_y[i] == sum_at(&children[2], i);
    free(got_x);
    free(got_y);
    verdict(r, ok, "two communicators on streams of their own");
    r->ops->release(r->h.dev, x);
    r->ops->release(r->h.dev, y);
    for (int shape = 0; shape < SHAPES; shape++)
        r->comm_ops->close(children[shape].comm);
    r->ops->stream_close(other);
}

/* Median milliseconds of an all-reduce of n fp32. */
static double time_all_reduce(struct rank *r, size_t n)
{
    enum { ROUNDS = 9 };
    double ms[ROUNDS];
    float *data = device_floats(r, n);
    struct titan_error err = {0};
    for (int i = 0; i < ROUNDS; i++) {
        int64_t begin = clock_mono_ns();
        titan_status st = r->comm_ops->all_reduce(r->comm, data, n, DTYPE_F32, r->s);
        if (st == TITAN_OK)
            st = r->ops->stream_sync(r->s, &err);
        must(st, &err, "timed all-reduce");
        ms[i] = (double)(clock_mono_ns() - begin) * 1e-6;
        for (int j = i; j > 0 && ms[j] < ms[j - 1]; j--) {
            double swap = ms[j];
            ms[j] = ms[j - 1];
            ms[j - 1] = swap;
        }
    }
    r->ops->release(r->h.dev, data);
    return ms[ROUNDS / 2];
}

static double ms_since(int64_t begin_ns)
{
    return (double)(clock_mono_ns() - begin_ns) * 1e-6;
}

/* The control thread: revokes when the parent says so. */
static void *wait_for_word(void *arg)
{
    struct rank *r = arg;
    char word;
    if (read(STDIN_FILENO, &word, 1) == 1)
        r->comm_ops->revoke(r->comm);
    return NULL;
}

/* Whether a barrier of comm ends with a failure, on a stream that is idle and has seen none. */
static bool has_failed(struct rank *r, struct comm *comm)
{
    r->ops->stream_clear(r->s);
    titan_status st = r->comm_ops->barrier(comm, r->s);
    return (st == TITAN_OK ? r->ops->stream_sync(r->s, NULL) : st) != TITAN_OK;
}

/* Memory that peers reach, as a step's arena is. NULL, bytes 0: NCCL has none here. */
struct window {
    void *memory;
    size_t bytes;
    uint64_t taken_before; /* of the GPU, by all ranks */
};

static struct window open_window(struct rank *r, struct comm *comm)
{
    struct titan_error err = {0};
    struct window w = {.bytes = r->h.info.memory_bytes / 128};
    must(r->comm_ops->barrier(r->comm, r->s), &err, "barrier");
    must(r->ops->stream_sync(r->s, &err), &err, "barrier");
    w.taken_before = r->ops->memory_peak(r->h.dev, true);
    must(r->comm_ops->barrier(r->comm, r->s), &err, "barrier");
    must(r->ops->stream_sync(r->s, &err), &err, "barrier");
    titan_status st = r->comm_ops->memory_alloc(r->h.dev, w.bytes, &w.memory, &err);
    if (st == TITAN_OK)
        st = r->comm_ops->window_open(comm, w.memory, w.bytes, &err);
    if (st == TITAN_OK)
        return w;
    printf("# no window: %s\n", err.msg);
    r->comm_ops->memory_release(r->h.dev, w.memory);
    return (struct window){0};
}

/* Given back while its communicator is well, collectives go on without it; when that has failed, its
 * end gives it back. The last
 * check: the family has failed then. */
static void check_windows(struct rank *r)
{
    struct titan_error err = {0};
    const size_t bytes = (size_t)1 << 20;
    int colours[RANKS_MAX] = {0};
    void *base = NULL;
    if (!r->comm_ops->memory_alloc || r->comm_ops->memory_alloc(r->h.dev, bytes, &base, &err) != TITAN_OK) {
        verdict(r, true, "# skip no memory for windows");
        return;
    }
    struct rank well = split(r, colours), failed = split(r, colours);
    titan_status st = r->comm_ops->window_open(well.comm, base, bytes, &err);
    bool ok = st == TITAN_OK || st == TITAN_EUNSUPPORTED;
    st = r->comm_ops->window_open(failed.comm, base, bytes, &err);
    ok = (st == TITAN_OK || st == TITAN_EUNSUPPORTED) && ok;
    r->comm_ops->window_close(well.comm);
    ok = r->comm_ops->barrier(well.comm, r->s) == TITAN_OK && r->ops->stream_sync(r->s, &err) == TITAN_OK && ok;
    verdict(r, ok, "a collective behind a window");
    (void)!has_failed(r, r->comm); /* a barrier: all are through the one before */
    r->comm_ops->revoke(r->comm);
    r->comm_ops->window_close(failed.comm);
    verdict(r, has_failed(r, failed.comm), "a window of a communicator that has failed");
    r->comm_ops->close(well.comm);
    r->comm_ops->close(failed.comm);
    r->comm_ops->memory_release(r->h.dev, base);
    r->ops->stream_clear(r->s);
}

/* How communicators end, of which the stand-in for NCCL tells by check_comm_ends(); NCCL does not. */
#define HELD_S 60 /* at most */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int begun, over;
    bool held; /* none that has begun is over */
} ends = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static struct timespec held_until(void)
{
    struct timespec until;
    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += HELD_S;
    return until;
}

void check_comm_ends(void);
void check_comm_ends(void)
{
    const struct timespec until = held_until();
    (void)pthread_mutex_lock(&ends.lock);
    ends.begun++;
    (void)pthread_cond_broadcast(&ends.changed);
    while (ends.held && pthread_cond_timedwait(&ends.changed, &ends.lock, &until) == 0)
        ;
    ends.over++;
    (void)pthread_mutex_unlock(&ends.lock);
}

static void hold_ends(void)
{
    (void)pthread_mutex_lock(&ends.lock);
    ends.begun = ends.over = 0;
    ends.held = true;
    (void)pthread_mutex_unlock(&ends.lock);
}

static void *let_ends_go(void *arg)
{
    (void)arg;
    (void)usleep(50000); /* settle() is called meanwhile */
    (void)pthread_mutex_lock(&ends.lock);
    ends.held = false;
    (void)pthread_cond_broadcast(&ends.changed);
    (void)pthread_mutex_unlock(&ends.lock);
    return NULL;
}

/* n communicators have been closed and are settled: closing has waited for none to end, they end side by side, and
 * settling waits for all. */
static void settle_held(struct rank *r, int n)
{
    const struct timespec until = held_until();
    pthread_t letting_go;
    (void)pthread_mutex_lock(&ends.lock);
    verdict(r, ends.over == 0, "closing waits for no abort");
    while (ends.begun < n && pthread_cond_timedwait(&ends.changed, &ends.lock, &until) == 0)
        ;
    const bool all = ends.begun == n;
    (void)pthread_mutex_unlock(&ends.lock);
    verdict(r, all, "communicators end side by side");
    if (pthread_create(&letting_go, NULL, let_ends_go, NULL) != 0)
        _exit(1);
    r->comm_ops->settle(r->h.dev);
    (void)pthread_mutex_lock(&ends.lock);
    verdict(r, ends.over == n, "settling waits for all of them");
    (void)pthread_mutex_unlock(&ends.lock);
    (void)pthread_join(letting_go, NULL);
}

enum { SIBLINGS = 3 };

/* An update enqueued behind a collective that is aborted must not change the weights. */
static void check_death(struct rank *r, const struct comm_config *config)
{
    struct titan_error err = {0};
    const struct update_args args = {
        .lr = 1, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .grad_scale = 1, .bias1 = 0.1f, .bias2 = 0.05f};
    float *grad = device_floats(r, COUNT), *master = device_floats(r, COUNT), *m = device_floats(r, COUNT),
          *v = device_floats(r, COUNT);
    struct stream *compute = NULL;
    struct event *e = NULL;
    pthread_t control;
    fill(r, master, DTYPE_F32, 0, 0, COUNT);
    fill(r, grad, DTYPE_F32, 1, 0, COUNT);
    must(r->ops->stream_open(r->h.dev, "compute", true, &compute, &err), &err, "stream");
    must(r->ops->event_open(r->h.dev, &e, &err), &err, "event");
    int colours[RANKS_MAX] = {0}, alone[RANKS_MAX];
    for (int i = 0; i < r->world; i++)
        alone[i] = i;
    struct rank all = split(r, colours), single = split(r, alone), siblings[SIBLINGS];
    for (int i = 0; i < SIBLINGS; i++)
        siblings[i] = split(r, colours);
    const struct window window = open_window(r, all.comm);
    must(r->comm_ops->barrier(r->comm, r->s), &err, "barrier");
    must(r->ops->stream_sync(r->s, &err), &err, "barrier");
    if (pthread_create(&control, NULL, wait_for_word, r) != 0)
        _exit(1);
    printf("ready\n");
    (void)fflush(stdout);
    if (r->rank == r->world - 1)
        for (;;)
            (void)pause(); /* to be killed */

    /* Whether the failure is known at once or only later, what is ordered behind the collective must not happen. */
    titan_status st = r->comm_ops->all_reduce(r->comm, grad, COUNT, DTYPE_F32, r->s);
    verdict(r, st == TITAN_OK || st == TITAN_EREVOKED || st == TITAN_EPEER, "a collective with a dead peer");
    /* More than a stream's queue holds: the host is blocked in a launch, and looks after nothing. */
    for (int i = 0; i < 3000; i++)
        (void)r->ops->scale(r->s, grad, grad, DTYPE_F32, 1.0f, 1);
    verdict(r, true, "a full queue behind it gives way");
    (void)r->ops->event_record(e, r->s, NULL);
    (void)r->ops->event_wait(e, compute, NULL);
    (void)r->ops->update(compute, &(struct update_piece){master, {m, v}, grad, NULL, COUNT, args.rounding, 0}, 1,
                         &args);
    titan_status comm_st = r->ops->stream_sync(r->s, &err);
    verdict(r, comm_st == TITAN_EREVOKED || comm_st == TITAN_EPEER, "its stream ends with the failure");
    titan_status compute_st = r->ops->stream_sync(compute, &err);
    verdict(r, compute_st != TITAN_OK, "the stream that waited for it fails, too");
    (void)pthread_join(control, NULL);
    verdict(r, has_failed(r, r->comm), "the communicator has failed");
    verdict(r, has_failed(r, all.comm), "what was split off has failed as well");
    verdict(r, has_failed(r, single.comm), "and what has one member");
    const bool held = getenv("TITAN_FAKE_ENDS") != NULL;
    if (held)
        hold_ends();
    const int64_t close_ns = clock_mono_ns();
    for (int i = 0; i < SIBLINGS; i++)
        r->comm_ops->close(siblings[i].comm);
    r->comm_ops->close(all.comm);
    r->comm_ops->close(single.comm);
    r->comm_ops->close(r->comm);
    const double close_ms = ms_since(close_ns);
    const int64_t settle_ns = clock_mono_ns();
    if (held)
        settle_held(r, SIBLINGS + 2);
    else
        r->comm_ops->settle(r->h.dev);
    if (r->rank == 0 && !held)
        printf("figure close_ms %.3f\nfigure settle_ms %.3f\n", close_ms, ms_since(settle_ns));
    r->ops->stream_clear(r->s);
    r->ops->stream_clear(compute);
    double *got = fetch(r, master, DTYPE_F32, COUNT);
    bool ok = true;
    for (size_t i = 0; i < COUNT; i++)
        ok = ok && got[i] == element(0, i);
    free(got);
    verdict(r, ok, "the update behind it did not happen");

    /* The survivors go on in a new one. */
    struct comm_config next = *config;
    next.epoch++;
    next.id[0] ^= 0x80;
    next.world--;
    next.timeout_ms = 10000;
    r->comm_ops->memory_release(r->h.dev, window.memory);
    r->world--;
    int64_t begin = clock_mono_ns();
    must(r->comm_ops->open(&next, NULL, &r->comm, &err), &err, "a new communicator");
    double open_ms = (double)(clock_mono_ns() - begin) * 1e-6;
    check_sums(r, DTYPE_F32, "fp32, new");
    const uint64_t taken = r->ops->memory_peak(r->h.dev, true);
    if (window.bytes > 0)
        verdict(r, taken < window.taken_before + window.bytes / 2, "memory that was registered is free again");
    if (r->rank == 0)
        printf("figure open_ms %.3f\n", open_ms);
    r->ops->event_close(e);
    r->ops->stream_close(compute);
}

/* The last rank does not come to the split: it is killed. */
static void check_split_death(struct rank *r)
{
    struct titan_error err = {0};
    struct comm *child = NULL;
    int members[RANKS_MAX];
    pthread_t control;
    for (int i = 0; i < r->world; i++)
        members[i] = i;
    if (pthread_create(&control, NULL, wait_for_word, r) != 0)
        _exit(1);
    printf("ready\n");
    (void)fflush(stdout);
    if (r->rank == r->world - 1)
        for (;;)
            (void)pause();
    titan_status st = r->comm_ops->split(r->comm, members, r->world, NULL, &child, &err);
    verdict(r, (st == TITAN_EPEER || st == TITAN_EREVOKED) && !child && err.msg[0], "a split without a dead rank ends");
    verdict(r, has_failed(r, r->comm), "and what was to be split has failed");
    st = r->comm_ops->split(r->comm, members, r->world, NULL, &child, &err);
    verdict(r, st != TITAN_OK && !child, "it splits no more");
    (void)pthread_join(control, NULL);
}

/* --- how long things take ----------------------------------------------------------------------------------------- */

static void figure(const struct rank *r, const char *name, double value)
{
    if (r->rank == 0)
        printf("figure %s %.5g\n", name, value);
    (void)fflush(stdout);
}

/* Messages both ways at once, as between two stages of a pipeline: a communicator and a stream for each direction, and
 * each rank receives before it sends. */
static void probe_crossing(struct rank *r, bool quick)
{
    enum { ROUNDS = 10 };
    struct titan_error err = {0};
    struct rank ways[2];
    struct stream *streams[2];
    const int all[RANKS_MAX] = {0};
    const int peer = 1 - r->rank;
    const size_t n = quick ? 1000 : (size_t)256 << 10;
    float *from = device_floats(r, n), *to = device_floats(r, n);
    const int64_t before = clock_mono_ns();
    for (int i = 0; i < 2; i++) {
        ways[i] = split(r, all);
        if (i == 0)
            figure(r, "split_ms", ms_since(before));
        must(r->ops->stream_open(r->h.dev, "way", false, &streams[i], &err), &err, "stream");
    }
    fill(r, from, DTYPE_F32, r->rank, 0, n);
    for (int way = 0; way < 2; way++) { /* the first message of each connects, which both sides wait for */
        titan_status st = r->rank == way
                              ? r->comm_ops->send(ways[way].comm, from, n * sizeof(float), peer, streams[way])
                              : r->comm_ops->recv(ways[way].comm, to, n * sizeof(float), peer, streams[way]);
        must(st, &err, "a first message");
        must(r->ops->stream_sync(streams[way], &err), &err, "a first message");
    }
    const int64_t begin = clock_mono_ns();
    for (int i = 0; i < ROUNDS; i++) {
        must(r->comm_ops->recv(ways[peer].comm, to, n * sizeof(float), peer, streams[peer]), &err, "receive");
        must(r->comm_ops->send(ways[r->rank].comm, from, n * sizeof(float), peer, streams[r->rank]), &err, "send");
        for (int way = 0; way < 2; way++)
            must(r->ops->stream_sync(streams[way], &err), &err, "crossing messages");
    }
    figure(r, "crossing_ms", ms_since(begin) / ROUNDS);
    double *got = fetch(r, to, DTYPE_F32, n);
    bool ok = true;
    for (size_t i = 0; i < n; i++)
        ok = ok && got[i] == element(peer, i);
    free(got);
    verdict(r, ok, "messages cross");
    for (int i = 0; i < 2; i++) {
        r->comm_ops->close(ways[i].comm);
        r->ops->stream_close(streams[i]);
    }
    r->ops->release(r->h.dev, from);
    r->ops->release(r->h.dev, to);
}

/* The product that stands for a step's kernels: a millisecond or two. */
struct product {
    int64_t n;
    void *a, *b, *c;
};

static void multiply(struct rank *r, const struct product *p)
{
    titan_status st =
        r->ops->matmul(r->s, ARGS(matmul, .c = p->c, .c_dt = DTYPE_BF16, .ldc = p->n, .a = p->a, .lda = p->n, .b = p->b,
                                  .tb = true, .ldb = p->n, .ab_dt = DTYPE_BF16, .m = p->n, .n = p->n, .k = p->n));
    must(st, &(struct titan_error){0}, "product");
}

static double time_product(struct rank *r, struct product *p)
{
    enum { ROUNDS = 10 };
    struct titan_error err = {0};
    void **const operands[] = {&p->a, &p->b, &p->c};
    for (int i = 0; i < 3; i++)
        must(r->ops->alloc(r->h.dev, (size_t)(p->n * p->n) * 2, operands[i], &err), &err, "alloc");
    multiply(r, p);
    must(r->ops->stream_sync(r->s, &err), &err, "product");
    const int64_t begin = clock_mono_ns();
    for (int i = 0; i < ROUNDS; i++)
        multiply(r, p);
    must(r->ops->stream_sync(r->s, &err), &err, "product");
    return ms_since(begin) / ROUNDS;
}

/* Learns when the other rank was killed, and revokes when this one's communicator has failed, or after a second. */
struct death {
    struct rank *r;
    int64_t killed_ns;
    atomic_int known;
};

static void *wait_for_death(void *arg)
{
    struct death *d = arg;
    const struct timespec look = {.tv_nsec = 20000};
    if (read(STDIN_FILENO, &d->killed_ns, sizeof d->killed_ns) != (ssize_t)sizeof d->killed_ns)
        return NULL;
    while (!atomic_load(&d->known) && ms_since(d->killed_ns) < 1000)
        (void)nanosleep(&look, NULL);
    d->r->comm_ops->revoke(d->r->comm);
    return NULL;
}

/* A collective that the last rank does not come to, QUEUED products behind it, and an update behind those. The rank is
 * killed; the GPU is quiet when what is queued has run, and the update must not happen. */
static void probe_death(struct rank *r, bool quick)
{
    enum { QUEUED = 300 };
    const struct update_args args = {
        .lr = 1, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .grad_scale = 1, .bias1 = 0.1f, .bias2 = 0.05f};
    struct titan_error err = {0};
    struct product product = {.n = quick ? 16 : 8192};
    struct death death = {.r = r};
    struct event *e = NULL;
    pthread_t control;
    float *grad = device_floats(r, COUNT), *master = device_floats(r, COUNT), *m = device_floats(r, COUNT),
          *v = device_floats(r, COUNT);
    fill(r, master, DTYPE_F32, 0, 0, COUNT);
    fill(r, grad, DTYPE_F32, 1, 0, COUNT);
    const double product_ms = time_product(r, &product);
    figure(r, "product_ms", product_ms);
    figure(r, "queued_ms", product_ms * QUEUED);
    must(r->comm_ops->barrier(r->comm, r->s), &err, "barrier");
    must(r->ops->stream_sync(r->s, &err), &err, "barrier");
    must(r->ops->event_open(r->h.dev, &e, &err), &err, "event");
    if (r->rank == 0) {
        must(r->comm_ops->all_reduce(r->comm, grad, COUNT, DTYPE_F32, r->s), &err, "all-reduce");
        must(r->ops->event_record(e, r->s, &err), &err, "event");
        for (int i = 0; i < QUEUED; i++)
            multiply(r, &product);
        must(
            r->ops->update(r->s, &(struct update_piece){master, {m, v}, grad, NULL, COUNT, args.rounding, 0}, 1, &args),
            &err, "update");
        if (pthread_create(&control, NULL, wait_for_death, &death) != 0)
            _exit(1);
    }
    printf("ready\n");
    (void)fflush(stdout);
    while (r->rank != 0)
        (void)pause(); /* to be killed */
    /* The collective ends when the communicator does. */
    (void)r->ops->event_sync(e, NULL);
    const int64_t known_ns = clock_mono_ns();
    atomic_store(&death.known, 1);
    titan_status st = r->ops->stream_sync(r->s, &err);
    const int64_t quiet_ns = clock_mono_ns();
    (void)pthread_join(control, NULL);
    r->ops->event_close(e);
    verdict(r, st == TITAN_EREVOKED || st == TITAN_EPEER, "the stream ends with the failure");
    figure(r, "kill_to_known_ms", (double)(known_ns - death.killed_ns) * 1e-6);
    figure(r, "kill_to_quiet_ms", (double)(quiet_ns - death.killed_ns) * 1e-6);
    r->ops->stream_clear(r->s);
    double *got = fetch(r, master, DTYPE_F32, COUNT);
    bool same = true;
    for (size_t i = 0; i < COUNT; i++)
        same = same && got[i] == element(0, i);
    free(got);
    figure(r, "update_skipped", same);
    verdict(r, same, "the update behind it did not happen");
}

static void probe_alive(struct rank *r, bool quick)
{
    figure(r, "all_reduce_4B_us", time_all_reduce(r, 1) * 1e3);
    figure(r, "all_reduce_16MiB_ms", time_all_reduce(r, quick ? 1000 : FLOATS_16_MIB));
    probe_crossing(r, quick);
}

enum mode { LIVE, DIE, DIE_IN_SPLIT, PROBE, PROBE_QUICK, PROBE_ALIVE, PROBE_ALIVE_QUICK, MODES };
static const char *const mode_names[MODES] = {"live",        "die",         "die-in-split",     "probe",
                                              "probe-quick", "probe-alive", "probe-alive-quick"};
/* Modes in which the last rank is killed. */
static bool dies(enum mode mode)
{
    return mode == DIE || mode == DIE_IN_SPLIT || mode == PROBE || mode == PROBE_QUICK;
}

static int rank_main(int rank, int world, enum mode mode, const char *address, int listener)
{
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* a check that hangs leaves no process behind */
    struct titan_error err = {0};
    struct rank r = {.rank = rank, .world = world};
    const char *gpus = getenv("TITAN_TEST_GPUS");
    const struct device_options options = {.index = gpus && atoi(gpus) >= world ? rank : 0};
    must(device_open("cuda", &options, &r.h, &err), &err, "opening the GPU");
    r.ops = r.h.ops;
    r.comm_ops = r.h.plugin->comm;
    must(r.ops->stream_open(r.h.dev, "communication", false, &r.s, &err), &err, "stream");
    const char *addresses[RANKS_MAX] = {address};
    struct comm_config config = {.id = "gpu check_comm",
                                 .epoch = (uint64_t)mode + 1,
                                 .rank = rank,
                                 .world = world,
                                 .addresses = address[0] ? addresses : NULL,
                                 .listener = rank == 0 ? listener : -1,
                                 .memfd = listener,
                                 .device = &r.h,
                                 .timeout_ms = 60000};
    const int64_t begin = clock_mono_ns();
    must(r.comm_ops->open(&config, NULL, &r.comm, &err), &err, "forming the communicator");
    if (mode >= PROBE) {
        const bool quick = mode == PROBE_QUICK || mode == PROBE_ALIVE_QUICK;
        figure(&r, "form_ms", ms_since(begin));
        probe_alive(&r, quick);
        if (dies(mode))
            probe_death(&r, quick);
    } else if (mode == DIE_IN_SPLIT) {
        check_split_death(&r);
    } else if (mode == DIE) {
        check_death(&r, &config);
    } else {
        check_sums(&r, DTYPE_F32, "fp32");
        check_sums(&r, DTYPE_BF16, "bf16");
        check_sums(&r, DTYPE_F64, "fp64");
        check_moves(&r);
        check_shift(&r);
        check_rows(&r);
        check_group(&r);
        check_splits(&r);
        double ms = time_all_reduce(&r, FLOATS_16_MIB);
        if (rank == 0)
            printf("figure all_reduce_16MiB_ms %.3f\n", ms);
        check_windows(&r);
    }
    r.comm_ops->close(r.comm);
    r.ops->stream_close(r.s);
    device_close(&r.h);
    return r.bad;
}

/* --- the parent --------------------------------------------------------------------------------------------------- */

static int listen_local(char address[32])
{
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof name;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&name, len) != 0 || listen(fd, 64) != 0 ||
        getsockname(fd, (struct sockaddr *)&name, &len) != 0)
        return -1;
    (void)snprintf(address, 32, "127.0.0.1:%d", ntohs(name.sin_port));
    return fd;
}

struct run {
    pid_t pids[RANKS_MAX];
    int words;   /* what we write, every rank reads */
    FILE *lines; /* what every rank prints */
};

static bool start(const char *self, int world, enum mode mode, const char *address, int listener, struct run *ret)
{
    int words[2], lines[2];
    if (pipe(words) != 0 || pipe(lines) != 0)
        return false;
    for (int rank = 0; rank < world; rank++) {
        char texts[3][16];
        (void)snprintf(texts[0], 16, "%d", rank);
        (void)snprintf(texts[1], 16, "%d", world);
        (void)snprintf(texts[2], 16, "%d", listener);
        char *argv[] = {(char *)self,    "rank",   texts[0], texts[1], (char *)mode_names[mode],
                        (char *)address, texts[2], NULL};
        posix_spawn_file_actions_t fa;
        (void)posix_spawn_file_actions_init(&fa);
        (void)posix_spawn_file_actions_adddup2(&fa, words[0], STDIN_FILENO);
        (void)posix_spawn_file_actions_adddup2(&fa, lines[1], STDOUT_FILENO);
        (void)posix_spawn_file_actions_addclose(&fa, words[1]);
        (void)posix_spawn_file_actions_addclose(&fa, lines[0]);
        int e = posix_spawn(&ret->pids[rank], self, &fa, NULL, argv, environ);
        (void)posix_spawn_file_actions_destroy(&fa);
        if (e != 0)
            return false;
    }
    (void)close(words[0]);
    (void)close(lines[1]);
    ret->words = words[1];
    ret->lines = fdopen(lines[0], "r");
    return ret->lines != NULL;
}

/* told: the survivors are told to revoke, as by an agent; otherwise they must find out. */
static bool run(const char *self, int world, enum mode mode, bool told, bool by_address, FILE *figures)
{
    const bool die = dies(mode);
    struct run r;
    char address[32] = "", line[512];
    int listener = listen_local(address), ready = 0;
    bool ok = true;
    if (!by_address)
        address[0] = '\0';
    if (listener < 0 || !start(self, world, mode, address, listener, &r))
        return false;
    while (fgets(line, sizeof line, r.lines)) {
        char name[64];
        double value;
        if (mode < PROBE && sscanf(line, "figure %63s %lf", name, &value) == 2) {
            if (figures)
                (void)fprintf(figures, "%s\"%s_%d_ranks\": %.3f", ftell(figures) > 1 ? ", " : "", name, world, value);
        } else if (strcmp(line, "ready\n") == 0) {
            if (++ready == world) { /* all formed: one dies, then the others are told, as their agents would */
                const int64_t killed_ns = clock_mono_ns();
                (void)kill(r.pids[world - 1], SIGKILL);
                if (mode >= PROBE)
                    ok = write(r.words, &killed_ns, sizeof killed_ns) == (ssize_t)sizeof killed_ns && ok;
                (void)waitpid(r.pids[world - 1], NULL, 0);
                for (int i = 0; mode < PROBE && told && i < world - 1; i++)
                    ok = write(r.words, "r", 1) == 1 && ok;
                (void)close(r.words);
                r.words = -1;
            }
        } else {
            (void)fputs(line, stdout);
            (void)fflush(stdout);
        }
    }
    for (int rank = 0; rank < (die ? world - 1 : world); rank++) {
        int status = 0;
        ok = waitpid(r.pids[rank], &status, 0) == r.pids[rank] && WIFEXITED(status) && WEXITSTATUS(status) == 0 && ok;
    }
    (void)fclose(r.lines);
    if (r.words >= 0)
        (void)close(r.words);
    (void)close(listener);
    printf("%sok - %d ranks: all processes %s\n", ok ? "" : "not ", world,
           !die   ? "ended well"
           : told ? "survived a death"
                  : "survived a death that was not reported");
    (void)fflush(stdout);
    return ok;
}

int main(int argc, char **argv)
{
    (void)signal(SIGPIPE, SIG_IGN);
    for (int mode = 0; argc == 7 && mode < MODES; mode++)
        if (strcmp(argv[1], "rank") == 0 && strcmp(argv[4], mode_names[mode]) == 0)
            return rank_main(atoi(argv[2]), atoi(argv[3]), (enum mode)mode, argv[5], atoi(argv[6]));
    (void)setenv("TITAN_NCCL_SHARED_GPU", "1", 0);
    const bool alive = argc > 1 && strcmp(argv[1], "probe-alive") == 0,
               quick = argc > 2 && strcmp(argv[2], "quick") == 0;
    if (alive || (argc > 1 && strcmp(argv[1], "probe") == 0)) {
        const enum mode mode = alive ? (quick ? PROBE_ALIVE_QUICK : PROBE_ALIVE) : quick ? PROBE_QUICK : PROBE;
        return !run(argv[0], 2, mode, true, false, NULL);
    }
    const int world = argc > 1 ? atoi(argv[1]) : 4;
    if (world < 2 || world > RANKS_MAX) {
        (void)fprintf(stderr, "usage: check_comm [2..%d | probe [quick] | probe-alive [quick]]\n", RANKS_MAX);
        return 2;
    }
    const char *out = getenv("OUT");
    char path[4096];
    (void)snprintf(path, sizeof path, "%s/comm-%d.json", out ? out : ".", world);
    FILE *figures = out ? fopen(path, "w") : NULL;
    if (figures)
        (void)fputs("{", figures);
    bool ok = run(argv[0], world, LIVE, false, true, figures);
    ok = run(argv[0], world, LIVE, false, false, NULL) && ok;
    if (world > 2) {
        ok = run(argv[0], world, DIE, true, false, figures) && ok;
        ok = run(argv[0], world, DIE, false, true, NULL) && ok;
        ok = run(argv[0], world, DIE_IN_SPLIT, true, false, NULL) && ok;
        ok = run(argv[0], world, DIE_IN_SPLIT, false, true, NULL) && ok;
    }
    if (figures) {
        (void)fputs("}\n", figures);
        (void)fclose(figures);
    }
    return !ok;
}
