/* SPDX-License-Identifier: Apache-2.0 */
/* What happens to the others when a member dies, stops, leaves or is revoked: no member waits for ever. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "tests/support/patience.h"
#include "tests/support/ranks.h"

#define BUFFER_BYTES ((size_t)8 << 20)

/* What the members tell the test. */
struct shared {
    volatile int ready[RANKS_MAX];
    volatile double ended_ms[RANKS_MAX];
    volatile int status[RANKS_MAX];
};

static struct shared *make_shared(void)
{
    void *p = mmap(NULL, sizeof(struct shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(p != MAP_FAILED);
    return p;
}

/* Wait until the first members have got so far; in the test and in members. */
static void await_ready(const struct shared *sh, int world, int value)
{
    for (int r = 0; r < world; r++)
        titan_assert(AWAITED(sh->ready[r] >= value));
}

/* For a member that is to be killed. */
static void never_go_on(void)
{
    for (;;)
        (void)pause();
}

/* Collectives without end; leaves with the first failure. */
static void run_until_failure(struct rank_context *ctx)
{
    struct shared *sh = ctx->arg;
    unsigned char *a = calloc(1, BUFFER_BYTES), *b = calloc(1, BUFFER_BYTES);
    size_t count = BUFFER_BYTES / sizeof(float) / (size_t)ctx->world;
    RANK_CHECK(ctx, a && b);
    titan_status status = TITAN_OK;
    for (int i = 0; status == TITAN_OK; i++) {
        (void)ctx->ops->all_gather(ctx->comm, a, b, count, DTYPE_F32, ctx->stream);
        (void)ctx->ops->reduce_scatter(ctx->comm, b, a, count, DTYPE_F32, ctx->stream);
        (void)ctx->ops->all_reduce(ctx->comm, a, 100, DTYPE_F32, ctx->stream);
        status = rank_sync(ctx);
        sh->ready[ctx->rank] = i + 1;
    }
    sh->ended_ms[ctx->rank] = rank_ms();
    sh->status[ctx->rank] = status;
    RANK_CHECK(ctx, status == TITAN_EPEER || status == TITAN_EREVOKED);
    free(a);
    free(b);
}

/* One dies in the middle of things; the others are not told. */
static void killed(const struct comm_ops *ops, int world, enum ranks_stream stream)
{
    struct ranks r;
    struct shared *sh = make_shared();
    ranks_init(&r, ops, world, stream);
    ranks_start(&r, true, run_until_failure, sh);
    await_ready(sh, world, 3);
    double at = rank_ms();
    assert_int_equal(kill(r.pids[1], SIGKILL), 0);
    for (int i = 0; i < world; i++)
        assert_int_equal(ranks_wait(&r, i), i == 1 ? 128 + SIGKILL : 0);
    for (int i = 0; i < world; i++) {
        if (i == 1)
            continue;
        printf("# %s: rank %d knew after %.1f ms (%s)\n", ops->name, i, sh->ended_ms[i] - at,
               titan_status_name(sh->status[i]));
    }
    ranks_free(&r);
    (void)munmap(sh, sizeof(*sh));
}

static void test_killed_shm(void **state)
{
    (void)state;
    killed(&comm_shm, 4, RANKS_THREAD);
    killed(&comm_shm, 2, RANKS_INLINE);
}

static void test_killed_tcp(void **state)
{
    (void)state;
    killed(&comm_tcp, 4, RANKS_THREAD);
    killed(&comm_tcp, 2, RANKS_INLINE);
}

/* --- revoke while a member is stopped ----------------------------------------------------------------------------- */

struct revoker {
    struct rank_context *ctx;
    const struct shared *sh;
};

static void *revoke_when_told(void *arg)
{
    struct revoker *v = arg;
    titan_assert(AWAITED(v->sh->ready[RANKS_MAX - 1]));
    v->ctx->ops->revoke(v->ctx->comm);
    v->ctx->ops->revoke(v->ctx->comm); /* again does nothing */
    return NULL;
}

static void run_until_revoked(struct rank_context *ctx)
{
    struct revoker v = {.ctx = ctx, .sh = ctx->arg};
    pthread_t thread;
    RANK_CHECK(ctx, pthread_create(&thread, NULL, revoke_when_told, &v) == 0);
    run_until_failure(ctx);
    RANK_CHECK(ctx, pthread_join(thread, NULL) == 0);
    float x = 0;
    (void)ctx->ops->all_reduce(ctx->comm, &x, 1, DTYPE_F32, ctx->stream);
    RANK_CHECK(ctx, rank_sync(ctx) != TITAN_OK);
}

static void stopped(const struct comm_ops *ops, enum ranks_stream stream)
{
    enum { WORLD = 3 };
    struct ranks r;
    struct shared *sh = make_shared();
    ranks_init(&r, ops, WORLD, stream);
    ranks_start(&r, true, run_until_revoked, sh);
    await_ready(sh, WORLD, 2);
    assert_int_equal(kill(r.pids[0], SIGSTOP), 0);
    patience_pause_ms(150, "the others come to wait for it, and would for ever");
    assert_true(sh->ended_ms[1] == 0 && sh->ended_ms[2] == 0);
    double at = rank_ms();
    sh->ready[RANKS_MAX - 1] = 1;
    assert_int_equal(ranks_wait(&r, 1), 0);
    assert_int_equal(ranks_wait(&r, 2), 0);
    for (int i = 1; i < WORLD; i++) {
        printf("# %s: rank %d out after %.1f ms (%s)\n", ops->name, i, sh->ended_ms[i] - at,
               titan_status_name(sh->status[i]));
    }
    assert_int_equal(kill(r.pids[0], SIGCONT), 0);
    assert_int_equal(ranks_wait(&r, 0), 0);
    ranks_free(&r);
    (void)munmap(sh, sizeof(*sh));
}

static void test_stopped_and_revoked(void **state)
{
    (void)state;
    stopped(&comm_shm, RANKS_THREAD);
    stopped(&comm_shm, RANKS_INLINE);
    stopped(&comm_tcp, RANKS_THREAD);
    stopped(&comm_tcp, RANKS_INLINE);
}

/* --- point to point ----------------------------------------------------------------------------------------------- */

static void wait_for_message(struct rank_context *ctx)
{
    struct shared *sh = ctx->arg;
    unsigned char *x = malloc(BUFFER_BYTES);
    RANK_CHECK(ctx, x);
    if (ctx->rank == 1) {
        sh->ready[1] = 1;
        never_go_on();
    }
    memset(x, 1, BUFFER_BYTES);
    sh->ready[ctx->rank] = 1;
    if (ctx->rank == 0)
        (void)ctx->ops->recv(ctx->comm, x, 100, 1, ctx->stream);
    else
        (void)ctx->ops->send(ctx->comm, x, BUFFER_BYTES, 1, ctx->stream);
    titan_status status = rank_sync(ctx);
    RANK_CHECK(ctx, status == TITAN_EPEER || status == TITAN_EREVOKED);
    free(x);
}

static void test_killed_peer_of_send_and_recv(void **state)
{
    (void)state;
    const struct comm_ops *both[] = {&comm_shm, &comm_tcp};
    for (int t = 0; t < 2; t++) {
        struct ranks r;
        struct shared *sh = make_shared();
        ranks_init(&r, both[t], 3, RANKS_INLINE);
        ranks_start(&r, true, wait_for_message, sh);
        await_ready(sh, 3, 1);
        patience_pause_ms(20, "the others get into their operations");
        assert_int_equal(kill(r.pids[1], SIGKILL), 0);
        assert_int_equal(ranks_wait(&r, 0), 0);
        assert_int_equal(ranks_wait(&r, 2), 0);
        (void)ranks_wait(&r, 1);
        ranks_free(&r);
        (void)munmap(sh, sizeof(*sh));
    }
}

/* Rank 0 waits for rank 1, which waits for rank 2, which dies: word must reach rank 0, which rank 1 does not leave. */
static void wait_in_a_row(struct rank_context *ctx)
{
    struct shared *sh = ctx->arg;
    unsigned char x[100];
    sh->ready[ctx->rank] = 1;
    if (ctx->rank == 2)
        never_go_on();
    (void)ctx->ops->recv(ctx->comm, x, sizeof(x), ctx->rank + 1, ctx->stream);
    titan_status status = rank_sync(ctx);
    RANK_CHECK(ctx, status == TITAN_EPEER || status == TITAN_EREVOKED);
    sh->ready[ctx->rank] = 2;
    if (ctx->rank == 1)
        await_ready(sh, 1, 2);
}

static void test_word_passes_on(void **state)
{
    (void)state;
    const struct comm_ops *both[] = {&comm_shm, &comm_tcp};
    for (int t = 0; t < 2; t++) {
        struct ranks r;
        struct shared *sh = make_shared();
        ranks_init(&r, both[t], 3, RANKS_INLINE);
        ranks_start(&r, true, wait_in_a_row, sh);
        await_ready(sh, 3, 1);
        patience_pause_ms(20, "the others get into their operations");
        assert_int_equal(kill(r.pids[2], SIGKILL), 0);
        assert_int_equal(ranks_wait(&r, 0), 0);
        assert_int_equal(ranks_wait(&r, 1), 0);
        (void)ranks_wait(&r, 2);
        ranks_free(&r);
        (void)munmap(sh, sizeof(*sh));
    }
}

/* --- leaving ------------------------------------------------------------------------------------------------------ */

/* Rank 0 closes while the others still count on it, and lives on. */
static void close_early(struct rank_context *ctx)
{
    struct shared *sh = ctx->arg;
    float x = 1;
    (void)ctx->ops->all_reduce(ctx->comm, &x, 1, DTYPE_F32, ctx->stream);
    RANK_CHECK(ctx, rank_sync(ctx) == TITAN_OK);
    RANK_CHECK(ctx, x == (float)ctx->world);
    if (ctx->rank == 0) {
        ctx->ops->close(ctx->comm);
        ctx->comm = NULL;
        await_ready(sh, 1, 1);
        return;
    }
    (void)ctx->ops->barrier(ctx->comm, ctx->stream);
    titan_status status = rank_sync(ctx);
    RANK_CHECK(ctx, status == TITAN_EPEER || status == TITAN_EREVOKED);
}

/* All close right after the last collective: it must have succeeded for all, every time. */
static void close_at_the_end(struct rank_context *ctx)
{
    float x[64] = {1};
    for (int i = 0; i < 3; i++)
        (void)ctx->ops->all_reduce(ctx->comm, x, 64, DTYPE_F32, ctx->stream);
    (void)ctx->ops->barrier(ctx->comm, ctx->stream);
    RANK_CHECK(ctx, rank_sync(ctx) == TITAN_OK);
}

/* Closing with operations in flight must not wait for peers: rank 1 comes when the others have gone. */
static void close_in_flight(struct rank_context *ctx)
{
    static float x[100000];
    struct shared *sh = ctx->arg;
    for (int r = 0; r < ctx->world && ctx->rank == 1; r++)
        titan_assert(r == 1 || AWAITED(sh->ready[r]));
    for (int i = 0; i < 5; i++)
        (void)ctx->ops->all_reduce(ctx->comm, x, 100000, DTYPE_F32, ctx->stream);
    ctx->ops->close(ctx->comm);
    ctx->comm = NULL;
    sh->ready[ctx->rank] = 1;
}

static void test_closing(void **state)
{
    (void)state;
    const struct comm_ops *both[] = {&comm_shm, &comm_tcp};
    static const rank_fn fns[] = {close_early, close_in_flight};
    for (int t = 0; t < 2; t++) {
        struct ranks r;
        for (int i = 0; i < 2; i++) {
            struct shared *sh = make_shared();
            ranks_init(&r, both[t], 3, RANKS_THREAD);
            ranks_start(&r, true, fns[i], sh);
            assert_int_equal(ranks_wait(&r, 1), 0);
            assert_int_equal(ranks_wait(&r, 2), 0);
            sh->ready[0] = 1;
            assert_int_equal(ranks_wait(&r, 0), 0);
            ranks_free(&r);
            (void)munmap(sh, sizeof(*sh));
        }
        for (int i = 0; i < 30; i++) {
            ranks_init(&r, both[t], 4, i % 2 ? RANKS_THREAD : RANKS_INLINE);
            ranks_start(&r, true, close_at_the_end, NULL);
            assert_int_equal(ranks_join(&r), 0);
            ranks_free(&r);
        }
    }
}

/* --- forming ------------------------------------------------------------------------------------------------------ */

static atomic_int abort_flag;

static void *raise_abort(void *arg)
{
    (void)arg;
    patience_pause_ms(50, "the members get into their forming");
    __atomic_store_n(&abort_flag, 1, __ATOMIC_RELAXED);
    return NULL;
}

/* Rank 1 never comes, and the others are aborted; in shared memory the abort of one ends the forming for all. */
static void open_until_aborted(struct rank_context *ctx)
{
    struct titan_error err = {0};
    struct comm *comm = NULL;
    pthread_t thread;
    if (ctx->rank == 1)
        return;
    const bool aborted = ctx->rank == 0 || ctx->ops == &comm_tcp, alone = ctx->ops == &comm_shm && ctx->rank == 0;
    if (aborted)
        RANK_CHECK(ctx, pthread_create(&thread, NULL, raise_abort, NULL) == 0);
    titan_status status = ctx->ops->open(&ctx->config, &abort_flag, &comm, &err);
    RANK_CHECK(ctx, status == TITAN_EREVOKED || (!alone && status == TITAN_EPEER));
    RANK_CHECK(ctx, err.msg[0] && !comm);
    if (aborted)
        RANK_CHECK(ctx, pthread_join(thread, NULL) == 0);
}

/* The others never come, and time runs out. */
static void open_alone(struct rank_context *ctx)
{
    struct titan_error err = {0};
    struct comm *comm = NULL;
    if (ctx->rank != 2)
        return;
    ctx->config.timeout_ms = 300;
    titan_status status = ctx->ops->open(&ctx->config, NULL, &comm, &err);
    RANK_CHECK(ctx, status == TITAN_ETIMEDOUT || (ctx->ops == &comm_tcp && status == TITAN_EPEER));
    RANK_CHECK(ctx, err.msg[0] && !comm);
}

/* One dies while the others are still meeting it. */
static void open_and_die(struct rank_context *ctx)
{
    struct shared *sh = ctx->arg;
    struct comm *comm = NULL;
    struct titan_error err = {0};
    if (ctx->rank == 0) {
        titan_assert(AWAITED(sh->ready[0]));
        return; /* never opens, and lives on until the others are done with it */
    }
    titan_status status = ctx->ops->open(&ctx->config, NULL, &comm, &err);
    RANK_CHECK(ctx, status == TITAN_EPEER);
}

/* Members that have come to the segment and wait for the rest. */
static uint32_t arrived(int memfd)
{
    enum { ARRIVED = 64 }; /* offset in the header */
    uint32_t n = 0;
    return pread(memfd, &n, sizeof(n), ARRIVED) == sizeof(n) ? n : 0;
}

static void test_forming(void **state)
{
    (void)state;
    struct ranks r;
    const struct comm_ops *both[] = {&comm_shm, &comm_tcp};
    static const rank_fn fns[] = {open_until_aborted, open_alone};
    for (int t = 0; t < 4; t++) {
        ranks_init(&r, both[t % 2], 3, RANKS_INLINE);
        ranks_start(&r, false, fns[t / 2], NULL);
        assert_int_equal(ranks_join(&r), 0);
        ranks_free(&r);
    }
    struct shared *sh = make_shared();
    ranks_init(&r, &comm_shm, 3, RANKS_INLINE);
    ranks_start(&r, false, open_and_die, sh);
    AWAIT(arrived(r.config.memfd) == 2);
    assert_int_equal(kill(r.pids[1], SIGKILL), 0);
    assert_int_equal(ranks_wait(&r, 2), 0);
    sh->ready[0] = 1;
    assert_int_equal(ranks_wait(&r, 0), 0);
    (void)ranks_wait(&r, 1);
    ranks_free(&r);
    (void)munmap(sh, sizeof(*sh));
}

/* An empty descriptor, as an agent hands it out: the first member gives it its size. */
static void one_sum(struct rank_context *ctx)
{
    float x = (float)ctx->rank;
    (void)ctx->ops->all_reduce(ctx->comm, &x, 1, DTYPE_F32, ctx->stream);
    RANK_CHECK(ctx, rank_sync(ctx) == TITAN_OK);
    RANK_CHECK(ctx, x == (float)(ctx->world * (ctx->world - 1) / 2));
}

static void test_empty_segment(void **state)
{
    (void)state;
    struct ranks r;
    ranks_init(&r, &comm_shm, 4, RANKS_INLINE);
    (void)close(r.config.memfd);
    r.config.memfd = memfd_create("empty", MFD_CLOEXEC);
    assert_true(r.config.memfd >= 0);
    ranks_start(&r, true, one_sum, NULL);
    assert_int_equal(ranks_join(&r), 0);
    /* Used once, a segment belongs to its epoch. */
    struct comm *comm = NULL;
    struct titan_error err = {0};
    struct comm_config again = r.config;
    again.epoch++;
    assert_int_equal(comm_shm.open(&again, NULL, &comm, &err), TITAN_ECONFLICT);
    ranks_free(&r);
    again.memfd = -1;
    assert_int_equal(comm_shm.open(&again, NULL, &comm, &err), TITAN_EIO);
}

static int connect_to(const char *address)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    a.sin_port = htons((uint16_t)atoi(strchr(address, ':') + 1));
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof(a)), 0);
    return fd;
}

