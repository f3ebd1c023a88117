/* SPDX-License-Identifier: Apache-2.0 */
/* titanctl's commands against a server that answers with anything its protocol can say. Tables and lines for people
 * have no character that a terminal obeys, JSON can be read back, and a line is one answer. */
#include "tests/fuzz/message.h"

#include <unistd.h>

#include "base/buf.h"
#include "base/json.h"
#include "base/utf8.h"
#include "ctl/client.h"
#include "ctl/command.h"
#include "proto/rpc/common.h"

static struct fuzz_input in;
static const char *const texts[] = {"a",
                                    "node-1",
                                    "",
                                    "\033[2J\033[1;31m",
                                    "\xc2\x9b"
                                    "31m",
                                    "\xe2\x80\xae"
                                    "abc",
                                    "{\n\"a\":\"\x7f\"}",
                                    "{\"a\": [1, \"x\"]}",
                                    "RUNNING",
                                    "x\ty",
                                    NULL};

/* --- the server: all that proto/rpc/channel.c offers, made of the input ------------------------------------------- */

titan_status rpc_channel_open(const char *target, const struct rpc_tls *tls, struct rpc_channel **ret,
                              struct titan_error *err)
{
    static char nothing;
    (void)target, (void)tls, (void)err;
    *ret = (struct rpc_channel *)&nothing;
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

/* As it comes off the wire: what is no UTF-8 is refused there. */
static titan_status answer(const ProtobufCMessageDescriptor *type, ProtobufCMessage **ret, struct titan_error *err)
{
    ProtobufCMessage *made = fuzz_message(&in, type, texts, -1);
    grpc_byte_buffer *bytes = rpc_pack(made);
    protobuf_c_message_free_unpacked(made, NULL);
    const titan_status status = rpc_unpack(bytes, type, SIZE_MAX, ret, err);
    grpc_byte_buffer_destroy(bytes);
    return status;
}

titan_status rpc_channel_call(struct rpc_channel *channel, const struct rpc_request *request,
                              ProtobufCMessage **ret_reply, struct titan_error *err)
{
    (void)channel;
    if (in.len == 0)
        return titan_fail(err, TITAN_EUNREACHABLE, "no more");
    return answer(request->reply, ret_reply, err);
}

titan_status rpc_channel_stream(struct rpc_channel *channel, const struct rpc_request *request,
                                bool (*each)(const ProtobufCMessage *message, void *data), void *data,
                                const volatile int *interrupted, struct titan_error *err)
{
    (void)channel, (void)interrupted;
    for (bool more = true; more && in.len > 0;) {
        ProtobufCMessage *m = NULL;
        TRY(answer(request->reply, &m, err));
        more = each(m, data);
        protobuf_c_message_free_unpacked(m, NULL);
    }
    return TITAN_OK;
}

/* --- what is asked ------------------------------------------------------------------------------------------------ */

static const struct asked {
    bool lines; /* as JSON: one a line */
    const char *words[5];
} asked[] = {
    {false, {"status", "1"}},
    {false, {"list"}},
    {false, {"nodes"}},
    {false, {"counters"}},
    {false, {"checkpoints", "1"}},
    {true, {"events"}},
    {true, {"events", "1"}},
    {true, {"audit"}},
    {true, {"metrics", "1"}},
    {true, {"metrics", "1", "--plot"}},
    {true, {"metrics", "1", "2", "--plot"}},
    {false, {"report", "1", "--out", "-"}},
    {true, {"logs", "1"}},
    {true, {"logs", "1", "--rank", "0"}},
    {false, {"token", "list"}},
    {false, {"token", "create", "x"}},
    {false, {"version"}},
    {true, {"drain", "a", "b"}},
    {true, {"undrain", "a"}},
    {false, {"resize", "1", "2"}},
    {true, {"checkpoint", "1", "2"}},
    {true, {"cancel", "1", "2"}},
    {false, {"node", "forget", "a"}},
    {false, {"node", "revoke", "a"}},
};

static bool readable(const char *text, size_t len)
{
    struct json *root = NULL;
    const bool ok = json_parse(text, len, &root, NULL) == TITAN_OK;
    json_free(root);
    return ok;
}

/* Of a log tabs stay. */
static void check_text(char *text, size_t len, bool log)
{
    fuzz_assert(strlen(text) == len);
    for (char *c = text; *c && log; c++)
        *c = *c == '\t' ? ' ' : *c;
    for (char *line = text, *next; *line; line = next) {
        next = line + strcspn(line, "\n");
        fuzz_assert(text_unfit(line, (size_t)(next - line)) == (size_t)(next - line));
        next += *next != '\0';
    }
}

static void check_json(char *text, bool lines)
{
    for (const char *c = text; *c; c++)
        fuzz_assert((unsigned char)*c >= 0x20 || *c == '\n');
    if (!lines) {
        fuzz_assert(!*text || readable(text, strlen(text)));
        return;
    }
    for (char *line = text, *next; *line; line = next) {
        next = line + strcspn(line, "\n");
        fuzz_assert(readable(line, (size_t)(next - line)));
        next += *next != '\0';
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct args args;
    static bool ready;
    in = (struct fuzz_input){data, size};
    struct titan_error err = {0};
    char *argv[8] = {(char *)(uintptr_t) "titanctl"}, *text = NULL;
    size_t len = 0;
    int argc = 1;
    if (!ready)
        rpc_library_enter();
    ready = true;
    const uint64_t how = fuzz_take(&in, 1);
    const struct asked *a = &asked[fuzz_take(&in, 1) % ARRAY_SIZE(asked)];
    struct ctl ctl = {.server = "unix:/nowhere", .json = how & 1, .online = true};
    for (int i = 0; i < 5 && a->words[i]; i++)
        argv[argc++] = (char *)(uintptr_t)a->words[i];
    fuzz_assert(args_parse(&titanctl, argc, argv, &args, &err) == TITAN_OK);
    FILE *terminal = stdout;
    stdout = open_memstream(&text, &len);
    fuzz_assert(stdout);
    const titan_status status = args.command->run(&ctl, &args, &err);
    (void)fclose(stdout);
    stdout = terminal;
    if (status != TITAN_OK)
        fuzz_assert(err.status == status && err.msg[0]);
    else if (ctl.json)
        check_json(text, a->lines);
    else
        check_text(text, len, strcmp(a->words[0], "logs") == 0);
    free(text);
    return 0;
}
