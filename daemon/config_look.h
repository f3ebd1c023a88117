/* SPDX-License-Identifier: Apache-2.0 */
/* config_look.h - looks at the settings that an operator wants checked (titanctl admin check): is the config file good
 * for a reload or the next start, and can [http] serve what it says? */
#ifndef TITAN_DAEMON_CONFIG_LOOK_H
#define TITAN_DAEMON_CONFIG_LOOK_H

#include "daemon/config.h"

/* config: a struct daemon_config, as it was at the start. Calls found() for each finding; text ends with the remedy if
 * it is wrong. Reads small files and tries to bind; any thread. */
void config_look(const void *config, void (*found)(void *data, const char *what, bool wrong, const char *text),
                 void *data);

#endif
