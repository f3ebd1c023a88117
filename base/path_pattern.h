/* SPDX-License-Identifier: Apache-2.0 */
/* path_pattern.h - data paths that match several files: glob(7)'s *, ?, [...], and {a,b} for alternatives. Pure. */
#ifndef TITAN_BASE_PATH_PATTERN_H
#define TITAN_BASE_PATH_PATTERN_H

#include <stdbool.h>
#include <stddef.h>

/* Is the path a pattern? Only its characters decide. A file may have such a name, too. */
bool path_is_pattern(const char *path);
/* Length of the common folder of all matches, without the trailing slash ("/" for the root); 0 for the current folder.
 * A path without pattern returns its whole length. */
size_t path_pattern_folder(const char *path);

#endif
