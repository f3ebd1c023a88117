/* SPDX-License-Identifier: Apache-2.0 */
#include "base/path_pattern.h"

#include <string.h>

#define MAGIC "*?[{"

bool path_is_pattern(const char *path)
{
    return strpbrk(path, MAGIC) != NULL;
}

size_t path_pattern_folder(const char *path)
{
    size_t n = strcspn(path, MAGIC);
    if (!path[n])
        return n;
    while (n > 0 && path[n - 1] != '/')
        n--;
    return n > 1 ? n - 1 : n;
}
