/* SPDX-License-Identifier: Apache-2.0 */
/* config.json of transformers, any bytes. What is taken is written again as the same model. */
#include "tests/fuzz/common.h"

#include "base/hf_config.h"

static void write_and_read(const struct hf_config *c)
{
    _cleanup_(buf_free) struct buf text = BUF_INIT, note = BUF_INIT;
    struct titan_error err = {0};
    struct hf_config back;
    struct json_writer w = {.out = &text};
    json_begin_object(&w, NULL);
    hf_config_put(&w, c->family, &c->dims, MAX(c->positions, 1));
    json_end_object(&w);
    fuzz_assert(!buf_failed(&text));
    fuzz_assert(hf_config_parse(text.data, text.len, &back, &err) == TITAN_OK);
    fuzz_assert(back.family == c->family);
    fuzz_assert(hf_config_compare(&back, &c->dims, &note, &err) == TITAN_OK);
    fuzz_assert(note.len == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct titan_error err = {0};
    struct hf_config c;
    _cleanup_free_ char *text = fuzz_text(data, size);
    titan_status status = hf_config_parse(text, size, &c, &err);
    if (status == TITAN_OK)
        write_and_read(&c);
    else
        fuzz_error(status, &err);
    return 0;
}
