/* SPDX-License-Identifier: Apache-2.0 */
/* listen.h - a TCP socket that listens. */
#ifndef TITAN_BASE_LISTEN_H
#define TITAN_BASE_LISTEN_H

#include <stdint.h>

#include "base/error.h"

/* Both count; 0: any that the kernel chooses. */
struct listen_ports {
    uint16_t first, last;
};

/* "30000-30999", as listen_ports_print() writes it: of ports from 1024 on. TITAN_EINVAL. */
titan_status listen_ports_parse(const char *text, struct listen_ports *ret, struct titan_error *err) TITAN_MUST_USE;
#define LISTEN_PORTS_TEXT 16
void listen_ports_print(const struct listen_ports *ports, char text[LISTEN_PORTS_TEXT]);

/* On a free port of these of host ("0.0.0.0" for all), close-on-exec and non-blocking; *ret_port gets the port. ports:
 * NULL = any. TITAN_ENOSPC: none of them is free. */
titan_status listen_tcp(const char *host, const struct listen_ports *ports, int backlog, int *ret_fd,
                        uint16_t *ret_port, struct titan_error *err) TITAN_MUST_USE;

/* What listens on a TCP port of this machine, as far as this user may see it: "process 1234 (titand)", otherwise
 * "another process". */
#define LISTEN_OWNER 64
void listen_owner(unsigned port, char text[LISTEN_OWNER]);

#endif
