/* SPDX-License-Identifier: Apache-2.0 */
/* state_dir.h - where the coordinator of this machine keeps its state. */
#ifndef TITAN_CTL_STATE_DIR_H
#define TITAN_CTL_STATE_DIR_H

#include <limits.h>

#include "base/options.h"

/* --state-dir, else the default: the unit's folder, root's, a user's own; and what is below it. There is room for a
 * name of 30 bytes behind it. */
titan_status state_dir_path(const struct args *args, const char *below, char out[PATH_MAX],
                            struct titan_error *err) TITAN_MUST_USE;

#endif
