/* SPDX-License-Identifier: Apache-2.0 */
/* What titanctl prints of a server's answers: nothing that a terminal obeys. The server is the test's: all that
 * proto/rpc/channel.c offers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/utf8.h"
#include "ctl/client.h"
#include "ctl/command.h"

#define EVIL                                                                                                           \
    "\033[2Jx\xc2\x9b"                                                                                                 \
    "31m" /* clears the screen, and colours */

static ProtobufCMessage *next; /* the answer; the callee's */

titan_status rpc_channel_open(const char *target, const struct rpc_tls *tls, struct rpc_channel **ret,
                              struct titan_error *err)
{
    (void)target, (void)tls, (void)err;
    *ret = (struct rpc_channel *)&next;
    return TITAN_OK;
}

titan_status rpc_channel_token(struct rpc_channel *channel, const char *token, struct titan_error *err)
{
    (void)channel, (void)token, (void)err;
    return TITAN_OK;
}

const char *rpc_channel_passed(const struct rpc_channel *channel)
{
    (void)channel;
    return "";
}

void rpc_channel_close(struct rpc_channel *channel)
{
    (void)channel;
}

titan_status rpc_channel_call(struct rpc_channel *channel, const struct rpc_request *request,
                              ProtobufCMessage **ret_reply, struct titan_error *err)
{
    (void)channel, (void)err;
    assert_ptr_equal(next->descriptor, request->reply);
    *ret_reply = TAKE(next);
    return TITAN_OK;
}

titan_status rpc_channel_stream(struct rpc_channel *channel, const struct rpc_request *request,
                                bool (*each)(const ProtobufCMessage *message, void *data), void *data,
                                const volatile int *interrupted, struct titan_error *err)
{
    (void)channel, (void)interrupted, (void)err;
    assert_ptr_equal(next->descriptor, request->reply);
    (void)each(next, data);
    protobuf_c_message_free_unpacked(TAKE(next), NULL);
    return TITAN_OK;
}

/* A message with evil strings, also those of its messages. */
static ProtobufCMessage *evil(const ProtobufCMessageDescriptor *type)
{
    ProtobufCMessage *m = calloc(1, type->sizeof_message);
    assert_non_null(m);
    type->message_init(m);
    for (unsigned i = 0; i < type->n_fields; i++) {
        const ProtobufCFieldDescriptor *f = &type->fields[i];
        void **at = (void **)(void *)((char *)m + f->offset);
        if (f->label == PROTOBUF_C_LABEL_REPEATED)
            continue;
        if (f->type == PROTOBUF_C_TYPE_STRING)
            *at = strdup(EVIL);
        else if (f->type == PROTOBUF_C_TYPE_MESSAGE)
            *at = evil(f->descriptor);
        else if (f->type == PROTOBUF_C_TYPE_BYTES)
            *(ProtobufCBinaryData *)(void *)at = (ProtobufCBinaryData){sizeof(EVIL) - 1, (uint8_t *)strdup(EVIL)};
    }
    return m;
}

/* What a command prints, to be freed. */
static char *print(ProtobufCMessage *answer, bool terminal, int argc, const char *const *words)
{
    static struct args args;
    struct ctl ctl = {.server = "unix:/nowhere", .online = terminal};
    struct titan_error err = {0};
    char *argv[8] = {(char *)(uintptr_t) "titanctl"}, *text = NULL;
    size_t len = 0;
    for (int i = 0; i < argc; i++)
        argv[i + 1] = (char *)(uintptr_t)words[i];
    next = answer;
    assert_int_equal(args_parse(&titanctl, argc + 1, argv, &args, &err), TITAN_OK);
    FILE *before = stdout;
    stdout = open_memstream(&text, &len);
    assert_non_null(stdout);
    const titan_status status = args.command->run(&ctl, &args, &err);
    (void)fclose(stdout);
    stdout = before;
    assert_int_equal(status, TITAN_OK);
    assert_null(next);
    return text;
}
#define PRINT(type, terminal, ...) PRINT_ANSWER(evil(&type), terminal, __VA_ARGS__)
#define PRINT_ANSWER(answer, terminal, ...)                                                                            \
    print(answer, terminal, (int)(sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *)),                        \
          (const char *const[]){__VA_ARGS__})

static void check_fit(char *text)
{
    size_t at = 0;
    for (size_t n = strlen(text); (at += text_unfit(text + at, n - at)) < n; at++)
        if (text[at] != '\n')
            fail_msg("'%s' has byte %02x", text, (unsigned char)text[at]);
    free(text);
}

static void test_nothing_to_obey(void **state)
{
    (void)state;
    check_fit(PRINT(titan__v1__get_job_response__descriptor, true, "status", "1"));
    check_fit(PRINT(titan__v1__event__descriptor, true, "events"));
    check_fit(PRINT(titan__v1__event__descriptor, true, "audit"));
    check_fit(PRINT(titan__v1__drain_node_response__descriptor, true, "drain", "a"));
    check_fit(PRINT(titan__v1__undrain_node_response__descriptor, true, "undrain", "a"));
    check_fit(PRINT(titan__v1__forget_node_response__descriptor, true, "node", "forget", "a"));
    check_fit(PRINT(titan__v1__revoke_certificate_response__descriptor, true, "node", "revoke", "a"));
    check_fit(PRINT(titan__v1__create_token_response__descriptor, true, "token", "create", "a"));
    check_fit(PRINT(titan__v1__version_response__descriptor, true, "version"));
}

/* A file or a pipe gets a worker's lines as they are. */
static void test_logs(void **state)
{
    (void)state;
    check_fit(PRINT(titan__v1__log_chunk__descriptor, true, "logs", "1", "--rank", "0"));
    char *text = PRINT(titan__v1__log_chunk__descriptor, false, "logs", "1", "--rank", "0");
    assert_string_equal(text, EVIL "\n");
    free(text);
}

static char *status_of(uint32_t losses, uint64_t window_s)
{
    ProtobufCMessage *answer = evil(&titan__v1__get_job_response__descriptor);
    Titan__V1__Job *job = ((Titan__V1__GetJobResponse *)answer)->job;
    job->restarts = losses;
    job->n_losses = losses;
    job->losses = losses ? calloc(losses, sizeof(*job->losses)) : NULL;
    for (uint32_t i = 0; i < losses; i++) {
        job->losses[i] = malloc(sizeof(*job->losses[i]));
        titan__v1__loss_count__init(job->losses[i]);
        job->losses[i]->cause = strdup(i ? "oom" : "crash");
        job->losses[i]->count = 1;
        job->losses[i]->budget = 10 - i;
        job->losses[i]->window_s = window_s;
    }
    return PRINT_ANSWER(answer, false, "status", "1");
}

static void test_restarts(void **state)
{
    (void)state;
    const struct {
        uint32_t losses;
        uint64_t window_s;
        const char *line;
    } rows[] = {
        {0, 0, "0"}, {1, 86400, "1 (crash 1 of 10 within 24 h)"}, {2, 90, "2 (crash 1 of 10, oom 1 of 9 within 90 s)"}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char line[80], *text = status_of(rows[i].losses, rows[i].window_s);
        (void)snprintf(line, sizeof(line), "\n  restarts     %s\n", rows[i].line);
        assert_non_null(strstr(text, line));
        free(text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing_to_obey),
        cmocka_unit_test(test_logs),
        cmocka_unit_test(test_restarts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