/* Before the members meet, others have knocked: silent, talking nonsense, of another epoch, closed again. */
static void test_strangers(void **state)
{
    (void)state;
    enum { N = 200 };
    struct ranks r;
    int fds[N];
    unsigned char text[512];
    ranks_init(&r, &comm_tcp, 4, RANKS_INLINE);
    for (int i = 0; i < N; i++) {
        fds[i] = connect_to(r.addresses[i % 3]);
        memset(text, 'a' + i % 26, sizeof(text));
        if (i % 5 == 1)
            (void)!write(fds[i], "GET / HTTP/1.1\r\n\r\n", 18);
        if (i % 5 == 2)
            (void)!write(fds[i], text, sizeof(text));
        if (i % 5 == 3) { /* a hello of another communicator */
            memcpy(text, i % 2 ? "TITANCM2" : "TITANCM3", 8);
            (void)!write(fds[i], text, 48);
        }
        if (i % 5 == 4) {
            (void)close(fds[i]);
            fds[i] = -1;
        }
    }
    ranks_start(&r, true, one_sum, NULL);
    assert_int_equal(ranks_join(&r), 0);
    for (int i = 0; i < N; i++)
        if (fds[i] >= 0)
            (void)close(fds[i]);
    ranks_free(&r);
}

/* As members say it (tcp_mesh.c), by a process that knows all but the key. */
struct greeting {
    char magic[8];
    unsigned char id[16];
    uint64_t epoch, tag;
    uint32_t rank, members;
    unsigned char challenge[32], proof[32];
};

