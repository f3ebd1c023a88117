/* SPDX-License-Identifier: Apache-2.0 */
/* JSON: what is accepted is written, read and written again to the same text. */
#include "tests/fuzz/common.h"

#include "base/buf.h"
#include "base/json.h"

static void put(struct json_writer *w, const struct json *j)
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
            put(w, m);
        (j->type == JSON_ARRAY ? json_end_array : json_end_object)(w);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct titan_error err = {0};
    struct json *first = NULL, *second = NULL;
    _cleanup_free_ char *text = fuzz_text(data, size);
    titan_status status = json_parse(text, size, &first, &err);
    if (status != TITAN_OK) {
        fuzz_error(status, &err);
        return 0;
    }
    _cleanup_(buf_free) struct buf one = BUF_INIT, two = BUF_INIT;
    struct json_writer w = {.out = &one};
    put(&w, first);
    fuzz_assert(json_parse(one.data, one.len, &second, &err) == TITAN_OK);
    w = (struct json_writer){.out = &two};
    put(&w, second);
    fuzz_assert(strcmp(one.data, two.data) == 0);
    json_free(first);
    json_free(second);
    return 0;
}
