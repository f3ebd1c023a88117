/* SPDX-License-Identifier: Apache-2.0 */
/* core_check.h - the invariants between two inputs. The check walks the whole core: for debug builds, and for the
 * simulation, which calls core_check() (core.h) after every input. */
#ifndef TITAN_DAEMON_COORDINATOR_INPUTS_CORE_CHECK_H
#define TITAN_DAEMON_COORDINATOR_INPUTS_CORE_CHECK_H

#include "daemon/coordinator/records/core_record.h"

#ifdef TITAN_DEBUG
#define CHECK_CORE(c) core_check(c)
#else
#define CHECK_CORE(c) ((void)0)
#endif

#endif
