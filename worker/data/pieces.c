/* SPDX-License-Identifier: Apache-2.0 */
/* pieces.c - see pieces.h. */
#include "worker/data/pieces.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/vec.h"
#include "worker/data/jsonl.h"
#include "worker/data/packed.h"

#define BINARY_PROBE_BYTES 4096
#define TEXT_CUT_MAX (64 * PIECE_BYTES) /* a text without lines is cut here at the latest */

void data_piece_clear(struct piece *p)
{
    free(p->bytes);
    free(p->ids);
    free(p->documents);
    free(p->bads);
    *p = (struct piece){0};
}

/* --- cutting ------------------------------------------------------------------------------------------------------ */

struct piece_reader {
    struct piece_reader_options opt;
    uint64_t file;         /* the one that is open or comes next */
    struct packed *packed; /* NULL: none is open */
    uint64_t bytes_before; /* of the files before it */
    char *buffer;          /* what was read of it and not given out */
    size_t n, cap;
    bool ended;               /* it has no more */
    bool begun;               /* text: some of it was given out */
    uint64_t line;            /* lines: so many are behind */
    uint64_t binary;          /* files */
    bool skips;               /* the rest of a line that is too long */
    struct titan_error fault; /* why it ended early */
};

titan_status data_piece_reader_open(const struct piece_reader_options *options, struct piece_reader **ret,
                                    struct titan_error *err)
{
    struct piece_reader *r = calloc(1, sizeof(*r));
    if (!r)
        return titan_fail(err, TITAN_ENOMEM, "no memory to read the input");
    r->opt = *options;
    r->file = options->from.file;
    for (uint64_t i = 0; i < r->file && i < options->files->n; i++)
        r->bytes_before += options->files->file[i].bytes;
    *ret = r;
    return TITAN_OK;
}

static void leave_file(struct piece_reader *r)
{
    titan_assert(r->file < r->opt.files->n);
    r->bytes_before += r->opt.files->file[r->file].bytes;
    packed_close(TAKE(r->packed));
    r->file++;
    r->n = 0;
}

void data_piece_reader_close(struct piece_reader *r)
{
    if (!r)
        return;
    packed_close(r->packed);
    free(r->buffer);
    free(r);
}

uint64_t data_piece_reader_binary(const struct piece_reader *r)
{
    return r->binary;
}

/* Up to and with the last newline of the buffer, looked for behind `from`; 0: there is none. */
static size_t last_line_end(const struct piece_reader *r, size_t from)
{
    titan_assert(from <= r->n || !r->buffer);
    const char *newline = r->n > from ? memrchr(r->buffer + from, '\n', r->n - from) : NULL;
    return newline ? (size_t)(newline - r->buffer) + 1 : 0;
}

/* Reads until the buffer holds `want` bytes, or the file ends. Packed data that is damaged ends it too. */
static titan_status fill(struct piece_reader *r, size_t want, struct titan_error *err)
{
    size_t got = 0;
    if (r->ended || r->n >= want)
        return TITAN_OK;
    if (!VEC_RESERVE(r->buffer, r->cap, want))
        return titan_fail(err, TITAN_ENOMEM, "no memory for %zu bytes of '%s'", want, r->opt.files->file[r->file].path);
    const size_t before = r->n;
    const titan_status status = packed_read(r->packed, r->buffer + r->n, want - r->n, &got, &r->fault);
    r->n = before + got;
    titan_assert(r->n <= r->cap);
    if (status == TITAN_OK || status == TITAN_ECORRUPT) {
        r->ended = r->n < want || status != TITAN_OK;
        if (status != TITAN_OK && r->opt.lines[r->file]) /* half a line is no record */
            r->n = last_line_end(r, 0);
        return TITAN_OK;
    }
    if (err)
        *err = r->fault;
    return status;
}

/* The first n bytes of the buffer become the piece's, with room for one more; the rest moves to another buffer. */
static titan_status give(struct piece_reader *r, size_t n, struct piece *ret, struct titan_error *err)
{
    titan_assert(n <= r->n);
    char *rest = NULL;
    size_t cap = 0;
    if (!VEC_RESERVE(rest, cap, MAX(r->n - n, 2 * PIECE_BYTES)) || !VEC_RESERVE(r->buffer, r->cap, n + 1)) {
        free(rest);
        return titan_fail(err, TITAN_ENOMEM, "no memory for %zu bytes of '%s'", n, r->opt.files->file[r->file].path);
    }
    memcpy(rest, r->buffer + n, r->n - n);
    ret->bytes = r->buffer;
    ret->n = n;
    r->buffer = rest;
    r->cap = cap;
    r->n -= n;
    return TITAN_OK;
}

static void begin_piece(const struct piece_reader *r, struct piece *ret)
{
    titan_assert(r->packed);
    ret->file = r->file;
    ret->lines = r->opt.lines[r->file];
    ret->place = r->bytes_before + packed_place(r->packed);
}

