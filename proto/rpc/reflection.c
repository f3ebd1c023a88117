/* reflection.c - see reflection.h. */
#include "proto/rpc/reflection.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "proto/rpc/health.h"
#include "titan/wire/reflection.pb-c.h"

typedef Grpc__Reflection__V1alpha__ServerReflectionRequest reflection_request;
typedef Grpc__Reflection__V1alpha__ServerReflectionResponse reflection_response;
typedef Grpc__Reflection__V1alpha__ServiceResponse service_response;
#define RESPONSE(kind) GRPC__REFLECTION__V1ALPHA__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_##kind
#define REQUEST(kind) GRPC__REFLECTION__V1ALPHA__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_##kind

enum { NOT_FOUND = 5, UNIMPLEMENTED = 12 };

/* --- descriptors -------------------------------------------------------------------------------------------------- */

static bool varint(struct rpc_bytes *in, uint64_t *ret)
{
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 64 && in->len > 0; shift += 7) {
        uint8_t byte = *in->data++;
        in->len--;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80)) {
            *ret = value;
            return true;
        }
    }
    return false;
}

/* Next length-delimited field; the others are stepped over. False at the end (and at the first damage). */
static bool field_next(struct rpc_bytes *in, uint32_t *ret_number, struct rpc_bytes *ret)
{
    uint64_t key, len;
    while (in->len > 0 && varint(in, &key)) {
        switch (key & 7) {
        case 0:
            if (!varint(in, &len))
                return false;
            continue;
        case 1:
            len = 8;
            break;
        case 5:
            len = 4;
            break;
        case 2:
            if (!varint(in, &len))
                return false;
            break;
        default:
            return false;
        }
        if (len > in->len)
            return false;
        *ret = (struct rpc_bytes){in->data, (size_t)len};
        in->data += len;
        in->len -= (size_t)len;
        if ((key & 7) == 2) {
            *ret_number = (uint32_t)(key >> 3);
            return true;
        }
    }
    return false;
}

static struct rpc_bytes field_first(struct rpc_bytes in, uint32_t wanted)
{
    uint32_t number;
    struct rpc_bytes field;
    while (field_next(&in, &number, &field))
        if (number == wanted)
            return field;
    return (struct rpc_bytes){0};
}

static bool equals(struct rpc_bytes bytes, const char *text)
{
    return bytes.len == strlen(text) && (bytes.len == 0 || memcmp(bytes.data, text, bytes.len) == 0);
}

/* Field numbers of google/protobuf/descriptor.proto under which something with a name (field 1) can stand. */
enum holder { IN_FILE, IN_MESSAGE, IN_ENUM, IN_SERVICE, IN_NOTHING };
static const struct holding {
    uint8_t number;
    enum holder inside;
} holdings[][5] = {
    [IN_FILE] = {{4, IN_MESSAGE}, {5, IN_ENUM}, {6, IN_SERVICE}},
    [IN_MESSAGE] = {{2, IN_NOTHING}, {3, IN_MESSAGE}, {4, IN_ENUM}, {8, IN_NOTHING}},
    [IN_ENUM] = {{2, IN_NOTHING}},
    [IN_SERVICE] = {{2, IN_NOTHING}},
    [IN_NOTHING] = {{0}},
};

/* Does the thing hold a definition whose path from here is symbol ("Titan.Submit")? */
static bool defines(struct rpc_bytes thing, enum holder kind, const char *symbol)
{
    uint32_t number;
    struct rpc_bytes inner;
    while (field_next(&thing, &number, &inner)) {
        for (const struct holding *h = holdings[kind]; h->number; h++) {
            if (h->number != number)
                continue;
            struct rpc_bytes name = field_first(inner, 1);
            if (name.len == 0 || strncmp(symbol, (const char *)name.data, name.len) != 0)
                continue;
            const char *rest = symbol + name.len;
            if (*rest == '\0' || (*rest == '.' && defines(inner, h->inside, rest + 1)))
                return true;
        }
    }
    return false;
}

struct rpc_bytes rpc_reflection_file(const struct rpc_reflection *reflection, const char *name)
{
    struct rpc_bytes in = {reflection->set, reflection->bytes}, file;
    uint32_t number;
    while (field_next(&in, &number, &file))
        if (number == 1 && equals(field_first(file, 1), name))
            return file;
    return (struct rpc_bytes){0};
}

struct rpc_bytes rpc_reflection_symbol(const struct rpc_reflection *reflection, const char *symbol)
{
    struct rpc_bytes in = {reflection->set, reflection->bytes}, file;
    uint32_t number;
    if (*symbol == '.')
        symbol++;
    while (field_next(&in, &number, &file)) {
        struct rpc_bytes package = field_first(file, 2);
        const char *rest = symbol;
        if (package.len > 0) {
            if (strncmp(symbol, (const char *)package.data, package.len) != 0 || symbol[package.len] != '.')
                continue;
            rest += package.len + 1;
        }
        if (number == 1 && defines(file, IN_FILE, rest))
            return file;
    }
    return (struct rpc_bytes){0};
}

/* --- answers ------------------------------------------------------------------------------------------------------ */

