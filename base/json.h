/* SPDX-License-Identifier: Apache-2.0 */
/* json.h - JSON reader and writer on libc alone: the worker must also build on a bare CUDA machine. Reading is strict
 * (RFC 8259) and bounded (depth 64); integers stay exact. */
#ifndef TITAN_BASE_JSON_H
#define TITAN_BASE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"

enum json_type { JSON_NULL, JSON_BOOL, JSON_INT, JSON_REAL, JSON_STRING, JSON_ARRAY, JSON_OBJECT };

struct json {
    enum json_type type;
    char *key;         /* name of the member inside an object */
    struct json *next; /* sibling, in text order */
    union {
        bool boolean;
        int64_t integer;
        double real;
        char *string; /* UTF-8; a \u0000 escape is refused */
        struct json *first;
    };
};

titan_status json_parse(const char *text, size_t len, struct json **ret, struct titan_error *err) TITAN_MUST_USE;
/* json_parse(), but a \u0000 escape becomes the two bytes C0 80 ("modified UTF-8"), which no other text contains. */
titan_status json_parse_nul(const char *text, size_t len, struct json **ret, struct titan_error *err) TITAN_MUST_USE;
#define JSON_NUL "\xc0\x80"
void json_free(struct json *root);
static inline void json_clear(struct json **tree) /* for _cleanup_ */
{
    json_free(*tree);
}
/* Member by key; NULL: the member is missing, or `object` is no object. */
const struct json *json_get(const struct json *object, const char *key);
/* Typed look-ups with a default when the member is missing or of another type. */
const char *json_string(const struct json *object, const char *key, const char *fallback);
int64_t json_int(const struct json *object, const char *key, int64_t fallback);
double json_real(const struct json *object, const char *key, double fallback);

/* The writer tracks commas and nesting. Non-finite reals become null. Pass key NULL inside arrays. */
struct json_writer {
    struct buf *out;
    bool comma;
    int depth;
    bool pretty; /* two-space indentation */
};
void json_begin_object(struct json_writer *w, const char *key);
void json_end_object(struct json_writer *w);
void json_begin_array(struct json_writer *w, const char *key);
void json_end_array(struct json_writer *w);
void json_put_string(struct json_writer *w, const char *key, const char *value); /* NULL value = null */
void json_put_int(struct json_writer *w, const char *key, int64_t value);
void json_put_uint(struct json_writer *w, const char *key, uint64_t value);
void json_put_real(struct json_writer *w, const char *key, double value); /* shortest text that reads back equal */
void json_put_bool(struct json_writer *w, const char *key, bool value);
void json_put_raw(struct json_writer *w, const char *key, const char *json_text);

#endif
