/* SPDX-License-Identifier: Apache-2.0 */
#include "base/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"

/* Formats into out[cap]. A message that does not fit ends in "...". Control characters, from file names or peers,
 * become spaces, so that a message stays one line. */
static void format_line(char *out, size_t cap, const char *fmt, va_list ap) __attribute__((format(printf, 3, 0)));
static void format_line(char *out, size_t cap, const char *fmt, va_list ap)
{
    titan_assert(cap > 4);
    int n = vsnprintf(out, cap, fmt, ap);
    if (n < 0)
        snprintf(out, cap, "(message cannot be formatted)");
    else if ((size_t)n >= cap)
        memcpy(out + cap - 4, "...", 4);
    text_fit(out, ' ');
}

/* The arguments may point into err itself, so err changes only after the message is formatted. */
static void fill(struct titan_error *err, const struct titan_error *to, const char *fmt, va_list ap)
    __attribute__((format(printf, 3, 0)));
static void fill(struct titan_error *err, const struct titan_error *to, const char *fmt, va_list ap)
{
    char msg[sizeof(err->msg)];
    format_line(msg, sizeof(msg), fmt, ap);
    err->status = to->status;
    err->sys_errno = to->sys_errno;
    err->file = to->file;
    err->line = to->line;
    memcpy(err->msg, msg, sizeof(msg));
    err->hint[0] = '\0';
}

titan_status titan_error_set(struct titan_error *err, titan_status status, int sys_errno, const char *file, int line,
                             const char *fmt, ...)
{
    if (!err)
        return status;
    va_list ap;
    va_start(ap, fmt);
    fill(err, &(struct titan_error){.status = status, .sys_errno = sys_errno, .file = file, .line = line}, fmt, ap);
    va_end(ap);
    return status;
}

titan_status titan_error_set_errno(struct titan_error *err, const char *file, int line, const char *fmt, ...)
{
    int sys_errno = errno;
    titan_status status = sys_errno ? titan_status_from_errno(sys_errno) : TITAN_EIO;
    if (!err)
        return status;
    va_list ap;
    va_start(ap, fmt);
    fill(err, &(struct titan_error){.status = status, .sys_errno = sys_errno, .file = file, .line = line}, fmt, ap);
    va_end(ap);
    char text[96];
    size_t len = strlen(err->msg);
    const char *why = strerror_r(sys_errno, text, sizeof(text));
    int n = snprintf(err->msg + len, sizeof(err->msg) - len, ": %s", why);
    if (n < 0 || len + (size_t)n >= sizeof(err->msg))
        memcpy(err->msg + sizeof(err->msg) - 4, "...", 4);
    errno = sys_errno;
    return status;
}

titan_status titan_error_wrap(struct titan_error *err, const char *fmt, ...)
{
    if (!err)
        return TITAN_EBUG;
    char prefix[sizeof(err->msg)], msg[sizeof(err->msg)];
    va_list ap;
    va_start(ap, fmt);
    format_line(prefix, sizeof(prefix), fmt, ap);
    va_end(ap);
    memcpy(msg, err->msg, sizeof(msg));
    if ((size_t)snprintf(err->msg, sizeof(err->msg), "%s: %s", prefix, msg) >= sizeof(err->msg))
        memcpy(err->msg + sizeof(err->msg) - 4, "...", 4);
    return err->status;
}

void titan_error_hint(struct titan_error *err, const char *fmt, ...)
{
    if (!err)
        return;
    char hint[sizeof(err->hint)];
    va_list ap;
    va_start(ap, fmt);
    format_line(hint, sizeof(hint), fmt, ap);
    va_end(ap);
    memcpy(err->hint, hint, sizeof(hint));
}

bool titan_error_short(const struct titan_error *err)
{
    switch (err->sys_errno) {
    case EMFILE:
    case ENFILE:
    case ENOMEM:
    case ENOSPC:
    case EDQUOT:
        return true;
    default:
        return err->status == TITAN_ENOSPC;
    }
}

static void (*before_abort)(void);

void titan_before_abort(void (*call)(void))
{
    before_abort = call;
}

void titan_assert_fail(const char *cond, const char *file, int line, const char *func)
{
    if (before_abort)
        before_abort();
    fprintf(stderr, "%s:%d: %s: assertion failed: %s\n", file, line, func, cond);
    abort();
}

void titan_bug_fail(const char *file, int line, const char *fmt, ...)
{
    va_list ap;
    if (before_abort)
        before_abort();
    va_start(ap, fmt);
    fprintf(stderr, "%s:%d: ", file, line);
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
    va_end(ap);
    abort();
}
