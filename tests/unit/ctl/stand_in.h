/* SPDX-License-Identifier: Apache-2.0 */
/* stand_in.h - what a command of titanctl meets in place of a server: serve(), which each test that includes this has.
 * It takes the place of all that proto/rpc/channel.c offers. */
#ifndef TITAN_TESTS_UNIT_CTL_STAND_IN_H
#define TITAN_TESTS_UNIT_CTL_STAND_IN_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ctl/client.h"
#include "ctl/command.h"

/* A call, or a stream that passes each message to each(). ret: of a call, the caller's. */
static titan_status serve(const char *method, const ProtobufCMessage *request,
                          bool (*each)(const ProtobufCMessage *message, void *data), void *data, ProtobufCMessage **ret,
                          struct titan_error *err);

static const char *method_of(const char *path)
{
    return strrchr(path, '/') + 1;
}

titan_status rpc_channel_open(const char *target, const struct rpc_tls *tls, struct rpc_channel **ret,
                              struct titan_error *err)
{
    static char channel;
    (void)target, (void)tls, (void)err;
    *ret = (struct rpc_channel *)(void *)&channel;
    return TITAN_OK;
}

const char *rpc_channel_passed(const struct rpc_channel *channel)
{
    (void)channel;
    return "";
}

titan_status rpc_channel_token(struct rpc_channel *channel, const char *token, struct titan_error *err)
{
    (void)channel, (void)token, (void)err;
    return TITAN_OK;
}

void rpc_channel_close(struct rpc_channel *channel)
{
    (void)channel;
}

titan_status rpc_channel_call(struct rpc_channel *channel, const struct rpc_request *request,
                              ProtobufCMessage **ret_reply, struct titan_error *err)
{
    (void)channel;
    *ret_reply = NULL;
    TRY(serve(method_of(request->path), request->message, NULL, NULL, ret_reply, err));
    assert_non_null(*ret_reply);
    assert_ptr_equal((*ret_reply)->descriptor, request->reply);
    return TITAN_OK;
}

titan_status rpc_channel_stream(struct rpc_channel *channel, const struct rpc_request *request,
                                bool (*each)(const ProtobufCMessage *message, void *data), void *data,
                                const volatile int *interrupted, struct titan_error *err)
{
    (void)channel, (void)interrupted;
    return serve(method_of(request->path), request->message, each, data, NULL, err);
}

/* A copy that a caller may free. */
static inline ProtobufCMessage *copy_of(const ProtobufCMessage *m)
{
    const size_t size = protobuf_c_message_get_packed_size(m);
    uint8_t *bytes = malloc(size + 1);
    assert_non_null(bytes);
    (void)protobuf_c_message_pack(m, bytes);
    ProtobufCMessage *copy = protobuf_c_message_unpack(m->descriptor, NULL, size, bytes);
    assert_non_null(copy);
    free(bytes);
    return copy;
}

/* What the last command printed, until the next one. */
static struct {
    char *out, *err;
    struct titan_error why;
} printed;

/* words: without "titanctl"; NULL ends them. */
static inline titan_status run_command(const char *const *words)
{
    static struct args args;
    struct ctl ctl = {.server = "unix:/nowhere"};
    char *argv[16] = {(char *)(uintptr_t) "titanctl"};
    size_t out_len, err_len;
    int n = 1;
    if (*words && strcmp(*words, "json") == 0) {
        ctl.json = true;
        words++;
    }
    for (; *words; words++)
        argv[n++] = (char *)(uintptr_t)*words;
    free(printed.out);
    free(printed.err);
    memset(&printed, 0, sizeof(printed));
    if (args_parse(&titanctl, n, argv, &args, &printed.why) != TITAN_OK)
        return printed.why.status;
    FILE *const out = stdout, *const err = stderr;
    stdout = open_memstream(&printed.out, &out_len);
    stderr = open_memstream(&printed.err, &err_len);
    assert_true(stdout && stderr);
    const titan_status status = args.command->run(&ctl, &args, &printed.why);
    (void)fclose(stdout);
    (void)fclose(stderr);
    stdout = out;
    stderr = err;
    return status;
}
#define RUN(...) run_command((const char *const[]){__VA_ARGS__, NULL})

#endif