/* What was wrong with the file itself, as a bad record of its own. *ret_any: there is such a piece. */
static void end_file(struct piece_reader *r, struct piece *ret, bool *ret_any)
{
    *ret_any = r->fault.status != TITAN_OK;
    if (*ret_any) {
        begin_piece(r, ret);
        ret->lines = true;
        ret->bad = (struct bad_record){.line = r->opt.lines[r->file] ? r->line + 1 : 0,
                                       .why = strstr(r->fault.msg, "cut off")
                                                  ? "the compressed data is cut off, what follows is lost"
                                                  : "the compressed data is damaged, what follows is lost"};
        r->fault = (struct titan_error){0};
        return; /* the file itself is closed at the next call */
    }
    leave_file(r);
}

static size_t count_lines(const char *text, size_t n)
{
    size_t lines = 0;
    for (const char *at = text, *end = text + n; (at = memchr(at, '\n', (size_t)(end - at))); at++)
        lines++;
    return lines;
}

/* The rest of a line is thrown away. */
static titan_status skip_line(struct piece_reader *r, struct titan_error *err)
{
    while (r->skips) {
        TRY(fill(r, PIECE_BYTES, err));
        const char *newline = r->n ? memchr(r->buffer, '\n', r->n) : NULL;
        const size_t n = newline ? (size_t)(newline - r->buffer) + 1 : r->n;
        r->skips = !newline && !r->ended;
        r->n -= n;
        memmove(r->buffer, r->buffer + n, r->n);
    }
    r->line++;
    return TITAN_OK;
}

/* Lines that a build before has done. */
static titan_status skip_lines(struct piece_reader *r, struct titan_error *err)
{
    const uint64_t want = r->opt.from.file == r->file ? r->opt.from.line : 0;
    while (r->line < want && !(r->ended && r->n == 0)) {
        r->skips = true;
        TRY(skip_line(r, err));
    }
    return TITAN_OK;
}

static titan_status next_lines(struct piece_reader *r, struct piece *ret, bool *ret_any, struct titan_error *err)
{
    size_t n = 0;
    for (size_t want = PIECE_BYTES, from = 0; n == 0; from = r->n, want = MIN(2 * want, LINE_BYTES_MAX + 1)) {
        TRY(fill(r, want, err));
        n = r->ended ? r->n : last_line_end(r, from);
        if (r->ended || n > 0)
            break;
        if (r->n > LINE_BYTES_MAX) {
            begin_piece(r, ret);
            ret->bad = (struct bad_record){.line = r->line + 1, .why = "a line of more than 1 GiB"};
            *ret_any = true;
            r->n = 0;
            r->skips = true;
            return skip_line(r, err);
        }
    }
    if (n == 0) {
        end_file(r, ret, ret_any);
        return TITAN_OK;
    }
    begin_piece(r, ret);
    ret->first_line = r->line + 1;
    const bool last = r->buffer[n - 1] != '\n';
    r->line += count_lines(r->buffer, n) + last;
    *ret_any = true;
    return give(r, n, ret, err);
}

