/* SPDX-License-Identifier: Apache-2.0 */
/* decoded.c - see decoded.h. */
#include "worker/data/decoded.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/utf8.h"
#include "worker/data/packed.h"

#define RAW_BYTES ((size_t)1 << 16)
#define MARK_BYTES_MAX 3

struct decoded {
    struct packed *packed;
    enum text_encoding encoding; /* before `begun`: the caller's `otherwise` */
    bool begun, ended;
    uint8_t *raw; /* bytes of the file; [used, have) are not decoded yet */
    size_t have, used;
    /* the rest of a character that did not fit into the caller's buffer */
    char character[4];
    size_t n_character;
    struct titan_error fault; /* TITAN_OK, or why the file ended early */
};

enum text_encoding decoded_encoding(const void *head, size_t n, enum text_encoding otherwise, size_t *ret_mark)
{
    static const struct {
        const char *mark;
        size_t n;
        enum text_encoding encoding;
    } marks[] = {{"\xef\xbb\xbf", 3, TEXT_UTF8}, {"\xff\xfe", 2, TEXT_UTF16_LE}, {"\xfe\xff", 2, TEXT_UTF16_BE}};
    for (size_t i = 0; i < ARRAY_SIZE(marks); i++) {
        *ret_mark = marks[i].n;
        if (n >= marks[i].n && memcmp(head, marks[i].mark, marks[i].n) == 0)
            return marks[i].encoding;
    }
    *ret_mark = 0;
    return otherwise;
}

titan_status decoded_open(const char *path, enum text_encoding otherwise, struct decoded **ret, struct titan_error *err)
{
    titan_assert(otherwise == TEXT_UTF8 || otherwise == TEXT_LATIN1);
    struct decoded *d = calloc(1, sizeof(*d));
    if (!d || !(d->raw = malloc(RAW_BYTES))) {
        free(d);
        return titan_fail(err, TITAN_ENOMEM, "no memory to read '%s'", path);
    }
    d->encoding = otherwise;
    const titan_status status = packed_open(path, &d->packed, err);
    if (status == TITAN_OK)
        *ret = d;
    else
        decoded_close(d);
    return status;
}

void decoded_close(struct decoded *d)
{
    if (!d)
        return;
    packed_close(d->packed);
    free(d->raw);
    free(d);
}

uint64_t decoded_place(const struct decoded *d)
{
    return packed_place(d->packed);
}

/* Reads more bytes behind the unused bytes. d->fault keeps an error until all bytes before it have been given out. */
static void refill(struct decoded *d, size_t want)
{
    size_t got = 0;
    titan_assert(d->used <= d->have && want <= RAW_BYTES && d->have - d->used < want);
    memmove(d->raw, d->raw + d->used, d->have - d->used);
    d->have -= d->used;
    d->used = 0;
    const titan_status status = packed_read(d->packed, d->raw + d->have, want - d->have, &got, &d->fault);
    d->have += got;
    d->ended = status != TITAN_OK || d->have < want;
}

static uint32_t unit(const struct decoded *d)
{
    const uint8_t *at = d->raw + d->used;
    return d->encoding == TEXT_UTF16_LE ? (uint32_t)(at[1] << 8 | at[0]) : (uint32_t)(at[0] << 8 | at[1]);
}

/* Decodes the next character. False: the file has no more. */
static bool next_character(struct decoded *d, uint32_t *ret)
{
    if (d->have - d->used < 4 && !d->ended)
        refill(d, RAW_BYTES);
    if (d->have == d->used)
        return false;
    if (d->encoding == TEXT_LATIN1) {
        *ret = d->raw[d->used++];
        return true;
    }
    *ret = 0xfffd;
    if (d->have - d->used == 1) { /* only half of a 16-bit unit is left */
        d->used++;
        return true;
    }
    const uint32_t first = unit(d);
    d->used += 2;
    if (first < 0xd800 || first > 0xdfff) {
        *ret = first;
    } else if (first < 0xdc00 && d->have - d->used >= 2 && unit(d) >= 0xdc00 && unit(d) <= 0xdfff) {
        *ret = 0x10000 + ((first - 0xd800) << 10) + (unit(d) - 0xdc00);
        d->used += 2;
    }
    return true;
}

titan_status decoded_read(struct decoded *d, void *out, size_t n, size_t *ret_got, struct titan_error *err)
{
    char *const to = out;
    size_t at = 0, got = 0;
    uint32_t code;
    *ret_got = 0;
    if (!d->begun) {
        refill(d, MARK_BYTES_MAX);
        d->encoding = decoded_encoding(d->raw, d->have, d->encoding, &d->used);
        d->begun = true;
    }
    if (d->encoding == TEXT_UTF8) { /* the bytes unchanged */
        at = MIN(n, d->have - d->used);
        memcpy(to, d->raw + d->used, at);
        d->used += at;
        const titan_status status = at == n || d->ended ? TITAN_OK : packed_read(d->packed, to + at, n - at, &got, err);
        *ret_got = at + got;
        TRY(status);
    } else {
        for (;;) {
            const size_t fits = MIN(n - at, d->n_character);
            memcpy(to + at, d->character, fits);
            memmove(d->character, d->character + fits, d->n_character - fits);
            d->n_character -= fits;
            *ret_got = at += fits;
            if (at == n || !next_character(d, &code))
                break;
            d->n_character = utf8_encode(code, d->character);
        }
    }
    if (d->fault.status == TITAN_OK || *ret_got == n)
        return TITAN_OK;
    if (err)
        *err = d->fault;
    return d->fault.status;
}
