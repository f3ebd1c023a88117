/* SPDX-License-Identifier: Apache-2.0 */
/* client.h - what a command needs of the outside: the server, the terminal, and the way results are printed. */
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
    const struct command *command; /* that calls; NULL in tests */
    char server[RPC_TARGETS_TEXT]; /* one address, or a list */
    bool json;
    bool color;                  /* on stdout */
    bool online;                 /* stdout is a terminal */
    struct rpc_channel *channel; /* opened by the first call */
    bool waited;                 /* for a daemon that was not there */
    bool passed_reported;        /* that addresses of the list did not answer */
};

struct args; /* base/options.h */

/* Output and server as the options, the environment and defaults say; no call is made. */
titan_status ctl_set_up(struct ctl *ctl, const struct args *args, struct titan_error *err) TITAN_MUST_USE;

enum {
    CALL_MS = 30000,
    START_MS = 2000, /* for a daemon that may be starting: nothing listens on its socket yet */
    GONE_MS = 30000, /* a command that waits for something waits so long for a server that is gone */
};

/* One address or a list of them: given, else $TITAN_SERVER, else the first socket that is there: of this user's titand,
 * of the system's
 * (/run/titan/titan.sock), of a titand that root started by hand. */
titan_status ctl_server(const char *given, char *out, size_t cap, struct titan_error *err) TITAN_MUST_USE;

/* The bearer token to be sent with every call; "" = none. */
extern char ctl_token[];
/* It is in this file, else in $TITAN_TOKEN, else there is none. TITAN_EPERM when others can read the file. */
titan_status ctl_load_token(const char *file, struct titan_error *err) TITAN_MUST_USE;

titan_status ctl_channel(struct ctl *ctl, struct titan_error *err) TITAN_MUST_USE;
/* One call; *ret is the caller's (protobuf_c_message_free_unpacked). The error of a server that is not there says how
 * to start one. */
titan_status ctl_call(struct ctl *ctl, const char *path, const ProtobufCMessage *request,
                      const ProtobufCMessageDescriptor *reply, void *ret, struct titan_error *err) TITAN_MUST_USE;
titan_status ctl_stream(struct ctl *ctl, const char *path, const ProtobufCMessage *request,
                        const ProtobufCMessageDescriptor *reply,
                        bool (*each)(const ProtobufCMessage *message, void *data), void *data,
                        struct titan_error *err) TITAN_MUST_USE;
/* Does nothing for another status, nor when there is a server that says so itself: it stops, or is fenced. A socket
 * that this user may not open becomes TITAN_EPERM. */
void ctl_unreachable_hint(const char *server, struct titan_error *err);

titan_status ctl_job(struct ctl *ctl, uint64_t id, Titan__V1__GetJobResponse **ret,
                     struct titan_error *err) TITAN_MUST_USE;

void ctl_message_free(void *message_pointer); /* for _cleanup_: a pointer to any protobuf-c message pointer */
#define _cleanup_message_ _cleanup_(ctl_message_free)

/* From the first SIGINT or SIGTERM on non-zero; a second one ends the process with 130. */
extern volatile int ctl_interrupted;
void ctl_catch_interrupt(void);

/* titanctl node revoke, pki revoke: kind "node/" or "", before the name. */
titan_status ctl_revoke(struct ctl *ctl, const char *kind, const char *name, const char *reason,
                        struct titan_error *err) TITAN_MUST_USE;
/* A node as an answer has it, in a line or as JSON; nothing for NULL. */
void output_node(const struct ctl *ctl, const Titan__V1__Node *node);

bool ctl_state_final(Titan__V1__JobState state);
const char *ctl_state_name(Titan__V1__JobState state); /* "RUNNING" */
/* By name in any case; -1 for none. */
int ctl_state_parse(const char *name);

#endif
