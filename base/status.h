/* SPDX-License-Identifier: Apache-2.0 */
/* status.h - the one list of outcomes.
 *
 * Every fallible function of Titan returns a titan_status: 0 or a negative code from this table. The table also says
 * what the outcome means to the outside: the gRPC status a server answers with, the exit code a command ends with, and
 * whether trying again can help. Nothing else maps codes. */
#ifndef TITAN_BASE_STATUS_H
#define TITAN_BASE_STATUS_H

#include <stdbool.h>

/* X(name, value, text, retryable, gRPC status, exit code)
 * Exit codes are a contract with scripts (docs/operations.md): 1 operation or job failed, 2 usage or bad input,
 * 3 not found, 4 server unreachable, 5 not permitted, 6 conflict or version, 7 cannot be placed, 75 device failed,
 * 124 timed out, 130 interrupted. */
#define TITAN_STATUS_MAP(X)                                                                                            \
    X(OK, 0, "ok", false, 0, 0)                                                                                        \
    X(EINVAL, -1, "invalid input", false, 3, 2)                                                                        \
    X(ENOTFOUND, -2, "not found", false, 5, 3)                                                                         \
    X(EEXIST, -3, "already exists", false, 6, 6)                                                                       \
    X(ECONFLICT, -4, "conflicts with the current state", false, 9, 6)                                                  \
    X(EVERSION, -5, "version not supported", false, 9, 6)                                                              \
    X(EUNREACHABLE, -6, "server unreachable", true, 14, 4)                                                             \
    X(EPERM, -7, "not permitted", false, 7, 5)                                                                         \
    X(EUNPLACEABLE, -8, "cannot be placed", false, 9, 7)                                                               \
    X(ENOMEM, -9, "out of memory", false, 8, 1)                                                                        \
    X(ENOSPC, -10, "no space left", false, 8, 1)                                                                       \
    X(ELIMIT, -11, "limit exceeded", true, 8, 1)                                                                       \
    X(EIO, -12, "input/output error", false, 13, 1)                                                                    \
    X(ECORRUPT, -13, "data is damaged", false, 15, 1)                                                                  \
    X(EREVOKED, -14, "epoch revoked", true, 10, 1)                                                                     \
    X(EPEER, -15, "peer vanished", true, 10, 1)                                                                        \
    X(ETIMEDOUT, -16, "timed out", true, 4, 124)                                                                       \
    X(ECANCELLED, -17, "cancelled", false, 1, 130)                                                                     \
    X(EAGAIN, -18, "try again", true, 14, 1)                                                                           \
    X(EUNSUPPORTED, -19, "not supported", false, 12, 2)                                                                \
    X(EDEVICE, -20, "device error", false, 13, 75)                                                                     \
    X(EJOB, -21, "job failed", false, 9, 1)                                                                            \
    X(EBUG, -22, "internal error", false, 13, 1)

typedef enum {
#define X(name, value, text, retryable, grpc, code) TITAN_##name = (value),
    TITAN_STATUS_MAP(X)
#undef X
} titan_status;

/* "EINVAL"; never NULL. */
const char *titan_status_name(titan_status status);
/* "invalid input"; never NULL. */
const char *titan_status_text(titan_status status);
bool titan_status_retryable(titan_status status);
int titan_status_grpc(titan_status status);
int titan_status_exit(titan_status status);
/* The first status in the table that answers with this gRPC code; TITAN_EBUG for one we never send. */
titan_status titan_status_from_grpc(int grpc);
/* errno of a system call as a status: ENOENT -> ENOTFOUND, ENOSPC -> ENOSPC, ... otherwise EIO. */
titan_status titan_status_from_errno(int sys_errno);

#define TITAN_MUST_USE __attribute__((warn_unused_result))

#endif
