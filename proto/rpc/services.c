/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/rpc/services.h"

#include <string.h>

#include "base/cleanup.h"
#include "titan/wire/health.pb-c.h"
#include "titan/wire/reflection.pb-c.h"

/* --- health ------------------------------------------------------------------------------------------------------- */

typedef Grpc__Health__V1__HealthCheckRequest health_request;
typedef Grpc__Health__V1__HealthCheckResponse health_response;
#define STATUS(name) GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__##name

/* Is service the package.Service part of a served method? The empty name is the server itself. */
static bool service_known(const struct rpc_services *services, const char *service)
{
    size_t len = strlen(service);
    if (len == 0)
        return true;
    for (size_t i = 0; i < services->n; i++) {
        const char *path = services->methods[i].path;
        if (strncmp(path + 1, service, len) == 0 && path[1 + len] == '/')
            return true;
    }
    return false;
}

static health_response answer(const struct rpc_services *services)
{
    health_response response = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;
    response.status = services->serving ? STATUS(SERVING) : STATUS(NOT_SERVING);
    return response;
}

static void check(struct rpc_call *call, const ProtobufCMessage *message, void *data)
{
    if (!service_known(data, ((const health_request *)message)->service)) {
        rpc_call_finish(call, TITAN_ENOTFOUND, "no such service");
        return;
    }
    health_response response = answer(data);
    rpc_call_reply(call, &response.base);
}

/* Sends the state to a watcher of a known service: the server has changed it, or a full queue has drained. */
static void watch_drain(struct rpc_call *call, void *data)
{
    health_response response = answer(data);
    if (rpc_call_data(call))
        (void)!rpc_call_send(call, &response.base);
}

static void watch(struct rpc_call *call, const ProtobufCMessage *message, void *data)
{
    health_response response = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;
    response.status = STATUS(SERVICE_UNKNOWN);
    if (service_known(data, ((const health_request *)message)->service)) {
        rpc_call_set_data(call, data);
        response = answer(data);
    }
    (void)!rpc_call_send(call, &response.base);
}

/* --- descriptors -------------------------------------------------------------------------------------------------- */

/* The assembler includes the set, so no source is generated from it. */
__asm__(".pushsection .rodata\n"
        ".balign 8\n"
        ".global titan_descriptors\n"
        ".type titan_descriptors, @object\n"
        "titan_descriptors:\n"
        ".incbin \"" TITAN_FDS "\"\n"
        ".Ltitan_descriptors_end:\n"
        ".size titan_descriptors, . - titan_descriptors\n"
        ".balign 8\n"
        ".global titan_descriptors_bytes\n"
        ".type titan_descriptors_bytes, @object\n"
        "titan_descriptors_bytes:\n"
        ".quad .Ltitan_descriptors_end - titan_descriptors\n"
        ".size titan_descriptors_bytes, 8\n"
        ".popsection\n");

/* A set is a list of files in its field 1. A definition has its name in field 1, and other definitions in the fields
 * below; a file has its package in field 2 (google/protobuf/descriptor.proto). */
enum kind { PROTO_FILE, MESSAGE, GROUP, LEAF }; /* GROUP: an enum or a service */
enum { NAME = 1, PACKAGE = 2 };
static const struct {
    enum kind of;
    uint32_t field;
    enum kind holds;
} members[] = {
    {PROTO_FILE, 4, MESSAGE}, {PROTO_FILE, 5, GROUP}, {PROTO_FILE, 6, GROUP}, /* messages, enums, services */
    {MESSAGE, 2, LEAF},       {MESSAGE, 3, MESSAGE},  {MESSAGE, 4, GROUP},    /* fields, messages, enums */
    {MESSAGE, 8, LEAF},       {GROUP, 2, LEAF},                               /* oneofs; values or methods */
};

/* The bytes of the first field with the wanted number; empty: there is no such field. */
static struct rpc_wire field_of(struct rpc_wire w, uint32_t wanted)
{
    struct rpc_wire inside;
    for (uint32_t field; rpc_wire_take(&w, &field, &inside);)
        if (field == wanted)
            return inside;
    return (struct rpc_wire){w.end, w.end};
}

