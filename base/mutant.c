/* SPDX-License-Identifier: Apache-2.0 */
#include "base/mutant.h"

#ifdef TITAN_MUTANTS
enum mutant titan_mutant;
#else
typedef int mutant_none; /* a source file needs at least one declaration */
#endif
