/* SPDX-License-Identifier: Apache-2.0 */
/* path_pattern.h - paths of data that stand for several: glob(7)'s *, ?, [...], and {a,b} for either. Pure. */
#ifndef TITAN_BASE_PATH_PATTERN_H
#define TITAN_BASE_PATH_PATTERN_H

#include <stdbool.h>
#include <stddef.h>

/* By its letters alone: a file may have such a name, too. */
bool path_is_pattern(const char *path);
/* Bytes of the folder that all it stands for lies below, without the slash behind it ("/" but for the root): 0 where
 * that is the current one. Of a path that is no pattern all of it. */
size_t path_pattern_folder(const char *path);

#endif
