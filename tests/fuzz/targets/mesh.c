/* SPDX-License-Identifier: Apache-2.0 */
/* The greeting of workers' TCP rendezvous: strangers knock with any bytes while rank 0 of two waits for rank 1. */
#include "tests/fuzz/common.h"

#include <arpa/inet.h>
#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include "worker/comm/comm.h"
#include "worker/comm/tcp/tcp_mesh.h"

static int knock(int port, const struct fuzz_input *what)
{
    struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct linger reset = {1, 0}; /* no ports in TIME_WAIT */
    while (fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof(to)) != 0) {
        fuzz_assert(errno == EINTR || errno == EADDRNOTAVAIL); /* the fuzzer's clock; others use ports, too */
        (void)close(fd);
        fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    }
    fuzz_assert(fd >= 0);
    (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    (void)send(fd, what->data, what->len, MSG_NOSIGNAL);
    return fd;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const unsigned char key[32] = "the key of that epoch's workers";
    struct fuzz_input in = {data, size};
    struct titan_error err = {0};
    struct mesh *m = NULL;
    int listener, port, fds[2] = {-1, -1}, knockers[4], n = 0;
    fuzz_assert(comm_listen("127.0.0.1", NULL, &listener, &port, &err) == TITAN_OK);
    const char *addresses[2] = {"127.0.0.1:1", "127.0.0.1:1"};
    const int members[2] = {0, 1};
    struct comm_config config = {
        .epoch = 1, .world = 2, .addresses = addresses, .listener = listener, .memfd = -1, .timeout_ms = 3};
    config.key = size % 2 ? key : NULL;
    const struct rendezvous_options o = {.members = members, .n = 2};
    while (n < 4 && in.len > 0) {
        struct fuzz_input piece = fuzz_piece(&in);
        knockers[n++] = knock(port, &piece);
    }
    if (tcp_mesh_open(&config, &m, &err) == TITAN_OK && tcp_mesh_meet(m, &o, fds, &err) == TITAN_OK)
        fuzz_assert(fds[1] >= 0);
    tcp_mesh_close(m);
    for (int i = 0; i < 2; i++)
        if (fds[i] >= 0)
            (void)close(fds[i]);
    while (n > 0)
        (void)close(knockers[--n]);
    (void)close(listener);
    return 0;
}
