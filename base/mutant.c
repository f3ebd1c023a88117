/* SPDX-License-Identifier: Apache-2.0 */
#include "base/mutant.h"

#ifdef TITAN_MUTANTS
enum mutant titan_mutant;
#else
typedef int mutant_none; /* a file needs a declaration */
#endif
