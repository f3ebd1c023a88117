/* SPDX-License-Identifier: Apache-2.0 */
/* How the NCCL communicator's members find each other and learn of each other's end: pure sockets, so no GPU and no
 * NCCL is needed. The sources belong to the CUDA plug-in and are compiled in here. */
#include <arpa/inet.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/support/patience.h"
#include "worker/comm/nccl/peers.c"
#include "worker/comm/nccl/share.c"

enum { WORLD = 3 };
static const char secret[] = "what rank 0 knows";
static int segment; /* keeps runs of this test apart */

struct member {
    struct comm_config config;
    atomic_int *abort_flag;
    int64_t patience_ms;
    char data[sizeof secret];
    struct nccl_peers *peers;
    titan_status status;
    struct titan_error err;
    pthread_t thread;
};

static void *share(void *arg)
{
    struct member *m = arg;
    const struct nccl_agreement a = {.config = &m->config,
                                     .abort_flag = m->abort_flag,
                                     .deadline_ns = clock_mono_ns() + m->patience_ms * 1000000,
                                     .data = m->data,
                                     .bytes = sizeof m->data,
                                     .peers = m->peers};
    m->status = nccl_share(&a, &m->err);
    return NULL;
}

static void begin(struct member *m, int rank, const char *const *addresses, int listener, uint64_t epoch)
{
    m->config = (struct comm_config){.key = (const unsigned char *)"thirty-two bytes that are known.",
                                     .id = "the same on all",
                                     .epoch = epoch,
                                     .rank = rank,
                                     .world = WORLD,
                                     .addresses = addresses,
                                     .listener = listener,
                                     .memfd = segment};
    if (m->patience_ms == 0)
        m->patience_ms = patience_ms(60);
    if (rank == 0)
        memcpy(m->data, secret, sizeof secret);
    assert_int_equal(nccl_peers_open(WORLD, &m->peers, &m->err), TITAN_OK);
    assert_int_equal(pthread_create(&m->thread, NULL, share, m), 0);
}

static int listen_here(char address[32])
{
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof name;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&name, len), 0);
    assert_int_equal(listen(fd, 16), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&name, &len), 0);
    (void)snprintf(address, 32, "127.0.0.1:%d", ntohs(name.sin_port));
    return fd;
}

static int stranger(const char *address, const void *words, size_t n)
{
    struct sockaddr_in name = {.sin_family = AF_INET,
                               .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                               .sin_port = htons((uint16_t)atoi(strchr(address, ':') + 1))};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&name, sizeof name), 0);
    if (n > 0)
        assert_int_equal(send(fd, words, n, MSG_NOSIGNAL), n);
    return fd;
}

static void join_all(struct member *m)
{
    for (int i = 0; i < WORLD; i++) {
        assert_int_equal(pthread_join(m[i].thread, NULL), 0);
        if (m[i].status != TITAN_OK)
            print_message("# rank %d: %s\n", i, m[i].err.msg);
        assert_int_equal(m[i].status, TITAN_OK);
        assert_string_equal(m[i].data, secret);
    }
}

static void close_all(struct member *m)
{
    for (int i = 0; i < WORLD; i++)
        nccl_peers_close(m[i].peers, false);
}

/* Wait until a member hears of a loss. */
static int await_loss(struct nccl_peers *p)
{
    int lost = -1;
    AWAIT((lost = nccl_peers_lost(p)) >= 0);
    return lost;
}

