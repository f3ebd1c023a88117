/* SPDX-License-Identifier: Apache-2.0 */
#include "base/pairs.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#include "base/cleanup.h"
#include "base/error.h"

_Static_assert(sizeof(long) == sizeof(long long), "one of them stands for both");

#define CUT "...\""

struct pairs {
    char *begin, *at, *end; /* room for CUT follows end */
    bool quoted, cut;
};

/* Copies a whole character or nothing of it. */
static void put(struct pairs *p, const char *bytes, size_t len)
{
    p->cut |= len > (size_t)(p->end - p->at);
    if (p->cut)
        return;
    memcpy(p->at, bytes, len);
    p->at += len;
}

static void put_literal(struct pairs *p, const char *text, size_t len)
{
    for (size_t i = 0; i < len && !p->cut; i++) {
        put(p, text + i, 1);
        p->quoted ^= !p->cut && text[i] == '"';
    }
}

static void put_text(struct pairs *p, const char *text, size_t len)
{
    static const char plain[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789!#$%&'()*+,-./:;<>?@[]^_`{|}~";
    const bool bare = !p->quoted && p->at > p->begin && p->at[-1] == '=';
    const bool quotes = bare && (len == 0 || strspn(text, plain) < len);
    if (quotes)
        put_literal(p, "\"", 1);
    for (size_t i = 0; i < len && !p->cut; i++) {
        const char escaped[] = {'\\', text[i]};
        const bool escape = p->quoted && (text[i] == '"' || text[i] == '\\');
        put(p, escape ? escaped : text + i, escape ? 2 : 1);
    }
    if (quotes)
        put_literal(p, "\"", 1);
}

static void put_number(struct pairs *p, const char *spec, ...)
{
    char text[512];
    va_list args;
    va_start(args, spec);
    const int len = vsnprintf(text, sizeof text, spec, args);
    va_end(args);
    for (int i = 0; i < MIN(len, (int)sizeof text - 1); i++)
        put(p, text + i, 1);
}

void pairs_format(char *out, size_t room, const char *fmt, va_list args)
{
    titan_assert(room > sizeof CUT);
    struct pairs p = {.begin = out, .at = out, .end = out + room - sizeof CUT};
    for (const char *next = fmt; *next && !p.cut;) {
        const char *const spec = strchrnul(next, '%');
        put_literal(&p, next, (size_t)(spec - next));
        if (!*spec)
            break;
        const size_t len = 1 + strspn(spec + 1, "0123456789.*#+-hljzt");
        const char *const dot = memchr(spec, '.', len);
        char one[16];
        (void)snprintf(one, sizeof one, "%.*s", (int)(len + 1), spec);
        next = spec + len + 1;
        switch (spec[len]) {
        case 's': {
            const size_t most = !dot            ? SIZE_MAX
                                : dot[1] == '*' ? (size_t)va_arg(args, int)
                                                : strtoul(dot + 1, NULL, 10);
            const char *const text = va_arg(args, const char *);
            put_text(&p, text ? text : "(null)", strnlen(text ? text : "(null)", most));
            break;
        }
        case 'd':
        case 'i':
        case 'u':
        case 'x':
        case 'X':
        case 'o':
        case 'c':
            if (!strpbrk(one, "ljzt")) {
                put_number(&p, one, va_arg(args, int));
                break;
            }
            put_number(&p, one, va_arg(args, long));
            break;
        case 'e':
        case 'f':
        case 'g':
            put_number(&p, one, va_arg(args, double));
            break;
        case '%':
            put(&p, "%", 1);
            break;
        default:
            p.cut = true; /* the size of the argument is unknown, so parsing cannot continue */
        }
    }
    (void)snprintf(p.at, sizeof CUT, "%s", !p.cut ? "" : p.quoted ? CUT : "...");
}

size_t pairs_unquote(const char *value, char *out)
{
    const char *p = value;
    for (; *p && *p != '"'; p++) {
        p += *p == '\\' && p[1];
        *out++ = *p;
    }
    *out = '\0';
    return (size_t)(p - value);
}
