/* SPDX-License-Identifier: Apache-2.0 */
/* How workers agree on NCCL's id: strangers greet rank 0 with any bytes while it waits for rank 1, and one that answers
 * in the place of rank 0 says any to rank 1. */
#include "tests/fuzz/common.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "worker/comm/nccl/share.h"

enum { BYTES = 16, KNOCKERS = 4 };

static const unsigned char key[32] = "the key of that epoch's workers";
static const unsigned char secret[BYTES] = "what rank 0 says";

static int knock(int port, const struct fuzz_input *what)
{
    struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct linger reset = {1, 0}; /* no ports in TIME_WAIT */
    fuzz_assert(fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof(to)) == 0);
    (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    (void)send(fd, what->data, what->len, MSG_NOSIGNAL);
    return fd;
}

/* In the place of rank 0: the bytes, to each that comes. */
struct place {
    int listener;
    struct fuzz_input says;
};

static void *answer(void *arg)
{
    const struct place *p = arg;
    char received[128];
    int fd = accept4(p->listener, NULL, NULL, SOCK_CLOEXEC);
    struct linger reset = {1, 0};
    if (fd < 0)
        return NULL;
    (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    (void)recv(fd, received, sizeof(received), 0);
    (void)send(fd, p->says.data, p->says.len, MSG_NOSIGNAL);
    (void)shutdown(fd, SHUT_WR);
    (void)recv(fd, received, sizeof(received), 0);
    (void)close(fd);
    return NULL;
}

static void as_guest(struct comm_config *config, struct fuzz_input *in, struct nccl_peers *peers)
{
    struct place p = {.listener = config->listener, .says = *in};
    unsigned char got[BYTES] = {0};
    struct titan_error err = {0};
    pthread_t thread;
    config->rank = 1;
    fuzz_assert(pthread_create(&thread, NULL, answer, &p) == 0);
    const struct nccl_agreement a = {
        .config = config, .deadline_ns = clock_mono_ns() + 4000000, .data = got, .bytes = BYTES, .peers = peers};
    const titan_status status = nccl_share(&a, &err);
    nccl_peers_close(peers, true);
    (void)shutdown(config->listener, SHUT_RDWR);
    fuzz_assert(pthread_join(thread, NULL) == 0);
    if (status != TITAN_OK)
        fuzz_error(status, &err);
    else
        fuzz_assert(!config->key && in->len >= BYTES && memcmp(got, in->data, BYTES) == 0);
}

static void as_host(const struct comm_config *config, int port, struct fuzz_input *in, struct nccl_peers *peers)
{
    unsigned char data[BYTES];
    struct titan_error err = {0};
    int knockers[KNOCKERS], n = 0;
    memcpy(data, secret, BYTES);
    while (n < KNOCKERS && in->len > 0) {
        struct fuzz_input piece = fuzz_piece(in);
        knockers[n++] = knock(port, &piece);
    }
    const struct nccl_agreement a = {
        .config = config, .deadline_ns = clock_mono_ns() + 3000000, .data = data, .bytes = BYTES, .peers = peers};
    const titan_status status = nccl_share(&a, &err);
    fuzz_assert(memcmp(data, secret, BYTES) == 0);
    if (status != TITAN_OK)
        fuzz_error(status, &err);
    else
        fuzz_assert(n > 0);
    fuzz_assert(status != TITAN_OK || !config->key); /* none here has the key */
    nccl_peers_close(peers, true);
    while (n > 0)
        (void)close(knockers[--n]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = {data, size};
    struct titan_error err = {0};
    struct nccl_peers *peers = NULL;
    int listener, port;
    char address[32];
    const char *addresses[2] = {address, address};
    const uint64_t how = fuzz_take(&in, 1);
    fuzz_assert(comm_listen("127.0.0.1", NULL, &listener, &port, &err) == TITAN_OK);
    fuzz_assert(nccl_peers_open(2, &peers, &err) == TITAN_OK);
    (void)snprintf(address, sizeof(address), "127.0.0.1:%d", port);
    struct comm_config config = {.id = "of this epoch",
                                 .key = how & 2 ? key : NULL,
                                 .epoch = 1,
                                 .world = 2,
                                 .addresses = addresses,
                                 .listener = listener,
                                 .memfd = -1};
    if (how & 1)
        as_guest(&config, &in, peers);
    else
        as_host(&config, port, &in, peers);
    (void)close(listener);
    return 0;
}
