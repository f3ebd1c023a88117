/* SPDX-License-Identifier: Apache-2.0 */
/* installation.h - the id of an agent's state directory, the same over all starts and addresses.
 *
 * One agent at a time locks the directory and takes over its predecessor's workers. So an agent of the same
 * installation speaks for these workers, at any address. A copy of the directory is another installation, because the
 * id is bound to the directory and the machine. */
#ifndef TITAN_DAEMON_AGENT_SHELL_INSTALLATION_H
#define TITAN_DAEMON_AGENT_SHELL_INSTALLATION_H

#include <stdint.h>

#include "base/error.h"
#include "daemon/agent/agent_core.h"

/* Reads RUN_DIR/installation. Draws and writes a new id if the file is missing, damaged or from another directory. The
 * caller holds the lock of the state directory. */
titan_status installation_read(const char *run_dir, uint8_t ret[INSTALLATION_BYTES],
                               struct titan_error *err) TITAN_MUST_USE;

#endif
