/* SPDX-License-Identifier: Apache-2.0 */
#include "base/status.h"

#include <errno.h>
#include <stddef.h>

#include "base/cleanup.h"

struct status_row {
    int value;
    const char *name, *text;
    int grpc, exit_code;
};
static const struct status_row rows[] = {
#define X(name, value, text, grpc, code) {value, #name, text, grpc, code},
    TITAN_STATUS_MAP(X)
#undef X
};

/* Rows are ordered by value 0, -1, -2, ...; the unit test checks this. */
static const struct status_row *row_of(titan_status status)
{
    int i = -(int)status;
    if (i < 0 || (size_t)i >= ARRAY_SIZE(rows))
        return &rows[ARRAY_SIZE(rows) - 1];
    return &rows[i];
}

const char *titan_status_name(titan_status status)
{
    return row_of(status)->name;
}

const char *titan_status_text(titan_status status)
{
    return row_of(status)->text;
}

int titan_status_grpc(titan_status status)
{
    return row_of(status)->grpc;
}

int titan_status_exit(titan_status status)
{
    return row_of(status)->exit_code;
}

titan_status titan_status_from_grpc(int grpc)
{
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
        if (rows[i].grpc == grpc)
            return (titan_status)rows[i].value;
    return TITAN_EBUG;
}

titan_status titan_status_from_errno(int sys_errno)
{
    switch (sys_errno) {
    case 0:
        return TITAN_OK;
    case ENOENT:
    case ENOTDIR:
    case ESRCH:
        return TITAN_ENOTFOUND;
    case EEXIST:
    case ENOTEMPTY:
        return TITAN_EEXIST;
    case EACCES:
    case EPERM:
    case EROFS:
        return TITAN_EPERM;
    case ENOMEM:
        return TITAN_ENOMEM;
    case ENOSPC:
    case EDQUOT:
        return TITAN_ENOSPC;
    case EINVAL:
    case ENAMETOOLONG:
    case EISDIR:
    case ELOOP:
        return TITAN_EINVAL;
    case EMFILE:
    case ENFILE:
    case EFBIG:
    case EMSGSIZE:
        return TITAN_ELIMIT;
    case EAGAIN:
    case EINTR:
        return TITAN_EAGAIN;
    case EBUSY:
    case EADDRINUSE:
    case ETXTBSY:
        return TITAN_ECONFLICT;
    case ETIMEDOUT:
        return TITAN_ETIMEDOUT;
    case ECANCELED:
        return TITAN_ECANCELLED;
    case ECONNREFUSED:
    case EHOSTUNREACH:
    case ENETUNREACH:
    case EADDRNOTAVAIL:
        return TITAN_EUNREACHABLE;
    case ECONNRESET:
    case EPIPE:
    case ENOTCONN:
        return TITAN_EPEER;
    case ENOSYS:
    case EOPNOTSUPP:
    case EPROTONOSUPPORT:
    case EAFNOSUPPORT:
        return TITAN_EUNSUPPORTED;
    default:
        return TITAN_EIO;
    }
}
