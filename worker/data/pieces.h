/* SPDX-License-Identifier: Apache-2.0 */
/* pieces.h - cuts text files into pieces of work, and tokenizes pieces. */
#ifndef TITAN_WORKER_DATA_PIECES_H
#define TITAN_WORKER_DATA_PIECES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "worker/data/chat.h"
#include "worker/data/decoded.h"
#include "worker/data/files.h"
#include "worker/tokenizer/tokenizer.h"

#define PIECE_BYTES ((size_t)1 << 20)
#define LINE_BYTES_MAX ((size_t)1 << 30)

/* A place in the input: the end of a file's completed records, or of the whole file. Records count from 1; records of
 * JSON lines are lines, empty lines included. */
struct input_place {
    uint64_t file, record; /* behind record number `record` of file number `file`; record 0 = at its beginning */
};

struct bad_record {
    uint64_t record, line; /* line: line where the record begins; 0 = no line */
    const char *why;
};

struct piece_document {
    uint64_t end;        /* number of the piece's tokens up to and including this document's eos */
    uint64_t text_bytes; /* bytes of the piece's text, up to and including this document */
    struct input_place after;
};

struct piece {
    uint64_t file;
    enum piece_content { PIECE_TEXT, PIECE_LINES, PIECE_VALUES } content; /* text of one document, or whole records */
    bool begins, ends;                                                    /* text: the document begins or ends here */
    uint64_t first_record, first_line;                                    /* from 1 */
    struct bad_record bad; /* if bad.why is set, the piece is this bad record and has no bytes */
    uint64_t place;        /* bytes of all files up to this piece, for progress reports */
    char *bytes;
    size_t n;

    /* Set by data_piece_encode: */
    uint8_t *ids;     /* of `width` bytes each */
    uint8_t *trained; /* per token, 0 or 1; NULL = all are */
    size_t cap_trained;
    uint64_t n_ids, cap_ids, text_bytes, id_max;
    struct piece_document *documents;
    size_t n_documents, cap_documents;
    struct bad_record *bads; /* in input order */
    size_t n_bads, cap_bads;
    uint64_t replaced, replaced_line; /* text: invalid UTF-8 parts replaced by U+FFFD; line of the first part */
};
void data_piece_clear(struct piece *p);

/* --- cutting ------------------------------------------------------------------------------------------------------ */

struct piece_reader;
struct piece_reader_options {
    const struct data_files *files; /* borrowed */
    const bool *lines;              /* per file: JSON, not text */
    enum text_encoding encoding;    /* for files without a byte order mark */
    struct input_place from;
};
titan_status data_piece_reader_open(const struct piece_reader_options *options, struct piece_reader **ret,
                                    struct titan_error *err) TITAN_MUST_USE;
void data_piece_reader_close(struct piece_reader *r);
/* *ret must be zeroed, and becomes the next piece. *ret_any false = the end. */
titan_status data_piece_reader_next(struct piece_reader *r, struct piece *ret, bool *ret_any,
                                    struct titan_error *err) TITAN_MUST_USE;
/* Files skipped because they are no text. */
const struct data_left_out *data_piece_reader_left_out(const struct piece_reader *r);
/* Size of the next piece of n bytes of text. The piece ends with the end of a line near PIECE_BYTES that has no other
 * white space around it. */
size_t data_piece_cut(const char *text, size_t n);

/* --- encoding ----------------------------------------------------------------------------------------------------- */

struct piece_encoder {
    struct tokenizer_encoder *encoder;
    struct tokens ids;       /* ids of one cut */
    const struct chat *chat; /* records are conversations; NULL: texts */
    struct chat_tokens turn; /* tokens of one conversation */
    const char *field;
    bool any_bytes;   /* the tokenizer accepts invalid UTF-8 unchanged */
    int32_t bos, eos; /* bos TOKEN_NONE = none */
    uint32_t width;
};
/* Any thread; an encoder belongs to one thread. Consumes the piece's bytes. */
titan_status data_piece_encode(struct piece_encoder *e, struct piece *p, struct titan_error *err) TITAN_MUST_USE;

#endif
