/* SPDX-License-Identifier: Apache-2.0 */
/* status.h - the one list of outcomes.
 *
 * Every fallible function of Titan returns a titan_status: 0 or a negative code from this table. The table also maps
 * each outcome to the server's gRPC status and the command's exit code, and tells whether a retry can help. Nothing
 * else maps codes. */
#ifndef TITAN_BASE_STATUS_H
#define TITAN_BASE_STATUS_H

#include <stdbool.h>

/* X(name, value, text, gRPC status, exit code)
 * Exit codes are a contract with scripts (docs/operations.md): 1 operation or job failed, 2 usage or bad input,
 * 3 not found, 4 server unreachable, 5 not permitted, 6 conflict or version, 7 cannot be placed, 71 machine short,
 * 75 device failed, 124 timed out, 130 interrupted. */
#define TITAN_STATUS_MAP(X)                                                                                            \
    X(OK, 0, "ok", 0, 0)                                                                                               \
    X(EINVAL, -1, "invalid input", 3, 2)                                                                               \
    X(ENOTFOUND, -2, "not found", 5, 3)                                                                                \
    X(EEXIST, -3, "already exists", 6, 6)                                                                              \
    X(ECONFLICT, -4, "conflicts with the current state", 9, 6)                                                         \
    X(EVERSION, -5, "version not supported", 9, 6)                                                                     \
    X(EUNREACHABLE, -6, "server unreachable", 14, 4)                                                                   \
    X(EPERM, -7, "not permitted", 7, 5)                                                                                \
    X(EUNPLACEABLE, -8, "cannot be placed", 9, 7)                                                                      \
    X(ENOMEM, -9, "out of memory", 8, 1)                                                                               \
    X(ENOSPC, -10, "no space left", 8, 1)                                                                              \
    X(ELIMIT, -11, "limit exceeded", 8, 1)                                                                             \
    X(EIO, -12, "input/output error", 13, 1)                                                                           \
    X(ECORRUPT, -13, "data is damaged", 15, 1)                                                                         \
    X(EREVOKED, -14, "epoch revoked", 10, 1)                                                                           \
    X(EPEER, -15, "peer vanished", 10, 1)                                                                              \
    X(ETIMEDOUT, -16, "timed out", 4, 124)                                                                             \
    X(ECANCELLED, -17, "cancelled", 1, 130)                                                                            \
    X(EAGAIN, -18, "try again", 14, 1)                                                                                 \
    X(EUNSUPPORTED, -19, "not supported", 12, 2)                                                                       \
    X(EDEVICE, -20, "device error", 13, 75)                                                                            \
    X(EJOB, -21, "job failed", 9, 1)                                                                                   \
    X(EBUG, -22, "internal error", 13, 1)

typedef enum {
#define X(name, value, text, grpc, code) TITAN_##name = (value),
    TITAN_STATUS_MAP(X)
#undef X
} titan_status;

/* "EINVAL"; never NULL. */
const char *titan_status_name(titan_status status);
/* "invalid input"; never NULL. */
const char *titan_status_text(titan_status status);
int titan_status_grpc(titan_status status);
int titan_status_exit(titan_status status);
/* Exit code of an agent's titan-worker when titan_error_short() is true. EX_OSERR of sysexits.h. */
#define TITAN_EXIT_SHORT 71
/* The first status in the table with this gRPC code; TITAN_EBUG for a code that Titan never sends. */
titan_status titan_status_from_grpc(int grpc);
/* errno of a system call as a status: ENOENT -> ENOTFOUND, ENOSPC -> ENOSPC, ... otherwise EIO. */
titan_status titan_status_from_errno(int sys_errno);

#define TITAN_MUST_USE __attribute__((warn_unused_result))

#endif