/* Is w, a definition of this kind, the definition of the symbol ("Titan.Submit"), or does it contain that definition? A
 * file only contains definitions. */
static bool defines(struct rpc_wire w, enum kind kind, const char *symbol)
{
    const struct rpc_wire name = field_of(w, kind == PROTO_FILE ? PACKAGE : NAME);
    const size_t len = (size_t)(name.end - name.at);
    if (len > 0) {
        if (strlen(symbol) < len || memcmp(symbol, name.at, len) != 0)
            return false;
        if (symbol[len] == '\0')
            return kind != PROTO_FILE;
        if (symbol[len] != '.')
            return false;
        symbol += len + 1;
    } else if (kind != PROTO_FILE) {
        return false;
    }
    struct rpc_wire inside;
    for (uint32_t field; rpc_wire_take(&w, &field, &inside);)
        for (size_t i = 0; i < ARRAY_SIZE(members); i++)
            if (members[i].of == kind && members[i].field == field && defines(inside, members[i].holds, symbol))
                return true;
    return false;
}

struct rpc_wire rpc_services_file(struct rpc_wire set, const char *name)
{
    struct rpc_wire file;
    for (uint32_t field; rpc_wire_take(&set, &field, &file);) {
        const struct rpc_wire own = field_of(file, NAME);
        const size_t len = (size_t)(own.end - own.at);
        if (field == 1 && len == strlen(name) && memcmp(own.at, name, len) == 0)
            return file;
    }
    return (struct rpc_wire){NULL, NULL};
}

struct rpc_wire rpc_services_symbol(struct rpc_wire set, const char *symbol)
{
    struct rpc_wire file;
    for (uint32_t field; rpc_wire_take(&set, &field, &file);)
        if (field == 1 && defines(file, PROTO_FILE, symbol + (*symbol == '.')))
            return file;
    return (struct rpc_wire){NULL, NULL};
}

/* --- reflection --------------------------------------------------------------------------------------------------- */

typedef Grpc__Reflection__V1alpha__ServerReflectionRequest reflection_request;
typedef Grpc__Reflection__V1alpha__ServerReflectionResponse reflection_response;
typedef Grpc__Reflection__V1alpha__ServiceResponse service_response;
#define RESPONSE(kind) GRPC__REFLECTION__V1ALPHA__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_##kind
#define REQUEST(kind) GRPC__REFLECTION__V1ALPHA__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_##kind

enum { NOT_FOUND = 5, UNIMPLEMENTED = 12 };

enum { SERVICES_MAX = 32, SERVICE_NAME = 128 };

/* Names the server's services, once each; returns their number. */
static size_t list_services(const struct rpc_services *own, char names[SERVICES_MAX][SERVICE_NAME])
{
    size_t n = 0;
    for (size_t i = 0; i < own->n + RPC_SERVICES_METHODS && n < SERVICES_MAX; i++) {
        /* A path is "/pkg.Service/Method"; tables group the methods of a service. */
        const char *path = i < own->n ? own->methods[i].path : rpc_services_methods[i - own->n].path;
        const size_t len = strcspn(path + 1, "/");
        if (len >= SERVICE_NAME || (n > 0 && strncmp(path + 1, names[n - 1], len) == 0 && names[n - 1][len] == '\0'))
            continue;
        memcpy(names[n], path + 1, len);
        names[n++][len] = '\0';
    }
    return n;
}

