/* SPDX-License-Identifier: Apache-2.0 */
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

/* Returns the rest of symbol behind name and a dot; "" if both are equal, NULL if symbol has another prefix. */
static const char *behind(const char *symbol, const char *name)
{
    const size_t len = strlen(name);
    if (len == 0 || strncmp(symbol, name, len) != 0)
        return NULL;
    return symbol[len] == '\0' ? symbol + len : symbol[len] == '.' && symbol[len + 1] ? symbol + len + 1 : NULL;
}

static bool any_is(Titan__Wire__Named *const *named, size_t n, const char *symbol)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(named[i]->name, symbol) == 0)
            return true;
    return false;
}

static bool any_group(Titan__Wire__Group *const *groups, size_t n, const char *symbol)
{
    for (size_t i = 0; i < n; i++) {
        const char *rest = behind(symbol, groups[i]->name);
        if (rest && (!*rest || any_is(groups[i]->member, groups[i]->n_member, rest)))
            return true;
    }
    return false;
}

static bool any_message(Titan__Wire__Message *const *messages, size_t n, const char *symbol)
{
    for (size_t i = 0; i < n; i++) {
        const Titan__Wire__Message *m = messages[i];
        const char *rest = behind(symbol, m->name);
        if (rest && (!*rest || any_is(m->field, m->n_field, rest) || any_is(m->oneof, m->n_oneof, rest) ||
                     any_group(m->enum_, m->n_enum_, rest) || any_message(m->nested, m->n_nested, rest)))
            return true;
    }
    return false;
}

static bool is_called(const Titan__Wire__File *file, const char *name)
{
    return strcmp(file->name, name) == 0;
}

static bool defines(const Titan__Wire__File *file, const char *symbol)
{
    const char *rest = *file->package ? behind(symbol, file->package) : symbol;
    return rest && *rest &&
           (any_message(file->message, file->n_message, rest) || any_group(file->enum_, file->n_enum_, rest) ||
            any_group(file->service, file->n_service, rest));
}

/* The first matching file of the set; damaged files are skipped. */
static const ProtobufCBinaryData *find(const struct rpc_reflection *r, const char *text,
                                       bool (*matches)(const Titan__Wire__File *file, const char *text))
{
    for (size_t i = 0; r->set && i < r->set->n_file; i++) {
        Titan__Wire__File *file = titan__wire__file__unpack(NULL, r->set->file[i].len, r->set->file[i].data);
        const bool found = file && matches(file, text);
        if (file)
            titan__wire__file__free_unpacked(file, NULL);
        if (found)
            return &r->set->file[i];
    }
    return NULL;
}

const ProtobufCBinaryData *rpc_reflection_file(const struct rpc_reflection *reflection, const char *name)
{
    return find(reflection, name, is_called);
}

const ProtobufCBinaryData *rpc_reflection_symbol(const struct rpc_reflection *reflection, const char *symbol)
{
    return find(reflection, symbol + (*symbol == '.'), defines);
}

void rpc_reflection_open(struct rpc_reflection *ret, const uint8_t *set, size_t bytes, const struct rpc_method *methods,
                         size_t n)
{
    *ret = (struct rpc_reflection){titan__wire__file_set__unpack(NULL, bytes, set), methods, n};
}

void rpc_reflection_close(struct rpc_reflection *reflection)
{
    if (reflection->set)
        titan__wire__file_set__free_unpacked(reflection->set, NULL);
    reflection->set = NULL;
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
    response->error_response = NULL; /* error goes out of scope */
}

static void send_file(struct rpc_call *call, reflection_response *response, const ProtobufCBinaryData *file)
{
    if (!file)
        return send_error(call, response, NOT_FOUND, "not found");
    ProtobufCBinaryData one = *file;
    Grpc__Reflection__V1alpha__FileDescriptorResponse files = GRPC__REFLECTION__V1ALPHA__FILE_DESCRIPTOR_RESPONSE__INIT;
    files.n_file_descriptor_proto = 1;
    files.file_descriptor_proto = &one;
    response->message_response_case = RESPONSE(FILE_DESCRIPTOR_RESPONSE);
    response->file_descriptor_response = &files;
    (void)!rpc_call_send(call, &response->base);
    response->file_descriptor_response = NULL; /* files goes out of scope */
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
            /* A path is "/pkg.Service/Method"; tables group the methods of a service. */
            const char *path = tables[t].methods[i].path;
            const size_t len = strcspn(path + 1, "/");
            if (len >= sizeof(names[n]) || (i > 0 && strncmp(path, tables[t].methods[i - 1].path, len + 2) == 0))
                continue;
            memcpy(names[n], path + 1, len);
            names[n][len] = '\0';
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
        return send_file(call, &response, rpc_reflection_file(reflection, request->file_by_filename));
    case REQUEST(FILE_CONTAINING_SYMBOL):
        return send_file(call, &response, rpc_reflection_symbol(reflection, request->file_containing_symbol));
    case REQUEST(LIST_SERVICES):
        return send_services(call, &response, reflection);
    case REQUEST(FILE_CONTAINING_EXTENSION):
        return send_error(call, &response, NOT_FOUND, "there are no extensions");
    case REQUEST(ALL_EXTENSION_NUMBERS_OF_TYPE):
        if (!rpc_reflection_symbol(reflection, request->all_extension_numbers_of_type))
            return send_error(call, &response, NOT_FOUND, "not found");
        Grpc__Reflection__V1alpha__ExtensionNumberResponse none =
            GRPC__REFLECTION__V1ALPHA__EXTENSION_NUMBER_RESPONSE__INIT;
        none.base_type_name = request->all_extension_numbers_of_type;
        response.message_response_case = RESPONSE(ALL_EXTENSION_NUMBERS_RESPONSE);
        response.all_extension_numbers_response = &none;
        (void)!rpc_call_send(call, &response.base);
        return;
    default:
        return send_error(call, &response, UNIMPLEMENTED, "unknown kind of request");
    }
}

const struct rpc_method rpc_reflection_methods[RPC_REFLECTION_METHODS] = {
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
