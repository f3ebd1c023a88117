/* SPDX-License-Identifier: Apache-2.0 */
#include "base/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

static size_t limit_of(const struct buf *b)
{
    /* limit 0 means the default, so SIZE_MAX marks an empty buffer that has failed. */
    return b->limit == SIZE_MAX ? 0 : b->limit ? b->limit : BUF_LIMIT_DEFAULT;
}

titan_status buf_reserve(struct buf *b, size_t more)
{
    titan_assert(b->data || b->len == 0);
    size_t limit = limit_of(b);
    if (b->len > limit || more > limit - b->len)
        return TITAN_ELIMIT;
    if (b->data && b->len + more < b->cap)
        return TITAN_OK;
    size_t want = b->cap ? b->cap : 64;
    while (want <= b->len + more)
        want *= 2;
    char *data = realloc(b->data, want);
    if (!data)
        return TITAN_ENOMEM;
    b->data = data;
    b->cap = want;
    data[b->len] = '\0';
    return TITAN_OK;
}

titan_status buf_append(struct buf *b, const void *data, size_t len)
{
    titan_status status = buf_reserve(b, len);
    if (status != TITAN_OK)
        return status;
    if (len)
        memcpy(b->data + b->len, data, len);
    titan_assert(b->len + len < b->cap);
    b->len += len;
    b->data[b->len] = '\0';
    return TITAN_OK;
}

static void fail(struct buf *b)
{
    b->limit = b->len ? b->len : SIZE_MAX;
}

/* Keeps the part within the limit; then the failure sticks. */
void buf_put_slowly(struct buf *b, const char *text, size_t len)
{
    if (buf_failed(b))
        return;
    titan_assert(b->len <= limit_of(b));
    size_t room = limit_of(b) - b->len;
    size_t n = len < room ? len : room;
    if (buf_append(b, text, n) != TITAN_OK || n < len)
        fail(b);
}

void buf_printf(struct buf *b, const char *fmt, ...)
{
    if (buf_failed(b))
        return;
    char small[256];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(small, sizeof(small), fmt, ap);
    va_end(ap);
    if (n < 0) {
        fail(b);
        return;
    }
    if ((size_t)n < sizeof(small)) {
        buf_put(b, small, (size_t)n);
        return;
    }
    char *text = malloc((size_t)n + 1);
    if (!text) {
        fail(b);
        return;
    }
    va_start(ap, fmt);
    vsnprintf(text, (size_t)n + 1, fmt, ap);
    va_end(ap);
    buf_put(b, text, (size_t)n);
    free(text);
}

int buf_failed(const struct buf *b)
{
    return b->limit == SIZE_MAX || (b->limit && b->len >= b->limit);
}

void buf_consume(struct buf *b, size_t n)
{
    if (n >= b->len) {
        buf_clear(b);
        return;
    }
    memmove(b->data, b->data + n, b->len - n);
    b->len -= n;
    b->data[b->len] = '\0';
}

void buf_clear(struct buf *b)
{
    b->len = 0;
    if (b->data)
        b->data[0] = '\0';
}

void buf_free(struct buf *b)
{
    free(b->data);
    *b = (struct buf){.limit = b->limit == SIZE_MAX ? 0 : b->limit};
}