/* Of what it hears: a challenge, and that is all. */
static void hears_no_answer(int fd)
{
    unsigned char bytes[256];
    size_t got = 0;
    for (ssize_t n; (n = recv(fd, bytes, sizeof(bytes), 0)) > 0;)
        got += (size_t)n;
    assert_true(got <= 32);
    (void)close(fd);
}

static void test_strangers_with_a_name(void **state)
{
    (void)state;
    enum { N = 60 };
    struct ranks r;
    int fds[N];
    ranks_init(&r, &comm_tcp, 3, RANKS_INLINE);
    for (int i = 0; i < N; i++) {
        struct greeting x = {.epoch = r.config.epoch, .rank = 1 + (uint32_t)i % 2, .members = 3, .tag = i % 7 == 3};
        fds[i] = connect_to(r.addresses[i % 2]);
        memcpy(x.magic, i % 3 ? "TITANCM3" : "TITANCM2", sizeof(x.magic));
        memcpy(x.id, r.config.id, sizeof(x.id));
        memset(x.proof, i, sizeof(x.proof));
        assert_int_equal(write(fds[i], &x, i % 3 ? sizeof(x) : 48), i % 3 ? sizeof(x) : 48);
    }
    ranks_start(&r, true, one_sum, NULL);
    assert_int_equal(ranks_join(&r), 0);
    ranks_free(&r);
    for (int i = 0; i < N; i++)
        hears_no_answer(fds[i]);
}

