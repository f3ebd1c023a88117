/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/ranges.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/utf8.h"

#define FIELD_NUMBER_MAX 536870911 /* largest field number of protobuf */

/* Position of a value in the message: from the field up to the root. */
struct where {
    const struct where *up;
    const char *name;
};

static void put_where(const struct where *w, char *text, size_t size)
{
    if (w->up)
        put_where(w->up, text, size);
    size_t len = strlen(text);
    titan_assert(len < size);
    (void)snprintf(text + len, size - len, "%s%s", len ? "." : "", w->name);
}

__attribute__((format(printf, 3, 4))) static titan_status refuse(const struct where *w, struct titan_error *err,
                                                                 const char *why, ...)
{
    char place[160] = "", text[160];
    va_list args;
    if (!err)
        return TITAN_EINVAL;
    put_where(w, place, sizeof(place));
    va_start(args, why);
    (void)vsnprintf(text, sizeof(text), why, args);
    va_end(args);
    return titan_fail(err, TITAN_EINVAL, "%s %s", place, text);
}

static titan_status check_signed(const struct where *w, const struct range *r, int64_t is, struct titan_error *err)
{
    if (is >= r->min && (is < 0 || (uint64_t)is <= r->max))
        return TITAN_OK;
    return refuse(w, err, "= %" PRId64 ": %" PRId64 " to %" PRIu64, is, r->min, r->max);
}

static titan_status check_unsigned(const struct where *w, const struct range *r, uint64_t is, struct titan_error *err)
{
    titan_assert(r->min >= 0);
    if (is >= (uint64_t)r->min && is <= r->max)
        return TITAN_OK;
    return refuse(w, err, "= %" PRIu64 ": %" PRId64 " to %" PRIu64, is, r->min, r->max);
}

static titan_status check_length(const struct where *w, const struct range *r, size_t len, struct titan_error *err)
{
    if (len >= (uint64_t)r->min && len <= r->max)
        return TITAN_OK;
    return refuse(w, err, "has %zu bytes: %" PRId64 " to %" PRIu64, len, r->min, r->max);
}

static titan_status check_message(const struct where *w, const ProtobufCMessage *m, struct titan_error *err);

static titan_status check_value(const struct where *w, const ProtobufCFieldDescriptor *f, const struct range *r,
                                const void *at, struct titan_error *err)
{
    double real;
    switch (f->type) {
    case PROTOBUF_C_TYPE_INT32:
    case PROTOBUF_C_TYPE_ENUM:
        return check_signed(w, r, *(const int32_t *)at, err);
    case PROTOBUF_C_TYPE_INT64:
        return check_signed(w, r, *(const int64_t *)at, err);
    case PROTOBUF_C_TYPE_UINT32:
        return check_unsigned(w, r, *(const uint32_t *)at, err);
    case PROTOBUF_C_TYPE_UINT64:
        return check_unsigned(w, r, *(const uint64_t *)at, err);
    case PROTOBUF_C_TYPE_DOUBLE:
        real = *(const double *)at;
        if (r->any || (real >= (double)r->min && real <= (double)r->max)) /* false for NaN */
            return TITAN_OK;
        return refuse(w, err, "= %g: %g to %g", real, (double)r->min, (double)r->max);
    case PROTOBUF_C_TYPE_BOOL:
        return TITAN_OK;
    case PROTOBUF_C_TYPE_STRING: {
        const char *text = *(char *const *)at ? *(char *const *)at : "";
        const size_t len = strlen(text);
        TRY(check_length(w, r, len, err));
        if (r->any)
            return TITAN_OK;
        /* A path may contain any other character, as a file's name may. */
        for (size_t i = 0; (i += text_unfit(text + i, len - i)) < len; i++)
            if (!r->path || (unsigned char)text[i] < 0x80)
                return refuse(w, err, "has a control character, or one that cannot be seen: none is allowed");
        if (r->seen && text_blank(text))
            return refuse(w, err, "has spaces only: a word is wanted, or none");
        if (r->chars && text[strspn(text, r->chars)])
            return refuse(w, err, "has a strange character: letters, digits and a few signs are allowed");
        if (!r->path && !r->chars && utf8_check(text, len) != len)
            return refuse(w, err, "is no text: UTF-8 is allowed");
        return TITAN_OK;
    }
    case PROTOBUF_C_TYPE_BYTES:
        return check_length(w, r, ((const ProtobufCBinaryData *)at)->len, err);
    case PROTOBUF_C_TYPE_MESSAGE:
        if (*(ProtobufCMessage *const *)at)
            return check_message(w, *(ProtobufCMessage *const *)at, err);
        return r->min ? refuse(w, err, "is missing: it has to be there") : TITAN_OK;
    default:
        return refuse(w, err, "is of an unknown type: none is allowed");
    }
}

