/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "worker/tokenizer/tokenizer.h"

static void bytes_are_tokens(void **state)
{
    (void)state;
    struct tokenizer *t = NULL;
    struct tokenizer_encoder *e = NULL;
    struct tokens tokens = {0};
    struct buf text = BUF_INIT;
    struct titan_error err = {0};
    unsigned char all[256];
    for (int i = 0; i < 256; i++)
        all[i] = (unsigned char)(255 - i);

    assert_int_equal(tokenizer_open("bytes", &t, &err), TITAN_OK);
    assert_int_equal(tokenizer_vocabulary(t), 256);
    assert_int_equal(tokenizer_bos(t), TOKEN_NONE);
    assert_int_equal(tokenizer_eos(t), 0);
    assert_int_equal(tokenizer_encoder_open(t, &e, &err), TITAN_OK);
    assert_int_equal(tokenizer_encode(e, (const char *)all, sizeof(all), &tokens, &err), TITAN_OK);
    assert_int_equal(tokens.n, 256);
    for (int i = 0; i < 256; i++)
        assert_int_equal(tokens.ids[i], all[i]);
    assert_int_equal(tokenizer_decode(t, tokens.ids, tokens.n, &text, &err), TITAN_OK);
    assert_int_equal(text.len, sizeof(all));
    assert_memory_equal(text.data, all, sizeof(all));

    const int32_t wrong[2] = {-1, 256};
    for (int i = 0; i < 2; i++)
        assert_int_equal(tokenizer_decode(t, &wrong[i], 1, &text, &err), TITAN_EINVAL);
    buf_free(&text);
    free(tokens.ids);
    tokenizer_encoder_close(e);
    tokenizer_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(bytes_are_tokens)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
