/* SPDX-License-Identifier: Apache-2.0 */
/* Records of JSON, as data build reads them: one by itself, held against base/json.h, and a file of them or of text,
 * plain or packed, of any encoding, cut into pieces and made into tokens. */
#include "tests/fuzz/common.h"

#include <unistd.h>

#include "base/json.h"
#include "base/utf8.h"
#include "worker/data/chat.h"
#include "worker/data/jsonl.h"
#include "worker/data/pieces.h"

static void refused(titan_status status, const struct titan_error *err)
{
    if (status != TITAN_OK)
        fuzz_error(status, err);
}

/* What the strict reader takes, this one takes, with the same text where the field comes once. */
static void one_line(const uint8_t *data, size_t size)
{
    struct json *root = NULL;
    char *text = NULL;
    size_t n = 0;
    const char *why = NULL;
    _cleanup_free_ char *line = malloc(size + !size), *whole = fuzz_text(data, size);
    memcpy(line, data, size);
    const bool ok = jsonl_text(line, size, "text", &text, &n, &why);
    if (ok)
        fuzz_assert(text >= line && text + n <= line + size && utf8_check(text, n) == n);
    else
        fuzz_assert(why && *why);
    if (json_parse(whole, size, &root, NULL) != TITAN_OK)
        return;
    int members = 0;
    const char *want = json_string(root, "text", NULL);
    for (const struct json *e = root->type == JSON_OBJECT ? root->first : NULL; e; e = e->next)
        members += strcmp(e->key, "text") == 0;
    if (members < 2) {
        fuzz_assert(ok == (want != NULL));
        fuzz_assert(!ok || (strlen(want) == n && memcmp(want, text, n) == 0));
    }
    json_free(root);
}

/* Each of its tokens is marked, and its end is trained on. */
static void a_conversation(const uint8_t *data, size_t size)
{
    static struct tokenizer *bytes;
    static struct tokenizer_encoder *encoder;
    static struct chat *chat;
    struct chat_tokens t = {0};
    struct titan_error err = {0};
    _cleanup_free_ char *text = fuzz_text(data, size);
    fuzz_assert(bytes || tokenizer_open("bytes", &bytes, NULL) == TITAN_OK);
    fuzz_assert(encoder || tokenizer_encoder_open(bytes, &encoder, NULL) == TITAN_OK);
    fuzz_assert(chat ||
                chat_open(&(struct chat_options){.prompt = "text", .completion = "a"}, bytes, &chat, NULL) == TITAN_OK);
    if (chat_encode(chat, encoder, text, size, &t, &err))
        fuzz_assert(t.n == t.ids.n && t.n > 0 && t.trained[t.n - 1] == 1 && t.ids.ids[t.n - 1] == 0);
    else
        fuzz_assert(t.why && *t.why);
    chat_tokens_free(&t);
}

static void a_file(const uint8_t *data, size_t size, const char *ending, bool lines)
{
    static struct tokenizer *bytes;
    struct piece_encoder e = {.field = "text", .bos = TOKEN_NONE, .eos = 0, .width = 2};
    struct piece_reader *r = NULL;
    struct titan_error err = {0};
    char path[96];
    (void)snprintf(path, sizeof(path), "%s/x%s", fuzz_folder(), ending);
    fuzz_file(path, data, size);
    fuzz_assert(bytes || tokenizer_open("bytes", &bytes, NULL) == TITAN_OK);
    fuzz_assert(tokenizer_encoder_open(bytes, &e.encoder, NULL) == TITAN_OK);
    struct data_file file = {.path = path, .bytes = size};
    const struct data_files files = {.file = &file, .n = 1, .bytes = size};
    const struct piece_reader_options o = {
        .files = &files, .lines = &lines, .encoding = size % 2 ? TEXT_LATIN1 : TEXT_UTF8};
    fuzz_assert(data_piece_reader_open(&o, &r, NULL) == TITAN_OK);
    for (bool any = true; any;) {
        struct piece p = {0};
        refused(data_piece_reader_next(r, &p, &any, &err), &err);
        if (any)
            fuzz_assert(data_piece_encode(&e, &p, &err) == TITAN_OK);
        for (size_t d = 0; d < p.n_documents; d++)
            fuzz_assert(p.documents[d].end <= p.n_ids && (d == 0 || p.documents[d].end > p.documents[d - 1].end));
        data_piece_clear(&p);
        if (err.status != TITAN_OK)
            break;
    }
    data_piece_reader_close(r);
    tokenizer_encoder_close(e.encoder);
    free(e.ids.ids);
    (void)unlink(path);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const endings[] = {".jsonl", ".jsonl.gz", ".jsonl.zst", ".txt", ".gz", ".zst"};
    struct fuzz_input in = {data, size};
    const uint64_t how = fuzz_take(&in, 1) % 7;
    if (how == 6) {
        one_line(in.data, in.len);
        a_conversation(in.data, in.len);
    } else {
        a_file(in.data, in.len, endings[how], how < 3);
    }
    return 0;
}
