/* SPDX-License-Identifier: Apache-2.0 */
/* distance.h - how far a misspelt word is from a known one, for "did you mean". */
#ifndef TITAN_BASE_DISTANCE_H
#define TITAN_BASE_DISTANCE_H

#include <stddef.h>

#define DISTANCE_TEXT_MAX 96

/* Levenshtein distance in bytes; texts longer than DISTANCE_TEXT_MAX are that far from everything. */
int text_distance(const char *a, const char *b);
/* What the person most likely meant: the nearest of n words within max(2, a third of its length); NULL when none is. */
const char *text_nearest(const char *word, const char *const *words, size_t n);

#endif