static void info(struct rpc_call *call, const ProtobufCMessage *message, void *data)
{
    const reflection_request *request = (const reflection_request *)message;
    const struct rpc_wire set = {titan_descriptors, titan_descriptors + titan_descriptors_bytes};
    struct rpc_wire file = {NULL, NULL};
    char names[SERVICES_MAX][SERVICE_NAME];
    service_response services[SERVICES_MAX], *list[SERVICES_MAX];
    ProtobufCBinaryData one;
    reflection_response response = GRPC__REFLECTION__V1ALPHA__SERVER_REFLECTION_RESPONSE__INIT;
    Grpc__Reflection__V1alpha__ErrorResponse error = GRPC__REFLECTION__V1ALPHA__ERROR_RESPONSE__INIT;
    Grpc__Reflection__V1alpha__FileDescriptorResponse files = GRPC__REFLECTION__V1ALPHA__FILE_DESCRIPTOR_RESPONSE__INIT;
    Grpc__Reflection__V1alpha__ListServiceResponse all = GRPC__REFLECTION__V1ALPHA__LIST_SERVICE_RESPONSE__INIT;
    Grpc__Reflection__V1alpha__ExtensionNumberResponse none =
        GRPC__REFLECTION__V1ALPHA__EXTENSION_NUMBER_RESPONSE__INIT;
    if (!message) {
        rpc_call_finish(call, TITAN_OK, NULL);
        return;
    }
    response.valid_host = request->host;
    response.original_request = (reflection_request *)(uintptr_t)request;
    response.message_response_case = RESPONSE(ERROR_RESPONSE);
    response.error_response = &error;
    error.error_code = NOT_FOUND;
    error.error_message = (char *)(uintptr_t) "not found";
    switch (request->message_request_case) {
    case REQUEST(FILE_BY_FILENAME):
        file = rpc_services_file(set, request->file_by_filename);
        break;
    case REQUEST(FILE_CONTAINING_SYMBOL):
        file = rpc_services_symbol(set, request->file_containing_symbol);
        break;
    case REQUEST(LIST_SERVICES):
        all.n_service = list_services(data, names);
        all.service = list;
        for (size_t i = 0; i < all.n_service; i++) {
            services[i] = (service_response)GRPC__REFLECTION__V1ALPHA__SERVICE_RESPONSE__INIT;
            services[i].name = names[i];
            list[i] = &services[i];
        }
        response.message_response_case = RESPONSE(LIST_SERVICES_RESPONSE);
        response.list_services_response = &all;
        break;
    case REQUEST(FILE_CONTAINING_EXTENSION):
        error.error_message = (char *)(uintptr_t) "there are no extensions";
        break;
    case REQUEST(ALL_EXTENSION_NUMBERS_OF_TYPE):
        if (!rpc_services_symbol(set, request->all_extension_numbers_of_type).at)
            break;
        none.base_type_name = request->all_extension_numbers_of_type;
        response.message_response_case = RESPONSE(ALL_EXTENSION_NUMBERS_RESPONSE);
        response.all_extension_numbers_response = &none;
        break;
    default:
        error.error_code = UNIMPLEMENTED;
        error.error_message = (char *)(uintptr_t) "unknown kind of request";
    }
    if (file.at) {
        one = (ProtobufCBinaryData){(size_t)(file.end - file.at), (uint8_t *)(uintptr_t)file.at};
        files.n_file_descriptor_proto = 1;
        files.file_descriptor_proto = &one;
        response.message_response_case = RESPONSE(FILE_DESCRIPTOR_RESPONSE);
        response.file_descriptor_response = &files;
    }
    (void)!rpc_call_send(call, &response.base);
}

const struct rpc_method rpc_services_methods[RPC_SERVICES_METHODS] = {
    {
        .path = "/grpc.health.v1.Health/Check",
        .request = &grpc__health__v1__health_check_request__descriptor,
        .on_request = check,
    },
    {
        .path = "/grpc.health.v1.Health/Watch",
        .request = &grpc__health__v1__health_check_request__descriptor,
        .on_request = watch,
        .on_drain = watch_drain,
    },
    {
        .path = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        .request = &grpc__reflection__v1alpha__server_reflection_request__descriptor,
        .on_message = info,
    },
    {
        .path = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        .request = &grpc__reflection__v1alpha__server_reflection_request__descriptor,
        .on_message = info,
    },
};
