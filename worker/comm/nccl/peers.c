/* SPDX-License-Identifier: Apache-2.0 */
/* peers.c - see peers.h. A message on a connection is one byte. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "worker/comm/nccl/peers.h"

#define LEAVES 0x00
#define FAILED 0x80

struct nccl_peers {
    pthread_mutex_t lock;
    int n, capacity;
    struct pollfd *polls;
    int *ranks;
};

titan_status nccl_peers_open(int n, struct nccl_peers **ret, struct titan_error *err)
{
    titan_assert(n >= 1);
    struct nccl_peers *p = calloc(1, sizeof *p);
    if (p) {
        p->capacity = n;
        p->polls = calloc((size_t)n, sizeof *p->polls);
        p->ranks = calloc((size_t)n, sizeof *p->ranks);
        (void)pthread_mutex_init(&p->lock, NULL);
    }
    if (!p || !p->polls || !p->ranks) {
        nccl_peers_close(p, false);
        return titan_fail(err, TITAN_ENOMEM, "no memory for %d connections", n);
    }
    *ret = p;
    return TITAN_OK;
}

static void drop(struct nccl_peers *p, int i)
{
    titan_assert(i >= 0 && i < p->n);
    (void)close(p->polls[i].fd);
    p->n--;
    p->polls[i] = p->polls[p->n];
    p->ranks[i] = p->ranks[p->n];
}

static void say(struct nccl_peers *p, uint8_t word)
{
    for (int i = 0; i < p->n; i++)
        (void)send(p->polls[i].fd, &word, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void nccl_peers_add(struct nccl_peers *p, int fd, int rank)
{
    titan_assert(fd >= 0 && rank >= 0);
    (void)pthread_mutex_lock(&p->lock);
    for (int i = p->n - 1; i >= 0; i--)
        if (p->ranks[i] == rank)
            drop(p, i);
    if (p->n < p->capacity) {
        p->polls[p->n] = (struct pollfd){.fd = fd, .events = POLLIN};
        p->ranks[p->n++] = rank;
    } else {
        (void)close(fd);
    }
    (void)pthread_mutex_unlock(&p->lock);
}

int nccl_peers_lost(struct nccl_peers *p)
{
    int lost = -1;
    if (!p)
        return lost;
    (void)pthread_mutex_lock(&p->lock);
    if (p->n > 0 && poll(p->polls, (nfds_t)p->n, 0) > 0) {
        for (int i = p->n - 1; i >= 0 && lost < 0; i--) {
            uint8_t byte = FAILED;
            if (!p->polls[i].revents)
                continue;
            const ssize_t n = recv(p->polls[i].fd, &byte, 1, MSG_DONTWAIT);
            if (n < 0 && (errno == EAGAIN || errno == EINTR))
                continue;
            if (n == 1 && byte == LEAVES) /* the peer left in order; else the connection is lost */
                drop(p, i);
            else
                lost = p->ranks[i];
        }
    }
    (void)pthread_mutex_unlock(&p->lock);
    return lost;
}

void nccl_peers_notify(struct nccl_peers *p)
{
    if (!p)
        return;
    (void)pthread_mutex_lock(&p->lock);
    say(p, FAILED);
    (void)pthread_mutex_unlock(&p->lock);
}

void nccl_peers_close(struct nccl_peers *p, bool well)
{
    if (!p)
        return;
    if (well)
        say(p, LEAVES);
    while (p->n > 0)
        drop(p, p->n - 1);
    (void)pthread_mutex_destroy(&p->lock);
    free(p->polls);
    free(p->ranks);
    free(p);
}
