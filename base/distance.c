/* SPDX-License-Identifier: Apache-2.0 */
#include "base/distance.h"

#include <string.h>

#include "base/cleanup.h"

int text_distance(const char *a, const char *b)
{
    size_t n = strlen(a), m = strlen(b);
    int row[DISTANCE_TEXT_MAX + 1];
    if (n > DISTANCE_TEXT_MAX || m > DISTANCE_TEXT_MAX)
        return DISTANCE_TEXT_MAX;
    for (size_t j = 0; j <= m; j++)
        row[j] = (int)j;
    for (size_t i = 1; i <= n; i++) {
        int diagonal = row[0];
        row[0] = (int)i;
        for (size_t j = 1; j <= m; j++) {
            int above = row[j];
            int best = MIN(MIN(above, row[j - 1]) + 1, diagonal + (a[i - 1] != b[j - 1]));
            diagonal = above;
            row[j] = best;
        }
    }
    return row[m];
}

const char *text_nearest(const char *word, const char *const *words, size_t n)
{
    int best = MAX(2, (int)MIN(strlen(word), (size_t)DISTANCE_TEXT_MAX) / 3) + 1;
    const char *found = NULL;
    for (size_t i = 0; i < n; i++) {
        int d = text_distance(word, words[i]);
        if (d < best) {
            best = d;
            found = words[i];
        }
    }
    return found;
}
