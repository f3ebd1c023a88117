/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/message_json.h"

#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/utf8.h"
#include "proto/ranges.h"

static void put_string(struct json_writer *w, const char *key, const char *name, const char *value)
{
    struct json *parsed = NULL;
    const size_t len = value ? strlen(value) : 0;
    if (!len) {
        json_put_string(w, key, NULL);
    } else if (strcmp(name, "detail") == 0 && text_unfit(value, len) == len &&
               json_parse(value, len, &parsed, NULL) == TITAN_OK) {
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
            message_json(w, key, *(ProtobufCMessage *const *)value);
        else
            json_put_string(w, key, NULL);
        break;
    }
}

void message_json_fields(struct json_writer *w, const ProtobufCMessage *message)
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
                put_value(w, NULL, field, list + k * range_item_bytes(field));
            json_end_array(w);
        } else if (field->type == PROTOBUF_C_TYPE_INT64 && len > 3 && strcmp(field->name + len - 3, "_ms") == 0) {
            const int64_t at_ms = *(const int64_t *)value;
            char name[64], text[32];
            titan_assert(len < sizeof(name));
            (void)snprintf(name, sizeof(name), "%.*s", (int)len - 3, field->name);
            json_put_string(w, name, at_ms > 0 ? clock_format(at_ms, text) : NULL);
        } else {
            put_value(w, field->name, field, value);
        }
    }
}

void message_json(struct json_writer *w, const char *key, const ProtobufCMessage *message)
{
    json_begin_object(w, key);
    message_json_fields(w, message);
    json_end_object(w);
}
