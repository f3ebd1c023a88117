/* SPDX-License-Identifier: Apache-2.0 */
/* JSON: what is accepted is written, read and written again to the same text. */
#include "tests/fuzz/common.h"

#include "base/buf.h"
#include "base/json.h"
#include "tests/support/json_tree.h"

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
    json_put_tree(&w, first);
    fuzz_assert(json_parse(one.data, one.len, &second, &err) == TITAN_OK);
    w = (struct json_writer){.out = &two};
    json_put_tree(&w, second);
    fuzz_assert(strcmp(one.data, two.data) == 0);
    json_free(first);
    json_free(second);
    return 0;
}
