/* SPDX-License-Identifier: Apache-2.0 */
/* when.h - times and durations as people write them. */
#ifndef TITAN_CTL_WHEN_H
#define TITAN_CTL_WHEN_H

#include <stdint.h>

#include "base/error.h"

/* Parses "90", "90s", "30m", "2h", "1d", at most ten years; gives milliseconds. */
titan_status when_duration(const char *text, int64_t *ret_ms, struct titan_error *err) TITAN_MUST_USE;
/* Parses "+2h", "22:30" (the next one, local), "2026-11-22T03:00" or "2026-11-22 03:00:00" (local), or
 * "2026-11-22T03:00:00Z"; gives Unix time in milliseconds. */
titan_status when_time(const char *text, int64_t now_ms, int64_t *ret_ms, struct titan_error *err) TITAN_MUST_USE;
/* Parses a time that is not after now: "2h" (ago), "22:30" (the last one, local), or a date as for when_time(). */
titan_status when_past(const char *text, int64_t now_ms, int64_t *ret_ms, struct titan_error *err) TITAN_MUST_USE;

/* "2026-11-22T03:00:00+01:00" in this machine's local time. */
char *when_local(int64_t at_ms, char text[32]);

#endif
