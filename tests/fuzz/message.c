/* SPDX-License-Identifier: Apache-2.0 */
/* message.c - messages out of bytes; see message.h. Memory is malloc's, as the library's own. */
#include "tests/fuzz/message.h"

enum { DEPTH = 5, REPEATED_MAX = 6 };

static uint64_t number(struct fuzz_input *in, bool wide)
{
    static const uint64_t bounds[] = {UINT64_MAX,        INT64_MAX,        (uint64_t)INT64_MAX + 1,
                                      UINT32_MAX,        INT32_MAX,        (uint64_t)INT32_MAX + 1,
                                      (uint64_t)1 << 32, (uint64_t)1 << 62};
    uint8_t how = (uint8_t)fuzz_take(in, 1);
    if (how < 200)
        return how % 25; /* ids, epochs and steps are small */
    if (how < 240)
        return bounds[how % ARRAY_SIZE(bounds)] - (how % 3 == 0);
    return fuzz_take(in, wide ? 8 : 4);
}

static char *text(struct fuzz_input *in, const char *const *texts)
{
    size_t n = 0;
    while (texts[n])
        n++;
    uint8_t how = (uint8_t)fuzz_take(in, 1);
    if (how < 240)
        return strdup(texts[how % n]);
    struct fuzz_input piece = {in->data, MIN(in->len, (size_t)(how - 240) * 8)};
    in->data += piece.len;
    in->len -= piece.len;
    return fuzz_text(piece.data, piece.len);
}

static ProtobufCMessage *build(struct fuzz_input *in, const ProtobufCMessageDescriptor *type, const char *const *texts,
                               int kind, int depth);

static size_t width(const ProtobufCFieldDescriptor *f)
{
    switch (f->type) {
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_MESSAGE:
        return sizeof(void *);
    case PROTOBUF_C_TYPE_BYTES:
        return sizeof(ProtobufCBinaryData);
    case PROTOBUF_C_TYPE_BOOL:
        return sizeof(protobuf_c_boolean);
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_DOUBLE:
        return 8;
    default:
        return 4;
    }
}

static void value(struct fuzz_input *in, const ProtobufCFieldDescriptor *f, const char *const *texts, int depth,
                  void *at)
{
    uint64_t v;
    switch (f->type) {
    case PROTOBUF_C_TYPE_STRING:
        *(char **)at = text(in, texts);
        break;
    case PROTOBUF_C_TYPE_MESSAGE:
        *(ProtobufCMessage **)at = build(in, f->descriptor, texts, -1, depth + 1);
        break;
    case PROTOBUF_C_TYPE_BYTES: {
        uint8_t how = (uint8_t)fuzz_take(in, 1);
        size_t len = how < 200 ? 16 : how % 40;
        uint8_t *data = calloc(1, len + 1);
        fuzz_assert(data);
        data[0] = how < 200 ? how % 4 : (uint8_t)fuzz_take(in, 1);
        *(ProtobufCBinaryData *)at = (ProtobufCBinaryData){len, data};
        break;
    }
    case PROTOBUF_C_TYPE_BOOL:
        *(protobuf_c_boolean *)at = (int)(fuzz_take(in, 1) & 1);
        break;
    case PROTOBUF_C_TYPE_DOUBLE:
        v = number(in, true);
        if (v > UINT32_MAX)
            memcpy(at, &v, 8);
        else
            *(double *)at = (double)v;
        break;
    default:
        v = number(in, width(f) == 8);
        if (width(f) == 8)
            memcpy(at, &v, 8);
        else
            *(uint32_t *)at = (uint32_t)v;
    }
}

static void repeated(struct fuzz_input *in, const ProtobufCFieldDescriptor *f, const char *const *texts, int depth,
                     char *message)
{
    size_t n = fuzz_take(in, 1) % (REPEATED_MAX + 1);
    if (n == REPEATED_MAX && f->type != PROTOBUF_C_TYPE_MESSAGE)
        n = fuzz_take(in, 2) % 2000; /* more than any table */
    char *list = n ? calloc(n, width(f)) : NULL;
    for (size_t i = 0; i < n; i++)
        value(in, f, texts, depth, list + i * width(f));
    memcpy(message + f->offset, &list, sizeof(list));
    memcpy(message + f->quantifier_offset, &n, sizeof(n));
}

static ProtobufCMessage *build(struct fuzz_input *in, const ProtobufCMessageDescriptor *type, const char *const *texts,
                               int kind, int depth)
{
    ProtobufCMessage *m = calloc(1, type->sizeof_message);
    fuzz_assert(m);
    type->message_init(m);
    if (depth > DEPTH)
        return m;
    uint32_t members = 0, chosen;
    for (uint32_t i = 0; i < type->n_fields; i++)
        members += (type->fields[i].flags & PROTOBUF_C_FIELD_FLAG_ONEOF) != 0;
    chosen = members ? (kind >= 0 ? (uint32_t)kind : (uint32_t)fuzz_take(in, 1)) % members : 0;
    for (uint32_t i = 0, member = 0; i < type->n_fields; i++) {
        const ProtobufCFieldDescriptor *f = &type->fields[i];
        char *at = (char *)m + f->offset;
        if (f->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) {
            if (member++ != chosen)
                continue;
            memcpy((char *)m + f->quantifier_offset, &f->id, sizeof(uint32_t));
            value(in, f, texts, depth, at);
        } else if (f->label == PROTOBUF_C_LABEL_REPEATED) {
            repeated(in, f, texts, depth, (char *)m);
        } else if (in->len > 0 && (f->type != PROTOBUF_C_TYPE_MESSAGE || fuzz_take(in, 1) % 4)) {
            value(in, f, texts, depth, at);
        }
    }
    return m;
}

ProtobufCMessage *fuzz_message(struct fuzz_input *in, const ProtobufCMessageDescriptor *type, const char *const *texts,
                               int kind)
{
    return build(in, type, texts, kind, 0);
}
