/* SPDX-License-Identifier: Apache-2.0 */
/* notify.h - telling the service manager where we are: "READY=1", "STOPPING=1", "WATCHDOG=1", "STATUS=...".
 * The protocol of sd_notify(3): one datagram to the socket $NOTIFY_SOCKET names. */
#ifndef TITAN_BASE_NOTIFY_H
#define TITAN_BASE_NOTIFY_H

#include <stdint.h>

/* Lines of KEY=value. Returns 1 when sent, 0 when no service manager asked for it, -1 when sending failed (errno). */
int notify(const char *state);
/* Like it, printf-formatted and cut at 1024 bytes. */
int notify_printf(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Microseconds within which WATCHDOG=1 must be sent again, 0 when no watchdog is set for this process. Send at half. */
uint64_t notify_watchdog_us(void);

/* Sockets the service manager has opened for us and keeps over our restarts (sd_listen_fds(3)): descriptors *ret_first
 * and up, close-on-exec from now on. Returns how many; 0 when there are none, and at every later call. */
int notify_sockets(int *ret_first);

#endif
