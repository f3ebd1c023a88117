/* SPDX-License-Identifier: Apache-2.0 */
/* pieces.h - files of text cut into pieces of work, and the tokens of a piece. */
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

/* Where in the input something ends: records of a file that are done, or the whole file. Records count from 1; those of
 * JSON lines are lines, also empty ones. */
struct input_place {
    uint64_t file, record; /* file number `file`, behind its record number `record`; 0: at its beginning */
};

struct bad_record {
    uint64_t record, line; /* line: where it begins; 0: of no line */
    const char *why;
};

struct piece_document {
    uint64_t end;        /* tokens of the piece up to and with its eos */
    uint64_t text_bytes; /* with those of earlier pieces of the same document in this piece's count */
    struct input_place after;
};

struct piece {
    uint64_t file;
    enum piece_content { PIECE_TEXT, PIECE_LINES, PIECE_VALUES } content; /* text of one document, or whole records */
    bool begins, ends;                                                    /* text: the document does */
    uint64_t first_record, first_line;                                    /* numbers, from 1 */
    struct bad_record bad;                                                /* why set: in place of any bytes */
    uint64_t place; /* bytes of all files up to here, for progress */
    char *bytes;
    size_t n;

    /* data_piece_encode: */
    uint8_t *ids;     /* of `width` bytes */
    uint8_t *trained; /* of each, 0 or 1; NULL: all are */
    size_t cap_trained;
    uint64_t n_ids, cap_ids, text_bytes, id_max;
    struct piece_document *documents;
    size_t n_documents, cap_documents;
    struct bad_record *bads; /* in their order */
    size_t n_bads, cap_bads;
    uint64_t replaced, replaced_line; /* text: parts that are not UTF-8, and became U+FFFD; line of the first */
};
void data_piece_clear(struct piece *p);

/* --- cutting ------------------------------------------------------------------------------------------------------ */

struct piece_reader;
struct piece_reader_options {
    const struct data_files *files; /* borrowed */
    const bool *lines;              /* of each file: JSON, not text */
    enum text_encoding encoding;    /* of files without a byte order mark */
    struct input_place from;
};
titan_status data_piece_reader_open(const struct piece_reader_options *options, struct piece_reader **ret,
                                    struct titan_error *err) TITAN_MUST_USE;
void data_piece_reader_close(struct piece_reader *r);
/* *ret, empty before, is the next piece; *ret_any false: there is none. */
titan_status data_piece_reader_next(struct piece_reader *r, struct piece *ret, bool *ret_any,
                                    struct titan_error *err) TITAN_MUST_USE;
/* Files passed over because they are no text. */
const struct data_left_out *data_piece_reader_left_out(const struct piece_reader *r);
/* Bytes of the next piece of n bytes of text: to the end of a line near PIECE_BYTES, where text goes on with no space.
 */
size_t data_piece_cut(const char *text, size_t n);

/* --- encoding ----------------------------------------------------------------------------------------------------- */

struct piece_encoder {
    struct tokenizer_encoder *encoder;
    struct tokens ids;       /* of one cut */
    const struct chat *chat; /* records are conversations; NULL: texts */
    struct chat_tokens turn; /* of one */
    const char *field;
    bool any_bytes;   /* the tokenizer takes what is not UTF-8 as it is */
    int32_t bos, eos; /* bos TOKEN_NONE: none */
    uint32_t width;
};
/* Any thread; an encoder is one thread's. The piece's bytes are spent. */
titan_status data_piece_encode(struct piece_encoder *e, struct piece *p, struct titan_error *err) TITAN_MUST_USE;

#endif
