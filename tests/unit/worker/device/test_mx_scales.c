/* SPDX-License-Identifier: Apache-2.0 */
/* mx_scales.h against the layout made by NumPy (tests/golden/mxfp8_reference.py): every scale in its place, none twice.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/json.h"
#include "worker/device/cuda/mx_scales.h"

static void test_places(void **state)
{
    struct buf text = BUF_INIT;
    struct json *root = NULL;
    struct titan_error err = {0};
    (void)state;
    assert_int_equal(file_read(TITAN_SOURCE_DIR "/tests/golden/mxfp8.json", 1 << 20, &text, &err), TITAN_OK);
    assert_int_equal(json_parse(text.data, text.len, &root, &err), TITAN_OK);
    const struct json *layout = json_get(root, "layout");
    const int64_t lines = json_int(layout, "lines", 0), blocks = json_int(layout, "blocks", 0);
    int64_t at = 0, found = 0;
    for (const struct json *v = json_get(layout, "places")->first; v; v = v->next, at++) {
        if (v->integer < 0)
            continue;
        assert_int_equal(mx_scale_place(v->integer / blocks, v->integer % blocks, blocks), at);
        found++;
    }
    assert_true(lines > 128 && blocks > 8);
    assert_int_equal(found, lines * blocks);
    assert_int_equal(mx_scales_bytes(lines, blocks), at);
    json_free(root);
    buf_free(&text);
}

static void test_bytes(void **state)
{
    (void)state;
    assert_int_equal(mx_scales_bytes(0, 9), 0);
    assert_int_equal(mx_scales_bytes(1, 1), 512);
    assert_int_equal(mx_scales_bytes(128, 4), 512);
    assert_int_equal(mx_scales_bytes(129, 5), 4 * 512);
    /* A band of lines begins where the ones before it end. */
    for (int64_t lines = 0; lines <= 512; lines += MX_TILE_LINES)
        assert_int_equal(mx_scale_place(lines, 0, 11), mx_scales_bytes(lines, 11));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_places),
        cmocka_unit_test(test_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
