/* SPDX-License-Identifier: Apache-2.0 */
#include "base/version.h"

/* A program is linked with one that has the commit (Makefile), so that a commit relinks three programs and not all. */
__attribute__((weak)) const char titan_version[] = TITAN_VERSION;
