/* SPDX-License-Identifier: Apache-2.0 */
/* output.h - results on stdout: API messages as JSON, tables and times for people. */
#ifndef TITAN_CTL_OUTPUT_H
#define TITAN_CTL_OUTPUT_H

#include <stdbool.h>
#include <stdint.h>

#include <protobuf-c/protobuf-c.h>

#include "base/buf.h"
#include "base/json.h"
#include "base/options.h"
#include "titan/v1/titan.pb-c.h"

/* Writes the text and a newline to stdout and flushes. False: the reader has closed its end. */
bool output_line(const struct buf *text);
bool output_json(const ProtobufCMessage *message, bool pretty);

/* --- tables ------------------------------------------------------------------------------------------------------- */
enum { TABLE_COLUMNS = 16 };
/* The option --wide of commands that cut tables to the terminal. of: "list: " begins its help in a command of which
 * only `list` prints a table; otherwise "". */
#define TABLE_WIDE(of)                                                                                                 \
    {                                                                                                                  \
        "wide", 'w', NULL, of "all columns in full; else what does not fit the terminal is cut or left out", WORD_NONE \
    }
struct table_out {
    struct buf cells; /* NUL-terminated cells, one after another */
    int columns, rows;
    int width[TABLE_COLUMNS];
    bool right[TABLE_COLUMNS]; /* numeric columns */
    bool give[TABLE_COLUMNS];  /* columns to cut first when room is short */
    bool spare[TABLE_COLUMNS]; /* columns to leave out when cutting is not enough */
    bool out[TABLE_COLUMNS];   /* columns left out */
    int room;                  /* columns of the terminal; 0 = unlimited */
};
/* Columns of the terminal on stdout ($COLUMNS wins); 0: stdout is no terminal. */
int output_columns(void);
/* Is fd a terminal with cursor movement and colours? TERM must be set and not "dumb". */
bool output_terminal(int fd);
/* Columns a terminal needs for UTF-8 text: wide characters take two, combining ones none. */
int output_text_columns(const char *text);
/* Bytes of UTF-8 text that fit into this many columns; *ret_left: unused columns. */
size_t output_text_fits(const char *text, int columns, int *ret_left);
/* headings: "ID>" is right-aligned. If room is set, the column "NAME~" is cut first. Then columns whose heading begins
 * with '?' are left out, the last one first; then all other columns except the first. NULL ends the list. */
void table_begin(struct table_out *t, const char *const *headings);
void table_cell(struct table_out *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Writes the whole table into out; the last column is not padded. Frees t. state_column >= 0: with color, this column
 * is coloured by job state. */
void table_end(struct table_out *t, struct buf *out, int state_column, bool color);
/* table_end() on stdout, for a command with TABLE_WIDE. */
void table_print(struct table_out *t, const struct args *args, int state_column, bool color);

const char *output_state_color(const char *state_name); /* escape sequence; "" for none */
#define COLOR_OFF "\033[0m"

/* "2h 3m ago"; "-" for 0. */
char *output_ago(int64_t at_ms, int64_t now_ms, char text[48]);
/* "14:03:22Z" in UTC, as all printed times. */
char *output_clock(int64_t at_ms, char text[16]);

/* Makes the strings of a reply safe to print: characters that change the terminal's display become '?'. */
void output_fit(const ProtobufCMessage *message);

#endif
