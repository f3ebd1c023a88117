/* SPDX-License-Identifier: Apache-2.0 */
/* help.h - help texts of the commands, made from their tables. */
#ifndef TITAN_CTL_HELP_H
#define TITAN_CTL_HELP_H

#include "base/buf.h"
#include "ctl/command.h"

void help_overview(struct buf *out); /* titanctl --help */
void help_man(struct buf *out);      /* titanctl(1), roff */

#endif
