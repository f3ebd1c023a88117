/* SPDX-License-Identifier: Apache-2.0 */
#include "base/version.h"

/* A program links another definition with the commit (Makefile), so that a new commit relinks only three programs. */
__attribute__((weak)) const char titan_version[] = TITAN_VERSION;
