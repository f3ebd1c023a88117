/* SPDX-License-Identifier: Apache-2.0 */
/* pieces.c - see pieces.h. */
#include "worker/data/pieces.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/utf8.h"
#include "base/vec.h"
#include "worker/data/jsonl.h"

#define BINARY_PROBE_BYTES 4096
#define TEXT_CUT_MAX (64 * PIECE_BYTES) /* a text without lines is cut here at the latest */

void data_piece_clear(struct piece *p)
{
    free(p->bytes);
    free(p->ids);
    free(p->trained);
    free(p->documents);
    free(p->bads);
    *p = (struct piece){0};
}

/* --- cutting ------------------------------------------------------------------------------------------------------ */

struct piece_reader {
    struct piece_reader_options opt;
    uint64_t file;           /* number of the open file, or else of the next file */
    struct decoded *decoded; /* NULL: no file is open */
    uint64_t bytes_before;   /* bytes of the files before this file */
    char *buffer;            /* text that was read but not given out */
    size_t n, cap;
    enum piece_content content;
    bool ended;            /* the file has no more text */
    bool begun;            /* a piece of the file was given out */
    bool open_array;       /* the values are in an array whose end has not been read yet */
    uint64_t line, record; /* lines and records read so far */
    struct data_left_out left_out;
    bool skips;               /* skips the rest of a line that is too long */
    struct titan_error fault; /* why the file ended early */
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
    decoded_close(TAKE(r->decoded));
    r->file++;
    r->n = 0;
}

void data_piece_reader_close(struct piece_reader *r)
{
    if (!r)
        return;
    decoded_close(r->decoded);
    free(r->buffer);
    free(r);
}

const struct data_left_out *data_piece_reader_left_out(const struct piece_reader *r)
{
    return &r->left_out;
}

/* Returns the place after the last newline of the buffer. It searches from `from` on. 0: no newline. */
static size_t last_line_end(const struct piece_reader *r, size_t from)
{
    titan_assert(from <= r->n || !r->buffer);
    const char *newline = r->n > from ? memrchr(r->buffer + from, '\n', r->n - from) : NULL;
    return newline ? (size_t)(newline - r->buffer) + 1 : 0;
}

/* Reads until the buffer holds `want` bytes, or the file ends. Damaged packed data also ends the file. */
static titan_status fill(struct piece_reader *r, size_t want, struct titan_error *err)
{
    size_t got = 0;
    if (r->ended || r->n >= want)
        return TITAN_OK;
    if (!VEC_RESERVE(r->buffer, r->cap, want))
        return titan_fail(err, TITAN_ENOMEM, "no memory for %zu bytes of '%s'", want, r->opt.files->file[r->file].path);
    const size_t before = r->n;
    const titan_status status = decoded_read(r->decoded, r->buffer + r->n, want - r->n, &got, &r->fault);
    r->n = before + got;
    titan_assert(r->n <= r->cap);
    if (status == TITAN_OK || status == TITAN_ECORRUPT) {
        r->ended = r->n < want || status != TITAN_OK;
        if (status != TITAN_OK && r->content == PIECE_LINES) /* drops an incomplete line, which is no record */
            r->n = last_line_end(r, 0);
        return TITAN_OK;
    }
    if (err)
        *err = r->fault;
    return status;
}

/* Gives the buffer's first n bytes to the piece, with room for one more byte. The rest moves to a new buffer. */
static titan_status give(struct piece_reader *r, size_t n, struct piece *ret, struct titan_error *err)
{
    titan_assert(r->buffer && n <= r->n);
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
    titan_assert(r->decoded);
    ret->file = r->file;
    ret->content = r->content;
    ret->first_record = r->record + 1;
    ret->first_line = r->line + 1;
    ret->place = r->bytes_before + decoded_place(r->decoded);
}

/* Ends the file. A fault of the file itself becomes a bad record in its own piece. *ret_any: there was such a fault,
 * and *ret is its piece. */
