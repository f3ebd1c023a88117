/* SPDX-License-Identifier: Apache-2.0 */
/* installation.h - what an agent's state directory is known by, over its starts and at any address.
 *
 * The directory is locked by one agent at a time, which has taken over the workers of the one before. So an agent of
 * the same installation speaks for them, wherever it is reached now. A copy of the directory is another installation:
 * the number is bound to the directory and to the machine. */
#ifndef TITAN_DAEMON_AGENT_SHELL_INSTALLATION_H
#define TITAN_DAEMON_AGENT_SHELL_INSTALLATION_H

#include <stdint.h>

#include "base/error.h"
#include "daemon/agent/agent_core.h"

/* RUN_DIR/installation; drawn anew, and written, where the file is missing, damaged or of another directory. The
 * caller has locked the state directory. */
titan_status installation_read(const char *run_dir, uint8_t ret[INSTALLATION_BYTES],
                               struct titan_error *err) TITAN_MUST_USE;

#endif
