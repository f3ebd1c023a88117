/* SPDX-License-Identifier: Apache-2.0 */
/* output.h - results on stdout: any message of the API as JSON, tables and times for people. */
#ifndef TITAN_CTL_OUTPUT_H
#define TITAN_CTL_OUTPUT_H

#include <stdbool.h>
#include <stdint.h>

#include <protobuf-c/protobuf-c.h>

#include "base/buf.h"
#include "base/json.h"
#include "titan/v1/titan.pb-c.h"

/* A message as a JSON object with the names of its .proto. An int64 NAME_ms is a point in time: it becomes NAME, an
 * RFC 3339 string in UTC, or null when it has not come. Null is also what an empty string and a non-finite number
 * become. Enum values are their names, bytes are text, a string called "detail" holds JSON and goes in as such, if it
 * is one line. */
void output_message(struct json_writer *w, const char *key, const ProtobufCMessage *message);
/* The same for the named fields only, in the descriptor's order, inside an object the caller has begun. */
void output_fields(struct json_writer *w, const ProtobufCMessage *message);

/* Append the text to stdout with a newline and flush. False when the reader has closed its end. */
bool output_line(const struct buf *text);
bool output_json(const ProtobufCMessage *message, bool pretty);

/* --- tables ------------------------------------------------------------------------------------------------------- */
enum { TABLE_COLUMNS = 16 };
/* The option of a command that cuts its tables to the terminal; of: "list: ", where its other words print none. */
#define TABLE_WIDE(of)                                                                                                 \
    {                                                                                                                  \
        "wide", 'w', NULL, of "all columns in full; else what does not fit the terminal is cut or left out", WORD_NONE \
    }
struct table_out {
    struct buf cells; /* NUL-terminated cells, one after the other */
    int columns, rows;
    int width[TABLE_COLUMNS];
    bool right[TABLE_COLUMNS]; /* numbers */
    bool give[TABLE_COLUMNS];  /* cut when there is no room */
    bool spare[TABLE_COLUMNS]; /* left out when that is not enough */
    bool out[TABLE_COLUMNS];   /* is left out */
    int room;                  /* columns of the terminal; 0 = any number */
};
/* Columns of the terminal on stdout ($COLUMNS wins); 0 when it is none. */
int output_columns(void);
/* A terminal that can move its cursor and has colours: TERM is neither "dumb" nor missing. */
bool output_terminal(int fd);
/* Columns a terminal needs for UTF-8 text: wide characters take two, combining ones none. */
int output_text_columns(const char *text);
/* Bytes of UTF-8 text that fit into so many columns; *ret_left: how many stay free. */
size_t output_text_fits(const char *text, int columns, int *ret_left);
/* headings: "ID>" is right-aligned; where room is set, "NAME~" gives way and, when that is not enough, those that begin
 * with '?' are left out, the last one first; at last, so are all others, but for the first. NULL ends it. */
void table_begin(struct table_out *t, const char *const *headings);
void table_cell(struct table_out *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Write the whole table into out; the last column is not padded. Frees t. state_column >= 0: that column is coloured by
 * job state when color. */
void table_end(struct table_out *t, struct buf *out, int state_column, bool color);

const char *output_state_color(const char *state_name); /* escape sequence; "" for none */
#define COLOR_OFF "\033[0m"

/* "2h 3m ago"; "-" for 0. */
char *output_ago(int64_t at_ms, int64_t now_ms, char text[48]);
/* "14:03:22Z": in UTC, as all times that are printed. */
char *output_clock(int64_t at_ms, char text[16]);

/* What of a reply is printed as text is no more than that: in its strings, whatever would change how a terminal shows
 * them becomes '?'. */
void output_fit(const ProtobufCMessage *message);

#endif
