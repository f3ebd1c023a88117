/* SPDX-License-Identifier: Apache-2.0 */
/* TOML, any bytes. What is accepted is a tree with positions and UTF-8 throughout. */
#include "tests/fuzz/common.h"

#include "base/toml.h"
#include "base/utf8.h"

static void walk(const struct toml_value *v)
{
    fuzz_assert(v->line >= 1 && v->column >= 1);
    if (v->type == TOML_STRING)
        fuzz_assert(utf8_check(v->string, strlen(v->string)) == strlen(v->string));
    if (v->type == TOML_TABLE || v->type == TOML_ARRAY)
        for (const struct toml_value *m = v->first; m; m = m->next) {
            fuzz_assert(v->type == TOML_ARRAY || m->key);
            walk(m);
        }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct titan_error err = {0};
    struct toml_value *root = NULL;
    _cleanup_free_ char *text = fuzz_text(data, size);
    titan_status status = toml_parse(text, size, "fuzz", &root, &err);
    if (status == TITAN_OK)
        walk(root);
    else
        fuzz_error(status, &err);
    toml_free(root);
    return 0;
}
