/* SPDX-License-Identifier: Apache-2.0 */
/* loop.h - titand's life: start, tick, drain, end. */
#ifndef TITAN_DAEMON_LOOP_H
#define TITAN_DAEMON_LOOP_H

#include "base/error.h"
#include "daemon/config.h"

/* Runs until SIGTERM or SIGINT. Returns TITAN_OK after an orderly end, else the reason why titand did not start. */
titan_status daemon_run(const struct daemon_config *config, struct titan_error *err) TITAN_MUST_USE;

#endif
