/* SPDX-License-Identifier: Apache-2.0 */
/* distance.h - the distance between a misspelt and a known word, for "did you mean". */
#ifndef TITAN_BASE_DISTANCE_H
#define TITAN_BASE_DISTANCE_H

#include <stddef.h>

#define DISTANCE_TEXT_MAX 96

/* Levenshtein distance in bytes. A text longer than DISTANCE_TEXT_MAX has this distance from every text. */
int text_distance(const char *a, const char *b);
/* The nearest of n words within max(2, a third of the word's length); NULL when no word is that near. */
const char *text_nearest(const char *word, const char *const *words, size_t n);

#endif
