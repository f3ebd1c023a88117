/* SPDX-License-Identifier: Apache-2.0 */
/* seeded.h - random inputs of a test, which a seed repeats. */
#ifndef TITAN_TESTS_SUPPORT_SEEDED_H
#define TITAN_TESTS_SUPPORT_SEEDED_H

#include <stdint.h>

/* TITAN_TEST_SEED, or FUZZ_SEED or SEED before it, or else `fallback` (0: the time). Prints it. */
uint64_t seeded_seed(uint64_t fallback);
/* Draws follow from the seed and from `name`. */
void seeded_open(const char *name, uint64_t fallback);
uint32_t seeded_draw(uint32_t below);
/* How often: FUZZ_ROUNDS, or else a slice in the fast set and all in the slow one (sets.h). */
long seeded_rounds(long few, long all);

#endif