/* One member's end, in a process of its own; what comes of it. */
static titan_status open_towards(const char *address, const unsigned char *key, uint32_t timeout_ms)
{
    const char *addresses[] = {address, "127.0.0.1:1"};
    struct comm_config config = {
        .epoch = 7, .rank = 1, .world = 2, .listener = -1, .memfd = -1, .addresses = addresses, .key = key};
    struct comm *comm = NULL;
    struct titan_error err = {0};
    memset(config.id, 0x5a, sizeof(config.id));
    config.timeout_ms = timeout_ms;
    titan_status status = comm_tcp.open(&config, NULL, &comm, &err);
    comm_tcp.close(comm);
    return status;
}

/* A process has a member's address and answers in its name. */
static void *answer_falsely(void *arg)
{
    const int listener = *(int *)arg;
    for (int fd; (fd = accept(listener, NULL, NULL)) >= 0;) {
        struct greeting x, back = {.epoch = 7, .rank = 0, .members = 2};
        const unsigned char challenge[32] = {1};
        memcpy(back.magic, "TITANCM3", sizeof(back.magic));
        memset(back.id, 0x5a, sizeof(back.id));
        if (write(fd, challenge, sizeof(challenge)) == sizeof(challenge) &&
            recv(fd, &x, sizeof(x), MSG_WAITALL) == sizeof(x)) {
            memcpy(back.challenge, x.proof, sizeof(x.proof)); /* its own proof, for one */
            (void)!write(fd, &back, 80);
        }
        patience_pause_ms(1, "the answer is read before the end");
        (void)close(fd);
    }
    return NULL;
}

