/* SPDX-License-Identifier: Apache-2.0 */
/* mutants.h - are deliberate bugs of the protocol (base/mutant.h) found, and how soon? */
#ifndef TITAN_TESTS_SIM_MUTANTS_H
#define TITAN_TESTS_SIM_MUTANTS_H

#include "tests/sim/rounds.h"

/* Each mutant, or the one that is named, within so many rounds at most. A table and 'N passed, N failed' on out; 0 when
 * all were found, and nothing without a mutant. */
int mutants_run(FILE *out, const struct rounds *rounds, const char *only);

#endif
