/* SPDX-License-Identifier: Apache-2.0 */
/* waits.h - finds the actions on other streams that an action must wait for. */
#ifndef TITAN_WORKER_PROGRAM_WAITS_H
#define TITAN_WORKER_PROGRAM_WAITS_H

#include "worker/program/program.h"

/* Sets wait, n_waits and signal of every action, from the memory that its operands touch. Buffers must be placed. */
titan_status waits_derive(struct program *p, struct titan_error *err) TITAN_MUST_USE;

#endif
