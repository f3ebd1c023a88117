/* SPDX-License-Identifier: Apache-2.0 */
/* version.h - one version for everything. */
#ifndef TITAN_BASE_VERSION_H
#define TITAN_BASE_VERSION_H

#define TITAN_VERSION "0.1.0"

/* "0.1.0 (1a2b3c4d5e6f)": the commit is present in the three programs if git was available to the build; else
 * TITAN_VERSION. Two builds of one version differ here. */
extern const char titan_version[];

#endif
