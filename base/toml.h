/* SPDX-License-Identifier: Apache-2.0 */
/* toml.h - TOML 1.0 reader with line and column in every message; the result is a tree for look-ups. (Debian packages
 * no C library for TOML.) Dates are refused by name. Hostile input is bounded: text 1 MiB, depth 32, 65,536 nodes,
 * 4,096 keys per table. */
#ifndef TITAN_BASE_TOML_H
#define TITAN_BASE_TOML_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum toml_type { TOML_TABLE, TOML_ARRAY, TOML_STRING, TOML_INT, TOML_FLOAT, TOML_BOOL };

struct toml_value {
    enum toml_type type;
    int line, column;
    char *key;               /* the member's key inside a table; owned by the tree */
    struct toml_value *next; /* sibling in a table or array, in file order */
    union {
        struct toml_value *first; /* table, array */
        char *string;             /* UTF-8, NUL-terminated (a NUL escape is refused) */
        int64_t integer;
        double real;
        bool boolean;
    };
};

/* err gets "path:line:col: what". The tree is freed as a whole. */
titan_status toml_parse(const char *text, size_t len, const char *path, struct toml_value **ret,
                        struct titan_error *err) TITAN_MUST_USE;
/* Parses one value as on the right of '=' ("3", "[1,2]", "\"x\""); for --set. */
titan_status toml_parse_value(const char *text, const char *path, struct toml_value **ret,
                              struct titan_error *err) TITAN_MUST_USE;
void toml_free(struct toml_value *root);
/* Member of a table by key; NULL: the member is missing, or `table` is no table. */
const struct toml_value *toml_get(const struct toml_value *table, const char *key);
/* "string", "integer", ... */
const char *toml_type_name(enum toml_type type);

#endif