static void end_file(struct piece_reader *r, struct piece *ret, bool *ret_any)
{
    *ret_any = r->fault.status != TITAN_OK;
    if (*ret_any) {
        begin_piece(r, ret);
        ret->bad = (struct bad_record){
            .record = r->record + 1,
            .line = r->content != PIECE_TEXT ? r->line + 1 : 0,
            .why = strstr(r->fault.msg, "array")     ? "the array has no end, the file is cut off"
                   : strstr(r->fault.msg, "cut off") ? "the compressed data is cut off, what follows is lost"
                                                     : "the compressed data is damaged, what follows is lost"};
        r->fault = (struct titan_error){0};
        return; /* the next call closes the file */
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

/* Skips the rest of a line. */
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
    r->record = ++r->line;
    return TITAN_OK;
}

/* Number of the file's records that an earlier build has written. */
static uint64_t records_done(const struct piece_reader *r)
{
    return r->opt.from.file == r->file ? r->opt.from.record : 0;
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
            ret->bad = (struct bad_record){r->record + 1, r->line + 1, "a line of more than 1 GiB"};
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
    const bool last = r->buffer[n - 1] != '\n';
    r->record = r->line += count_lines(r->buffer, n) + last;
    *ret_any = true;
    return give(r, n, ret, err);
}

/* Returns the bytes of the buffer's first whole records, and their number. It stops after about PIECE_BYTES. It also
 * stops after the last record that an earlier build has written. */
static size_t last_value_end(struct piece_reader *r, uint64_t *ret_records)
{
    const uint64_t done = records_done(r);
    size_t end = 0;
    *ret_records = 0;
    for (size_t at = 0; r->n > 0 && end < PIECE_BYTES && (r->record >= done || r->record + *ret_records < done);) {
        const size_t gap = jsonl_gap(r->buffer + at, r->n - at);
        r->open_array = r->open_array && !memchr(r->buffer + at, ']', gap);
        const size_t n = jsonl_value(r->buffer + at + gap, r->n - at - gap);
        if (n == 0)
            break;
        end = at += gap + n;
        ++*ret_records;
    }
    return end;
}

/* Makes a piece of JSON over several lines, or of an array of records. */
static titan_status next_values(struct piece_reader *r, struct piece *ret, bool *ret_any, struct titan_error *err)
{
    size_t n = 0;
    uint64_t records = 0;
    for (size_t want = PIECE_BYTES; n == 0; want = MIN(2 * want, LINE_BYTES_MAX + 1)) {
        TRY(fill(r, want, err));
        n = last_value_end(r, &records);
        if (n == 0 && r->ended) { /* the rest is spaces or an incomplete record, which the encoder reports as bad */
            const size_t gap = jsonl_gap(r->buffer, r->n);
            n = gap < r->n && r->fault.status == TITAN_OK ? r->n : 0;
            records = n > 0;
            r->n = n;
            if (n == 0 && r->open_array && r->fault.status == TITAN_OK)
                (void)titan_fail(&r->fault, TITAN_ECORRUPT, "the array has no end");
            r->open_array = false;
            break;
        }
        if (n == 0 && r->n > LINE_BYTES_MAX) {
            begin_piece(r, ret);
            ret->bad =
                (struct bad_record){r->record + 1, r->line + 1, "a record of more than 1 GiB, what follows is lost"};
            *ret_any = true;
            r->n = 0;
            r->ended = true;
            r->open_array = false;
            return TITAN_OK;
        }
    }
    if (n == 0) {
        end_file(r, ret, ret_any);
        return TITAN_OK;
    }
    const bool done = r->record + records <= records_done(r);
    if (!done)
        begin_piece(r, ret);
    r->line += count_lines(r->buffer, n);
    r->record += records;
    *ret_any = !done;
    if (!done)
        return give(r, n, ret, err);
    r->n -= n;
    memmove(r->buffer, r->buffer + n, r->n);
    return TITAN_OK;
}

/* Finds by the first bytes whether the file has a record per line, an array of records, or records over several lines.
 * Skips the lines that an earlier build has written. */
static titan_status begin_records(struct piece_reader *r, struct titan_error *err)
{
    r->content = PIECE_LINES;
    TRY(fill(r, PIECE_BYTES, err));
    const size_t n = r->n;
    size_t at = 0;
    while (at < n && strchr(" \t\r\n", r->buffer[at]) && r->buffer[at])
        at++;
    if (at < n && r->buffer[at] == '[') {
        r->content = PIECE_VALUES;
        r->open_array = true;
        r->buffer[at] = ' ';
    } else if (at < n && r->buffer[at] == '{') {
        do
            at++;
        while (at < n && (r->buffer[at] == ' ' || r->buffer[at] == '\t' || r->buffer[at] == '\r'));
        if (at < n && r->buffer[at] == '\n')
            r->content = PIECE_VALUES;
    }
    while (r->content == PIECE_LINES && r->line < records_done(r) && !(r->ended && r->n == 0)) {
        r->skips = true;
        TRY(skip_line(r, err));
    }
    return TITAN_OK;
}

static bool spaced(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* Is `end` right after a newline with an ASCII character before and after it, neither of them a space? Then no match of
 * a tokenizer's pattern crosses `end`. */
static bool ends_line(const char *text, size_t end)
{
    const unsigned char before = (unsigned char)text[end - 2], after = (unsigned char)text[end];
    return text[end - 1] == '\n' && before < 0x80 && after < 0x80 && !spaced((char)before) && !spaced((char)after) &&
           after != '/'; /* o200k's pattern matches '/' together with the line end before it */
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
    while (end > TEXT_CUT_MAX - 4 && ((unsigned char)text[end] & 0xc0) == 0x80) /* does not cut inside a character */
        end--;
    return end;
}

static titan_status next_text(struct piece_reader *r, struct piece *ret, bool *ret_any, struct titan_error *err)
{
    size_t n = 0;
    for (size_t want = 2 * PIECE_BYTES; n == 0; want = MIN(2 * want, TEXT_CUT_MAX + PIECE_BYTES)) {
        TRY(fill(r, want, err));
        if (!r->begun && memchr(r->buffer ? r->buffer : "", 0, MIN(r->n, (size_t)BINARY_PROBE_BYTES))) {
            data_leave_out(&r->left_out, OMITTED_BINARY, r->opt.files->file[r->file].path, 0);
            r->fault = (struct titan_error){0};
            leave_file(r);
            return TITAN_OK;
        }
        n = data_piece_cut(r->buffer, r->n);
        if (n == r->n && !r->ended) /* more text must be read before the place of the cut is known */
            n = 0;
        if (r->ended)
            break;
    }
    if (r->n == 0) { /* the file is empty, or all of it was given out */
        end_file(r, ret, ret_any);
        return TITAN_OK;
    }
    begin_piece(r, ret);
    ret->begins = !r->begun;
    ret->ends = r->ended && n == r->n;
    r->begun = true;
    r->line += count_lines(r->buffer, n);
    *ret_any = true;
    return give(r, n, ret, err);
}

titan_status data_piece_reader_next(struct piece_reader *r, struct piece *ret, bool *ret_any, struct titan_error *err)
{
    *ret_any = false;
    while (!*ret_any && r->file < r->opt.files->n) {
        if (!r->decoded) {
            TRY(decoded_open(r->opt.files->file[r->file].path, r->opt.encoding, &r->decoded, err));
            r->ended = r->begun = r->skips = r->open_array = false;
            r->n = r->line = r->record = 0;
            r->content = PIECE_TEXT;
            if (r->opt.lines[r->file])
                TRY(begin_records(r, err));
        }
        TRY((r->content == PIECE_TEXT    ? next_text
             : r->content == PIECE_LINES ? next_lines
                                         : next_values)(r, ret, ret_any, err));
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

/* Encodes one record. `at` has its number and the line where it begins. */
static titan_status encode_record(struct piece_encoder *e, struct piece *p, char *text, size_t n, struct bad_record at,
                                  struct titan_error *err)
{
    struct chat_tokens *const t = &e->turn;
    char *its;
    size_t len;
    if (e->chat) {
        if (!chat_encode(e->chat, e->encoder, text, n, t, err)) {
            at.why = t->why;
            if (!at.why)
                return err ? err->status : TITAN_ENOMEM;
            return VEC_PUSH(p->bads, p->n_bads, p->cap_bads, at) ? TITAN_OK : no_memory(p, err);
        }
        if (!VEC_RESERVE(p->trained, p->cap_trained, p->n_ids + t->n))
            return no_memory(p, err);
        memcpy(p->trained + p->n_ids, t->trained, t->n);
        TRY(put_ids(e, p, t->ids.ids, t->n, err));
        p->text_bytes += t->text_bytes;
        const struct piece_document document = {
            .end = p->n_ids, .text_bytes = p->text_bytes, .after = {p->file, at.record}};
        return VEC_PUSH(p->documents, p->n_documents, p->cap_documents, document) ? TITAN_OK : no_memory(p, err);
    }
    if (!jsonl_text(text, n, e->field, &its, &len, &at.why))
        return VEC_PUSH(p->bads, p->n_bads, p->cap_bads, at) ? TITAN_OK : no_memory(p, err);
    TRY(begin_document(e, p, err));
    TRY(put_text(e, p, its, len, err));
    return end_document(e, p, (struct input_place){p->file, at.record}, err);
}

static titan_status encode_lines(struct piece_encoder *e, struct piece *p, struct titan_error *err)
{
    titan_assert(p->content == PIECE_LINES);
    uint64_t number = p->first_line;
    p->bytes[p->n] = '\n'; /* the last line may lack its newline */
    for (size_t at = 0; at < p->n; number++) {
        char *line = p->bytes + at;
        const size_t n = (size_t)((char *)memchr(line, '\n', p->n + 1 - at) - line);
        if (strspn(line, " \t\r") < n) /* the line is not blank; the newline after it ends strspn() */
            TRY(encode_record(e, p, line, n, (struct bad_record){.record = number, .line = number}, err));
        at += n + 1;
    }
    return TITAN_OK;
}

static titan_status encode_values(struct piece_encoder *e, struct piece *p, struct titan_error *err)
{
    titan_assert(p->content == PIECE_VALUES);
    struct bad_record here = {.record = p->first_record, .line = p->first_line};
    for (size_t at = 0;; here.record++) {
        const size_t gap = jsonl_gap(p->bytes + at, p->n - at);
        here.line += count_lines(p->bytes + at, gap);
        at += gap;
        if (at == p->n)
            return TITAN_OK;
        const size_t whole = jsonl_value(p->bytes + at, p->n - at), n = whole ? whole : p->n - at;
        const uint64_t lines = count_lines(p->bytes + at, n); /* before decoding overwrites the record */
        TRY(encode_record(e, p, p->bytes + at, n, here, err));
        here.line += lines;
        at += n;
    }
}

static titan_status encode_text(struct piece_encoder *e, struct piece *p, struct titan_error *err)
{
    for (size_t at = 0, good; !e->any_bytes && at < p->n; at += good + 1) {
        good = utf8_check(p->bytes + at, p->n - at);
        if (at + good < p->n && p->replaced++ == 0)
            p->replaced_line = p->first_line + count_lines(p->bytes, at + good);
    }
    if (p->begins)
        TRY(begin_document(e, p, err));
    TRY(put_text(e, p, p->bytes, p->n, err));
    return p->ends ? end_document(e, p, (struct input_place){p->file + 1, 0}, err) : TITAN_OK;
}

titan_status data_piece_encode(struct piece_encoder *e, struct piece *p, struct titan_error *err)
{
    if (p->bad.why)
        return VEC_PUSH(p->bads, p->n_bads, p->cap_bads, p->bad) ? TITAN_OK : no_memory(p, err);
    TRY((p->content == PIECE_TEXT ? encode_text : p->content == PIECE_LINES ? encode_lines : encode_values)(e, p, err));
    free(TAKE(p->bytes));
    return TITAN_OK;
}
