/* SPDX-License-Identifier: Apache-2.0 */
/* client.h - a command's connection to the server and the terminal, and its printing of results. */
#ifndef TITAN_CTL_CLIENT_H
#define TITAN_CTL_CLIENT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "proto/rpc/client.h"
#include "proto/rpc/targets.h"
#include "titan/v1/titan.pb-c.h"

#define TITAN_METHOD(name) "/titan.v1.Titan/" name

struct command; /* base/options.h */
struct ctl {
    const struct command *command; /* the calling command; NULL in tests */
    char server[RPC_TARGETS_TEXT]; /* one address, or a list */
    bool json;
    bool color;                  /* on stdout */
    bool online;                 /* stdout is a terminal */
    struct rpc_channel *channel; /* opened by the first call */
    bool waited;                 /* the command has waited for a missing daemon */
    bool passed_reported;        /* the list's addresses that do not answer were reported */
};

struct args; /* base/options.h */

/* Sets output and server from the options, the environment and defaults; makes no call. */
titan_status ctl_set_up(struct ctl *ctl, const struct args *args, struct titan_error *err) TITAN_MUST_USE;

enum {
    CALL_MS = 30000,
    START_MS = 2000, /* wait for a starting daemon: nothing listens on its socket yet */
    GONE_MS = 30000, /* how long a waiting command tolerates a missing server */
};

/* Writes one address or a list: `given`, else $TITAN_SERVER, else the first socket that exists. The sockets are tried
 * in this order: of this user's titand, of the system's (/run/titan/titan.sock), of a titand that root started by
 * hand. */
titan_status ctl_server(const char *given, char *out, size_t cap, struct titan_error *err) TITAN_MUST_USE;

/* The bearer token for every call; "" = none. */
extern char ctl_token[];
/* Reads the token from `file`, or from $TITAN_TOKEN if no file is given. Without either, the token stays "".
 * TITAN_EPERM when others can read the file. */
titan_status ctl_load_token(const char *file, struct titan_error *err) TITAN_MUST_USE;

titan_status ctl_channel(struct ctl *ctl, struct titan_error *err) TITAN_MUST_USE;
/* Makes one call; the caller owns *ret (protobuf_c_message_free_unpacked). The error for a missing server tells how to
 * start one. */
titan_status ctl_call(struct ctl *ctl, const char *path, const ProtobufCMessage *request,
                      const ProtobufCMessageDescriptor *reply, void *ret, struct titan_error *err) TITAN_MUST_USE;
/* A call with a stream of replies. */
struct stream_call {
    const char *method;
    const ProtobufCMessage *request;
    const ProtobufCMessageDescriptor *reply;
    bool (*each)(const ProtobufCMessage *message, void *data); /* false: stop */
    void *data;
};
titan_status ctl_stream(struct ctl *ctl, const struct stream_call *call, struct titan_error *err) TITAN_MUST_USE;
/* Adds a hint to TITAN_EUNREACHABLE if no server answered. Other errors stay unchanged, also the answer of a server
 * that stops or is fenced. If this user may not open the socket, the status becomes TITAN_EPERM. */
void ctl_unreachable_hint(const char *server, struct titan_error *err);

titan_status ctl_job(struct ctl *ctl, uint64_t id, Titan__V1__GetJobResponse **ret,
                     struct titan_error *err) TITAN_MUST_USE;

void ctl_message_free(void *message_pointer); /* for _cleanup_: takes a pointer to any protobuf-c message pointer */
#define _cleanup_message_ _cleanup_(ctl_message_free)

/* Non-zero from the first SIGINT or SIGTERM on; a second signal ends the process with 130. */
extern volatile int ctl_interrupted;
void ctl_catch_interrupt(void);

/* titanctl node revoke, pki revoke: kind is "node/" or "", the prefix of the name. */
titan_status ctl_revoke(struct ctl *ctl, const char *kind, const char *name, const char *reason,
                        struct titan_error *err) TITAN_MUST_USE;
/* Prints a node of a reply as a line or as JSON; prints nothing for NULL. */
void output_node(const struct ctl *ctl, const Titan__V1__Node *node);

bool ctl_state_final(Titan__V1__JobState state);
const char *ctl_state_name(Titan__V1__JobState state); /* "RUNNING" */
/* Looks up a state by name, in any case; -1: no such state. */
int ctl_state_parse(const char *name);

#endif
