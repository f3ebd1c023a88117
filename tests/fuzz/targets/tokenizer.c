/* SPDX-License-Identifier: Apache-2.0 */
/* A tokenizer's file and a text. The first byte says which file, and of ranks how text is cut; then come the text, an
 * expression where that byte says so, and the file (fuzz_piece). Ids are below the vocabulary, words that have been met
 * become what they became, and ranks give the text back. */
#include "tests/fuzz/common.h"

#include "worker/tokenizer/tokenizer.h"
#include "worker/tokenizer/unicode.h"

static void use(const struct tokenizer *t, bool ranks, const char *text, size_t n)
{
    struct titan_error err = {0};
    struct tokenizer_encoder *e = NULL;
    struct tokens first = {0}, again = {0};
    struct buf back = BUF_INIT, mended = BUF_INIT;
    fuzz_assert(tokenizer_encoder_open(t, &e, &err) == TITAN_OK);
    titan_status status = tokenizer_encode(e, text, n, &first, &err);
    fuzz_assert(status == tokenizer_encode(e, text, n, &again, &err));
    fuzz_assert(status == TITAN_OK || status == TITAN_ELIMIT);
    if (status == TITAN_OK) {
        fuzz_assert(first.n == again.n &&
                    (first.n == 0 || memcmp(first.ids, again.ids, first.n * sizeof(*first.ids)) == 0));
        for (size_t i = 0; i < first.n; i++)
            fuzz_assert(first.ids[i] >= 0 && first.ids[i] < tokenizer_vocabulary(t));
        fuzz_assert(tokenizer_decode(t, first.ids, first.n, &back, &err) == TITAN_OK);
    }
    if (status == TITAN_OK && ranks) {
        fuzz_assert(unicode_mend(text, n, &mended) == TITAN_OK);
        fuzz_assert(back.len == mended.len && (back.len == 0 || memcmp(back.data, mended.data, back.len) == 0));
    }
    buf_free(&back);
    buf_free(&mended);
    free(first.ids);
    free(again.ids);
    tokenizer_encoder_close(e);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct titan_error err = {0};
    struct tokenizer *t = NULL;
    struct fuzz_input in = {data, size};
    static const char *const patterns[] = {
        "llama3", "gpt2", "cl100k", "o200k", "llama4", "qwen", "\\p{L}+|\\s++(?!\\S)", ""};
    const unsigned kind = (unsigned)fuzz_take(&in, 1);
    const bool ranks = kind & 1, own = ranks && kind & 0x80;
    struct fuzz_input text = fuzz_piece(&in), expression = own ? fuzz_piece(&in) : (struct fuzz_input){0};
    char path[256], pattern[256];
    if (text.len > 4096 || expression.len >= sizeof(pattern))
        return 0;
    if (own)
        memcpy(pattern, expression.data, expression.len);
    pattern[own ? expression.len : 0] = 0;
    const char *cut = !ranks ? NULL : own ? pattern : patterns[kind >> 1 & 7];
    (void)snprintf(path, sizeof(path), "%s/%s", fuzz_folder(), ranks ? "tokenizer.model" : "tokenizer.json");
    fuzz_file(path, in.data, in.len);
    const titan_status status = tokenizer_open_as(path, cut, &t, &err);
    if (status == TITAN_OK) {
        fuzz_assert(tokenizer_vocabulary(t) > 0 && tokenizer_eos(t) < tokenizer_vocabulary(t));
        use(t, ranks && strcmp(cut, "qwen") != 0, (const char *)text.data, text.len);
    } else {
        fuzz_error(status, &err);
    }
    tokenizer_close(t);
    return 0;
}
