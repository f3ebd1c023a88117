/* SPDX-License-Identifier: Apache-2.0 */
/* path_pattern.h - data paths that match several files: glob(7)'s *, ?, [...], and {a,b} for alternatives. Pure. */
#ifndef TITAN_BASE_PATH_PATTERN_H
#define TITAN_BASE_PATH_PATTERN_H

#include <stdbool.h>
#include <stddef.h>

/* Is the path a pattern? Only the path's characters decide, although a file may have such a name. */
bool path_is_pattern(const char *path);
/* Length of the common folder of all matches, without the trailing slash ("/" for the root); 0 for the current folder.
 * For a path without pattern it is the whole length. */
size_t path_pattern_folder(const char *path);

#endif
