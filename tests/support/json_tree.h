/* SPDX-License-Identifier: Apache-2.0 */
/* json_tree.h - what was read as JSON, written again. */
#ifndef TITAN_TESTS_SUPPORT_JSON_TREE_H
#define TITAN_TESTS_SUPPORT_JSON_TREE_H

#include "base/json.h"

static inline void json_put_tree(struct json_writer *w, const struct json *j)
{
    switch (j->type) {
    case JSON_NULL:
        json_put_string(w, j->key, NULL);
        break;
    case JSON_BOOL:
        json_put_bool(w, j->key, j->boolean);
        break;
    case JSON_INT:
        json_put_int(w, j->key, j->integer);
        break;
    case JSON_REAL:
        json_put_real(w, j->key, j->real);
        break;
    case JSON_STRING:
        json_put_string(w, j->key, j->string);
        break;
    case JSON_ARRAY:
    case JSON_OBJECT:
        (j->type == JSON_ARRAY ? json_begin_array : json_begin_object)(w, j->key);
        for (const struct json *m = j->first; m; m = m->next)
            json_put_tree(w, m);
        (j->type == JSON_ARRAY ? json_end_array : json_end_object)(w);
        break;
    }
}

#endif