static void test_false_member(void **state)
{
    (void)state;
    int listener, port;
    char address[32];
    pthread_t thread;
    assert_int_equal(comm_listen("127.0.0.1", NULL, &listener, &port, NULL), TITAN_OK);
    assert_int_equal(fcntl(listener, F_SETFL, 0), 0);
    (void)snprintf(address, sizeof(address), "127.0.0.1:%d", port);
    assert_int_equal(pthread_create(&thread, NULL, answer_falsely, &listener), 0);
    assert_int_equal(open_towards(address, (const unsigned char *)"thirty-two bytes that are known.", 300),
                     TITAN_ETIMEDOUT);
    (void)shutdown(listener, SHUT_RDWR);
    assert_int_equal(pthread_join(thread, NULL), 0);
    (void)close(listener);
}

/* An epoch of an older version has no key. */
static void test_without_a_key(void **state)
{
    (void)state;
    struct ranks r;
    ranks_init(&r, &comm_tcp, 3, RANKS_INLINE);
    r.config.key = NULL;
    ranks_start(&r, true, one_sum, NULL);
    assert_int_equal(ranks_join(&r), 0);
    ranks_free(&r);
}

int main(void)
{
    (void)signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_killed_shm),
        cmocka_unit_test(test_killed_tcp),
        cmocka_unit_test(test_stopped_and_revoked),
        cmocka_unit_test(test_killed_peer_of_send_and_recv),
        cmocka_unit_test(test_word_passes_on),
        cmocka_unit_test(test_closing),
        cmocka_unit_test(test_forming),
        cmocka_unit_test(test_empty_segment),
        cmocka_unit_test(test_strangers),
        cmocka_unit_test(test_strangers_with_a_name),
        cmocka_unit_test(test_false_member),
        cmocka_unit_test(test_without_a_key),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
