/* SPDX-License-Identifier: Apache-2.0 */
/* notify.h - reports state to the service manager: "READY=1", "STOPPING=1", "WATCHDOG=1", "STATUS=...". The protocol is
 * described in sd_notify(3): one datagram to the socket in $NOTIFY_SOCKET. */
#ifndef TITAN_BASE_NOTIFY_H
#define TITAN_BASE_NOTIFY_H

#include <stdint.h>

/* state: lines of KEY=value. Returns 1 when sent, 0 without a service manager, -1 when sending failed (errno). */
int notify(const char *state);
/* notify() with a printf format, cut at 1024 bytes. */
int notify_printf(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* The interval in microseconds for WATCHDOG=1; 0: this process has no watchdog. Send at half the interval. */
uint64_t notify_watchdog_us(void);

/* Takes the sockets that the service manager opened and keeps across restarts (sd_listen_fds(3)). Their descriptors
 * begin at *ret_first and are close-on-exec from now on. Returns their number; 0 without sockets, and at every later
 * call. */
int notify_sockets(int *ret_first);

#endif
