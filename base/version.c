/* SPDX-License-Identifier: Apache-2.0 */
#include "base/version.h"

/* The programs link another definition, which has the commit (Makefile), so that a new commit relinks only three
 * programs. */
__attribute__((weak)) const char titan_version[] = TITAN_VERSION;
