/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"

#include <stdio.h>
#include <time.h>

int64_t clock_mono_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

int64_t clock_wall_ms(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

char *clock_format(int64_t wall_ms, char text[32])
{
    const int64_t rest = wall_ms % 1000, ms = rest < 0 ? rest + 1000 : rest;
    const time_t sec = (time_t)(wall_ms / 1000 - (rest < 0));
    struct tm tm;
    if (!gmtime_r(&sec, &tm) || tm.tm_year < -1900 || tm.tm_year > 9999 - 1900) {
        snprintf(text, 32, "(time out of range)");
        return text;
    }
    size_t n = strftime(text, 32, "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(text + n, 32 - n, ".%03dZ", (int)ms);
    return text;
}
