/* SPDX-License-Identifier: Apache-2.0 */
/* state_dir.h - the state directory of this machine's coordinator. */
#ifndef TITAN_CTL_STATE_DIR_H
#define TITAN_CTL_STATE_DIR_H

#include <limits.h>

#include "base/options.h"

/* Writes the path of `below` in the state directory: --state-dir, or else the unit's folder, root's, or the user's own.
 * out keeps room for a name of 30 more bytes. */
titan_status state_dir_path(const struct args *args, const char *below, char out[PATH_MAX],
                            struct titan_error *err) TITAN_MUST_USE;

#endif
