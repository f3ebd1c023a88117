/* SPDX-License-Identifier: Apache-2.0 */
/* reach.h - can nodes reach each other as their workers would? One node accepts TCP connections for a while, like
 * workers: at its address, at a port that the kernel chooses. It sends the coordinator's token on each connection, so
 * another machine at that address is not mistaken for this node. Other nodes connect and compare the token. */
#ifndef TITAN_DAEMON_AGENT_SHELL_REACH_H
#define TITAN_DAEMON_AGENT_SHELL_REACH_H

#include <uv.h>

#include "base/error.h"
#include "base/listen.h"

#define REACH_TOKEN_BYTES 16

/* Listens at a free port of host. If host is no address of this machine, listens on every address. May block. */
titan_status reach_listen(const char *host, const struct listen_ports *ports, int *ret_fd, uint16_t *ret_port,
                          struct titan_error *err) TITAN_MUST_USE;

struct reach_listener;
/* Takes fd over, and answers a bounded number of connections to it during for_ms. closed runs once, on the loop, when
 * all is freed. Returns NULL, and closes fd, if there is no memory. */
struct reach_listener *reach_serve(uv_loop_t *loop, int fd, const uint8_t token[REACH_TOKEN_BYTES], uint32_t for_ms,
                                   void (*closed)(struct reach_listener *l, void *data), void *data);
void reach_end(struct reach_listener *l);

struct reach_target {
    char node[256], address[336]; /* HOST:PORT */
    uint8_t token[REACH_TOKEN_BYTES];
    char problem[120]; /* result; "" = reached */
    int fd;            /* descriptor during the attempt */
    int64_t again_ms;  /* time of the next attempt; 0 = none */
    size_t got;
    uint8_t received[REACH_TOKEN_BYTES];
};
/* Tries all targets at once, within timeout_ms. During this time it retries failed connections, as workers do, because
 * a restored address may still count as unreachable. Name lookups come first and may take longer. */
void reach_try(struct reach_target *targets, size_t n, int timeout_ms);

#endif
