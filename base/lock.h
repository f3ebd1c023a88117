/* SPDX-License-Identifier: Apache-2.0 */
/* lock.h - one owner per folder: an open file description lock on DIR/lock, with the owner's pid inside. */
#ifndef TITAN_BASE_LOCK_H
#define TITAN_BASE_LOCK_H

#include "base/error.h"

/* TITAN_ECONFLICT names the pid of the holder. The lock lasts until the descriptor is closed, and ends at exec
 * (CLOEXEC). */
titan_status lock_dir(const char *dir, int *ret_fd, struct titan_error *err) TITAN_MUST_USE;

#endif