/* Silent, talkative and wrong connections come before, among and after the members. */
static void test_by_address_among_strangers(void **state)
{
    (void)state;
    char address[32];
    int listener = listen_here(address);
    const char *const addresses[WORLD] = {address, "", ""};
    struct identity wrong = {.magic = "titnccl", .id = "another", .epoch = 7, .rank = 1, .world = WORLD};
    struct {
        struct identity identity;
        char once[32], proof[32];
    } unproved = {.identity = {.magic = "titncc3", .id = "the same on all", .epoch = 7, .rank = 1, .world = WORLD}};
    char garbage[4096];
    memset(garbage, 'x', sizeof garbage);
    int strangers[] = {stranger(address, NULL, 0), stranger(address, garbage, sizeof garbage),
                       stranger(address, &wrong, sizeof wrong), stranger(address, &wrong, 5),
                       stranger(address, &unproved, sizeof unproved)};
    struct member m[WORLD] = {0};
    begin(&m[2], 2, addresses, -1, 7);
    begin(&m[0], 0, addresses, listener, 7);
    begin(&m[1], 1, addresses, -1, 7);
    join_all(m);
    char byte;
    assert_true(recv(strangers[2], &byte, 1, 0) <= 0); /* another communicator's member learns nothing */
    assert_true(recv(strangers[4], &byte, 1, 0) <= 0); /* nor does one that knows everything but the key */
    for (size_t i = 0; i < sizeof strangers / sizeof strangers[0]; i++)
        (void)close(strangers[i]);
    close_all(m);
    (void)close(listener);
}

static void test_on_one_host(void **state)
{
    (void)state;
    struct member m[WORLD] = {0};
    for (int rank = WORLD - 1; rank >= 0; rank--)
        begin(&m[rank], rank, NULL, -1, 8);
    join_all(m);
    close_all(m);
}

static void test_missing_member(void **state)
{
    (void)state;
    struct member m[2] = {{.patience_ms = 100}, {.patience_ms = 100}};
    begin(&m[0], 0, NULL, -1, 9);
    begin(&m[1], 1, NULL, -1, 10); /* of another epoch */
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_join(m[i].thread, NULL), 0);
        assert_int_equal(m[i].status, TITAN_ETIMEDOUT);
        nccl_peers_close(m[i].peers, false);
    }
    assert_non_null(strstr(m[0].err.msg, "2 of 3 missing"));
}

static void test_revoked_meanwhile(void **state)
{
    (void)state;
    atomic_int revoked = 0;
    struct member m[2] = {{.abort_flag = &revoked}, {.abort_flag = &revoked}};
    begin(&m[0], 0, NULL, -1, 11);
    begin(&m[1], 2, NULL, -1, 12);
    revoked = 1;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_join(m[i].thread, NULL), 0);
        assert_int_equal(m[i].status, TITAN_EREVOKED);
        nccl_peers_close(m[i].peers, false);
    }
}

static void test_losses(void **state)
{
    (void)state;
    struct member m[WORLD] = {0};
    for (int rank = 0; rank < WORLD; rank++)
        begin(&m[rank], rank, NULL, -1, 13);
    join_all(m);
    for (int rank = 0; rank < WORLD; rank++)
        assert_int_equal(nccl_peers_lost(m[rank].peers), -1);

    /* One vanishes; rank 0 sees it and tells the other. */
    nccl_peers_close(m[2].peers, false);
    assert_int_equal(await_loss(m[0].peers), 2);
    nccl_peers_notify(m[0].peers);
    assert_int_equal(await_loss(m[1].peers), 0);

    nccl_peers_close(m[0].peers, false);
    nccl_peers_close(m[1].peers, false);
}

static void test_leaving_in_order_is_no_loss(void **state)
{
    (void)state;
    struct member m[WORLD] = {0};
    for (int rank = 0; rank < WORLD; rank++)
        begin(&m[rank], rank, NULL, -1, 14);
    join_all(m);
    nccl_peers_close(m[0].peers, true);
    assert_int_equal(nccl_peers_lost(m[1].peers), -1);
    nccl_peers_close(m[2].peers, true);
    assert_int_equal(nccl_peers_lost(m[1].peers), -1);
    nccl_peers_close(m[1].peers, true);
}

int main(void)
{
    segment = memfd_create("titan-comm", MFD_CLOEXEC);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_by_address_among_strangers),
        cmocka_unit_test(test_on_one_host),
        cmocka_unit_test(test_missing_member),
        cmocka_unit_test(test_revoked_meanwhile),
        cmocka_unit_test(test_losses),
        cmocka_unit_test(test_leaving_in_order_is_no_loss),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
