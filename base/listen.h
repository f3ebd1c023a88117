/* SPDX-License-Identifier: Apache-2.0 */
/* listen.h - a listening TCP socket. */
#ifndef TITAN_BASE_LISTEN_H
#define TITAN_BASE_LISTEN_H

#include <stdint.h>

#include "base/error.h"

/* A range of ports with both ends; 0: the kernel chooses. */
struct listen_ports {
    uint16_t first, last;
};

/* Parses "30000-30999", the form of listen_ports_print(). Ports begin at 1024. TITAN_EINVAL: the text is no such
 * range. */
titan_status listen_ports_parse(const char *text, struct listen_ports *ret, struct titan_error *err) TITAN_MUST_USE;
#define LISTEN_PORTS_TEXT 16
void listen_ports_print(const struct listen_ports *ports, char text[LISTEN_PORTS_TEXT]);

/* Listens on a free port of the range on host ("0.0.0.0" for all), close-on-exec and non-blocking; *ret_port gets the
 * port. ports: NULL = any. TITAN_ENOSPC: no port of the range is free. */
titan_status listen_tcp(const char *host, const struct listen_ports *ports, int backlog, int *ret_fd,
                        uint16_t *ret_port, struct titan_error *err) TITAN_MUST_USE;

/* The process that listens on a TCP port of this machine: "process 1234 (titand)", or "another process" if this user
 * may not see it. */
#define LISTEN_OWNER 64
void listen_owner(unsigned port, char text[LISTEN_OWNER]);

#endif
