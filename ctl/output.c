/* output.c - see output.h. */
#include "ctl/output.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/units.h"
#include "base/utf8.h"

/* --- JSON --------------------------------------------------------------------------------------------------------- */

static void put_string(struct json_writer *w, const char *key, const char *name, const char *value)
{
    struct json *parsed = NULL;
    if (!value || !*value) {
        json_put_string(w, key, NULL);
    } else if (strcmp(name, "detail") == 0 && json_parse(value, strlen(value), &parsed, NULL) == TITAN_OK) {
        json_put_raw(w, key, value);
        json_free(parsed);
    } else {
        json_put_string(w, key, value);
    }
}

static void put_bytes(struct json_writer *w, const char *key, const ProtobufCBinaryData *bytes)
{
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    for (size_t at = 0; at < bytes->len;) {
        const char *from = (const char *)bytes->data + at;
        size_t good = utf8_check(from, bytes->len - at);
        const char *nul = memchr(from, '\0', good);
        if (nul)
            good = (size_t)(nul - from);
        if (buf_append(&text, from, good) != TITAN_OK)
            break;
        at += good;
        if (at < bytes->len) {
            buf_puts(&text, "\xef\xbf\xbd"); /* U+FFFD */
            at++;
        }
    }
    json_put_string(w, key, text.data ? text.data : "");
}

static void put_value(struct json_writer *w, const char *key, const ProtobufCFieldDescriptor *field, const void *value)
{
    switch (field->type) {
    case PROTOBUF_C_TYPE_BOOL:
        json_put_bool(w, key, *(const protobuf_c_boolean *)value != 0);
        break;
    case PROTOBUF_C_TYPE_INT32:
    case PROTOBUF_C_TYPE_SINT32:
    case PROTOBUF_C_TYPE_SFIXED32:
        json_put_int(w, key, *(const int32_t *)value);
        break;
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_SFIXED64:
        json_put_int(w, key, *(const int64_t *)value);
        break;
    case PROTOBUF_C_TYPE_UINT32:
    case PROTOBUF_C_TYPE_FIXED32:
        json_put_uint(w, key, *(const uint32_t *)value);
        break;
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64:
        json_put_uint(w, key, *(const uint64_t *)value);
        break;
    case PROTOBUF_C_TYPE_FLOAT:
        json_put_real(w, key, (double)*(const float *)value);
        break;
    case PROTOBUF_C_TYPE_DOUBLE:
        json_put_real(w, key, *(const double *)value);
        break;
    case PROTOBUF_C_TYPE_ENUM: {
        const ProtobufCEnumValue *name = protobuf_c_enum_descriptor_get_value(field->descriptor, *(const int *)value);
        json_put_string(w, key, name ? name->name : NULL);
        break;
    }
    case PROTOBUF_C_TYPE_STRING:
        put_string(w, key, field->name, *(char *const *)value);
        break;
    case PROTOBUF_C_TYPE_BYTES:
        put_bytes(w, key, value);
        break;
    case PROTOBUF_C_TYPE_MESSAGE:
        if (*(ProtobufCMessage *const *)value)
            output_message(w, key, *(ProtobufCMessage *const *)value);
        else
            json_put_string(w, key, NULL);
        break;
    }
}

static size_t value_size(const ProtobufCFieldDescriptor *field)
{
    switch (field->type) {
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_MESSAGE:
        return sizeof(void *);
    case PROTOBUF_C_TYPE_BYTES:
        return sizeof(ProtobufCBinaryData);
    case PROTOBUF_C_TYPE_DOUBLE:
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_SFIXED64:
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64:
        return 8;
    default:
        return 4;
    }
}

static void put_time(struct json_writer *w, const char *name, size_t len, int64_t at_ms)
{
    char key[64], text[32];
    (void)snprintf(key, sizeof(key), "%.*s", (int)len, name);
    json_put_string(w, key, at_ms > 0 ? clock_format(at_ms, text) : NULL);
}

void output_fields(struct json_writer *w, const ProtobufCMessage *message)
{
    const ProtobufCMessageDescriptor *type = message->descriptor;
    for (unsigned i = 0; i < type->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &type->fields[i];
        const char *base = (const char *)message;
        const char *value = base + field->offset;
        size_t len = strlen(field->name);
        if ((field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) &&
            *(const uint32_t *)(base + field->quantifier_offset) != field->id)
            continue;
        if (field->label == PROTOBUF_C_LABEL_REPEATED) {
            size_t n = *(const size_t *)(base + field->quantifier_offset);
            const char *list = *(const char *const *)value;
            json_begin_array(w, field->name);
            for (size_t k = 0; k < n; k++)
                put_value(w, NULL, field, list + k * value_size(field));
            json_end_array(w);
        } else if (field->type == PROTOBUF_C_TYPE_INT64 && len > 3 && strcmp(field->name + len - 3, "_ms") == 0) {
            put_time(w, field->name, len - 3, *(const int64_t *)value);
        } else {
            put_value(w, field->name, field, value);
        }
    }
}

void output_message(struct json_writer *w, const char *key, const ProtobufCMessage *message)
{
    json_begin_object(w, key);
    output_fields(w, message);
    json_end_object(w);
}

bool output_line(const struct buf *text)
{
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
    output_message(&w, NULL, message);
    return output_line(&text);
}

/* --- tables ------------------------------------------------------------------------------------------------------- */

void table_begin(struct table_out *t, const char *const *headings)
{
    memset(t, 0, sizeof(*t));
    while (headings[t->columns])
        t->columns++;
    titan_assert(t->columns <= TABLE_COLUMNS);
    for (int i = 0; i < t->columns; i++) {
        size_t len = strlen(headings[i]);
        t->right[i] = headings[i][len - 1] == '>';
        table_cell(t, "%.*s", (int)(len - t->right[i]), headings[i]);
    }
}

void table_cell(struct table_out *t, const char *fmt, ...)
{
    char text[512];
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    int column = t->rows % t->columns; /* counts cells until the end */
    t->width[column] = MAX(t->width[column], (int)strlen(text));
    (void)!buf_append(&t->cells, text, strlen(text) + 1);
    t->rows++;
}

void table_end(struct table_out *t, struct buf *out, int state_column, bool color)
{
    const char *cell = t->cells.data;
    for (int i = 0; i < t->rows; i++, cell += strlen(cell) + 1) {
        int column = i % t->columns;
        bool last = column == t->columns - 1;
        const char *paint = color && column == state_column && i >= t->columns ? state_color(cell) : "";
        int pad = t->width[column] - (int)strlen(cell);
        if (t->right[column])
            buf_printf(out, "%*s", pad, "");
        buf_printf(out, "%s%s%s", paint, cell, *paint ? COLOR_OFF : "");
        if (!t->right[column] && !last)
            buf_printf(out, "%*s", pad, "");
        buf_puts(out, last ? "\n" : "  ");
    }
    buf_free(&t->cells);
}

const char *state_color(const char *state_name)
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

char *format_ago(int64_t at_ms, int64_t now_ms, char text[48])
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

char *format_clock(int64_t at_ms, char text[16])
{
    time_t seconds = (time_t)(at_ms / 1000);
    struct tm local;
    if (!localtime_r(&seconds, &local) || strftime(text, 16, "%H:%M:%S", &local) == 0)
        (void)snprintf(text, 16, "--:--:--");
    return text;
}
