/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/output.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/units.h"
#include "base/utf8.h"
#include "proto/message_json.h"

bool output_line(const struct buf *text)
{
    titan_assert(text->len == 0 || text->data);
    if (text->len)
        (void)fwrite(text->data, 1, text->len, stdout);
    if (!text->len || text->data[text->len - 1] != '\n')
        (void)fputc('\n', stdout);
    return fflush(stdout) == 0;
}

bool output_json(const ProtobufCMessage *message, bool pretty)
{
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    struct json_writer w = {.out = &text, .pretty = pretty};
    message_json(&w, NULL, message);
    return output_line(&text);
}

/* --- tables ------------------------------------------------------------------------------------------------------- */

int output_columns(void)
{
    struct winsize size;
    const char *columns = getenv("COLUMNS");
    if (!isatty(STDOUT_FILENO))
        return 0;
    if (columns && atoi(columns) > 0)
        return atoi(columns);
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

bool output_terminal(int fd)
{
    const char *term = getenv("TERM");
    return isatty(fd) && term && *term && strcmp(term, "dumb") != 0;
}

/* Columns of a character. The table has Unicode's East Asian Width W and F and combining characters, in the ranges
 * found in names. Terminals differ on joined emoji. */
static int code_columns(uint32_t code)
{
    static const struct {
        uint32_t from, to;
        int columns;
    } ranges[] = {{0x300, 0x36f, 0},     {0x483, 0x489, 0},     {0x591, 0x5bd, 0},     {0x610, 0x61a, 0},
                  {0x64b, 0x65f, 0},     {0x941, 0x948, 0},     {0x94d, 0x94d, 0},     {0xe31, 0xe31, 0},
                  {0xe34, 0xe3a, 0},     {0xe47, 0xe4e, 0},     {0x200b, 0x200f, 0},   {0x202a, 0x202e, 0},
                  {0x2060, 0x2064, 0},   {0x20d0, 0x20ff, 0},   {0xfe00, 0xfe0f, 0},   {0xfe20, 0xfe2f, 0},
                  {0xfeff, 0xfeff, 0},   {0x1f3fb, 0x1f3ff, 0}, {0xe0100, 0xe01ef, 0}, {0x1100, 0x115f, 2},
                  {0x231a, 0x231b, 2},   {0x23e9, 0x23ec, 2},   {0x23f0, 0x23f0, 2},   {0x23f3, 0x23f3, 2},
                  {0x25fd, 0x25fe, 2},   {0x2614, 0x2615, 2},   {0x2648, 0x2653, 2},   {0x267f, 0x267f, 2},
                  {0x2693, 0x2693, 2},   {0x26a1, 0x26a1, 2},   {0x26aa, 0x26ab, 2},   {0x26bd, 0x26be, 2},
                  {0x26c4, 0x26c5, 2},   {0x26ce, 0x26ce, 2},   {0x26d4, 0x26d4, 2},   {0x26ea, 0x26ea, 2},
                  {0x26f2, 0x26f3, 2},   {0x26f5, 0x26f5, 2},   {0x26fa, 0x26fa, 2},   {0x26fd, 0x26fd, 2},
                  {0x2705, 0x2705, 2},   {0x270a, 0x270b, 2},   {0x2728, 0x2728, 2},   {0x274c, 0x274c, 2},
                  {0x274e, 0x274e, 2},   {0x2753, 0x2755, 2},   {0x2757, 0x2757, 2},   {0x2795, 0x2797, 2},
                  {0x27b0, 0x27b0, 2},   {0x27bf, 0x27bf, 2},   {0x2b1b, 0x2b1c, 2},   {0x2b50, 0x2b50, 2},
                  {0x2b55, 0x2b55, 2},   {0x2e80, 0x303e, 2},   {0x3041, 0xa4cf, 2},   {0xa960, 0xa97c, 2},
                  {0xac00, 0xd7a3, 2},   {0xf900, 0xfaff, 2},   {0xfe30, 0xfe6f, 2},   {0xff00, 0xff60, 2},
                  {0xffe0, 0xffe6, 2},   {0x1f004, 0x1f004, 2}, {0x1f0cf, 0x1f0cf, 2}, {0x1f18e, 0x1f18e, 2},
                  {0x1f191, 0x1f19a, 2}, {0x1f200, 0x1f265, 2}, {0x1f300, 0x1f64f, 2}, {0x1f680, 0x1f6ff, 2},
                  {0x1f7e0, 0x1f7eb, 2}, {0x1f900, 0x1faff, 2}, {0x20000, 0x3fffd, 2}};
    for (size_t i = 0; i < ARRAY_SIZE(ranges); i++)
        if (code >= ranges[i].from && code <= ranges[i].to)
            return ranges[i].columns;
    return 1;
}

/* Decodes the UTF-8 character at text; also returns its length. */
static uint32_t next_code(const char *text, int *ret_bytes)
{
    const unsigned char *c = (const unsigned char *)text;
    int n = c[0] < 0xc0 ? 1 : c[0] < 0xe0 ? 2 : c[0] < 0xf0 ? 3 : 4;
    uint32_t code = n == 1 ? c[0] : c[0] & (0x7fu >> n);
    int i = 1;
    for (; i < n && (c[i] & 0xc0) == 0x80; i++)
        code = code << 6 | (c[i] & 0x3f);
    *ret_bytes = i;
    return code;
}

size_t output_text_fits(const char *text, int columns, int *ret_left)
{
    titan_assert(columns >= 0);
    const char *at = text;
    for (int bytes; *at; at += bytes) {
        int more = code_columns(next_code(at, &bytes));
        if (more > columns)
            break;
        columns -= more;
    }
    *ret_left = columns;
    return (size_t)(at - text);
}

int output_text_columns(const char *text)
{
    int columns = 0;
    for (int bytes; *text; text += bytes)
        columns += code_columns(next_code(text, &bytes));
    return columns;
}

void output_fit(const ProtobufCMessage *message)
{
    for (unsigned i = 0; i < message->descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *f = &message->descriptor->fields[i];
        const bool many = f->label == PROTOBUF_C_LABEL_REPEATED;
        const char *member = (const char *)message + f->offset;
        const size_t n = many ? *(const size_t *)(const void *)((const char *)message + f->quantifier_offset) : 1;
        void *const *values = many ? *(void *const *const *)(const void *)member : (void *const *)(const void *)member;
        if (f->type != PROTOBUF_C_TYPE_STRING && f->type != PROTOBUF_C_TYPE_MESSAGE)
            continue;
        for (size_t k = 0; values && k < n; k++) {
            char *text = values[k];
            if (text && f->type == PROTOBUF_C_TYPE_MESSAGE)
                output_fit(values[k]);
            else if (text && text_unfit(text, strlen(text)) < strlen(text)) /* defaults are constants, and are safe */
                text_fit(text, '?');
        }
    }
}

void table_begin(struct table_out *t, const char *const *headings)
{
    memset(t, 0, sizeof(*t));
    while (headings[t->columns])
        t->columns++;
    titan_assert(t->columns <= TABLE_COLUMNS && headings[t->columns - 1][0] != '?');
    for (int i = 0; i < t->columns; i++) {
        const char *name = headings[i];
        t->spare[i] = *name == '?';
        name += t->spare[i];
        size_t len = strlen(name);
        t->right[i] = len > 0 && name[len - 1] == '>';
        t->give[i] = len > 0 && name[len - 1] == '~';
        table_cell(t, "%.*s", (int)len - (t->right[i] || t->give[i]), name);
    }
}

void table_cell(struct table_out *t, const char *fmt, ...)
{
    char text[512];
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    text_fit(text, '?');
    int column = t->rows % t->columns; /* until table_end(), `rows` counts cells */
    titan_assert(column < TABLE_COLUMNS);
    t->width[column] = MAX(t->width[column], output_text_columns(text));
    (void)!buf_append(&t->cells, text, strlen(text) + 1);
    t->rows++;
}

enum { CUT_LEAST = 8 };

/* Columns of a line; least: with cuttable columns at their narrowest. */
static int table_width(const struct table_out *t, bool least)
{
    int total = -2;
    for (int i = 0; i < t->columns; i++)
        if (!t->out[i])
            total += 2 + (least && t->give[i] ? MIN(t->width[i], CUT_LEAST) : t->width[i]);
    return total;
}

void table_end(struct table_out *t, struct buf *out, int state_column, bool color)
{
    titan_assert(t->rows % t->columns == 0 && state_column < t->columns);
    const char *cell = t->cells.data;
    int end = t->columns - 1;

    /* Leaves out spare columns until lines can fit. Then cuts the widest cuttable column repeatedly, until lines fit or
     * nothing is left to cut. If lines are still too long, their right end is left out. */
    titan_assert(t->columns > 0);
    for (int i = t->columns; i-- > 0;)
        t->out[i] = t->spare[i] && t->room > 0 && table_width(t, true) > t->room;
    for (int total = table_width(t, false); t->room > 0 && total > t->room; total--) {
        int widest = -1;
        for (int i = 0; i < t->columns; i++)
            if (t->give[i] && t->width[i] > CUT_LEAST && (widest < 0 || t->width[i] > t->width[widest]))
                widest = i;
        if (widest < 0)
            break;
        t->width[widest]--;
    }
    for (int i = t->columns; --i > 0 && t->room > 0 && table_width(t, false) > t->room;)
        t->out[i] = true;

    while (t->out[end])
        end--;
    for (int i = 0; i < t->rows; i++, cell += strlen(cell) + 1) {
        int column = i % t->columns, columns = output_text_columns(cell);
        bool last = column == end, cut = t->give[column] && columns > t->width[column];
        if (t->out[column])
            continue;
        const char *paint = color && column == state_column && i >= t->columns ? output_state_color(cell) : "";
        int pad = t->width[column] - columns;
        size_t bytes = cut ? output_text_fits(cell, t->width[column] - 1, &pad) : strlen(cell);
        if (t->right[column])
            buf_printf(out, "%*s", pad, "");
        buf_printf(out, "%s%.*s%s%s", paint, (int)bytes, cell, cut ? "\u2026" : "", *paint ? COLOR_OFF : "");
        if (!t->right[column] && !last)
            buf_printf(out, "%*s", pad, "");
        buf_puts(out, last ? "\n" : "  ");
    }
    buf_free(&t->cells);
}

void table_print(struct table_out *t, const struct args *args, int state_column, bool color)
{
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    t->room = args_has(args, "wide") ? 0 : output_columns();
    table_end(t, &text, state_column, color);
    (void)output_line(&text);
}

const char *output_state_color(const char *state_name)
{
    static const struct {
        const char *name, *color;
    } colors[] = {{"RUNNING", "\033[32m"},   {"COMPLETED", "\033[32;1m"}, {"FAILED", "\033[31;1m"},
                  {"CANCELLED", "\033[33m"}, {"CANCELLING", "\033[33m"},  {"RECOVERING", "\033[35m"},
                  {"RESIZING", "\033[35m"},  {"FORMING", "\033[36m"},     {"PENDING", "\033[36m"}};
    for (size_t i = 0; i < ARRAY_SIZE(colors); i++)
        if (strcmp(colors[i].name, state_name) == 0)
            return colors[i].color;
    return "";
}

char *output_ago(int64_t at_ms, int64_t now_ms, char text[48])
{
    char duration[UNITS_TEXT];
    if (at_ms <= 0)
        (void)snprintf(text, 48, "-");
    else if (now_ms - at_ms < 1000)
        (void)snprintf(text, 48, "now");
    else
        (void)snprintf(text, 48, "%s ago", format_duration(floor((double)(now_ms - at_ms) / 1000), duration));
    return text;
}

char *output_clock(int64_t at_ms, char text[16])
{
    time_t seconds = (time_t)(at_ms / 1000);
    struct tm utc;
    if (!gmtime_r(&seconds, &utc) || strftime(text, 16, "%H:%M:%SZ", &utc) == 0)
        (void)snprintf(text, 16, "--:--:--Z");
    return text;
}
