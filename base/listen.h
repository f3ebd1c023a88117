/* SPDX-License-Identifier: Apache-2.0 */
/* listen.h - a TCP socket that listens. */
#ifndef TITAN_BASE_LISTEN_H
#define TITAN_BASE_LISTEN_H

#include <stdint.h>

#include "base/error.h"

/* On any free port of host ("0.0.0.0" for all), close-on-exec and non-blocking; *ret_port gets the port. */
titan_status listen_tcp(const char *host, int backlog, int *ret_fd, uint16_t *ret_port,
                        struct titan_error *err) TITAN_MUST_USE;

/* What listens on a TCP port of this machine, as far as this user may see it: "process 1234 (titand)", otherwise
 * "another process". */
#define LISTEN_OWNER 64
void listen_owner(unsigned port, char text[LISTEN_OWNER]);

#endif
