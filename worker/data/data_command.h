/* SPDX-License-Identifier: Apache-2.0 */
/* data_command.h - titan-worker data: build, inspect and verify files of tokens. */
#ifndef TITAN_WORKER_DATA_DATA_COMMAND_H
#define TITAN_WORKER_DATA_DATA_COMMAND_H

#include "base/options.h"

extern const struct command data_command;

#endif
