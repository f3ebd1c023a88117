/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/rpc/targets.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/un.h>

#define HINT "unix:PATH or HOST:PORT, as in unix:/run/titan/titan.sock or 127.0.0.1:7070"

/* Port of HOST:PORT; -1: malformed. */
static long port_of(const char *target)
{
    const char *colon = strrchr(target, ':');
    char *end = NULL;
    if (!colon || colon == target || colon[1] < '0' || colon[1] > '9')
        return -1;
    const long port = strtol(colon + 1, &end, 10);
    return *end == '\0' && port <= 65535 ? port : -1;
}

titan_status rpc_target_check(const char *target, struct titan_error *err)
{
    if (strncmp(target, "unix:", 5) == 0) {
        const size_t max = sizeof(((struct sockaddr_un *)NULL)->sun_path) - 1;
        if (target[5] == '\0')
            return titan_fail(err, TITAN_EINVAL, "address '%s' names no socket", target);
        if (strlen(target + 5) > max)
            return titan_fail(err, TITAN_EINVAL,
                              "socket path of %zu bytes is longer than the %zu a Unix socket may have",
                              strlen(target + 5), max);
        return TITAN_OK;
    }
    if (port_of(target) >= 0)
        return TITAN_OK;
    (void)titan_fail(err, TITAN_EINVAL, "'%s' is not an address", target);
    titan_error_hint(err, HINT);
    return TITAN_EINVAL;
}

void rpc_targets_report(char reported[RPC_TARGETS_TEXT], const char *target, const struct titan_error *why)
{
    const size_t len = strlen(reported), head = strlen(RPC_NO_ANSWER);
    const bool absent = strncmp(why->msg, RPC_NO_ANSWER, head) == 0; /* the address follows this prefix */
    (void)snprintf(reported + len, RPC_TARGETS_TEXT - len, "%s%s%s%s", len ? "; " : "", absent ? "" : target,
                   absent ? "" : ": ", absent ? why->msg + head : why->msg);
}

titan_status rpc_targets_parse(const char *text, struct rpc_targets *ret, struct titan_error *err)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_[]:%";
    ret->n = 0;
    if (strncmp(text, "unix:", 5) == 0 || !strchr(text, ',')) {
        TRY(rpc_target_check(text, err));
        if (strlen(text) >= RPC_TARGET_MAX)
            return titan_fail(err, TITAN_EINVAL, "an address of %zu bytes, at most %d are possible", strlen(text),
                              RPC_TARGET_MAX - 1);
        (void)snprintf(ret->at[ret->n++], RPC_TARGET_MAX, "%s", text);
        return TITAN_OK;
    }
    for (const char *at = text, *end; at; at = *end ? end + 1 : NULL) {
        at += strspn(at, " ");
        end = at + strcspn(at, ",");
        size_t len = (size_t)(end - at);
        while (len > 0 && at[len - 1] == ' ')
            len--;
        const size_t place = ret->n + 1;
        if (place > RPC_TARGETS_MAX)
            return titan_fail(err, TITAN_EINVAL, "address %zu, '%.*s', is one too many: at most %d", place,
                              (int)(len < 64 ? len : 64), at, RPC_TARGETS_MAX);
        char *to = ret->at[ret->n];
        const bool fits = len < RPC_TARGET_MAX;
        (void)snprintf(to, RPC_TARGET_MAX, "%.*s", (int)(fits ? len : 64), at);
        if (!fits || port_of(to) <= 0 || strspn(to, letters) != strlen(to)) {
            (void)titan_fail(err, TITAN_EINVAL, "address %zu, '%s', is not HOST:PORT", place, to);
            titan_error_hint(err, "several are written as a.example:7071,b.example:7071");
            return TITAN_EINVAL;
        }
        for (size_t i = 0; i < ret->n; i++)
            if (strcasecmp(ret->at[i], to) == 0)
                return titan_fail(err, TITAN_EINVAL, "address %zu, '%s', is address %zu once more", place, to, i + 1);
        ret->n++;
    }
    return TITAN_OK;
}
