/* SPDX-License-Identifier: Apache-2.0 */
#include "base/units.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"

static const char *const byte_units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};

char *format_bytes(uint64_t bytes, char text[UNITS_TEXT])
{
    double value = (double)bytes;
    size_t unit = 0;
    /* 1023.95 would print as 1024.0 */
    for (; value >= 1023.95 && unit + 1 < ARRAY_SIZE(byte_units); unit++)
        value /= 1024;
    snprintf(text, UNITS_TEXT, unit ? "%.1f %s" : "%.0f %s", value, byte_units[unit]);
    return text;
}

char *format_exact_bytes(uint64_t bytes, char text[UNITS_TEXT])
{
    size_t unit = 0;
    for (; bytes && bytes % 1024 == 0 && unit + 1 < ARRAY_SIZE(byte_units); unit++)
        bytes /= 1024;
    (void)snprintf(text, UNITS_TEXT, "%" PRIu64 "%s", bytes, byte_units[unit]);
    return text;
}

bool units_parse_bytes(const char *text, uint64_t *ret)
{
    const size_t digits = strspn(text, "0123456789."), spaces = strspn(text + digits, " ");
    const char *unit = text + digits + spaces;
    char number[UNITS_TEXT], *end;
    if (digits == 0 || digits >= sizeof(number) || text[0] == '.')
        return false;
    (void)snprintf(number, sizeof(number), "%.*s", (int)digits, text);
    long double value = strtold(number, &end);
    for (size_t i = 0; i < ARRAY_SIZE(byte_units); i++, value *= 1024)
        if (strcmp(unit, byte_units[i]) == 0 && !*end && value < 0x1p63L) {
            *ret = (uint64_t)value;
            return true;
        }
    return false;
}

char *format_duration(double seconds, char text[UNITS_TEXT])
{
    if (!isfinite(seconds) || seconds < 0 || seconds > 1e15) {
        snprintf(text, UNITS_TEXT, "-");
        return text;
    }
    if (seconds < 0.9995e-3) {
        snprintf(text, UNITS_TEXT, "%.0f us", seconds * 1e6);
        return text;
    }
    if (seconds < 0.9995) {
        snprintf(text, UNITS_TEXT, seconds < 0.00995 ? "%.1f ms" : "%.0f ms", seconds * 1e3);
        return text;
    }
    if (seconds < 9.95) {
        snprintf(text, UNITS_TEXT, "%.1fs", seconds);
        return text;
    }
    int64_t s = (int64_t)llround(seconds);
    if (s < 60)
        snprintf(text, UNITS_TEXT, "%ds", (int)s);
    else if (s < 3600)
        snprintf(text, UNITS_TEXT, "%dm %02ds", (int)(s / 60), (int)(s % 60));
    else if (s < 86400)
        snprintf(text, UNITS_TEXT, "%dh %02dm", (int)(s / 3600), (int)(s / 60 % 60));
    else
        snprintf(text, UNITS_TEXT, "%lldd %dh", (long long)(s / 86400), (int)(s / 3600 % 24));
    return text;
}

char *format_count(double count, char text[UNITS_TEXT])
{
    static const char *const units[] = {"", "k", "M", "B", "T", "P", "E"};
    if (!isfinite(count)) {
        snprintf(text, UNITS_TEXT, "-");
        return text;
    }
    double value = fabs(count);
    size_t unit = 0;
    for (; value >= 999.5 && unit + 1 < ARRAY_SIZE(units); unit++)
        value /= 1000;
    int digits = value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
    if (unit == 0 && value == floor(value))
        digits = 0;
    snprintf(text, UNITS_TEXT, "%s%.*f%s", count < 0 ? "-" : "", digits, value, units[unit]);
    return text;
}

char *format_real(double value, char text[UNITS_TEXT])
{
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, UNITS_TEXT, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    if (!strpbrk(text, ".einf"))
        memcpy(text + strlen(text), ".0", 3);
    return text;
}
