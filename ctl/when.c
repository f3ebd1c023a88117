/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/when.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"

#define TEN_YEARS_S 315360000.0

titan_status when_duration(const char *text, int64_t *ret_ms, struct titan_error *err)
{
    static const struct {
        const char *unit;
        double seconds;
    } units[] = {{"", 1}, {"s", 1}, {"m", 60}, {"min", 60}, {"h", 3600}, {"d", 86400}};
    char *end = NULL;
    bool number = text[0] >= '0' && text[0] <= '9' && text[1] != 'x' && text[1] != 'X';
    double value = number ? strtod(text, &end) : -1;
    for (size_t i = 0; end && i < ARRAY_SIZE(units); i++) {
        if (strcmp(end, units[i].unit) != 0 || value * units[i].seconds > TEN_YEARS_S)
            continue;
        *ret_ms = (int64_t)(value * units[i].seconds * 1000);
        return TITAN_OK;
    }
    return titan_fail(err, TITAN_EINVAL, "'%.32s' is not a duration: 90s, 30m, 2h, 1d", text);
}

/* Parses a time of day (the next one, or the last), or a date with a time, in local time. */
static bool parse_local(const char *text, int64_t now_ms, bool past, int64_t *ret_ms)
{
    static const char *const formats[] = {"%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M:%S",
                                          "%Y-%m-%d %H:%M",    "%Y-%m-%d",       "%H:%M"};
    for (size_t i = 0; i < ARRAY_SIZE(formats); i++) {
        time_t now = (time_t)(now_ms / 1000);
        struct tm tm = {.tm_isdst = -1};
        bool of_day = strcmp(formats[i], "%H:%M") == 0;
        if (of_day)
            (void)localtime_r(&now, &tm);
        tm.tm_sec = 0;
        const char *end = strptime(text, formats[i], &tm);
        bool utc = end && strcmp(end, "Z") == 0;
        if (!end || (*end && !utc) || (utc && of_day))
            continue;
        tm.tm_isdst = -1;
        time_t at = utc ? timegm(&tm) : mktime(&tm);
        if (of_day && ((int64_t)at * 1000 <= now_ms) != past) {
            tm.tm_mday += past ? -1 : 1;
            tm.tm_isdst = -1;
            at = mktime(&tm);
        }
        *ret_ms = (int64_t)at * 1000;
        return at > 0;
    }
    return false;
}

titan_status when_time(const char *text, int64_t now_ms, int64_t *ret_ms, struct titan_error *err)
{
    int64_t ahead = 0;
    if (strcmp(text, "now") == 0) {
        *ret_ms = now_ms;
        return TITAN_OK;
    }
    if (text[0] == '+') {
        TRY(when_duration(text + 1, &ahead, err));
        *ret_ms = now_ms + ahead;
        return TITAN_OK;
    }
    if (parse_local(text, now_ms, false, ret_ms))
        return TITAN_OK;
    return titan_fail(err, TITAN_EINVAL, "'%.32s' is not a time: 22:30, 2026-11-22T03:00, +2h", text);
}

titan_status when_past(const char *text, int64_t now_ms, int64_t *ret_ms, struct titan_error *err)
{
    int64_t ago;
    if (when_duration(text, &ago, NULL) == TITAN_OK) {
        *ret_ms = now_ms - ago;
        return TITAN_OK;
    }
    if (!parse_local(text, now_ms, true, ret_ms))
        return titan_fail(err, TITAN_EINVAL, "'%.32s' is not a time that is over: 2h (ago), 22:30, 2026-11-22T03:00",
                          text);
    if (*ret_ms > now_ms)
        return titan_fail(err, TITAN_EINVAL, "'%.32s' is yet to come", text);
    return TITAN_OK;
}

char *when_local(int64_t at_ms, char text[32])
{
    const time_t seconds = (time_t)(at_ms / 1000);
    struct tm local;
    if (!localtime_r(&seconds, &local) || strftime(text, 32, "%Y-%m-%dT%H:%M:%S%z", &local) != 24) {
        (void)snprintf(text, 32, "?");
        return text;
    }
    memmove(text + 23, text + 22, 3); /* RFC 3339 has a colon in "+0100" */
    text[22] = ':';
    return text;
}
