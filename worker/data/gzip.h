/* SPDX-License-Identifier: Apache-2.0 */
/* gzip.h - writes bytes as a gzip file (RFC 1952). packed.h reads such files. */
#ifndef TITAN_WORKER_DATA_GZIP_H
#define TITAN_WORKER_DATA_GZIP_H

#include "base/buf.h"
#include "base/error.h"

/* Appends in to out, packed as one member. TITAN_EUNSUPPORTED: this build has no zlib (BARE=1). */
titan_status gzip_pack(const struct buf *in, struct buf *out, struct titan_error *err) TITAN_MUST_USE;

#endif
