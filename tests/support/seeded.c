/* SPDX-License-Identifier: Apache-2.0 */
/* seeded.c - see seeded.h. */
#include "tests/support/seeded.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/rng.h"
#include "tests/support/sets.h"

static struct rng_key key;
static uint64_t drawn;

uint64_t seeded_seed(uint64_t fallback)
{
    static const char *const names[] = {"FUZZ_SEED", "SEED", "TITAN_TEST_SEED"};
    const char *text = NULL;
    for (size_t i = 0; i < sizeof(names) / sizeof(*names) && !text; i++)
        text = getenv(names[i]);
    const uint64_t seed = text ? strtoull(text, NULL, 0) : fallback ? fallback : (uint64_t)clock_wall_ms();
    printf("# TITAN_TEST_SEED=%llu\n", (unsigned long long)seed);
    return seed;
}

void seeded_open(const char *name, uint64_t fallback)
{
    key = rng_key(seeded_seed(fallback), name);
    drawn = 0;
}

uint32_t seeded_draw(uint32_t below)
{
    uint32_t words[4];
    rng_philox(key, drawn++, 0, words);
    return (uint32_t)((uint64_t)words[0] * below >> 32);
}

long seeded_rounds(long few, long all)
{
    const char *text = getenv("FUZZ_ROUNDS");
    return text ? strtol(text, NULL, 10) : sliced(few, all);
}