static void send_error(struct rpc_call *call, reflection_response *response, int code, const char *text)
{
    Grpc__Reflection__V1alpha__ErrorResponse error = GRPC__REFLECTION__V1ALPHA__ERROR_RESPONSE__INIT;
    error.error_code = code;
    error.error_message = (char *)(uintptr_t)text;
    response->message_response_case = RESPONSE(ERROR_RESPONSE);
    response->error_response = &error;
    (void)!rpc_call_send(call, &response->base);
    response->error_response = NULL; /* error goes */
}

static void send_file(struct rpc_call *call, reflection_response *response, struct rpc_bytes file)
{
    if (file.len == 0) {
        send_error(call, response, NOT_FOUND, "not found");
        return;
    }
    ProtobufCBinaryData one = {.len = file.len, .data = (uint8_t *)(uintptr_t)file.data};
    Grpc__Reflection__V1alpha__FileDescriptorResponse files = GRPC__REFLECTION__V1ALPHA__FILE_DESCRIPTOR_RESPONSE__INIT;
    files.n_file_descriptor_proto = 1;
    files.file_descriptor_proto = &one;
    response->message_response_case = RESPONSE(FILE_DESCRIPTOR_RESPONSE);
    response->file_descriptor_response = &files;
    (void)!rpc_call_send(call, &response->base);
    response->file_descriptor_response = NULL; /* files goes */
}

/* "/pkg.Service/Method" -> "pkg.Service" in out. False for the service of the method before: tables keep them together.
 */
static bool service_name(const struct rpc_method *methods, size_t i, char *out, size_t cap)
{
    size_t len = strcspn(methods[i].path + 1, "/");
    if (len >= cap || (i > 0 && strncmp(methods[i].path, methods[i - 1].path, len + 2) == 0))
        return false;
    memcpy(out, methods[i].path + 1, len);
    out[len] = '\0';
    return true;
}

static void send_services(struct rpc_call *call, reflection_response *response, const struct rpc_reflection *reflection)
{
    enum { MAX_SERVICES = 32 };
    char names[MAX_SERVICES][128];
    service_response services[MAX_SERVICES], *list[MAX_SERVICES];
    const struct {
        const struct rpc_method *methods;
        size_t n;
    } tables[] = {{reflection->methods, reflection->n},
                  {rpc_health_methods, RPC_HEALTH_METHODS},
                  {rpc_reflection_methods, RPC_REFLECTION_METHODS}};
    size_t n = 0;
    for (size_t t = 0; t < ARRAY_SIZE(tables); t++) {
        for (size_t i = 0; i < tables[t].n && n < MAX_SERVICES; i++) {
            if (!service_name(tables[t].methods, i, names[n], sizeof(names[n])))
                continue;
            services[n] = (service_response)GRPC__REFLECTION__V1ALPHA__SERVICE_RESPONSE__INIT;
            services[n].name = names[n];
            list[n] = &services[n];
            n++;
        }
    }
    Grpc__Reflection__V1alpha__ListServiceResponse all = GRPC__REFLECTION__V1ALPHA__LIST_SERVICE_RESPONSE__INIT;
    all.n_service = n;
    all.service = list;
    response->message_response_case = RESPONSE(LIST_SERVICES_RESPONSE);
    response->list_services_response = &all;
    (void)!rpc_call_send(call, &response->base);
}

static void info(struct rpc_call *call, const ProtobufCMessage *message, void *data)
{
    const struct rpc_reflection *reflection = data;
    if (!message) {
        rpc_call_finish(call, TITAN_OK, NULL);
        return;
    }
    const reflection_request *request = (const reflection_request *)message;
    reflection_response response = GRPC__REFLECTION__V1ALPHA__SERVER_REFLECTION_RESPONSE__INIT;
    response.valid_host = request->host;
    response.original_request = (reflection_request *)(uintptr_t)request;
    switch (request->message_request_case) {
    case REQUEST(FILE_BY_FILENAME):
        send_file(call, &response, rpc_reflection_file(reflection, request->file_by_filename));
        return;
    case REQUEST(FILE_CONTAINING_SYMBOL):
        send_file(call, &response, rpc_reflection_symbol(reflection, request->file_containing_symbol));
        return;
    case REQUEST(LIST_SERVICES):
        send_services(call, &response, reflection);
        return;
    case REQUEST(FILE_CONTAINING_EXTENSION):
        send_error(call, &response, NOT_FOUND, "there are no extensions");
        return;
    case REQUEST(ALL_EXTENSION_NUMBERS_OF_TYPE): {
        if (rpc_reflection_symbol(reflection, request->all_extension_numbers_of_type).len == 0) {
            send_error(call, &response, NOT_FOUND, "not found");
            return;
        }
        Grpc__Reflection__V1alpha__ExtensionNumberResponse none =
            GRPC__REFLECTION__V1ALPHA__EXTENSION_NUMBER_RESPONSE__INIT;
        none.base_type_name = request->all_extension_numbers_of_type;
        response.message_response_case = RESPONSE(ALL_EXTENSION_NUMBERS_RESPONSE);
        response.all_extension_numbers_response = &none;
        (void)!rpc_call_send(call, &response.base);
        return;
    }
    default:
        send_error(call, &response, UNIMPLEMENTED, "unknown kind of request");
        return;
    }
}

const struct rpc_method rpc_reflection_methods[RPC_REFLECTION_METHODS] = {
    {
        .path = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        .request = &grpc__reflection__v1alpha__server_reflection_request__descriptor,
        .on_message = info,
    },
};
