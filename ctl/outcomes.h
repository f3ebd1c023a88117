/* SPDX-License-Identifier: Apache-2.0 */
/* outcomes.h - a command on several names: each name is tried, and the command's outcome is the worst of theirs. */
#ifndef TITAN_CTL_OUTCOMES_H
#define TITAN_CTL_OUTCOMES_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

/* Calls one() for each i below n, in turn. With several names, each failure is one line on stderr, and the final error
 * is "2 of 3 WHAT" with the worst status (by exit code, in the order of docs/operations.md). With one name, its error
 * becomes the command's error. A missing server or an interruption ends the loop. */
titan_status outcomes(size_t n, titan_status (*one)(void *data, size_t i, struct titan_error *err), void *data,
                      const char *what, struct titan_error *err) TITAN_MUST_USE;
bool outcome_worse(titan_status status, titan_status than);
/* Prints "titanctl: MESSAGE (HINT)" as one line on stderr, whatever the server's text contains. */
void outcome_print(const struct titan_error *err);

#endif
