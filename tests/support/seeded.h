/* SPDX-License-Identifier: Apache-2.0 */
/* seeded.h - random inputs of a test, which a seed repeats. */
#ifndef TITAN_TESTS_SUPPORT_SEEDED_H
#define TITAN_TESTS_SUPPORT_SEEDED_H

#include <stdint.h>

/* Draws follow from FUZZ_SEED, or else TITAN_TEST_SEED, or else `seed` (0: the time), and from `name`. Prints the seed.
 */
void seeded_open(const char *name, uint64_t seed);
uint32_t seeded_draw(uint32_t below);
/* How often: FUZZ_ROUNDS, or else `fallback`. */
long seeded_rounds(long fallback);

#endif
