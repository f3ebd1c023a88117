/* SPDX-License-Identifier: Apache-2.0 */
/* reach.h - do nodes reach each other as their workers would? One takes TCP connections for a while, where workers do:
 * at the node's address, at a port that the kernel chooses. It says the coordinator's token to each, so that another
 * machine under that address is not taken for it. Others connect and compare. */
#ifndef TITAN_DAEMON_AGENT_SHELL_REACH_H
#define TITAN_DAEMON_AGENT_SHELL_REACH_H

#include <uv.h>

#include "base/error.h"
#include "base/listen.h"

#define REACH_TOKEN_BYTES 16

/* A socket that listens at a free port of host, or of every address where host is none of ours. May block. */
titan_status reach_listen(const char *host, const struct listen_ports *ports, int *ret_fd, uint16_t *ret_port,
                          struct titan_error *err) TITAN_MUST_USE;

struct reach_listener;
/* Serves it for that long, to a bounded number of connections; fd is its own from then on. closed: once, on the loop,
 * when all of it is gone. NULL: no memory, and fd is closed. */
struct reach_listener *reach_serve(uv_loop_t *loop, int fd, const uint8_t token[REACH_TOKEN_BYTES], uint32_t for_ms,
                                   void (*closed)(struct reach_listener *l, void *data), void *data);
void reach_end(struct reach_listener *l);

struct reach_target {
    char node[256], address[336]; /* HOST:PORT */
    uint8_t token[REACH_TOKEN_BYTES];
    char problem[120]; /* filled: "" = it is reached */
    int fd;            /* while it is tried */
    int64_t again_ms;  /* when it is tried once more; 0 = it is not */
    size_t got;
    uint8_t heard[REACH_TOKEN_BYTES];
};
/* All at the same time, within timeout_ms; a connection that fails is tried again meanwhile, as workers do: an address
 * that has just come back may still count as unreachable. Names are looked up first; that may take longer. */
void reach_try(struct reach_target *targets, size_t n, int timeout_ms);

#endif
