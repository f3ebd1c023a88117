/* SPDX-License-Identifier: Apache-2.0 */
/* float8.h against PyTorch's casts (tests/golden/float8_reference.py), to the bit: every bf16 number, and fp32 numbers
 * drawn at random and around all points half way between two codes; blocks of MXFP8 (mxfp8_reference.py). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/bf16.h"
#include "base/buf.h"
#include "base/file.h"
#include "base/float8.h"
#include "base/json.h"

static struct json *load(const char *path)
{
    struct buf text = BUF_INIT;
    struct json *root = NULL;
    struct titan_error err = {0};
    assert_int_equal(file_read(path, 1 << 20, &text, &err), TITAN_OK);
    assert_int_equal(json_parse(text.data, text.len, &root, &err), TITAN_OK);
    buf_free(&text);
    return root;
}

#define GOLDEN TITAN_SOURCE_DIR "/tests/golden/"

static float from_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

/* Written out from the formats' definition: sign, exponent, mantissa. */
static float value_of(uint8_t code, enum float8 type)
{
    const int mantissa = type == FLOAT8_E4M3 ? 3 : 2, bias = type == FLOAT8_E4M3 ? 7 : 15;
    const int exponent = (code & 0x7f) >> mantissa, fraction = code & ((1 << mantissa) - 1);
    const double unit = exponent ? ldexp(1, exponent - bias - mantissa) : ldexp(1, 1 - bias - mantissa);
    const double magnitude = (exponent ? (1 << mantissa) + fraction : fraction) * unit;
    return (float)(code & 0x80 ? -magnitude : magnitude);
}

static void check(float x, int code, enum float8 type)
{
    uint32_t bits, rounded_bits, value_bits;
    const float rounded = float8_round(x, type), value = value_of((uint8_t)code, type);
    memcpy(&bits, &x, sizeof(bits));
    memcpy(&rounded_bits, &rounded, sizeof(bits));
    memcpy(&value_bits, &value, sizeof(bits));
    if (float8_encode(x, type) != code)
        fail_msg("%s of %a (%08x): %02x, PyTorch has %02x", type == FLOAT8_E4M3 ? "e4m3" : "e5m2", (double)x, bits,
                 float8_encode(x, type), (unsigned)code);
    if ((code & 0x7f) == 0x7f)
        assert_true(rounded != rounded);
    else if (rounded_bits != value_bits)
        fail_msg("%a (%08x) becomes %a, code %02x is %a", (double)x, bits, (double)rounded, (unsigned)code,
                 (double)value);
}

static int item(const struct json *list, int i)
{
    const struct json *v = list->first;
    while (v && i-- > 0)
        v = v->next;
    assert_non_null(v);
    return (int)v->integer;
}

static void test_every_bf16(void **state)
{
    (void)state;
    static const char *const names[] = {[FLOAT8_E4M3] = "e4m3", [FLOAT8_E5M2] = "e5m2"};
    struct json *root = load(GOLDEN "float8.json");
    for (int type = 0; type < 2; type++) {
        const struct json *run = json_get(json_get(root, "casts"), names[type])->first;
        int seen = 0;
        for (; run; run = run->next) {
            const int first = item(run, 0), end = run->next ? item(run->next, 0) : 1 << 16;
            assert_int_equal(first, seen);
            for (; seen < end; seen++) {
                check(bf16_to_f32((uint16_t)seen), item(run, 1), (enum float8)type);
                /* What is a value of float8 is one of bf16. */
                const float rounded = float8_round(bf16_to_f32((uint16_t)seen), (enum float8)type);
                assert_true(rounded != rounded || bf16_to_f32(bf16_from_f32(rounded)) == rounded);
            }
        }
        assert_int_equal(seen, 1 << 16);
    }
    json_free(root);
}

static void test_fp32(void **state)
{
    (void)state;
    struct json *root = load(GOLDEN "float8.json");
    int n = 0;
    print_message("# seed %ld\n", (long)json_int(root, "seed", 0));
    for (const struct json *v = json_get(json_get(root, "casts"), "fp32")->first; v; v = v->next, n++) {
        const float x = from_bits((uint32_t)v->first->integer);
        check(x, item(v, 1), FLOAT8_E4M3);
        check(x, item(v, 2), FLOAT8_E5M2);
    }
    assert_true(n > 2000);
    json_free(root);
}

static void test_blocks(void **state)
{
    (void)state;
    struct json *root = load(GOLDEN "mxfp8.json");
    int n = 0;
    print_message("# seed %ld\n", (long)json_int(root, "seed", 0));
    for (const struct json *block = json_get(root, "blocks")->first; block; block = block->next, n++) {
        const struct json *bits = block->first->first, *code = block->first->next->next->first;
        uint32_t largest = 0;
        int elements = 0;
        for (const struct json *v = bits; v; v = v->next, elements++)
            largest = ((uint32_t)v->integer & 0x7fffffffu) > largest ? (uint32_t)v->integer & 0x7fffffffu : largest;
        const uint8_t scale = mx_scale(largest);
        assert_int_equal(elements, MX_BLOCK);
        if (scale != item(block, 1))
            fail_msg("block %d, largest %08x: scale %d, PyTorch has %d", n, largest, scale, item(block, 1));
        for (; bits; bits = bits->next, code = code->next) {
            const float x = from_bits((uint32_t)bits->integer) * mx_inverse(scale);
            if (scale == 255)
                assert_true((float8_encode(x, FLOAT8_E4M3) & 0x7f) == 0x7f);
            else
                check(x, (int)code->integer, FLOAT8_E4M3);
        }
        assert_null(code);
    }
    assert_true(n >= 50);
    json_free(root);
}

/* What no block of fp32 numbers has, too. */
static void test_scales(void **state)
{
    (void)state;
    for (uint32_t e = 0; e < 255; e++) {
        const float inverse = mx_inverse((uint8_t)e);
        assert_true((double)mx_power(e) == ldexp(1, (int)e - 127));
        assert_true((double)inverse == ldexp(1, 127 - (int)e));
    }
    assert_true(mx_power(255) != mx_power(255) && mx_inverse(255) != mx_inverse(255));
    assert_int_equal(mx_scale(0), 0);
    assert_int_equal(mx_scale(0x7f7fffffu), 246);
    assert_int_equal(mx_scale(0x7f800000u), 255);
    assert_int_equal(mx_scale(0x7fffffffu), 255);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_bf16),
        cmocka_unit_test(test_fp32),
        cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_scales),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