static bool spaced(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* Behind a single newline between characters of ASCII that are no space: no match of a tokenizer's pattern crosses it.
 */
static bool ends_line(const char *text, size_t end)
{
    const unsigned char before = (unsigned char)text[end - 2], after = (unsigned char)text[end];
    return text[end - 1] == '\n' && before < 0x80 && after < 0x80 && !spaced((char)before) && !spaced((char)after) &&
           after != '/'; /* which o200k's takes with the line end before */
}

size_t data_piece_cut(const char *text, size_t n)
{
    if (n <= PIECE_BYTES)
        return n;
    for (size_t end = PIECE_BYTES; end > PIECE_BYTES / 2; end--)
        if (ends_line(text, end))
            return end;
    for (size_t end = PIECE_BYTES; end < MIN(n, TEXT_CUT_MAX); end++)
        if (ends_line(text, end))
            return end;
    if (n <= TEXT_CUT_MAX)
        return n;
    size_t end = TEXT_CUT_MAX;
    while (end > TEXT_CUT_MAX - 4 && ((unsigned char)text[end] & 0xc0) == 0x80) /* between characters */
        end--;
    return end;
}

static titan_status next_text(struct piece_reader *r, struct piece *ret, bool *ret_any, struct titan_error *err)
{
    size_t n = 0;
    for (size_t want = 2 * PIECE_BYTES; n == 0; want = MIN(2 * want, TEXT_CUT_MAX + PIECE_BYTES)) {
        TRY(fill(r, want, err));
        if (!r->begun && memchr(r->buffer ? r->buffer : "", 0, MIN(r->n, (size_t)BINARY_PROBE_BYTES))) {
            r->binary++;
            r->fault = (struct titan_error){0};
            leave_file(r);
            return TITAN_OK;
        }
        n = data_piece_cut(r->buffer, r->n);
        if (n == r->n && !r->ended) /* where it is cut is not known yet */
            n = 0;
        if (r->ended)
            break;
    }
    if (r->n == 0) { /* nothing, or all was given */
        end_file(r, ret, ret_any);
        return TITAN_OK;
    }
    begin_piece(r, ret);
    ret->begins = !r->begun;
    ret->ends = r->ended && n == r->n;
    r->begun = true;
    *ret_any = true;
    return give(r, n, ret, err);
}

titan_status data_piece_reader_next(struct piece_reader *r, struct piece *ret, bool *ret_any, struct titan_error *err)
{
    *ret_any = false;
    while (!*ret_any && r->file < r->opt.files->n) {
        if (!r->packed) {
            TRY(packed_open(r->opt.files->file[r->file].path, &r->packed, err));
            r->ended = r->begun = r->skips = false;
            r->n = r->line = 0;
            if (r->opt.lines[r->file])
                TRY(skip_lines(r, err));
        }
        TRY(r->opt.lines[r->file] ? next_lines(r, ret, ret_any, err) : next_text(r, ret, ret_any, err));
    }
    return TITAN_OK;
}

/* --- encoding ----------------------------------------------------------------------------------------------------- */

static titan_status no_memory(const struct piece *p, struct titan_error *err)
{
    return titan_fail(err, TITAN_ENOMEM, "no memory for the tokens of %zu bytes of text", p->n);
}

static titan_status put_ids(const struct piece_encoder *e, struct piece *p, const int32_t *ids, size_t n,
                            struct titan_error *err)
{
    titan_assert(e->width == 2 || e->width == 4);
    const size_t need = (size_t)(p->n_ids + n) * e->width;
    if (!VEC_RESERVE(p->ids, p->cap_ids, need))
        return no_memory(p, err);
    uint8_t *to = p->ids + p->n_ids * e->width;
    for (size_t i = 0; i < n; i++, to += e->width) {
        titan_assert(ids[i] >= 0 && (e->width == 4 || ids[i] <= UINT16_MAX));
        p->id_max = MAX(p->id_max, (uint64_t)ids[i]);
        if (e->width == 2)
            memcpy(to, &(uint16_t){(uint16_t)ids[i]}, 2);
        else
            memcpy(to, &ids[i], 4);
    }
    p->n_ids += n;
    return TITAN_OK;
}

static titan_status put_text(struct piece_encoder *e, struct piece *p, const char *text, size_t n,
                             struct titan_error *err)
{
    p->text_bytes += n;
    while (n > 0) {
        const size_t cut = data_piece_cut(text, n);
        e->ids.n = 0;
        TRY(tokenizer_encode(e->encoder, text, cut, &e->ids, err));
        TRY(put_ids(e, p, e->ids.ids, e->ids.n, err));
        text += cut;
        n -= cut;
    }
    return TITAN_OK;
}

static titan_status begin_document(const struct piece_encoder *e, struct piece *p, struct titan_error *err)
{
    return e->bos == TOKEN_NONE ? TITAN_OK : put_ids(e, p, &e->bos, 1, err);
}

static titan_status end_document(const struct piece_encoder *e, struct piece *p, struct input_place after,
                                 struct titan_error *err)
{
    titan_assert(e->eos != TOKEN_NONE);
    TRY(put_ids(e, p, &e->eos, 1, err));
    const struct piece_document document = {.end = p->n_ids, .text_bytes = p->text_bytes, .after = after};
    return VEC_PUSH(p->documents, p->n_documents, p->cap_documents, document) ? TITAN_OK : no_memory(p, err);
}

static titan_status encode_line(struct piece_encoder *e, struct piece *p, char *line, size_t n, uint64_t number,
                                struct titan_error *err)
{
    struct bad_record bad = {.line = number};
    char *text;
    size_t len;
    if (strspn(line, " \t\r") >= n) /* nothing; the byte behind the line is no space */
        return TITAN_OK;
    if (!jsonl_text(line, n, e->field, &text, &len, &bad.why))
        return VEC_PUSH(p->bads, p->n_bads, p->cap_bads, bad) ? TITAN_OK : no_memory(p, err);
    TRY(begin_document(e, p, err));
    TRY(put_text(e, p, text, len, err));
    return end_document(e, p, (struct input_place){p->file, number}, err);
}

static titan_status encode_lines(struct piece_encoder *e, struct piece *p, struct titan_error *err)
{
    titan_assert(p->lines);
    uint64_t number = p->first_line;
    p->bytes[p->n] = '\n'; /* the last line may have none */
    for (size_t at = 0; at < p->n; number++) {
        char *line = p->bytes + at;
        const size_t n = (size_t)((char *)memchr(line, '\n', p->n + 1 - at) - line);
        TRY(encode_line(e, p, line, n, number, err));
        at += n + 1;
    }
    return TITAN_OK;
}

titan_status data_piece_encode(struct piece_encoder *e, struct piece *p, struct titan_error *err)
{
    if (p->bad.why)
        return VEC_PUSH(p->bads, p->n_bads, p->cap_bads, p->bad) ? TITAN_OK : no_memory(p, err);
    if (p->lines) {
        TRY(encode_lines(e, p, err));
    } else {
        if (p->begins)
            TRY(begin_document(e, p, err));
        TRY(put_text(e, p, p->bytes, p->n, err));
        if (p->ends)
            TRY(end_document(e, p, (struct input_place){p->file + 1, 0}, err));
    }
    free(TAKE(p->bytes));
    return TITAN_OK;
}
