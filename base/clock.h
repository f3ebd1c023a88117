/* SPDX-License-Identifier: Apache-2.0 */
/* clock.h - time. Pure cores never call these functions: the caller passes the time. */
#ifndef TITAN_BASE_CLOCK_H
#define TITAN_BASE_CLOCK_H

#include <stdint.h>

/* CLOCK_MONOTONIC in nanoseconds: comparable between processes of one boot. */
int64_t clock_mono_ns(void);
static inline int64_t clock_mono_ms(void)
{
    return clock_mono_ns() / 1000000;
}
/* CLOCK_REALTIME in milliseconds since 1970. */
int64_t clock_wall_ms(void);
/* "2026-11-20T20:00:00.123Z" (RFC 3339, UTC), written into text[32]; returns text. */
char *clock_format(int64_t wall_ms, char text[32]);

#endif
