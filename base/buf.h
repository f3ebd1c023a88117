/* SPDX-License-Identifier: Apache-2.0 */
/* buf.h - a growable byte buffer with a hard limit. A NUL always follows the content. */
#ifndef TITAN_BASE_BUF_H
#define TITAN_BASE_BUF_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/status.h"

struct buf {
    char *data; /* owned; NULL while empty */
    size_t len;
    size_t cap;
    size_t limit; /* most bytes the buffer may hold; 0 = BUF_LIMIT_DEFAULT */
};

#define BUF_LIMIT_DEFAULT ((size_t)1 << 30)
#define BUF_INIT ((struct buf){0})

/* On TITAN_ENOMEM or TITAN_ELIMIT the content stays unchanged. */
titan_status buf_append(struct buf *b, const void *data, size_t len) TITAN_MUST_USE;
/* For building text without a check after each call. A failed call keeps the part that fits and sets b->limit to the
 * length. Later calls then add nothing, and buf_failed() is true. */
static inline void buf_put(struct buf *b, const char *text, size_t len);
static inline void buf_puts(struct buf *b, const char *text);
void buf_printf(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int buf_failed(const struct buf *b);
titan_status buf_reserve(struct buf *b, size_t more) TITAN_MUST_USE;
/* Drops the first n bytes. */
void buf_consume(struct buf *b, size_t n);
void buf_clear(struct buf *b); /* length 0, memory kept */
void buf_free(struct buf *b);  /* memory gone, ready for use again */

void buf_put_slowly(struct buf *b, const char *text,
                    size_t len); /* the slow path of buf_put(): the buffer may have to grow */

static inline void buf_put(struct buf *b, const char *text, size_t len)
{
    const size_t limit = b->limit ? b->limit : BUF_LIMIT_DEFAULT;
    if (len >= b->cap - b->len || b->len >= limit || len >= limit - b->len) {
        buf_put_slowly(b, text, len);
        return;
    }
    if (len > 0) /* text may be NULL */
        memcpy(b->data + b->len, text, len);
    b->len += len;
    b->data[b->len] = '\0';
}

static inline void buf_puts(struct buf *b, const char *text)
{
    buf_put(b, text, strlen(text));
}

#endif
