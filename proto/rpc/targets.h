/* SPDX-License-Identifier: Apache-2.0 */
/* targets.h - the addresses of a server: one address, or several addresses of which one has the server at a time. */
#ifndef TITAN_PROTO_RPC_TARGETS_H
#define TITAN_PROTO_RPC_TARGETS_H

#include <stddef.h>

#include "base/error.h"

#define RPC_TARGETS_MAX 8
#define RPC_TARGET_MAX 256
#define RPC_TARGETS_TEXT (RPC_TARGETS_MAX * RPC_TARGET_MAX) /* size of a whole list */

struct rpc_targets {
    char at[RPC_TARGETS_MAX][RPC_TARGET_MAX];
    size_t n;
};

/* Checks "unix:PATH" or "HOST:PORT". Port 0 is only for listening. TITAN_EINVAL with the reason. */
titan_status rpc_target_check(const char *target, struct titan_error *err) TITAN_MUST_USE;
/* Parses "unix:PATH", "HOST:PORT", or several HOST:PORT: "a.example:7071,b.example:7071". TITAN_EINVAL names the wrong
 * or repeated entry and its position. No name is resolved. */
titan_status rpc_targets_parse(const char *text, struct rpc_targets *ret, struct titan_error *err) TITAN_MUST_USE;
/* Appends the result of one address to `reported`: "a.example:7071: Connection refused". */
void rpc_targets_report(char reported[RPC_TARGETS_TEXT], const char *target, const struct titan_error *why);
/* Prefix of the error when no server answers; the address and the cause follow. */
#define RPC_NO_ANSWER "no answer from the server at "

#endif