size_t range_item_bytes(const ProtobufCFieldDescriptor *f)
{
    switch (f->type) {
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_MESSAGE:
        return sizeof(void *);
    case PROTOBUF_C_TYPE_BYTES:
        return sizeof(ProtobufCBinaryData);
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_DOUBLE:
        return sizeof(uint64_t);
    default:
        return sizeof(uint32_t);
    }
}

static titan_status check_message(const struct where *w, const ProtobufCMessage *m, struct titan_error *err)
{
    const ProtobufCMessageDescriptor *d = m->descriptor;
    const struct range_table *t = range_tables, *end = t + n_range_tables;
    bool choice = false, chosen = false;
    while (t < end && t->of != d)
        t++;
    if (t == end)
        return refuse(w, err, "is of an unknown kind: none is allowed");
    titan_assert(t->n == d->n_fields);
    /* protobuf-c reads an invalid field number (0 in a long encoding) and packs it unreadably. */
    for (unsigned i = 0; i < m->n_unknown_fields; i++)
        if (m->unknown_fields[i].tag < 1 || m->unknown_fields[i].tag > FIELD_NUMBER_MAX)
            return refuse(w, err, "has a field with an impossible number: 1 to %d", FIELD_NUMBER_MAX);
    for (unsigned i = 0; i < d->n_fields; i++) {
        const ProtobufCFieldDescriptor *f = &d->fields[i];
        const struct where here = {w, f->name};
        const char *base = (const char *)m;
        if (f->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) {
            choice = true;
            if (*(const uint32_t *)(base + f->quantifier_offset) != f->id)
                continue;
            chosen = true;
        }
        const struct range *const r = &t->rows[i];
        if (f->label != PROTOBUF_C_LABEL_REPEATED) {
            TRY(check_value(&here, f, r, base + f->offset, err));
            continue;
        }
        const size_t n = *(const size_t *)(base + f->quantifier_offset);
        const size_t least = f->type == PROTOBUF_C_TYPE_MESSAGE ? (size_t)r->min : 0;
        const char *items = *(char *const *)(base + f->offset);
        if (n < least || n > r->count)
            return refuse(&here, err, "has %zu entries: %zu to %u", n, least, r->count);
        for (size_t k = 0; k < n; k++)
            TRY(check_value(&here, f, r, items + k * range_item_bytes(f), err));
    }
    if (choice && !chosen && m->n_unknown_fields == 0)
        return refuse(w, err, "is empty: it has to say something");
    return TITAN_OK;
}

titan_status range_check(const ProtobufCMessage *m, struct titan_error *err)
{
    titan_assert(m && m->descriptor);
    const struct where whole = {NULL, m->descriptor->short_name};
    return check_message(&whole, m, err);
}

void range_fit_text(char *text, size_t size)
{
    titan_assert(size > 0);
    const size_t room = MIN(size - 1, (size_t)RANGE_WORDS_MAX);
    size_t len = strnlen(text, room), at = 0;
    text[len] = '\0';
    text_fit(text, '?');
    len = strlen(text);
    while ((at += utf8_check(text + at, len - at)) < len)
        text[at] = '?';
}
