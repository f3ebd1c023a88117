/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/tokenizer/tokenize.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/vec.h"
#include "worker/tokenizer/family.h"
#include "worker/tokenizer/tokenizer.h"

#define READ_BYTES ((size_t)1 << 20)
#define TEXT_BYTES_MAX ((size_t)INT32_MAX)

struct tokenize {
    struct tokenizer *tokenizer;
    struct tokenizer_encoder *encoder;
    struct buf input, text;
    struct tokens tokens;
};

static titan_status read_all(int fd, const char *name, struct buf *out, struct titan_error *err)
{
    out->limit = TEXT_BYTES_MAX;
    for (;;) {
        if (buf_reserve(out, READ_BYTES) != TITAN_OK && buf_reserve(out, 1) != TITAN_OK)
            return titan_fail(err, TITAN_ELIMIT, "'%s' has more than 2 GiB, or there is no memory for it", name);
        const ssize_t n = read(fd, out->data + out->len, MIN(READ_BYTES, out->limit - out->len));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return titan_fail_errno(err, "cannot read '%s'", name);
        if (n == 0)
            return TITAN_OK;
        out->len += (size_t)n;
    }
}

/* Prints a line of ids for each text. The whole input is one text. With `separated`, each part that ends in a NUL byte
 * is a text. */
static titan_status encode_input(struct tokenize *k, bool separated, bool count, struct titan_error *err)
{
    const char *at = k->input.data, *end = at + k->input.len;
    do {
        const char *stop = separated && at < end ? memchr(at, '\0', (size_t)(end - at)) : NULL;
        stop = stop ? stop : end;
        k->tokens.n = 0;
        TRY(tokenizer_encode(k->encoder, at, (size_t)(stop - at), &k->tokens, err));

        const size_t bytes = (size_t)(stop - at);
        if (count)
            (void)printf("%zu bytes, %zu tokens, %.3f bytes a token\n", bytes, k->tokens.n,
                         k->tokens.n ? (double)bytes / (double)k->tokens.n : 0.0);
        for (size_t i = 0; !count && i < k->tokens.n; i++)
            (void)printf("%s%" PRId32, i ? " " : "", k->tokens.ids[i]);
        if (!count)
            (void)fputc('\n', stdout);
        if (ferror(stdout))
            return titan_fail_errno(err, "cannot write the tokens");
        at = stop + 1;
    } while (at < end);
    return TITAN_OK;
}

/* Prints a text for each line of ids. */
static titan_status decode_input(struct tokenize *k, bool separated, struct titan_error *err)
{
    const char *at = k->input.data, *end = at + k->input.len;
    for (size_t line = 1; at < end; line++) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        stop = stop ? stop : end;
        k->tokens.n = 0;
        while (at < stop) {
            int64_t id = 0;
            const char *digits = at;
            for (; at < stop && *at >= '0' && *at <= '9' && id <= INT32_MAX; at++)
                id = id * 10 + (*at - '0');
            if (id > INT32_MAX || (at == digits && *at != ' '))
                return titan_fail(err, TITAN_EINVAL, "line %zu: ids should stand here, with spaces between", line);
            if (at > digits && !VEC_PUSH(k->tokens.ids, k->tokens.n, k->tokens.cap, (int32_t)id))
                return titan_fail(err, TITAN_ENOMEM, "no memory for %zu tokens", k->tokens.n + 1);
            at += at < stop && *at == ' ';
        }
        at = stop + 1;
        buf_clear(&k->text);
        TRY(tokenizer_decode(k->tokenizer, k->tokens.ids, k->tokens.n, &k->text, err));
        (void)fwrite(k->text.data ? k->text.data : "", 1, k->text.len, stdout);
        if (separated)
            (void)fputc('\0', stdout);
    }
    return ferror(stdout) ? titan_fail_errno(err, "cannot write the text") : TITAN_OK;
}

static titan_status run(void *with, const struct args *args, struct titan_error *err)
{
    struct tokenize k = {0};
    _cleanup_fd_ int fd = -1;
    const char *path = args_text(args, "tokenizer", "bytes"), *input = args->n > 0 ? args->words[0] : NULL;
    const bool separated = args_has(args, "null"), count = args_has(args, "count");
    (void)with;
    titan_status status = tokenizer_open_as(path, args_text(args, "pattern", NULL), &k.tokenizer, err);
    if (status == TITAN_OK)
        status = tokenizer_encoder_open(k.tokenizer, &k.encoder, err);
    if (status == TITAN_OK && input)
        status = file_open_regular(AT_FDCWD, input, 0, &fd, err);
    if (status == TITAN_OK)
        status = read_all(input ? fd : STDIN_FILENO, input ? input : "standard input", &k.input, err);
    if (status == TITAN_OK)
        status = args_has(args, "decode") ? decode_input(&k, separated, err) : encode_input(&k, separated, count, err);
    tokenizer_encoder_close(k.encoder);
    tokenizer_close(k.tokenizer);
    buf_free(&k.input);
    buf_free(&k.text);
    free(k.tokens.ids);
    return status == TITAN_ENOTFOUND ? TITAN_EINVAL : status; /* the user named a missing file, which is bad input */
}

const struct command tokenize_command = {
    .name = "tokenize",
    .summary = "show a text's tokens, or the text of tokens",
    .arguments = "[FILE]",
    .text = "FILE, or standard input. Ids come in one line, with spaces between. No begin or end of text is added.",
    .max_args = 1,
    .options =
        (const struct option_spec[]){
            {"tokenizer", 't', "T",
             "bytes (default), a tokenizer.json, a file of ranks (tiktoken), a tekken.json, or a folder", WORD_FILE},
            {"pattern", 0, "P", "of a file of ranks: " FAMILY_NAMES " or a regular expression", WORD_NONE},
            {"count", 'c', NULL, "how many bytes and tokens, in place of the ids", WORD_NONE},
            {"decode", 'd', NULL, "FILE has ids, a text a line: show the texts", WORD_NONE},
            {"null", '0', NULL, "texts end in a NUL byte: several in one FILE, a line of ids for each", WORD_NONE},
            {NULL}},
    .examples =
        (const struct example[]){
            {"titan-worker tokenize -t Llama-3.1-8B --count book.txt", "how long a text is"},
            {"echo hello | titan-worker tokenize -t tokenizer.json | titan-worker tokenize -t tokenizer.json -d",
             "there and back"},
            {NULL}},
    .run = run,
};
