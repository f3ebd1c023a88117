/* SPDX-License-Identifier: Apache-2.0 */
/* outcomes.h - a command on several names: each is tried, and the worst outcome is the command's. */
#ifndef TITAN_CTL_OUTCOMES_H
#define TITAN_CTL_OUTCOMES_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

/* one() for each i below n, in turn. What goes wrong with one of several is one line on stderr each, and in the end
 * "2 of 3 WHAT" with the worst status (by its exit code, in the order of docs/operations.md); with a single one its
 * error is the command's. A server that is away, and an interruption, end it: the others would go the same way. */
titan_status outcomes(size_t n, titan_status (*one)(void *data, size_t i, struct titan_error *err), void *data,
                      const char *what, struct titan_error *err) TITAN_MUST_USE;
bool outcome_worse(titan_status status, titan_status than);
/* "titanctl: MESSAGE (HINT)" in one line on stderr, whatever a server put into it. */
void outcome_print(const struct titan_error *err);

#endif
