/* SPDX-License-Identifier: Apache-2.0 */
/* Signatures of backups: one text for what is signed, and none that was changed passes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "state/signature.h"

static struct signature_key key_of(char digit)
{
    struct signature_key key;
    char text[SIGNATURE_KEY_TEXT];
    memset(text, digit, sizeof(text));
    text[sizeof(text) - 1] = '\n';
    assert_int_equal(signature_key_read(text, sizeof(text), &key, NULL), TITAN_OK);
    return key;
}

static void make(const struct signature_key *key, struct buf *out)
{
    struct signature s = {
        .size = 4096, .head = {.id = 17, .chain = {1, 2, 3}}, .digest = {0xab}, .at = "2026-11-20T02:15:00.000Z"};
    assert_int_equal(signature_make(&s, key, out, NULL), TITAN_OK);
}

static void test_what_is_made_is_read(void **state)
{
    (void)state;
    const struct signature_key key = key_of('5'), other = key_of('6');
    struct signature s;
    _cleanup_(buf_free) struct buf text = BUF_INIT, again = BUF_INIT;
    make(&key, &text);
    assert_true(text.len <= SIGNATURE_TEXT_MAX);
    assert_int_equal(signature_read(text.data, text.len, &s, NULL), TITAN_OK);
    assert_int_equal(s.size, 4096);
    assert_int_equal(s.head.id, 17);
    assert_int_equal(s.head.chain[2], 3);
    assert_int_equal(s.digest[0], 0xab);
    assert_string_equal(s.key_id, key.id);
    assert_int_equal(signature_check(text.data, text.len, &key, NULL), TITAN_OK);
    assert_string_not_equal(key.id, other.id);
    assert_int_equal(signature_check(text.data, text.len, &other, NULL), TITAN_EPERM);
    assert_int_equal(signature_make(&s, &key, &again, NULL), TITAN_OK);
    assert_memory_equal(text.data, again.data, text.len);
}

/* Each byte changed in each bit, taken out, put in twice. */
static void test_what_is_changed_is_refused(void **state)
{
    (void)state;
    const struct signature_key key = key_of('5');
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    make(&key, &text);
    for (size_t at = 0; at < text.len; at++) {
        char changed[SIGNATURE_TEXT_MAX + 1];
        for (int bit = 0; bit < 8; bit++) {
            memcpy(changed, text.data, text.len);
            changed[at] = (char)(changed[at] ^ 1 << bit);
            assert_int_not_equal(signature_check(changed, text.len, &key, NULL), TITAN_OK);
        }
        memcpy(changed, text.data, at);
        memcpy(changed + at, text.data + at + 1, text.len - at - 1);
        assert_int_not_equal(signature_check(changed, text.len - 1, &key, NULL), TITAN_OK);
        memcpy(changed, text.data, at + 1);
        memcpy(changed + at + 1, text.data + at, text.len - at);
        assert_int_not_equal(signature_check(changed, text.len + 1, &key, NULL), TITAN_OK);
        assert_int_not_equal(signature_check(text.data, at, &key, NULL), TITAN_OK);
    }
}

static void test_keys(void **state)
{
    (void)state;
    struct signature_key key, again;
    _cleanup_(buf_free) struct buf one = BUF_INIT, two = BUF_INIT;
    assert_int_equal(signature_key_make(&one, NULL), TITAN_OK);
    assert_int_equal(signature_key_make(&two, NULL), TITAN_OK);
    assert_int_equal(signature_key_read(one.data, one.len, &key, NULL), TITAN_OK);
    assert_int_equal(signature_key_read(two.data, two.len, &again, NULL), TITAN_OK);
    assert_memory_not_equal(key.bytes, again.bytes, sizeof(key.bytes));
    assert_int_equal(signature_key_read(one.data, one.len - 1, &key, NULL), TITAN_EINVAL);
    assert_int_equal(signature_key_read("", 0, &key, NULL), TITAN_EINVAL);
    one.data[7] = 'G';
    assert_int_equal(signature_key_read(one.data, one.len, &key, NULL), TITAN_EINVAL);
}

static void test_heads(void **state)
{
    (void)state;
    static const char hash[] = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
    struct event_head head;
    char text[256], out[EVENT_HEAD_TEXT];
    const char *end = NULL;
    (void)snprintf(text, sizeof(text), "1234:%s rest", hash);
    assert_true(event_head_read(text, &head, &end));
    assert_int_equal(head.id, 1234);
    assert_string_equal(end, " rest");
    event_head_write(&head, out);
    assert_memory_equal(out, text, strlen(out));
    static const char *const wrong[] = {
        "", ":", "x:", "-1:", "1 :", "1: ", "99999999999999999999:", "9999999999999999999:"};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
        (void)snprintf(text, sizeof(text), "%s%s", wrong[i], hash);
        assert_false(event_head_read(text, &head, NULL));
    }
    (void)snprintf(text, sizeof(text), "1:%sa", hash);
    assert_false(event_head_read(text, &head, NULL));
    assert_false(event_head_read("1:0011", &head, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_made_is_read),
        cmocka_unit_test(test_what_is_changed_is_refused),
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_heads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
