/* SPDX-License-Identifier: Apache-2.0 */
/* state_dir.h - the state directory of this machine's coordinator. */
#ifndef TITAN_CTL_STATE_DIR_H
#define TITAN_CTL_STATE_DIR_H

#include <limits.h>

#include "base/options.h"

/* The path `below` in --state-dir or the default: the unit's folder, root's, or the user's own. out has room for a name
 * of 30 more bytes. */
titan_status state_dir_path(const struct args *args, const char *below, char out[PATH_MAX],
                            struct titan_error *err) TITAN_MUST_USE;

#endif
